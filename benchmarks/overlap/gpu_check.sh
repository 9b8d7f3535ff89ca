#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# What pipelines behind matrix products need several GPUs for: their tests, with ranks that share
# one GPU, then `python -m benchmarks overlap`. Less than five minutes.
#
#   benchmarks/overlap/gpu_check.sh [OUTDIR]
#
# Logs and JSON go to OUTDIR (overlap_out if not given). PYTHON names another interpreter than
# python3. The exit status is 1 if a part failed; the other runs whatever became of it.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

out=${1:-overlap_out}
python=${PYTHON:-python3}
mkdir -p "$out"
export PYTHONPATH="$PWD${PYTHONPATH:+:$PYTHONPATH}" PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1

timeout -k 5 140 "$python" -m pytest -q -m gpu -p no:cacheprovider --tb=short --durations=3 \
    tests/gpu/test_overlap.py >"$out/tests.log" 2>&1
tests=$?
timeout -k 5 155 "$python" -m benchmarks overlap --seconds 120 --json "$out/overlap.json" \
    >"$out/overlap.log" 2>&1
overlap=$?

echo "---- tests: status $tests"
tail -n 60 "$out/tests.log"
echo "---- overlap: status $overlap"
cat "$out/overlap.log"
[[ $tests == 0 && $overlap == 0 ]]
