#!/usr/bin/env bash
# Installs what --config=cuda builds with into .cache/cuda: the toolkit's wheels where /usr/local/cuda
# has no CUDA 13 with all of it, and cuobjdump, with which tests look at machine code. No GPU and no driver is needed.
# Run by ./run, in the root of the repository, after setup.sh.
set -euo pipefail

readonly STAMP=.cache/cuda/.stamp
requirements=(third_party/python/cuda_tools.txt)
if ! /usr/local/cuda/bin/nvcc --version 2>/dev/null | grep -q 'release 13\.' ||
  [[ ! -f /usr/local/cuda/include/nccl.h || ! -f /usr/local/cuda/include/cublasLt.h ]]; then
  requirements+=(third_party/python/cuda_toolkit.txt)
fi
inputs=$(cat "${requirements[@]}" | sha256sum)
if [[ -f $STAMP && $(<$STAMP) == "$inputs" ]]; then
  exit
fi
printf '[setup] installing what CUDA code is built with into .cache/cuda: %s\n' "${requirements[*]}" >&2
rm -rf .cache/cuda
mkdir -p .cache/cuda
.venv/bin/python -m pip install --quiet --disable-pip-version-check --require-hashes --no-deps \
  --target .cache/cuda "${requirements[@]/#/--requirement=}"
printf '%s\n' "$inputs" >$STAMP
# Bazel looks at what lies in .cache when its server starts.
bazel shutdown >/dev/null 2>&1 || true
