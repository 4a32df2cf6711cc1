#!/usr/bin/env bash
# Prints the files that differ from where this branch left main: committed, staged, edited and new.
# On main itself, those of the last commit and what is not committed.
set -euo pipefail

base=
for main in origin/main origin/HEAD main; do
  base=$(git merge-base HEAD "$main" 2>/dev/null) && break
done
if [[ -z $base || $base == "$(git rev-parse HEAD)" ]]; then
  base=$(git rev-parse --verify --quiet HEAD~1 || git hash-object -t tree /dev/null)
fi
{
  git diff --name-only --diff-filter=d "$base"
  git ls-files --others --exclude-standard
} | sort -u
