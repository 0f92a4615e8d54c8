#!/usr/bin/env bash
# One round of reinforcement learning on tool calls, as you would type it.
#   examples/round.sh RUN ROUND MODEL [RECIPE]     RUN/corpus holds the imported tasks; rounds count from 1
set -euo pipefail
run=$1 round=$2 model=$3 config=(${4:+--config "$4"})
last=$run/round-$((round - 1)) here=$run/round-$round
history=() records=()

if [ "$round" -eq 1 ]; then # the first draw from the corpus
  toolsample curriculum "$run/corpus" -o "$last" "${config[@]}"
else
  history=(--history "$last/groups")
fi
if [ -d "$last/checkpoint.records" ]; then # none after a round without a kept group
  records=(--records "$last/checkpoint.records")
fi

toolsample rollout "$last/tasks" --model "$model" --round "$round" -o "$here/rollouts" "${config[@]}"
toolsample score "$last/tasks" "$here/rollouts" -o "$here/scores" "${config[@]}"
toolsample filter "$here/scores" "${history[@]}" -o "$here/groups" "${config[@]}"
toolsample curriculum "$run/corpus" --tasks "$last/tasks" --groups "$here/groups" --scores "$here/scores" \
  --rollouts "$here/rollouts" "${records[@]}" --state "$last/state.json" -o "$here" "${config[@]}" || {
  code=$?
  [ "$code" -eq 5 ] || exit "$code" # 5: no group was kept; the next draw is made, and the policy stays as it is
  exit 0
}
toolsample train "$here/rollouts" "$here/batch" --model "$model" -o "$here/checkpoint" "${config[@]}"
