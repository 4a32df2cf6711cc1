#!/usr/bin/env bash
# Each sanitizer of the build finds the bug it is there for, and no bug where there is none.
#   sanitizer_test.sh BUG REPORT...
# Runs planted_bugs with BUG; its output must hold REPORT.
set -uo pipefail

program=tests/toolchain/planted_bugs
status=0
while (($# >= 2)); do
  output=$("$program" "$1" 2>&1)
  code=$?
  if [[ $code == 0 || $output != *"$2"* ]]; then
    printf 'planted %s: exit code %d, expected "%s" in:\n%s\n' "$1" $code "$2" "$output"
    status=1
  fi
  shift 2
done
if ! output=$("$program" none 2>&1); then
  printf 'no bug planted, yet something was found:\n%s\n' "$output"
  status=1
fi
exit $status
