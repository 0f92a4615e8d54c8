"""What proof.py types: command lines by section, one a line; all paths are relative to its work folder."""

from __future__ import annotations

PROTOCOLS = "rlla hermes tool_n1 llama3 mistral qwen_xml pythonic openai json"
METHODS = "none rds rds-hard rds-mult rds-cond rds-sub dapo vcrl greso speed adarft pcl pools"
STAGES = "import rollout score filter curriculum train eval-bfcl inspect run report"

IMPORTS = """
import raw/bfcl -o import/bfcl
import raw/sharegpt.json raw/messages.jsonl -o import/two --turns last --license MIT --source both --split validation
import raw/sharegpt.json -o import/calls --turns calls --limit 1
import raw/broken.jsonl -o import/broken --broken reject --json
import raw/world/train.jsonl -o corpus --json
import raw/world/heldout_fresh.jsonl -o held --split validation
"""

ROUNDS = """
curriculum corpus -o r0 --tasks-per-round 32
rollout r0/tasks --model policy -n 4 --max-new-tokens 96 --round 1 --tasks-per-shard 12 -o r1/rollouts --json
score r0/tasks r1/rollouts --rewards all --component raw/own.py:brevity -o r1/scores --json
filter r1/scores -o r1/groups --json
curriculum corpus --tasks r0/tasks --groups r1/groups --scores r1/scores --rollouts r1/rollouts --state r0/state.json \
    -o r1 --tasks-per-round 32 --hard fewshot --hard-after 4 --json
train r1/rollouts r1/batch --model policy -o r1/checkpoint --lr 2e-4 --lr-schedule constant --steps 4 --json
rollout r1/tasks --model r1/checkpoint -n 4 --max-new-tokens 96 --round 2 -o r2/rollouts
score r1/tasks r2/rollouts --rewards toolrl_strict_lists,self_example -o r2/scores
filter r2/scores --history r1/groups -o r2/groups
curriculum corpus --tasks r1/tasks --groups r2/groups --scores r2/scores --rollouts r2/rollouts \
    --records r1/checkpoint.records --state r1/state.json -o r2 --tasks-per-round 32 --hard fewshot --mastery loss
train r2/rollouts r2/batch --model r1/checkpoint -o r2/checkpoint --lr 2e-4 --loss grpo --tasks r1/tasks
rollout held --model r2/checkpoint --temperature 0 -n 1 --max-new-tokens 96 -o greedy/rollouts
score held greedy/rollouts -o greedy/scores
rollout r0/tasks --model policy -n 2 --temperature 0.7 --top-p 0.9 --top-k 20 --min-p 0.02 --stop </tool_call> \
    --self-examples --max-prompt-tokens 330 --limit 8 --seed 5 -o settings/rollouts
rollout r0/tasks --backend replay -n 2 --tasks-per-shard 12 --shard 0/2 -o sliced/rollouts
rollout r0/tasks --backend replay -n 2 --tasks-per-shard 12 --shard 1/2 -o sliced/rollouts
score r0/tasks sliced/rollouts -o sliced/scores --shard 1/2
score r0/tasks sliced/rollouts -o sliced/scores --shard 0/2
filter sliced/scores -o sliced/groups
rollout r0/tasks --backend replay -n 3 -o topped
rollout r0/tasks --backend replay -n 5 -o topped
"""

SCORES = """
--values json
--values bfcl --match optimal
--values lenient --reading lenient
--values lenient:case=exact --lift all
--protocol auto --lift first_tag,free_response --rewards toolrl_smooth,overlong --step 40 --overlong-max 40
--ids raw/ids.txt
"""

CURRICULA = """
--weighting stage --stage-at 0.1 --stage-rounds 1 --hard drop --draw importance
--weighting sample --hard hint --draw rank --seed 3
--weighting none --hard fewshot --demo-source own --demo-for calls --shots-step 1 --draw epochs
--weighting weights --decay 0.5 --temperature 0.2 --mix category:multiple=0.5,parallel=0.2 --bonus 0.01
--reward tool_n1 --hard fewshot --hard-share 0.5 --shots-max 3 --demo-tokens 300
--reward brevity
"""

TRAININGS = """
--loss dr_grpo --advantage group_mean --loss-length 96 --steps 2 --entropy-bonus 0.01 --weight-decay 0.1
--loss gspo --advantage leave_one_out --steps 2 --layout padded --clip-low 3e-4 --clip-high 4e-4
--loss cispo --advantage gdpo --steps 1 --epochs 2 --lr-schedule cosine --mask-truncated --no-subtasks
--loss sapo --advantage group_std_floor --steps 2 --save-every 1 --keep 1 --lr-schedule linear --warmup-steps 1
--loss grpo --steps 2 --kl 0.05 --reference policy --kl-kind k2 --old-policy recompute --is-mode mask --token-budget 600
--lora-rank 4 --steps 2 --kl 0.02 --limit 40
"""

RUN = """
train r2/rollouts r2/batch --model t5/checkpoint -o adapted --lora-rank 4 --steps 1
train r0/tasks --objective sft --model policy -o taught --steps 2 --lr 1e-4 --json
run recipe.toml -o runs --dry-run --seed 0,1
run recipe.toml -o runs --json
run recipe.toml -o runs --json
report runs --json
report demo -o rounds.html
"""

RECIPE = """
[run]
corpus = "corpus"
model = "policy"
heldout = "held"
rounds = 2
[rollout]
n = 4
max_new_tokens = 96
[curriculum]
tasks_per_round = 8
[train]
lr = 2e-4
steps = 2
[arms.plain.filter]
method = "none"
[arms.plain.curriculum]
weighting = "none"
[arms.curated.filter]
[arms.curated.curriculum]
hard = "fewshot"
hard_after = 4
"""

RLLA = """
score rlla/tasks rlla/gold --rewards all -o rlla/gold-scores
filter rlla/gold-scores -o rlla/gold-groups
rollout rlla/tasks --backend replay --texts raw/spoilt.jsonl -n 5 --model policy -o rlla/rollouts
score rlla/tasks rlla/rollouts --rewards all -o rlla/scores
score rlla/tasks rlla/rollouts --reading lenient --match optimal --values bfcl -o rlla/lenient
filter rlla/scores -o rlla/groups
curriculum rlla/tasks --groups rlla/groups --scores rlla/scores -o rlla/next --hard fewshot --hard-after 5
curriculum rlla/tasks --groups rlla/groups --scores rlla/scores -o rlla/hint --hard hint --hard-after 5
inspect rlla/next/tasks
inspect rlla/rollouts -i 7
inspect rlla/scores rlla/lenient --diff
"""

LOOKS = """
inspect corpus import/rlla.json.rejects r1/rollouts r1/scores r1/groups r1/batch r1/tasks \
    r1/checkpoint.steps r1/checkpoint.records topped sliced/scores
inspect corpus import/rlla.json.rejects r1/rollouts r1/scores r1/groups r1/batch r1/tasks \
    r1/checkpoint.steps r1/checkpoint.records topped sliced/scores --json
inspect corpus import/rlla.json.rejects r1/rollouts r1/scores r1/groups r1/batch r1/tasks \
    r1/checkpoint.steps r1/checkpoint.records topped sliced/scores --validate
inspect r1/scores -i 2
inspect r1/scores -i -1 --json
inspect r1/scores -i 3 --full
inspect corpus -i 5
inspect r2/groups -i 1
inspect import/hammer.json r1/scores --validate --json
inspect r1/scores s2/scores --diff
inspect r1/scores s3/scores --diff --json
inspect r1
inspect . --json
inspect runs
"""

BAD = """
scroe corpus
--version
import nowhere.jsonl -o bad/a
import raw/broken.jsonl -o bad/a
import raw/binary.jsonl -o bad/a
import raw/own.py -o bad/a
import raw/xlam.json -o bad/a --format xlm
import raw/xlam.json -o bad/a --turns none
import raw/xlam.json -o bad/a --protocol herms
import raw/xlam.json -o bad/a --shard 0/2
import raw/xlam.json -o bad/a --dry-run
import raw/messages.jsonl -o import/xlam.json
import raw/xlam.json -o import/xlam.json
import raw/xlam.json -o import/xlam.json --split test
import raw/xlam.json -o import/xlam.json --split test --overwrite
import raw/xlam.json -o r1/scores
rollout corpus -o bad/a
rollout corpus --model ./nothing -o bad/a
rollout corpus --model torn -o bad/a
rollout corpus --model policy --temperature -1 -o bad/a
rollout corpus --backend replay --texts raw/foreign.jsonl -o bad/a
rollout r0/tasks --backend replay --dry-run -o bad/a
rollout r0/tasks --backend replay -n 2 -o topped
rollout r0/tasks --backend replay --temperature 0.5 -o topped
rollout r1/scores --backend replay -o bad/a
score r0/tasks nowhere -o bad/a
score r0/tasks r1/groups -o bad/a
score held r1/rollouts -o bad/a
score r0/tasks r1/rollouts -o r0/tasks/deep
score r0/tasks r1/rollouts -o bad/a --shard 3/3
score r0/tasks r1/rollouts -o bad/a --limit -1
score r0/tasks r1/rollouts -o bad/a --rewards toolrll
score r0/tasks r1/rollouts -o bad/a --values bfc
score r0/tasks r1/rollouts -o bad/a --lift nothing
score r0/tasks r1/rollouts -o bad/a --component raw/own.py:length
score r0/tasks r1/rollouts -o bad/a --dry-run --json
score r0/tasks r1/rollouts -o s1/scores --match greedy
score r0/tasks r1/rollouts -o s0/scores --values json
filter lost -o bad/a
filter cut -o bad/a
filter unfinished/scores -o bad/a
filter r1/scores/part-00000.parquet -o part/groups
filter r1/rollouts/part-00000.parquet -o bad/a
filter r1/scores -o bad/a --methd rds
filter r1/scores -o bad/a --method rdx
filter r1/scores -o bad/a --config typo.toml
filter r1/scores -o bad/a --config no.toml
filter r1/scores -o bad/a --dry-run
filter r1/scores --history r1/scores -o bad/a
filter r2/scores --history r2/groups -o bad/a
filter r1/scores -o r1/groups
filter r1/scores -o r1/groups --method dapo
curriculum corpus -o bad/a --dry-run
curriculum corpus --groups r1/groups -o bad/a
curriculum corpus -o bad/a --mix colour:red=1
curriculum corpus -o r0 --tasks-per-round 31
curriculum corpus --groups r1/groups --scores r1/scores --state nowhere.json -o bad/a
train r1/rollouts --model policy -o bad/a
train r1/rollouts r1/batch --model policy -o bad/a --dry-run
train r1/rollouts r1/batch --model policy -o bad/a --kl 0.1
train r1/rollouts r1/batch --model policy -o r1/checkpoint --lr 2e-4 --lr-schedule constant --steps 4
train r1/rollouts r1/batch --model policy -o r1/checkpoint --lr 1e-4
train import/when2call.jsonl --objective sft --model policy -o bad/a
train r1/rollouts r1/batch --tasks import/when2call.jsonl --model policy -o bad/a
run typo.toml -o bad/a
run recipe.toml -o bad/a --arm planer
run recipe.toml -o bad/a --seed one
run recipe.toml -o bad/a --corpus nowhere
run recipe.toml -o runs --heldout corpus
report nowhere
inspect nowhere
inspect r1/checkpoint
inspect raw
inspect r1/scores -i 4000
inspect r1/scores --id nobody
inspect r1/scores -i 1 --validate
inspect r1/scores --diff
inspect cut --validate
inspect lost --validate
"""

BFCL = """
eval-bfcl policy --categories simple_python,multiple,irrelevance --limit 4 --max-new-tokens 64 -o official --json
eval-bfcl policy --entries raw/world/bfcl --max-new-tokens 96 --limit 4 --compare r2/checkpoint -o bfcl
eval-bfcl policy --entries raw/world/bfcl --limit 1 --protocol prompting --max-new-tokens 64 -o prompting
eval-bfcl policy --version v3 --categories simple,live_simple --limit 3 --protocol rlla --max-new-tokens 64 -o v3
eval-bfcl policy --categories multi_turn_base --limit 1 --max-new-tokens 24 -o turns
eval-bfcl policy --entries raw/world/bfcl --max-new-tokens 96 --limit 4 --compare r2/checkpoint -o bfcl
inspect bfcl
inspect bfcl/entries
inspect bfcl/entries -i 1
inspect bfcl/entries --validate
"""
BAD_BFCL = """
eval-bfcl policy --entries raw/bfcl --max-new-tokens 64 -o bad/b
eval-bfcl policy --entries raw/world/bfcl --limit 2 --dry-run -o bad/b
eval-bfcl policy --entries raw/world/bfcl --limit 5 -o bfcl
eval-bfcl policy --entries nowhere -o bad/b
eval-bfcl policy --categories simpel -o bad/b
eval-bfcl policy --protocol herms -o bad/b
"""

OWN = "def brevity(answer):\n    return 1.0 / (1 + len(answer.text))\n"
