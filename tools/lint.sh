#!/usr/bin/env bash
# clang-tidy (.clang-tidy), with clang's thread-safety analysis.
#   lint.sh            all sources
#   lint.sh FILE...    these
#   lint.sh --ci [--within=SECONDS]
#                      all but *_test.cc that this branch or commit did not change. What changed comes
#                      first, then the others in another order every day, as far as the time goes
# Files that were clean, and are as they were, are not looked at again.
set -euo pipefail

tools/ide.sh
all_sources() {
  python3 -c '
import json
print("\n".join(sorted({entry["file"] for entry in json.load(open("compile_commands.json"))})))'
}
only_sources() { comm -12 <(sort -u) <(all_sources | sort); }

options=()
if [[ ${1:-} == --ci ]]; then
  [[ -z ${2:-} ]] || options=("$2")
  mapfile -t sources < <(
    tools/changed_files.sh | only_sources
    all_sources | grep -v '_test\.cc$' | shuf --random-source=<(yes "$(date +%F)")
  )
elif [[ $# != 0 ]]; then
  mapfile -t sources < <(printf '%s\n' "$@" | only_sources)
else
  mapfile -t sources < <(all_sources)
fi
[[ ${#sources[@]} != 0 ]] || exit 0
printf '%s\0' "${sources[@]}" | xargs -0 python3 tools/tidy.py "${options[@]}"
