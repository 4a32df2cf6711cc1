#!/usr/bin/env bash
# Makes the root of an image that runs a few programs and has nothing else: no shell, no package manager.
#   make_root.sh ROOT [--libraries-of=FILE]... [--library=FILE]... PROGRAM...
#
# ROOT/usr/bin gets the programs. /usr/lib/optshard gets the shared libraries given by --library, for programs that
# are added later, under the names that these ask for. Neither has debugging information. The shared libraries that
# they need, and those that the FILE of --libraries-of needs (a plugin that a program carries within itself), get the
# places that they have here, each with the copyright of its Debian package. Libraries of no package go to
# /usr/lib/optshard: LD_LIBRARY_PATH has to name it. The Dockerfiles run it in their first stage, and a test without a container
# engine runs it as well.
set -euo pipefail

readonly USER_ID=10001

fail() {
  printf 'make_root.sh: %s\n' "$*" >&2
  exit 1
}

[[ $# -ge 2 ]] || fail "usage: make_root.sh ROOT [--libraries-of=FILE]... [--library=FILE]... PROGRAM..."
root=$1
shift
programs=() added=() carriers=()
for argument in "$@"; do
  file=$argument
  case $argument in
    --libraries-of=*) file=${argument#*=} ;;
    --library=*) file=${argument#*=} added+=("$file") ;;
    *) programs+=("$file") ;;
  esac
  [[ -f $file ]] || fail "'$file' is no file: build it first"
  carriers+=("$file")
done

# The paths of the libraries of a file, the loader among them.
libraries_of() {
  local needed
  needed=$(ldd "$1") || fail "ldd cannot tell the libraries of '$1'"
  if grep -q 'not found' <<<"$needed"; then
    fail "a library of '$1' is not installed: $(grep 'not found' <<<"$needed" | head -n 1)"
  fi
  grep -oE '/[^ ]+ \(0x' <<<"$needed" | sed 's/ (0x$//'
}

# The copyrights of the packages that files come from. One question for all of them: dpkg reads all its lists for
# each. It knows some files with /usr before their names, and some without.
copy_copyrights() {
  local -a asked=()
  local file package
  for file in "$@"; do
    file=$(readlink -f "$file")
    asked+=("$file" "${file#/usr}")
  done
  { dpkg-query -S "${asked[@]}" 2>/dev/null || true; } | cut -d : -f 1 | sort -u | while read -r package; do
    if [[ -f /usr/share/doc/$package/copyright ]]; then
      install -D -m 644 "/usr/share/doc/$package/copyright" "$root/usr/share/doc/$package/copyright"
    fi
  done
}

# As Debian has it: what is below /lib lies below /usr/lib.
mkdir -p "$root"/{etc,proc,sys,dev,tmp,run/optshard,usr/bin,usr/lib,usr/lib64}
ln -sfn usr/lib "$root/lib"
ln -sfn usr/lib64 "$root/lib64"
chmod 1777 "$root/tmp"
listed=$(for file in "${carriers[@]}"; do libraries_of "$file" || exit 1; done)
mapfile -t libraries < <(sort -u <<<"$listed")
for library in "${libraries[@]}"; do
  case $library in
    /lib*) place=/usr$library ;;
    /usr/*) place=$library ;;
    *) place=/usr/lib/optshard/$(basename "$library") ;;
  esac
  install -D -m 755 "$library" "$root$place"
done
copy_copyrights "${libraries[@]}"
for library in "${added[@]}"; do
  name=$(objdump -p "$library" | awk '$1 == "SONAME" { print $2 }')
  [[ -n $name ]] || fail "'$library' has no name (SONAME) by which programs ask for it"
  install -D -m 755 "$library" "$root/usr/lib/optshard/$name"
  strip --strip-unneeded "$root/usr/lib/optshard/$name"
done
for program in "${programs[@]}"; do
  install -m 755 "$program" "$root/usr/bin/$(basename "$program")"
  strip --strip-unneeded "$root/usr/bin/$(basename "$program")"
done
printf 'root:x:0:0:root:/:/none\noptshard:x:%d:%d:optshard:/:/none\n' $USER_ID $USER_ID >"$root/etc/passwd"
printf 'root:x:0:\noptshard:x:%d:\n' $USER_ID >"$root/etc/group"
printf 'hosts: files dns\n' >"$root/etc/nsswitch.conf"
chown $USER_ID:$USER_ID "$root/run/optshard" 2>/dev/null || true
