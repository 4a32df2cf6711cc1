#!/usr/bin/env bash
# Builds what a GPU machine checks and packs it into a folder, which may be copied there: stripped
# programs, the few libraries that they need beside glibc, and check.py.
set -euo pipefail
cd "$(dirname "$(readlink -f "$0")")/../.."

readonly OUT=${1:-out/gpu_check}
readonly TARGETS=(
  //tests/server/update/cuda:kernels_on_device_test
  //tests/server/shard/engine:step_engine_on_gpu_test
  //tests/common/cuda:exported_memory_test
  //tests/common/dataplane:nccl_plane_device_test
  //benchmarks/gpu:optshard-bench-gpu-update
)

bazel build --ui_event_filters=-info,-stdout --noshow_progress --config=cuda "${TARGETS[@]}"
rm -rf "$OUT"
mkdir -p "$OUT/lib"
for target in "${TARGETS[@]}"; do
  built=bazel-bin/${target#//}
  strip -o "$OUT/${target##*:}" "${built/:/\/}"
  ldd "${built/:/\/}"
done | awk '$2 == "=>" && $3 ~ /^\// {print $3}' | sort -u |
  grep -Ev '/(libc|libm|libdl|librt|libpthread|ld-linux[^/]*)\.so' | while read -r library; do
  cp -L "$library" "$OUT/lib/"
done
cp tools/gpu_check/*.py "$OUT/"
du -sm "$OUT" | awk '{print $1 " MiB in " $2}' >&2
