#!/usr/bin/env bash
# Makes Debian packages and a tarball of the programs that need no LibTorch.
#   make_packages.sh OUT VERSION BUILT
#
# BUILT is the folder of what Bazel has built. Makes in OUT, and prints with their sizes:
#   optshard-coordinator_VERSION_amd64.deb   optshard-coordinator, optshard-checkpoint, the unit
#   optshard-server_VERSION_amd64.deb        optshard-server, the unit
#   optshard-run_VERSION_amd64.deb           optshard-run, which needs both
#   optshard-VERSION-debian12-amd64.tar.gz   the same files, to be unpacked at /
# Each program has its man page and its completion in bash.
set -euo pipefail

[[ $# == 3 ]] || {
  printf 'usage: make_packages.sh OUT VERSION BUILT\n' >&2
  exit 2
}
out=$1 version=$2 built=$3
coordinator=$built/server/coordinator/optshard-coordinator
checkpoint=$built/server/checkpoint/optshard-checkpoint
server=$built/server/node/optshard-server
launcher=$built/tools/launcher/optshard-run
# The server carries it within itself: it is only asked which libraries it needs.
plugin=$built/common/dataplane/gloo/optshard_gloo.so
source=$(cd "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/../.." && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
for file in "$coordinator" "$checkpoint" "$server" "$launcher" "$plugin"; do
  [[ -f $file ]] || {
    printf "make_packages.sh: '%s' is no file: build it first\n" "$file" >&2
    exit 1
  }
done

# The Debian packages whose libraries files need, as a line for "Depends".
dependencies_of() {
  mkdir -p "$work/shlibs/debian"
  printf 'Source: optshard\n\nPackage: optshard\nArchitecture: amd64\n' >"$work/shlibs/debian/control"
  local -a files=()
  local file
  for file in "$@"; do files+=(-e "$(readlink -f "$file")"); done
  (cd "$work/shlibs" && dpkg-shlibdeps --warnings=0 -O "${files[@]}") | sed 's/^shlibs:Depends=//'
}

# Puts programs below the root of a package, with what describes them.
#   fill ROOT PACKAGE PROGRAM...
fill() {
  local root=$1 package=$2 program name
  shift 2
  for program in "$@"; do
    name=$(basename "$program")
    install -D -m 755 "$program" "$root/usr/bin/$name"
    strip --strip-unneeded "$root/usr/bin/$name"
    python3 -B "$source/install/help_page.py" "$root/usr/bin/$name" "$version" "$root/usr/share"
    gzip -9 --no-name "$root/usr/share/man/man1/$name.1"
  done
  install -D -m 644 "$source/LICENSE" "$root/usr/share/doc/$package/copyright"
}

# Adds the unit of a package.
#   add_unit ROOT PACKAGE
add_unit() {
  local root=$1 package=$2
  install -D -m 644 "$source/deploy/systemd/$package@.service" "$root/usr/lib/systemd/system/$package@.service"
  install -D -m 644 "$source/deploy/systemd/optshard.sysusers" "$root/usr/lib/sysusers.d/$package.conf"
  install -D -m 644 "$source/deploy/systemd/example.env" "$root/usr/share/doc/$package/examples/JOB.env"
  mkdir -p "$root/DEBIAN"
  # Services that run keep on running the old program: an upgrade must not end a job.
  cat >"$root/DEBIAN/postinst" <<END
#!/bin/sh
set -e
if [ "\$1" = configure ]; then
  if command -v systemd-sysusers >/dev/null; then systemd-sysusers $package.conf; fi
  if [ -d /run/systemd/system ]; then systemctl daemon-reload; fi
fi
END
  cat >"$root/DEBIAN/prerm" <<END
#!/bin/sh
set -e
if [ "\$1" = remove ] && [ -d /run/systemd/system ]; then systemctl stop '$package@*.service'; fi
END
  chmod 755 "$root/DEBIAN/postinst" "$root/DEBIAN/prerm"
}

# Makes the package of a root.
#   pack ROOT PACKAGE DEPENDS DESCRIPTION
pack() {
  local root=$1 package=$2 depends=$3 description=$4
  mkdir -p "$root/DEBIAN"
  cat >"$root/DEBIAN/control" <<END
Package: $package
Version: $version
Architecture: amd64
Maintainer: the optshard developers <optshard@localhost>
Section: science
Priority: optional
Installed-Size: $(du -sk --exclude=DEBIAN "$root" | cut -f 1)
Depends: $depends
Description: $description
END
  dpkg-deb --root-owner-group --build "$root" "$out/${package}_${version}_amd64.deb" >/dev/null
}

mkdir -p "$out"
fill "$work/coordinator" optshard-coordinator "$coordinator" "$checkpoint"
fill "$work/server" optshard-server "$server"
fill "$work/run" optshard-run "$launcher"
tarball=$out/optshard-$version-debian12-amd64.tar.gz
add_unit "$work/coordinator" optshard-coordinator
add_unit "$work/server" optshard-server
mkdir "$work/all"
cp -a "$work"/{coordinator,server,run}/usr "$work/all/"
tar --create --gzip --file="$tarball" --owner=0 --group=0 --sort=name -C "$work/all" .
pack "$work/coordinator" optshard-coordinator "$(dependencies_of "$coordinator" "$checkpoint")" \
  "coordinator of sharded optimizers
 It decides who takes part in a training job and who owns what."
pack "$work/server" optshard-server "$(dependencies_of "$server" "$plugin")" \
  "shard server of sharded optimizers
 It keeps a share of a training job's optimizer state beside the trainers of a host."
pack "$work/run" optshard-run \
  "$(dependencies_of "$launcher"), optshard-coordinator (= $version), optshard-server (= $version)" \
  "launcher of jobs with sharded optimizers
 It starts coordinator, shard server and trainers, and ends or replaces them together."
du -h --apparent-size "$out"/optshard-{coordinator,server,run}_"$version"_amd64.deb "$tarball"
