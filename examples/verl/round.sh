#!/usr/bin/env bash
# Rounds around verl, one start of verl per round: our draw writes the data, verl trains one pass, its dump comes back.
# Usage: examples/verl/round.sh CORPUS MODEL RUN ROUNDS [further settings of verl, such as trainer.n_gpus_per_node=8]
#   VERL       what starts verl's trainer (default: python -m verl.trainer.main_ppo)
#   TASKS, BATCH, N   tasks per round, train_batch_size, completions per task (64, 64, 8); TASKS is a multiple of BATCH
#   PROMPT, RESPONSE  limits in tokens (4096, 1024);  METHOD  of `toolsample filter` (rds)
# On one node or many it is the same: RUN lies on a path that all nodes see, and this script runs where verl's driver
# runs. A killed round is made again; verl then goes on from its last whole checkpoint.
set -euo pipefail
corpus=$1 model=$2 run=$3 rounds=$4; shift 4
tasks=${TASKS:-64} batch=${BATCH:-64} n=${N:-8} prompt=${PROMPT:-4096} response=${RESPONSE:-1024} method=${METHOD:-rds}
here=$(cd "$(dirname "$0")" && pwd)
reward=$(python -c 'import toolsample_cli.bridges.trainer_reward as m; print(m.__file__)')
mkdir -p "$run"; run=$(cd "$run" && pwd)
[ $((tasks % batch)) -eq 0 ] || { echo "TASKS must be a multiple of BATCH: verl drops the rest of a pass" >&2; exit 2; }
steps=$((tasks / batch))
[ -e "$run/round-0.done" ] || { toolsample curriculum "$corpus" -o "$run/round-0" --tasks-per-round "$tasks"; touch "$run/round-0.done"; }

for ((k = 1; k <= rounds; k++)); do
    last=$run/round-$((k - 1)) now=$run/round-$k
    [ -e "$now.done" ] && continue
    before=$(((k - 1) * steps)) after=$((k * steps))
    rm -rf "$now"                                     # a round is made whole or again
    # Prompts over verl's limit would be cut from the left, tools first; a pass must fill its batches exactly.
    toolsample export "$last/tasks" --to verl -m "$model" --max-prompt-tokens "$prompt" -o "$now/train.parquet"
    rows=$(python -c 'import sys, polars; print(polars.scan_parquet(sys.argv[1]).select(polars.len()).collect().item())' "$now/train.parquet")
    [ "$rows" -eq "$tasks" ] || { echo "round $k: $rows of $tasks prompts fit in $prompt tokens; take long ones out of CORPUS" >&2; exit 3; }
    # A checkpoint past the last finished round is of a killed one; verl's loader state belongs to the old data file:
    # kept, it would skip rows of the new one. Weights, Adam and the step count stay.
    for folder in "$run"/checkpoints/global_step_*; do
        [ -e "$folder" ] || continue
        if [ "${folder##*_}" -gt "$before" ]; then rm -rf "$folder"; else rm -rf "$folder/data.pt" "$folder/transfer_queue"; fi
    done
    [ "$before" -eq 0 ] || echo "$before" >"$run/checkpoints/latest_checkpointed_iteration.txt"
    ${VERL:-python -m verl.trainer.main_ppo} \
        data.train_files="$now/train.parquet" data.val_files="$now/train.parquet" data.train_batch_size="$batch" \
        data.max_prompt_length="$prompt" data.max_response_length="$response" data.shuffle=false \
        actor_rollout_ref.model.path="$model" actor_rollout_ref.rollout.n="$n" algorithm.adv_estimator=grpo \
        reward.custom_reward_function.path="$reward" reward.custom_reward_function.name=compute_score \
        trainer.default_local_dir="$run/checkpoints" trainer.rollout_data_dir="$now/dump" trainer.resume_mode=auto \
        trainer.total_epochs=1000000 trainer.total_training_steps="$after" trainer.save_freq="$steps" \
        trainer.val_before_train=false trainer.test_freq=-1 "$@"
    [ -e "$run/checkpoints/global_step_$after" ] || { echo "round $k: verl ended without checkpoint global_step_$after" >&2; exit 1; }
    toolsample import-rollouts "$now/dump" --tasks "$last/tasks" -m "$model" --round "$k" --max-new-tokens "$response" -o "$now/rollouts"
    toolsample score "$last/tasks" "$now/rollouts" -o "$now/scores"
    history=(); [ "$k" -gt 1 ] && history=(--history "$last/groups")
    toolsample filter "$now/scores" "${history[@]}" --method "$method" -o "$now/groups"
    toolsample curriculum "$corpus" --tasks "$last/tasks" --groups "$now/groups" --scores "$now/scores" \
        --state "$last/state.json" --tasks-per-round "$tasks" -o "$now" || [ $? -eq 5 ] # 5: no group was kept
    touch "$now.done"
done
