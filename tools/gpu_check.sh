#!/usr/bin/env bash
# Packs into out/gpu_check what is checked on a machine with a GPU, below 64 MiB, and checks it where
# there is one. Elsewhere: copy the folder to such a machine and run `python3 check.py` in it. What it
# prints is JSON.
set -euo pipefail
cd "$(dirname "$(readlink -f "$0")")/.."

tools/gpu_check/pack.sh out/gpu_check
if command -v nvidia-smi >/dev/null && nvidia-smi -L >/dev/null 2>&1; then
  exec python3 out/gpu_check/check.py
fi
printf 'There is no GPU here: copy out/gpu_check to a machine with one, and run check.py there.\n' >&2
