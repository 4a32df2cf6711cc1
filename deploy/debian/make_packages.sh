#!/usr/bin/env bash
# Makes Debian packages and a tarball of the programs that need no LibTorch.
#   make_packages.sh OUT VERSION COORDINATOR CHECKPOINT SERVER GLOO_PLUGIN
#
# The last four are what Bazel has built. The server carries the plugin within itself: it is only asked which
# libraries it needs. Makes in OUT, and prints with their sizes:
#   optshard-coordinator_VERSION_amd64.deb   optshard-coordinator, optshard-checkpoint, the unit
#   optshard-server_VERSION_amd64.deb        optshard-server, the unit
#   optshard-VERSION-debian12-amd64.tar.gz   the same files, to be unpacked at /
set -euo pipefail

[[ $# == 6 ]] || {
  printf 'usage: make_packages.sh OUT VERSION COORDINATOR CHECKPOINT SERVER GLOO_PLUGIN\n' >&2
  exit 2
}
out=$1 version=$2 coordinator=$3 checkpoint=$4 server=$5 plugin=$6
source=$(cd "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/../.." && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
for file in "$coordinator" "$checkpoint" "$server" "$plugin"; do
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

# Puts the files of a package below its root: a unit, documents, and the programs.
#   fill ROOT PACKAGE UNIT PROGRAM...
fill() {
  local root=$1 package=$2 unit=$3 program
  shift 3
  for program in "$@"; do
    install -D -m 755 "$program" "$root/usr/bin/$(basename "$program")"
    strip --strip-unneeded "$root/usr/bin/$(basename "$program")"
  done
  install -D -m 644 "$source/deploy/systemd/$unit" "$root/usr/lib/systemd/system/$unit"
  install -D -m 644 "$source/deploy/systemd/optshard.sysusers" "$root/usr/lib/sysusers.d/$package.conf"
  install -D -m 644 "$source/LICENSE" "$root/usr/share/doc/$package/copyright"
  install -D -m 644 "$source/deploy/systemd/example.env" "$root/usr/share/doc/$package/examples/JOB.env"
}

# Makes the package of a root.
#   pack ROOT PACKAGE UNIT_NAME DESCRIPTION FILE_WITH_DEPENDENCIES...
pack() {
  local root=$1 package=$2 unit=$3 description=$4 depends
  shift 4
  depends=$(dependencies_of "$@")
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
if [ "\$1" = remove ] && [ -d /run/systemd/system ]; then systemctl stop '$unit@*.service'; fi
END
  chmod 755 "$root/DEBIAN/postinst" "$root/DEBIAN/prerm"
  dpkg-deb --root-owner-group --build "$root" "$out/${package}_${version}_amd64.deb" >/dev/null
}

mkdir -p "$out"
fill "$work/coordinator" optshard-coordinator optshard-coordinator@.service "$coordinator" "$checkpoint"
fill "$work/server" optshard-server optshard-server@.service "$server"
tarball=$out/optshard-$version-debian12-amd64.tar.gz
mkdir "$work/all"
cp -a "$work"/{coordinator,server}/* "$work/all/"
tar --create --gzip --file="$tarball" --owner=0 --group=0 --sort=name -C "$work/all" .
pack "$work/coordinator" optshard-coordinator optshard-coordinator "coordinator of sharded optimizers
 It decides who takes part in a training job and who owns what." "$coordinator" "$checkpoint"
pack "$work/server" optshard-server optshard-server "shard server of sharded optimizers
 It keeps a share of a training job's optimizer state beside the trainers of a host." "$server" "$plugin"
du -h --apparent-size "$out"/optshard-coordinator_"$version"_amd64.deb \
  "$out"/optshard-server_"$version"_amd64.deb "$tarball"
