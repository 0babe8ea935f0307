#!/usr/bin/env bash
# Runs every benchmark and writes its JSON (figures, yardstick, versions, host, commit) to benchmarks/results/ or to $1.
# With SB3_PYTHON set to an interpreter that has Stable-Baselines3, e2e runs it in turn with ours.
set -euo pipefail
cd "$(dirname "$0")/.."
out=${1:-benchmarks/results}
mkdir -p "$out"
zmqrl=.venv/bin/zmqrl
[ -x "$zmqrl" ] || bin/setup test
"$zmqrl" bench bus >"$out/bus.json"
"$zmqrl" bench sync >"$out/sync.json"
"$zmqrl" bench e2e ${SB3_PYTHON:+--sb3-python "$SB3_PYTHON"} >"$out/e2e.json"
echo "$out: bus.json sync.json e2e.json"
