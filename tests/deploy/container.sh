#!/usr/bin/env bash
# Runs a program as a container engine runs it in an image: in a root that is read only, as a user without rights,
# with the environment CONTAINER_ENVIRONMENT (NAME=VALUE...) and the volumes CONTAINER_VOLUMES (FOLDER:MOUNT_PATH...).
# As root, in mount and UTS namespaces of its own; CONTAINER_HOSTNAME is the name of its host there.
#   container.sh ROOT PROGRAM [ARGUMENT...]
set -euo pipefail
root=$1
shift
hostname "$CONTAINER_HOSTNAME"
mount --make-rprivate /
mount --bind "$root" "$root"
mount --bind /dev "$root/dev"
mount -t proc proc "$root/proc"
for volume in "${CONTAINER_VOLUMES[@]}"; do
  mkdir -p "$root${volume#*:}"
  mount --bind "${volume%%:*}" "$root${volume#*:}"
done
mount -o remount,bind,ro "$root"
exec env -i LD_LIBRARY_PATH=/usr/lib/optshard "${CONTAINER_ENVIRONMENT[@]}" \
  /usr/sbin/chroot --userspec=10001:10001 "$root" "$@"
