#!/usr/bin/env bash
# Writes compile_commands.json, and builds the generated headers that it refers to.
set -euo pipefail

output_base=$(bazel info --noshow_progress output_base 2>/dev/null)
protos=$(bazel query --noshow_progress 'filter("_generated$", kind(genrule, //...))' 2>/dev/null)
# shellcheck disable=SC2086  # Labels hold no spaces.
[[ -z $protos ]] || bazel build --noshow_progress --ui_event_filters=-info $protos
bazel aquery --noshow_progress --ui_event_filters=-info --noinclude_artifacts --output=jsonproto \
  'mnemonic("CppCompile", //...)' |
  python3 tools/compile_commands.py "$output_base" >compile_commands.json.new
mv compile_commands.json.new compile_commands.json
