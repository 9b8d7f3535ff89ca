#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# What needs a CUDA device: tests, compute-sanitizer, what plans cost, both demo blocks, functions
# that Thunder leaves to torch, the memory and time of a training step, and the kernels' times.
#
#   benchmarks/gpu_check.sh [OUTDIR [PART...]]
#
# Without names every part runs, whatever became of those before it; the exit status is 1 if one
# failed. Logs and JSON go to OUTDIR (gpu_check_out if not given). PYTHON names another interpreter than python3.
# The parts that only check run side by side; nothing else runs while a part measures time.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

out=${1:-gpu_check_out}
only=" ${*:2} "
python=${PYTHON:-python3}
mkdir -p "$out"
rm -f "$out"/*.log "$out"/*.status
export PYTHONPATH="$PWD${PYTHONPATH:+:$PYTHONPATH}" PYTHONUNBUFFERED=1 THUNDER_FUSER_STRICT=1
# Leave no compiled files in the tree.
export PYTHONDONTWRITEBYTECODE=1

# part NAME SECONDS COMMAND...: runs it under a time limit, with its output in NAME.log.
part() {
    local name=$1 limit=$2 start=$SECONDS status
    [[ $only == "  " || $only == *" $name "* ]] || return 0
    shift 2
    timeout -k 10 "$limit" "$@" >"$out/$name.log" 2>&1
    status=$?
    echo "$status $((SECONDS - start))" >"$out/$name.status"
}

# report NAME LINES: the end of its log, or a longer end if it failed.
report() {
    local status
    [[ -f $out/$1.status ]] || return 0
    read -r status _ <"$out/$1.status"
    echo "---- $1"
    tail -n "$([[ $status == 0 ]] && echo "$2" || echo 60)" "$out/$1.log"
}

find_sanitizer() {
    command -v compute-sanitizer && return
    local place
    for place in /usr/local/cuda*/bin /usr/local/cuda*/compute-sanitizer /opt/nvidia/*/; do
        [[ -x $place/compute-sanitizer ]] && echo "$place/compute-sanitizer" && return
    done
    return 1
}

# sanitize TOOL: without torch's caching, every tensor is an allocation with bounds of its own.
# API errors are left out: the CUDA bindings ask for newer driver functions than there are, and every
# call of ours is checked where it is made.
sanitize() {
    part "$1" 150 env PYTORCH_NO_CUDA_MEMORY_CACHING=1 "$sanitizer" --tool "$1" \
        --report-api-errors no --error-exitcode 9 --target-processes all --print-limit 20 \
        "$python" -m benchmarks sanitize --device cuda
}

"$python" - <<'PYTHON' || exit 1
import torch
from benchmarks.facts import facts
from benchmarks.report import facts_text
if not torch.cuda.is_available():
    raise SystemExit("no CUDA device")
print(facts_text(facts(torch.device("cuda"))))
PYTHON

parts=(tests)
part tests 420 "$python" -m pytest -n 4 -q -m gpu -p no:cacheprovider --tb=short \
    --durations=5 tests/runtime tests/gpu &
if sanitizer=$(find_sanitizer); then
    parts+=(memcheck racecheck)
    sanitize memcheck &
    sanitize racecheck &
else
    echo "compute-sanitizer was not found: memcheck and racecheck are left out"
fi
wait

parts+=(warm_path prices blocks functions train_step loss kernels kernels_training)
part warm_path 60 "$python" -m benchmarks warm_path --device cuda --compile \
    --json "$out/warm_path.json"
part prices 90 "$python" -m benchmarks prices --device cuda --json "$out/prices.json"
part blocks 150 "$python" -m benchmarks blocks --device cuda --json "$out/blocks.json"
part functions 60 "$python" -m benchmarks functions --device cuda --json "$out/functions.json"
part train_step 400 "$python" -m benchmarks train_step --device cuda --json "$out/train_step.json"
part loss 600 "$python" -m benchmarks loss --device cuda --cases llama-head,qwen-head,gemma-head,llama-4 --json "$out/loss.json"
# Above 200 s it begins no new point, and says which are left.
part kernels 240 "$python" -m benchmarks kernels --device cuda --sizes gate --budget 200 \
    --json "$out/kernels.json"
# With sums in the order that functions with gradients have.
part kernels_training 90 env THUNDER_FUSER_REPEATABLE=1 "$python" -m benchmarks kernels \
    --device cuda --ops '^(layer|rms)_norm_bwd$' --dtypes bf16 --sizes full --budget 70 \
    --json "$out/kernels_training.json"

report tests 15
for name in memcheck racecheck; do
    report "$name" 3
done
report warm_path 4
report prices 33
report blocks 6
report functions 11
report train_step 8
report loss 24
report kernels 150
report kernels_training 60

failed=0
for name in "${parts[@]}"; do
    [[ -f $out/$name.status ]] || continue
    read -r status seconds <"$out/$name.status"
    verdict=passed
    case $status in
        0) ;;
        124 | 137) verdict="FAILED: over its time limit" ;;
        *) verdict="FAILED: status $status" ;;
    esac
    [[ $status == 0 ]] || failed=1
    printf '%-16s %4d s  %s\n' "$name" "$seconds" "$verdict"
done
rm -f "$out"/*.status
exit "$failed"
