#!/usr/bin/env bash
# Formats all C++ sources; with --check, names those that differ and fails.
#   fmt.sh [--check] [FILE...]
set -euo pipefail

mode=(-i)
if [[ ${1:-} == --check ]]; then
  mode=(--dry-run -Werror)
  shift
fi
files=("$@")
if [[ ${#files[@]} == 0 ]]; then
  mapfile -t files < <(git ls-files --cached --others --exclude-standard -- '*.cc' '*.h')
fi
[[ ${#files[@]} == 0 ]] || clang-format-14 "${mode[@]}" "${files[@]}"
