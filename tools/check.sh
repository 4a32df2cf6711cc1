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

# A header is linted through the sources beside it that carry its name.
lint=()
for file in "${cxx[@]}"; do
  lint+=("$file" "${file%.*}.cc" "tests/${file%.*}_test.cc")
done
if [[ ${#lint[@]} != 0 ]]; then
  printf -- '-- lint\n'
  tools/lint.sh "${lint[@]}" || status=1
fi

printf -- '-- tests\n'
# Tests at most two edges away: the source's target, and the tests of that target.
tests=
if [[ ${#changed[@]} != 0 ]]; then
  tests=$(bazel query --keep_going --noshow_progress --order_output=no \
    "tests(rdeps(//..., set($(printf '"%s" ' "${changed[@]}")), 2))" 2>/dev/null)
fi
if [[ -n $tests ]]; then
  # shellcheck disable=SC2086  # Labels hold no spaces.
  bazel test --keep_going $tests || status=1
else
  printf 'no test depends on what changed\n'
fi
if [[ $status == 0 ]]; then
  printf 'check: fine\n'
else
  printf 'check: failed, see above\n'
fi
exit $status
