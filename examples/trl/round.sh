#!/usr/bin/env bash
# Rounds around TRL, one process of TRL per round: only files are shared, so the trainer may run on other machines.
# Usage: examples/trl/round.sh CORPUS MODEL RUN ROUNDS [options of grpo.py, such as --cpu --lr 2e-4]
# TRL_PYTHON: an interpreter with trl and toolsample (default: python). METHOD: of `toolsample filter` (default: rds).
set -euo pipefail
corpus=$1 model=$2 run=$3 rounds=$4; shift 4
here=$(dirname "$0") trl=${TRL_PYTHON:-python} method=${METHOD:-rds} tasks=${TASKS:-64}
[ -e "$run/round-0.done" ] || { toolsample curriculum "$corpus" -o "$run/round-0" --tasks-per-round "$tasks"; touch "$run/round-0.done"; }
for ((k = 1; k <= rounds; k++)); do
    last=$run/round-$((k - 1)) now=$run/round-$k
    policy=$model; [ "$k" -gt 1 ] && policy=$last/checkpoint
    [ -e "$now.done" ] && continue
    rm -rf "$now"                                     # a round is made whole or again
    toolsample export "$last/tasks" --to trl -m "$policy" -o "$now/train.jsonl"
    "$trl" "$here/grpo.py" "$now/train.jsonl" "$policy" "$now/checkpoint" --tasks "$tasks" "$@"
    toolsample import-rollouts "$now/checkpoint/completions" --tasks "$last/tasks" -m "$policy" --round "$k" -o "$now/rollouts"
    toolsample score "$last/tasks" "$now/rollouts" -o "$now/scores"
    history=(); [ "$k" -gt 1 ] && history=(--history "$last/groups")
    toolsample filter "$now/scores" "${history[@]}" --method "$method" -o "$now/groups"
    toolsample curriculum "$corpus" --tasks "$last/tasks" --groups "$now/groups" --scores "$now/scores" \
        --state "$last/state.json" --tasks-per-round "$tasks" -o "$now" || [ $? -eq 5 ] # 5: no group was kept
    touch "$now.done"
done
