#!/usr/bin/env bash
# Runs a program as a container engine runs it in an image: in a root that is read only, as a user without rights,
# with the socket's folder as a volume. As root, in a mount namespace of its own.
#   container.sh ROOT VOLUME PROGRAM [ARGUMENT...]
set -euo pipefail
root=$1 volume=$2
shift 2
mount --make-rprivate /
mount --bind "$root" "$root"
mount --bind /dev "$root/dev"
mount -t proc proc "$root/proc"
mount --bind "$volume" "$root/run/optshard"
mount -o remount,bind,ro "$root"
exec env -i LD_LIBRARY_PATH=/usr/lib/optshard "${CONTAINER_ENVIRONMENT[@]}" \
  /usr/sbin/chroot --userspec=10001:10001 "$root" "$@"
