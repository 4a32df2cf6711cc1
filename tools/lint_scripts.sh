#!/usr/bin/env bash
# Lints scripts: shell by shellcheck, Python by flake8 (.flake8).
#   lint_scripts.sh [FILE...]
set -euo pipefail

files=("$@")
if [[ ${#files[@]} == 0 ]]; then
  mapfile -t files < <(git ls-files --cached --others --exclude-standard)
fi
shell=() python=()
for file in "${files[@]}"; do
  [[ -f $file ]] || continue
  case $file in
    *.sh | run | .ci/run) shell+=("$file") ;;
    *.py) python+=("$file") ;;
  esac
done
status=0
[[ ${#shell[@]} == 0 ]] || shellcheck --external-sources "${shell[@]}" || status=1
[[ ${#python[@]} == 0 ]] || flake8 "${python[@]}" || status=1
printf 'lint of scripts: %d shell, %d Python\n' "${#shell[@]}" "${#python[@]}"
exit $status
