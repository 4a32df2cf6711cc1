# shellcheck shell=bash
# Stages of continuous integration: .ci/run and a test source this file.
#
#   OPTSHARD_CI_SECONDS   how long all stages together may take (default 5100)
#   stage NAME SECONDS COMMAND...
#                         runs a stage for at most SECONDS, or until the time for all is over
#   share_of_time PARTS KEEP
#                         the seconds of a stage that gets one of so many equal parts of the time that
#                         is left but for KEEP seconds
#   report_stages         prints how each stage ended
#   stages_passed         succeeds when every stage ran to its end and passed
#
# A stage that does not start, does not finish or is not reached has not passed.

BUDGET=${OPTSHARD_CI_SECONDS:-5100}
# A stage with less time than this is not started.
LEAST=${OPTSHARD_CI_LEAST_SECONDS:-60}
# After a stage was told to end, it has this long before it is killed.
GRACE=${OPTSHARD_CI_GRACE_SECONDS:-60}

STAGES_LOG=$(mktemp -d)
trap 'rm -rf "$STAGES_LOG"' EXIT
stages_run=0
stages_good=() stages_bad=()

# The last total line of a stage's output: "N passed, N failed, N skipped".
stage_total() {
  grep -oE '^[0-9]+ passed, [0-9]+ failed(, [0-9]+ skipped)?$' "$1" | tail -n 1
}

# What the stage says of what it left out.
stage_not_reached() { grep -oE '^NOT REACHED: [0-9]+ of [0-9]+ (targets|files)$' "$1" | tail -n 1; }

share_of_time() {
  local share=$(((BUDGET - SECONDS - $2) / $1))
  echo $((share > LEAST ? share : LEAST))
}

stage() {
  local name=$1 limit=$2 started=$SECONDS log status total left
  shift 2
  log=$STAGES_LOG/$stages_run
  # Made here: the stage may begin later than tail, which would not wait for it.
  : >"$log"
  stages_run=$((stages_run + 1))
  left=$((BUDGET - SECONDS))
  if ((left < LEAST)); then
    stages_bad+=("NOT RUN: $name (the time for all stages is over)")
    return
  fi
  ((limit < left)) || limit=$left
  printf '\n=== %s\n' "$name"
  # A file, not a pipe: a process that outlives its stage would keep a pipe open, and with it this
  # script. In the background, SIGINT would be ignored: hence SIGTERM.
  timeout --signal=TERM --kill-after="$GRACE" "$limit" "$@" >"$log" 2>&1 &
  tail --lines=+1 --follow --sleep-interval=0.2 --pid=$! "$log" 2>/dev/null
  wait $!
  status=$?
  total=$(stage_total "$log")
  local took missing
  missing=$(stage_not_reached "$log")
  took="$((SECONDS - started)) s${total:+: $total}${missing:+; $missing}"
  case $status in
    0) stages_good+=("passed: $name ($took)") ;;
    124 | 137)
      stages_bad+=("NOT FINISHED: $name (stopped or killed after $took)")
      # A Bazel server that is still busy would make the next stage wait for it.
      timeout --kill-after=5 60 bazel shutdown >/dev/null 2>&1
      ;;
    126 | 127) stages_bad+=("NOT STARTED: $name (exit code $status)") ;;
    *) stages_bad+=("FAILED: $name (exit code $status, $took)") ;;
  esac
}

report_stages() {
  printf '\n=== stages, %d s of %d\n' "$SECONDS" "$BUDGET"
  [[ ${#stages_good[@]} == 0 ]] || printf '%s\n' "${stages_good[@]}"
  [[ ${#stages_bad[@]} == 0 ]] || printf '%s\n' "${stages_bad[@]}"
  # The total of the first stage, which runs the plain tests, ends the output.
  local total
  total=$(stage_total "$STAGES_LOG/0" 2>/dev/null)
  total=$(grep -oE '^[0-9]+ passed, [0-9]+ failed' <<<"$total")
  printf '%s\n' "${total:-0 passed, 1 failed}"
}

stages_passed() { [[ $stages_run != 0 && ${#stages_bad[@]} == 0 ]]; }
