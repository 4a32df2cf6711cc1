#!/usr/bin/env bash
# Installs what building and testing need, each part only where it is missing:
#   1. Debian packages (apt-packages.txt)
#   2. .venv with LibTorch's wheel (third_party/python/requirements.txt)
#   3. .cache/digits/digits.csv.gz, out of scikit-learn's wheel
#   4. .cache/abseil for --config=tsan, .cache/protobuf for the libraries that ./run install
#      installs, and .cache/grpc_cli/grpc_cli for tests, from Debian's source packages
#   5. .cache/kubernetes, for tests of deploy/: kubectl out of Debian's package, and schemas
# Run by ./run, in the root of the repository.
set -euo pipefail

readonly PYTHON=.venv/bin/python
root=$PWD
changed=0

say() { printf '[setup] %s\n' "$*" >&2; }

# Whether the stamp beside a result was made from the same inputs.
#   current STAMP INPUT...
current() {
  local stamp=$1
  shift
  [[ -f $stamp && $(<"$stamp") == "$(cat "$@" | sha256sum)" ]]
}

write_stamp() {
  local stamp=$1
  shift
  cat "$@" | sha256sum >"$stamp"
  changed=1
}

as_root() {
  if [[ $(id -u) == 0 ]]; then
    "$@"
  elif command -v sudo >/dev/null; then
    sudo "$@"
  else
    say "not root and no sudo: please run as root: $*"
    return 1
  fi
}

debian_packages() {
  local -a wanted missing=()
  mapfile -t wanted < <(grep -v '^#' tools/setup/apt-packages.txt)
  local installed package
  installed=$(dpkg-query -W -f='${Package} ${db:Status-Status}\n' "${wanted[@]}" 2>/dev/null || true)
  for package in "${wanted[@]}"; do
    grep -qxF "$package installed" <<<"$installed" || missing+=("$package")
  done
  [[ ${#missing[@]} == 0 ]] && return
  say "installing ${#missing[@]} Debian packages: ${missing[*]}"
  as_root apt-get update -qq
  as_root env DEBIAN_FRONTEND=noninteractive \
    apt-get install -y -qq --no-install-recommends "${missing[@]}" >&2
  changed=1
}

libtorch() {
  local stamp=.venv/.stamp requirements=third_party/python/requirements.txt
  current $stamp $requirements && return
  say "installing LibTorch into .venv (a wheel of 530 MB)"
  # Debian's Python: the wheel is for its version, and another one may come first in PATH.
  [[ -x $PYTHON ]] || /usr/bin/python3 -m venv .venv
  $PYTHON -m pip install --quiet --disable-pip-version-check --require-hashes --no-deps \
    --requirement $requirements
  write_stamp $stamp $requirements
}

digits() {
  local stamp=.cache/digits/.stamp requirements=third_party/python/digits.txt
  current $stamp $requirements && return
  say "taking the handwritten digits out of scikit-learn's wheel"
  rm -rf .cache/digits
  mkdir -p .cache/digits/wheel
  $PYTHON -m pip download --quiet --disable-pip-version-check --require-hashes --no-deps \
    --only-binary :all: --dest .cache/digits/wheel --requirement $requirements
  $PYTHON -c '
import glob, sys, zipfile
[wheel] = glob.glob(".cache/digits/wheel/*.whl")
with zipfile.ZipFile(wheel) as archive, open(".cache/digits/digits.csv.gz", "wb") as out:
    out.write(archive.read("sklearn/datasets/data/digits.csv.gz"))
'
  rm -rf .cache/digits/wheel
  write_stamp $stamp $requirements
}

# apt with directories of our own, for source packages: no file of the machine changes, and root is
# not needed.
apt_private() {
  apt-get -o Dir::Etc::sourcelist=/dev/null -o Dir::Etc::sourceparts="$root/.cache/apt/sources" \
    -o Dir::State::lists="$root/.cache/apt/lists" -o Dir::Cache="$root/.cache/apt" \
    -o APT::Sandbox::User=root "$@"
}

# The machine's own Debian archives, as source entries.
prepare_source_packages() {
  [[ -d .cache/apt ]] && return
  mkdir -p .cache/apt/{sources,lists/partial,archives/partial}
  /usr/bin/python3 tools/setup/source_entries.py .cache/apt/sources
  apt_private update -qq
}

# Unpacks the source of the installed version of a binary package into a directory.
#   source_package BINARY DIRECTORY
source_package() {
  local binary=$1 directory=$2 source version
  prepare_source_packages
  read -r source version < <(dpkg-query -W -f='${source:Package} ${source:Version}\n' "$binary")
  rm -rf "$directory" "$directory.packed"
  mkdir -p "$directory.packed"
  (cd "$directory.packed" && apt_private source -qq "$source=$version" >/dev/null)
  mv "$directory.packed"/*/ "$directory"
  rm -rf "$directory.packed"
}

abseil() {
  local stamp=.cache/abseil/.stamp inputs=(tools/setup/setup.sh)
  current $stamp "${inputs[@]}" && return
  say "fetching abseil's Mutex and Notification, which --config=tsan compiles into tests"
  source_package libabsl-dev .cache/abseil-source
  rm -rf .cache/abseil
  mkdir -p .cache/abseil
  cp .cache/abseil-source/absl/synchronization/{mutex,notification}.cc .cache/abseil/
  rm -rf .cache/abseil-source
  write_stamp $stamp "${inputs[@]}"
}

protobuf() {
  local stamp=.cache/protobuf/.stamp inputs=(tools/setup/setup.sh)
  current $stamp "${inputs[@]}" && return
  say "fetching protobuf's source, which the installed libraries contain"
  source_package libprotobuf-dev .cache/protobuf-source
  rm -rf .cache/protobuf
  mkdir -p .cache/protobuf/google
  cp .cache/protobuf-source/cmake/libprotobuf{,-lite}.cmake .cache/protobuf/
  cp -r .cache/protobuf-source/src/google/protobuf .cache/protobuf/google/
  rm -rf .cache/protobuf-source
  write_stamp $stamp "${inputs[@]}"
}

grpc_cli() {
  local stamp=.cache/grpc_cli/.stamp inputs=(tools/setup/setup.sh tools/setup/build_grpc_cli.sh)
  current $stamp "${inputs[@]}" && return
  say "building grpc_cli, which Debian has no package of"
  source_package libgrpc++-dev .cache/grpc-source
  mkdir -p .cache/grpc_cli
  tools/setup/build_grpc_cli.sh .cache/grpc-source .cache/grpc_cli/grpc_cli
  rm -rf .cache/grpc-source
  write_stamp $stamp "${inputs[@]}"
}

# Not installed: another kubectl may be, and both would be /usr/bin/kubectl.
kubectl_of_debian() {
  local -a fetch=(apt-get download -qq kubernetes-client)
  (cd "$1" && { "${fetch[@]}" 2>/dev/null || { as_root apt-get update -qq && "${fetch[@]}"; }; })
  dpkg-deb --fsys-tarfile "$1"/kubernetes-client_*.deb | tar -x -C "$1" ./usr/bin/kubectl
  mv "$1"/usr/bin/kubectl .cache/kubernetes/kubectl
}

kubernetes_tools() {
  local stamp=.cache/kubernetes/.stamp requirements=third_party/python/kubernetes.txt
  local download=.cache/kubernetes/download
  current $stamp $requirements && return
  say "getting kubectl and the schemas of Kubernetes' objects, with which deploy/ is tested"
  rm -rf .cache/kubernetes
  mkdir -p $download .cache/kubernetes/schemas
  kubectl_of_debian $download
  $PYTHON -m pip download --quiet --disable-pip-version-check --require-hashes --no-deps \
    --only-binary :all: --dest $download --requirement $requirements
  $PYTHON -c '
import glob, re, sys, zipfile
[wheel] = glob.glob(sys.argv[1] + "/*.whl")
with zipfile.ZipFile(wheel) as archive:
    name = re.compile(r".*/v(\d+)\.(\d+)\.0-local-strict/_definitions\.json")
    found = {}
    for path in archive.namelist():
        version = name.fullmatch(path)
        if version:
            found[tuple(map(int, version.groups()))] = path
    for version in sorted(found)[-2:]:
        with open(".cache/kubernetes/schemas/v%d.%d.json" % version, "wb") as out:
            out.write(archive.read(found[version]))
' $download
  rm -rf $download
  write_stamp $stamp $requirements
}

rm -rf .cache/apt  # Of a set-up that was interrupted.
debian_packages
libtorch
digits
abseil
protobuf
grpc_cli
kubernetes_tools
rm -rf .cache/apt
# Bazel looks at what lies in .venv and .cache when its server starts.
if [[ $changed == 1 ]]; then
  bazel shutdown >/dev/null 2>&1 || true
fi
