#!/usr/bin/env bash
# Makes and removes the hosts of ./run cluster and of the benchmarks: network namespaces NAME-host0,
# NAME-host1 ... with an interface eth0 each (192.0.2.1, 192.0.2.2 ...), and NAME-switch between them.
#
#   cluster_hosts.sh make NAME HOSTS [RATE [DELAY]]   as tc writes them; "" is no limit, and no delay
#   cluster_hosts.sh remove NAME
#
# `make` removes what it has made where it fails.
set -euo pipefail
# Where tc and ip are; not everybody has it.
PATH+=:/usr/sbin:/sbin

fail() {
  printf 'cluster_hosts.sh: %s\n' "$1" >&2
  exit 2
}

remove() {
  local namespace
  for namespace in $(ip netns list | awk -v prefix="$1-" 'index($1, prefix) == 1 { print $1 }'); do
    ip netns delete "$namespace"
  done
}

add_namespace() {
  ip netns add "$1"
  ip -n "$1" link set lo up
}

limit_link() {
  local namespace=$1 rate=$2 delay=$3 parent=(root)
  if [[ -n $rate ]]; then
    tc -n "$namespace" qdisc add dev eth0 root handle 1: tbf rate "$rate" burst 1mb latency 50ms ||
      fail "tc does not take the rate \"$rate\"; expected one such as 1gbit"
    parent=(parent "1:")
  fi
  if [[ -n $delay ]]; then
    tc -n "$namespace" qdisc add dev eth0 "${parent[@]}" netem delay "$delay" limit 100000 ||
      fail "tc does not take the delay \"$delay\" (expected one such as 1ms), or this kernel has no netem"
  fi
}

make() {
  local name=$1 hosts=$2 host namespace
  add_namespace "$name-switch"
  ip -n "$name-switch" link add switch type bridge
  ip -n "$name-switch" link set switch up
  for ((host = 0; host < hosts; ++host)); do
    namespace=$name-host$host
    add_namespace "$namespace"
    ip -n "$namespace" link add eth0 type veth peer name "port$host" netns "$name-switch"
    # RFC 5737: nobody else has these.
    ip -n "$namespace" address add "192.0.2.$((host + 1))/24" dev eth0
    ip -n "$namespace" link set eth0 up
    ip -n "$name-switch" link set "port$host" master switch up
    limit_link "$namespace" "$3" "$4"
  done
}

case ${1:-} in
  make)
    readonly NAME=$2
    trap 'remove "$NAME"' EXIT
    make "$2" "$3" "${4:-}" "${5:-}"
    trap - EXIT
    ;;
  remove) remove "$2" ;;
  *) fail "expected \"make NAME HOSTS [RATE [DELAY]]\" or \"remove NAME\"" ;;
esac
