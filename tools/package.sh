#!/usr/bin/env bash
# Builds the Debian packages and the tarball. Run by ./run package, in the root of the repository.
#   package.sh [--version=V] [OUT]
set -euo pipefail

version=$(sed -n 's/^OPTSHARD_VERSION = "\(.*\)"$/\1/p' install/version.bzl) out=out/packages
for argument in "$@"; do
  case $argument in
    --version=?*) version=${argument#--version=} ;;
    -*)
      printf 'package.sh: unknown option %s; usage: package.sh [--version=V] [OUT]\n' "$argument" >&2
      exit 2
      ;;
    *) out=$argument ;;
  esac
done
bazel build --ui_event_filters=-info,-stdout --noshow_progress //server/coordinator:optshard-coordinator \
  //server/checkpoint:optshard-checkpoint //server/node:optshard-server //tools/launcher:optshard-run \
  //common/dataplane/gloo:optshard_gloo.so
exec deploy/debian/make_packages.sh "$out" "$version" bazel-bin
