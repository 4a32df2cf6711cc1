#!/usr/bin/env bash
# Builds what a GPU machine checks and packs it into a folder, which may be copied there: check.py and
# an archive of stripped programs, and of the few libraries that they need beside glibc and LibTorch.
set -euo pipefail
cd "$(dirname "$(readlink -f "$0")")/../.."

readonly OUT=${1:-out/gpu_check}
readonly TARGETS=(
  //tests/server/update/cuda:cublas_products_test
  //tests/server/update/cuda:kernels_on_device_test
  //tests/server/shard/engine:step_engine_on_gpu_test
  //tests/client:sharded_optimizer_on_gpu_test
  //tests/client:server_on_gpu_test
  //tests/common/cuda:exported_memory_test
  //tests/common/dataplane:nccl_plane_device_test
  //benchmarks/gpu:optshard-bench-gpu-update
  //benchmarks/gpu:optshard-bench-gpu-step
)

# oneDNN belongs to an object that lies in the programs: Muon's steps are compared with the CPU's.
bazel build --ui_event_filters=-info,-stdout --noshow_progress --config=cuda "${TARGETS[@]}" \
  //server/update/matrix:optshard_onednn.so
PROGRAMS=$(mktemp -d)
trap 'rm -rf "$PROGRAMS"' EXIT
mkdir "$PROGRAMS/lib"
for target in "${TARGETS[@]}"; do
  built=bazel-bin/${target#//}
  strip -o "$PROGRAMS/${target##*:}" "${built/:/\/}"
  ldd "${built/:/\/}"
done | cat - <(ldd bazel-bin/server/update/matrix/optshard_onednn.so) | awk '$2 == "=>" && $3 ~ /^\// {print $3}' | sort -u |
  grep -Ev '/(libc|libm|libdl|librt|libpthread|ld-linux[^/]*)\.so|/torch/lib/|/nvidia/' |
  while read -r library; do
    cp -L "$library" "$PROGRAMS/lib/"
  done
# Those that run LibTorch want the very version that they were built with.
.venv/bin/python -c 'import importlib.metadata as m; print(m.version("torch"))' >"$PROGRAMS/torch_version"

rm -rf "$OUT"
mkdir -p "$OUT"
# The same kernels are in most programs: the dictionary holds all of them.
tar -C "$PROGRAMS" -c . | xz --lzma2=preset=2,dict=192MiB >"$OUT/programs.tar.xz"
cp tools/gpu_check/*.py "$OUT/"
du -sm "$OUT" | awk '{print $1 " MiB in " $2}' >&2
