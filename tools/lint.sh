#!/usr/bin/env bash
# clang-tidy (.clang-tidy) over the given sources, or all; then shellcheck over the scripts.
#   lint.sh [FILE...]
set -euo pipefail

tools/ide.sh
mapfile -t sources < <(
  python3 -c '
import json, sys
known = {entry["file"] for entry in json.load(open("compile_commands.json"))}
wanted = set(sys.argv[1:])
print("\n".join(sorted(known & wanted if wanted else known)))' "$@"
)
status=0
if [[ -n ${sources[*]} ]]; then
  printf 'clang-tidy: %d files\n' "${#sources[@]}"
  printf '%s\0' "${sources[@]}" |
    xargs -0 -n 1 -P "$(nproc)" clang-tidy-14 --quiet -p . 2> >(grep -v 'warnings\? generated' >&2) ||
    status=1
fi
mapfile -t scripts < <(git ls-files -- run .ci/run '*.sh')
shellcheck "${scripts[@]}" || status=1
exit $status
