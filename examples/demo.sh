#!/usr/bin/env bash
# The whole chain on a CPU: a small world, a small policy, some rounds, and the score before and after.
#   make demo            (RUN, ROUNDS, POLICY and RECIPE may be set in the environment)
set -euo pipefail
cd "$(dirname "$0")/.."
run=${RUN:-runs/demo} rounds=${ROUNDS:-8} policy=${POLICY:-fixtures/policy} recipe=${RECIPE:-examples/dscl-small.toml}
export HF_HUB_OFFLINE=1 OMP_NUM_THREADS=${OMP_NUM_THREADS:-1} TOKENIZERS_PARALLELISM=false
started=$(date +%s)
rm -rf "$run"

evaluate() { # evaluate NAME MODEL: greedy answers on held-out tasks, and the official BFCL checker
  for kind in fresh phrasing tools; do
    toolsample rollout "$run/heldout-$kind" --model "$2" --temperature 0 -n 1 --max-new-tokens 160 -o "$run/$1/$kind/rollouts"
    toolsample score "$run/heldout-$kind" "$run/$1/$kind/rollouts" -o "$run/$1/$kind/scores"
  done
  toolsample eval-bfcl "$2" --entries "$run/raw/bfcl" --max-new-tokens 160 -o "$run/$1/bfcl"
}

python fixtures/make_tasks.py "$run/raw"
toolsample import "$run/raw/train.jsonl" -o "$run/corpus"
for kind in fresh phrasing tools; do
  toolsample import "$run/raw/heldout_$kind.jsonl" --split validation -o "$run/heldout-$kind"
done

evaluate before "$policy"
model=$policy
for round in $(seq 1 "$rounds"); do
  echo "== round $round of $rounds" >&2
  bash examples/round.sh "$run" "$round" "$model" "$recipe"
  if [ -d "$run/round-$round/checkpoint" ]; then model=$run/round-$round/checkpoint; fi
done
evaluate after "$model"

python examples/summarize.py "$run" --seconds $(($(date +%s) - started))
