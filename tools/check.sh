#!/usr/bin/env bash
# Before a commit: format, lint and tests of what changed. ./run test is the whole.
set -uo pipefail

mapfile -t changed < <(tools/changed_files.sh)
cxx=()
for file in "${changed[@]}"; do
  [[ $file == *.cc || $file == *.h ]] && cxx+=("$file")
done
status=0

printf -- '-- format: %d C++ files\n' "${#cxx[@]}"
[[ ${#cxx[@]} == 0 ]] || tools/fmt.sh --check "${cxx[@]}" || status=1

printf -- '-- lint\n'
[[ ${#changed[@]} == 0 ]] || tools/lint_scripts.sh "${changed[@]}" || status=1
# A header is linted through the sources beside it that carry its name.
lint=()
for file in "${cxx[@]}"; do
  lint+=("$file" "${file%.*}.cc" "tests/${file%.*}_test.cc")
done
[[ ${#lint[@]} == 0 ]] || tools/lint.sh "${lint[@]}" || status=1

printf -- '-- tests\n'
if [[ ${#changed[@]} == 0 ]]; then
  printf 'nothing changed\n'
elif ! tests=$(python3 tools/affected_tests.py "${changed[@]}"); then
  printf 'which tests depend on the changes is unknown: see above\n'
  status=1
elif [[ -z $tests ]]; then
  printf 'no test depends on what changed\n'
else
  # shellcheck disable=SC2086  # Labels hold no spaces.
  bazel test --keep_going $tests || status=1
fi
if [[ $status == 0 ]]; then
  printf 'check: fine\n'
else
  printf 'check: failed, see above\n'
fi
exit $status
