#!/usr/bin/env bash
# Uses this repository from a Bazel workspace of another one: builds and runs a small program that needs
# the client's options and a message, builds an update rule, and analyses the quickstart's trainer. With
# --train it builds that, too, which takes ten minutes, and trains with two ranks.
#   external_repository.sh [--train]
set -euo pipefail
[[ $# == 0 || $* == --train ]] || {
  printf 'usage: external_repository.sh [--train]\n' >&2
  exit 2
}
readonly TRAINS=${1:-}
cd "$(dirname "$(readlink -f "$0")")/.."

readonly ROOT=$PWD SOURCES=tests/external
work=$(mktemp -d)
# A Bazel server of its own, which goes with its folder.
bazel_there() { (cd "$work/user" && bazel --output_base="$work/output" "$@"); }
finish() {
  bazel_there shutdown >/dev/null 2>&1 || true
  chmod -R u+w "$work"
  rm -rf "$work"
}
trap finish EXIT

mkdir "$work/user"
sed "s|OPTSHARD_PATH|$ROOT|" "$SOURCES/WORKSPACE.user" >"$work/user/WORKSPACE"
cp "$SOURCES/BUILD.user" "$work/user/BUILD.bazel"
cp "$SOURCES/options.cc" "$work/user"
cp examples/quickstart/trainer.cc "$work/user"
# The first four are those of docs/deploy/install.md.
cat >"$work/user/.bazelrc" <<END
common --experimental_repository_disable_download
build --compilation_mode=opt
build --cxxopt=-std=c++17
build --force_pic
build --disk_cache=$HOME/.cache/optshard/bazel
END

# An update rule includes its own file, by a path that differs there.
bazel_there build --noshow_progress --ui_event_filters=-info //:options @optshard//server/update/rules:sgd
expected='rank 1 of 2, optshard.v1.ParameterSpace'
answer=$(RANK=1 WORLD_SIZE=2 "$work/user/bazel-bin/options")
if [[ $answer != "$expected" ]]; then
  printf 'external_repository.sh: the program says "%s", expected "%s"\n' "$answer" "$expected" >&2
  exit 1
fi
build=(--nobuild) done_to_it=analysed
[[ -z $TRAINS ]] || build=(--jobs=2) done_to_it=trained
bazel_there build --noshow_progress --ui_event_filters=-info "${build[@]}" //:trainer \
  @optshard//server/node:optshard-server
if [[ -n $TRAINS ]]; then
  # A port that was free a moment ago.
  port=$(python3 -c 'import socket; s = socket.create_server(("127.0.0.1", 0)); print(s.getsockname()[1])')
  export WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=$port
  RANK=0 timeout 120 "$work/user/bazel-bin/trainer" &
  RANK=1 timeout 120 "$work/user/bazel-bin/trainer"
  wait $!
fi
printf 'optshard as an external repository: the program said "%s", and the trainer was %s\n' \
  "$answer" "$done_to_it"
