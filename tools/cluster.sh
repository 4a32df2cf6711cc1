#!/usr/bin/env bash
# Several hosts on this machine: network namespaces with links between them. Runs a command there
# once for each rank, with torchrun's variables.
set -euo pipefail
# Where tc and ip are; not everybody has it.
PATH+=:/usr/sbin:/sbin
cd "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/.."

usage() {
  cat <<'END'
usage: ./run cluster [OPTION...] [-- COMMAND [ARGUMENT...]]

Makes hosts out of network namespaces, joined by a switch, and runs COMMAND on them once for each
rank, with the variables that torchrun sets; without a COMMAND the demo. With --ranks-per-host=1 it
may be a launcher, optshard-run or torchrun: other variables say which node it is on. Ends all ranks
when one fails, and removes the hosts at the end. Wants root.

  --hosts=N           how many hosts [2]
  --ranks-per-host=N  how many ranks each of them has [2]
  --rate=RATE         what a host's link sends at most, as tc writes it: 1gbit [no limit]
  --delay=TIME        how long a link takes one way, as tc writes it: 1ms [none]
END
}

fail() {
  printf './run cluster: %s\n' "$1" >&2
  exit 2
}

count() {
  if ! [[ $2 =~ ^[1-9][0-9]{0,2}$ ]] || (($2 > 200)); then
    fail "$1=$2: expected a number from 1 to 200"
  fi
}

hosts=2
ranks_per_host=2
rate=
delay=
while [[ $# -gt 0 ]]; do
  case $1 in
    --hosts=*) hosts=${1#*=} ;;
    --ranks-per-host=*) ranks_per_host=${1#*=} ;;
    --rate=*) rate=${1#*=} ;;
    --delay=*) delay=${1#*=} ;;
    --help | -h)
      usage
      exit 0
      ;;
    --)
      shift
      break
      ;;
    *) fail "unknown argument \"$1\"; put a command behind --, and see --help" ;;
  esac
  shift
done
count --hosts "$hosts"
count --ranks-per-host "$ranks_per_host"
[[ $# -gt 0 ]] || set -- bin/optshard-train-digits
[[ $EUID == 0 ]] || fail "only root can make network namespaces; run it with sudo"
for program in ip tc setsid; do
  command -v "$program" >/dev/null || fail "there is no $program; install iproute2 and util-linux"
done
command -v "$1" >/dev/null || fail "there is no command \"$1\""

readonly NAME=optshard-$$
children=()

# Also after an error half-way.
cleanup() {
  trap - EXIT
  trap '' INT TERM
  local child
  # Each is the leader of a group of its own.
  for child in "${children[@]}"; do kill -TERM -- "-$child" 2>/dev/null || true; done
  for child in "${children[@]}"; do
    for _ in {1..50}; do
      kill -0 -- "-$child" 2>/dev/null || break
      sleep 0.1
    done
    kill -KILL -- "-$child" 2>/dev/null || true
  done
  tools/cluster_hosts.sh remove "$NAME"
}
trap cleanup EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

tools/cluster_hosts.sh make "$NAME" "$hosts" "$rate" "$delay"

# RFC 5737: nobody else has these.
address() { printf '192.0.2.%d' "$(($1 + 1))"; }

# A proxy of the environment is not for them.
no_grpc_proxy=$(for ((host = 0; host < hosts; ++host)); do address "$host"; printf ,; done)
export no_grpc_proxy
export MASTER_PORT=29500 WORLD_SIZE=$((hosts * ranks_per_host)) LOCAL_WORLD_SIZE=$ranks_per_host
# From which launchers know their node.
export PET_NNODES=$hosts
export OPTSHARD_INTERFACE=eth0
MASTER_ADDR=$(address 0)
export MASTER_ADDR
for ((rank = 0; rank < WORLD_SIZE; ++rank)); do
  host=$((rank / ranks_per_host))
  RANK=$rank LOCAL_RANK=$((rank % ranks_per_host)) GROUP_RANK=$host PET_NODE_RANK=$host \
    OPTSHARD_NODE=host$host \
    setsid ip netns exec "$NAME-host$host" "$@" \
    > >(sed -u "s/^/[host $host rank $rank] /") 2>&1 &
  children+=($!)
done

declare -A rank_of=()
for rank in "${!children[@]}"; do rank_of[${children[$rank]}]=$rank; done
while ((${#rank_of[@]} > 0)); do
  status=0
  wait -n -p ended "${!rank_of[@]}" || status=$?
  rank=${rank_of[$ended]}
  unset "rank_of[$ended]"
  if ((status != 0)); then
    printf './run cluster: rank %d on host %d ended with status %d; ending the others\n' \
      "$rank" "$((rank / ranks_per_host))" "$status" >&2
    exit 1
  fi
done
