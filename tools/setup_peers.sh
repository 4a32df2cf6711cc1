#!/usr/bin/env bash
# Installs what only the peers of ./run bench need, into .venv beside LibTorch (some 2 GB).
set -euo pipefail

readonly WHEELS=benchmarks/peers/requirements.txt
readonly SOURCES=benchmarks/peers/requirements-source.txt
readonly STAMP=.venv/.peers-stamp

inputs=$(cat "$WHEELS" "$SOURCES" | sha256sum)
[[ -f $STAMP && $(<"$STAMP") == "$inputs" ]] && exit 0

printf '[setup] installing the peers of the benchmark into .venv (about 2 GB)\n' >&2
install=(.venv/bin/python -m pip install --quiet --disable-pip-version-check --require-hashes
  --no-deps)
"${install[@]}" --requirement "$WHEELS"
# DeepSpeed's Adam for CPUs and the communication that it loads at the start are compiled here. Otherwise each
# first use would compile them, for which a contestant has no time. No cache: the options are in no wheel's name.
DS_ACCELERATOR=cpu DS_BUILD_OPS=0 DS_BUILD_CPU_ADAM=1 DS_BUILD_SHM_COMM=1 \
  "${install[@]}" --no-build-isolation --no-cache-dir --requirement "$SOURCES"
printf '%s\n' "$inputs" >"$STAMP"
