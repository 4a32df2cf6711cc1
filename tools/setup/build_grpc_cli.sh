#!/usr/bin/env bash
# Builds grpc_cli against Debian's libraries.
#   build_grpc_cli.sh SOURCE_OF_GRPC OUTPUT
set -euo pipefail

source=$1
output=$(realpath "$2")
objects=$(mktemp -d)
trap 'rm -rf "$objects"' EXIT

cd "$source"
protoc --proto_path=. --cpp_out="$objects" \
  --grpc_out="$objects" --plugin=protoc-gen-grpc=/usr/bin/grpc_cpp_plugin \
  src/proto/grpc/reflection/v1alpha/reflection.proto

names=(cli_call cli_credentials grpc_cli grpc_tool proto_file_parser
  proto_reflection_descriptor_database service_describer string_ref_helper test_config_cc)
files=("$objects"/src/proto/grpc/reflection/v1alpha/*.cc)
for name in "${names[@]}"; do
  files+=("$PWD/test/cpp/util/$name.cc")
done
for file in "${files[@]}"; do
  printf '%s\0' -c "$file" -o "$objects/$(basename "$file" .cc).o"
done | xargs -0 -n 4 -P "$(nproc)" g++ -std=c++17 -O1 -w -I. -I"$objects"
# shellcheck disable=SC2046  # The flags are words.
g++ -o "$output" "$objects"/*.o -lprotoc \
  $(pkg-config --libs grpc++ protobuf absl_flags absl_flags_parse absl_synchronization)
