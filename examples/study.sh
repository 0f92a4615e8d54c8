#!/usr/bin/env bash
# The study of docs/study/README.md from nothing: a world, two starting policies, the arms of study-small.toml x five seeds from
# each, then the three questions asked afterwards. Four to five hours on one core. What is finished is not run again;
# `POLICIES=policy ARMS="uniform dscl" SEEDS=0,1 WHY=0` runs less of it.
#   bash examples/study.sh && python docs/study/study.py --collect runs/study/runs
set -euo pipefail
cd "$(dirname "$0")/.."
run=${RUN:-runs/study} recipe=${RECIPE:-examples/study-small.toml} seeds=${SEEDS:-0,1,2,3,4}
export HF_HUB_OFFLINE=1 OMP_NUM_THREADS=${OMP_NUM_THREADS:-1} TOKENIZERS_PARALLELISM=false

arm() { # arm NAME OUT CORPUS MODEL RECIPE SEEDS: all seeds of one arm
  toolsample run "$5" -o "$run/runs/$2" --corpus "$3" --heldout "$run/fresh" --model "$4" --arm "$1" --seed "$6"
}

if [ ! -d "$run/fresh" ]; then
  python fixtures/make_tasks.py "$run/raw" --n 128 --heldout 200 --seed 1
  toolsample import "$run/raw/train.jsonl" -o "$run/corpus"
  toolsample import "$run/raw/heldout_fresh.jsonl" --split validation -o "$run/fresh"
fi
start=$run/start
[ -d "$start/policy" ] || python fixtures/teach_examples.py policy "$start/policy"
[ -d "$start/policy-weak" ] || python fixtures/teach_examples.py policy-weak "$start/policy-weak" --beyond "$start/policy"

mkdir -p "$run"
sed 's/^lr = 1e-4/lr = 2e-4/; s/lr_floor = 1e-5/lr_floor = 2e-5/' "$recipe" > "$run/double-rate.toml"
fast=$run/double-rate.toml

for policy in ${POLICIES:-policy policy-weak}; do
  case $policy in policy) rate=$recipe ;; *) rate=$fast ;; esac
  for name in ${ARMS:-uniform dapo rds tdcl dscl dmhs set toolexpander everything}; do
    arm "$name" "$policy" "$run/corpus" "$start/$policy" "$rate" "$seeds"
    case $name in set | toolexpander | everything) ;; *) continue ;; esac
    for here in "$run/runs/$policy/$name"/seed-*; do # the same policies, not asked for examples
      toolsample rollout "$run/fresh" --model "$(ls -d "$here"/round-*/checkpoint)" --temperature 0 -n 1 \
        --max-new-tokens 160 -o "$here/plain/rollouts"
      toolsample score "$run/fresh" "$here/plain/rollouts" -o "$here/plain/scores"
    done
  done
done
[ "${WHY:-1}" = 1 ] || exit 0

# Is it the learning rate?
for name in uniform dscl; do arm "$name" policy-double-rate "$run/corpus" "$start/policy" "$fast" "$seeds"; done
# Is too little of the corpus mastered?
if [ ! -d "$run/mastered" ]; then
  python fixtures/make_tasks.py "$run/pool/raw" --n 1500 --heldout 50 --seed 2
  toolsample import "$run/pool/raw/train.jsonl" -o "$run/pool/tasks"
  toolsample rollout "$run/pool/tasks" --model "$start/policy" -n 8 --max-new-tokens 160 -o "$run/pool/rollouts"
  toolsample score "$run/pool/tasks" "$run/pool/rollouts" -o "$run/pool/scores"
  python examples/mastered.py "$run/pool"
  toolsample import "$run/pool/mastered.jsonl" -o "$run/mastered"
fi
for name in uniform dapo rds dscl; do
  arm "$name" policy-mastered "$run/mastered" "$start/policy" "$recipe" "$seeds"
done
# Do demonstrations stay too long? Do those that decline give the answer away?
arm fade policy-weak "$run/corpus" "$start/policy-weak" "$fast" 0,1,2
arm dmhs-calls policy-weak "$run/corpus" "$start/policy-weak" "$fast" "$seeds"
# Does the fine reward leave nothing to rescue?
for name in coarse coarse-dmhs; do
  arm "$name" policy-weak-coarse "$run/corpus" "$start/policy-weak" "$fast" 0,1,2
done
