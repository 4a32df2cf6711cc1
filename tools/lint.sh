#!/usr/bin/env bash
# clang-tidy (.clang-tidy), with clang's thread-safety analysis.
#   lint.sh            all sources
#   lint.sh FILE...    these
#   lint.sh --ci       all but *_test.cc that this branch or commit did not change
# Files that were clean, and are as they were, are not looked at again.
set -euo pipefail

tools/ide.sh
mapfile -t sources < <(python3 -c '
import json
print("\n".join(entry["file"] for entry in json.load(open("compile_commands.json"))))')
wanted=("$@")
if [[ ${1:-} == --ci ]]; then
  mapfile -t wanted < <(
    tools/changed_files.sh
    printf '%s\n' "${sources[@]}" | grep -v '_test\.cc$'
  )
fi
if [[ ${#wanted[@]} != 0 ]]; then
  mapfile -t sources < <(comm -12 <(printf '%s\n' "${sources[@]}" | sort -u) \
    <(printf '%s\n' "${wanted[@]}" | sort -u))
fi
[[ ${#sources[@]} != 0 ]] || exit 0
printf '%s\0' "${sources[@]}" | xargs -0 python3 tools/tidy.py
