#!/usr/bin/env bash
# Writes compile_commands.json, and builds the generated headers that it refers to.
set -euo pipefail

quiet=(--noshow_progress --ui_event_filters=-info)
# With the sources for GPUs, where there is what they include (tools/setup/cuda.sh).
configuration=()
[[ ! -f .cache/cuda/.stamp ]] || configuration=(--config=cuda)
output_base=$(bazel info "${quiet[@]}" output_base)
protos=$(bazel query "${quiet[@]}" 'filter("_generated$", kind(genrule, //...))')
# shellcheck disable=SC2086  # Labels hold no spaces.
[[ -z $protos ]] || bazel build "${quiet[@]}" "${configuration[@]}" $protos
bazel aquery "${quiet[@]}" "${configuration[@]}" --noinclude_artifacts --output=jsonproto \
  'mnemonic("CppCompile", //...)' |
  python3 tools/compile_commands.py "$output_base" >compile_commands.json.new
mv compile_commands.json.new compile_commands.json
