"""Every knob of every stage, declared once: default, range and meaning (standard library only).

A stage's dataclass is at once its command-line flags, its table in a recipe file and the record of how a
shard was made. Precedence: flag > recipe file > default.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from toolsample_cli.errors import ConfigError
from toolsample_cli.settings import checked, knob, refuse_unknown


@dataclass(frozen=True)
class ImportConfig:
    """`toolsample import`: raw files to tasks."""

    format: str = knob("auto", "raw format; `auto` decides by the keys of a file's first row and prints its choice")
    source: str = knob("", "name of the data set, stored in every row (default: the file's name)")
    split: str = knob(
        "auto",
        "split stored in every row; `auto`: test for benchmark formats, else train",
        choices=("auto", "train", "validation", "test"),
    )
    protocol: str = knob("auto", "how the model is to write its calls; `auto` takes the raw format's own")
    license: str = knob("", "licence of the data, stored in every row")
    turns: str = knob("every", "answers of a conversation that become tasks", choices=("every", "calls", "last"))
    broken: str = knob("stop", "what a line that is not JSON does", choices=("stop", "reject"))


@dataclass(frozen=True)
class RolloutConfig:
    """`toolsample rollout`: n completions a task, with token ids and logprobs."""

    backend: str = knob("transformers", "engine that generates", choices=("transformers", "vllm", "openai", "replay"))
    n: int = knob(8, "completions a task", low=1)
    temperature: float = knob(1.0, "sampling temperature; 0 is greedy", low=0.0)
    top_p: float = knob(1.0, "nucleus sampling mass; 1 is off", low=0.0, high=1.0)
    top_k: int = knob(0, "sample from the k likeliest tokens; 0 is off", low=0)
    min_p: float = knob(0.0, "drop tokens less likely than this share of the likeliest; 0 is off", low=0.0, high=1.0)
    generation_config: bool = knob(False, "take sampling settings left at their defaults from the model itself")
    stop: str = knob("", "text that ends a completion and stays in it, or a JSON list of such texts")
    max_new_tokens: int = knob(512, "longest completion in tokens", low=1)
    max_prompt_tokens: int = knob(
        0, "longer prompts become error rows, never truncated; 0: the model's own limit", low=0
    )
    seed: int = knob(0, "base seed; every (task, round, sample) derives its own from it", low=0)
    round: int = knob(0, "round of the loop these rollouts belong to", low=0)
    self_examples: bool = knob(False, "ask for self-made examples inside the thought (self-exemplifying thinking)")
    dtype: str = knob(
        "auto",
        "weights' type; `auto`: float32 on CPU, bfloat16 on GPU",
        choices=("auto", "float32", "bfloat16", "float16"),
    )
    device: str = knob("auto", "`auto`, `cpu`, `cuda`, `mps`")
    batch_tokens: int = knob(65536, "prompt and completion tokens generated together (transformers)", low=1)
    tasks_per_shard: int = knob(512, "tasks in one output shard", low=1)
    adapter: str = knob("", "folder of a LoRA adapter on top of the model (transformers, vllm)")
    tensor_parallel: int = knob(1, "vllm: GPUs that share one engine", low=1)
    gpu_memory: float = knob(0.9, "vllm: share of a GPU's memory it may take", low=0.05, high=1.0)
    base_url: str = knob("http://127.0.0.1:8000/v1", "openai: base URL of the server; several with commas between")
    tokenizer: str = knob("", "openai: folder or hub id of the served model's tokenizer (default: the model's name)")
    endpoint: str = knob(
        "auto",
        "openai: completions (token-exact) or chat; `auto` takes what the server has",
        choices=("auto", "completions", "chat"),
    )
    api_key_env: str = knob(
        "OPENAI_API_KEY", "openai: environment variable that holds the key, if the server wants one"
    )
    concurrency: int = knob(64, "openai: requests in flight", low=1)
    retries: int = knob(5, "openai: further attempts of a request that failed", low=0)
    timeout: float = knob(600.0, "openai: seconds one attempt may take", low=0.1)
    ray: str = knob("", "spread over a Ray cluster: its address, `auto` for the one this machine is in, or `local`")
    ray_engines: int = knob(1, "ray: engines, each in an actor of its own", low=1)
    ray_gpus: float = knob(0.0, "ray: GPUs of each engine", low=0.0)
    texts: str = knob("", "replay: file of {task_id, sample, text} (JSON lines or Parquet); default: the gold answers")


@dataclass(frozen=True)
class ScoreConfig:
    """`toolsample score`: reward components of every completion (ToolRL's reward by default)."""

    protocol: str = knob("task", "how calls are written; `task`: as each task says, `auto`: by each completion's marks")
    reading: str = knob(
        "strict",
        "which calls earn: what the trainer's own reader takes, or what the model meant",
        choices=("strict", "lenient"),
    )
    lift: str = knob("", "ToolRL's quirks that do not apply, comma-separated, or `all` (README: Names)")
    match: str = knob("greedy", "how predicted calls are paired with gold calls", choices=("greedy", "optimal"))
    values: str = knob("toolrl", "rule that compares values: toolrl, json, bfcl, lenient, or as in lenient:case=exact")
    rewards: str = knob("", "further rewards (README: Names), comma-separated, into extra_json; `all` for every one")
    component: str = knob("", "own components, comma-separated my_file.py:function, into extra_json")
    step: int = knob(0, "training step, for rewards that move with it", low=0)
    overlong_max: int = knob(1024, "tokens from which the over-long punishment is whole", low=1)
    overlong_buffer: int = knob(256, "tokens before that over which it grows", low=1)


@dataclass(frozen=True)
class FilterConfig:
    """`toolsample filter`: group statistics to importance, keep and reason."""

    method: str = knob(
        "rds",
        "selection method",
        choices=(
            "none",
            "rds",
            "rds-hard",
            "rds-mult",
            "rds-cond",
            "rds-sub",
            "dapo",
            "vcrl",
            "greso",
            "speed",
            "adarft",
            "pcl",
            "pools",
        ),
    )
    metric: str = knob(
        "exact",
        "what the pass-rate methods count: exactly right completions, or the scaled mean reward",
        choices=("exact", "reward"),
    )
    state_weight: float = knob(
        0.5, "lambda: weight of the state (unlearned share) against the potential (variance)", low=0.0, high=1.0
    )
    floor: float = knob(0.05, "epsilon: added to every importance, so that nothing is forgotten", low=0.0)
    kappa: float = knob(0.3, "vcrl keeps groups whose scaled variance is at least this", low=0.0, high=1.0)
    drop_flat: bool = knob(
        False, "leave out groups whose rewards are all equal, whatever the method: they carry no advantage"
    )
    activation_mean: float = knob(1.0, "selection starts once the mean reward has exceeded this ...")
    activation_batches: int = knob(7, "... for so many consecutive batches; 0: from the start", low=0)
    activation_tasks: int = knob(0, "tasks in one such batch; 0: a round is one batch", low=0)


@dataclass(frozen=True)
class CurriculumConfig:
    """`toolsample curriculum`: sub-task weights, hard tasks, the next draw."""

    tasks_per_round: int = knob(64, "tasks drawn for the next round", low=1)
    draw: str = knob(
        "auto",
        "how tasks are drawn; `auto` as the filter's method wants it",
        choices=("auto", "epochs", "importance", "rank"),
    )
    mix: str = knob(
        "", "shares of the draw, as in `category:simple=0.5,parallel=0.2` or `source:a=1,b=1`; the rest is free"
    )
    weighting: str = knob("weights", "task-based curriculum (TDCL)", choices=("weights", "stage", "sample", "none"))
    mastery: str = knob(
        "scores",
        "what tells mastery: the scores, or the share of training loss on a sub-task's tokens (needs --records)",
        choices=("scores", "loss"),
    )
    decay: float = knob(0.9, "rho: inertia of the mastery average", low=0.0, high=1.0)
    temperature: float = knob(0.5, "tau: lower moves more weight to the least mastered sub-task", low=1e-6)
    weight_low: float = knob(0.5, "smallest weight of a sub-task", low=0.0)
    weight_high: float = knob(2.0, "largest weight of a sub-task", low=0.0)
    stage_at: float = knob(
        0.9, "weighting = stage: mastery of a sub-task from which the next one may start", low=0.0, high=1.0
    )
    stage_rounds: int = knob(7, "weighting = stage: rounds in a row it must last", low=1)
    hard: str = knob(
        "keep", "what happens to tasks without a correct completion", choices=("keep", "drop", "fewshot", "hint")
    )
    hard_after: int = knob(10, "completions in a row, over visits, without a correct one that make a task hard", low=1)
    hard_share: float = knob(
        0.25, "share of a draw that hard tasks waiting in few-shot form take first", low=0.0, high=1.0
    )
    shots_step: int = knob(2, "demonstrations added to a hard task", low=1)
    shots_max: int = knob(4, "most demonstrations of one task", low=1)
    fade_at: float = knob(0.8, "share correct from which demonstrations are taken away again", low=0.0, high=1.0)
    demo_source: str = knob(
        "gold",
        "demonstrations: gold answers of other tasks, or only of tasks the model solved itself, with its own thoughts",
        choices=("gold", "own"),
    )
    demo_for: str = knob(
        "all",
        "hard tasks that get demonstrations; demonstrations that decline give away that a task wants no call",
        choices=("all", "calls"),
    )
    demo_tokens: int = knob(1024, "budget of one prompt's demonstrations, in tokens of about 4 bytes", low=1)
    reward: str = knob(
        "",
        "train on this further reward (of `score --rewards` or `--component`) in place of the weighted one; selection stays with the base reward",
    )
    bonus: float = knob(0.0, "self-exemplifying bonus (0.01 in ToolExpander); 0 is off", low=0.0)
    seed: int = knob(0, "seed of the draw", low=0)


@dataclass(frozen=True)
class TrainConfig:
    """`toolsample train`: optimizer steps from rollouts and batch."""

    objective: str = knob("grpo", "grpo: from scored rollouts; sft: gold answers of tasks", choices=("grpo", "sft"))
    loss: str = knob("dapo", "policy loss", choices=("grpo", "dapo", "dr_grpo", "gspo", "cispo", "sapo"))
    lr: float = knob(1e-6, "initial learning rate", low=0.0)
    lr_schedule: str = knob(
        "exponential", "learning rate over rounds", choices=("exponential", "constant", "cosine", "linear")
    )
    lr_decay: float = knob(
        0.7, "gamma of the exponential decay, per round (ToolExpander; value is our reading)", low=0.0, high=1.0
    )
    lr_decay_unit: str = knob("round", "what gamma counts", choices=("round", "step"))
    lr_floor: float = knob(1e-7, "smallest learning rate", low=0.0)
    lr_horizon: float = knob(10.0, "rounds until cosine and linear reach their end", low=0.01)
    warmup_steps: int = knob(0, "optimizer steps of linear warm-up", low=0)
    steps: int = knob(4, "optimizer steps a round; the batch is cut into so many mini-batches of whole groups", low=1)
    epochs: int = knob(1, "passes over the batch", low=1)
    clip_low: float = knob(0.2, "ratio clipped below 1 - clip_low", low=0.0, high=1.0)
    clip_high: float = knob(0.28, "ratio clipped above 1 + clip_high", low=0.0)
    dual_clip: float = knob(3.0, "largest ratio that a negative advantage is multiplied with; 0: off", low=0.0)
    cispo_cap: float = knob(5.0, "cispo: absolute upper bound of the ratio (not 1 + something), no lower one", low=0.0)
    loss_divide: str = knob(
        "auto",
        "what the summed loss is divided by, over the whole step; auto: as the loss was published",
        choices=("auto", "tokens", "rollouts", "constant"),
    )
    kl: float = knob(0.0, "coefficient of the KL term against the reference", low=0.0)
    kl_kind: str = knob("k3", "estimator of the KL a token", choices=("k1", "k2", "k3"))
    reference: str = knob("", "reference policy of the KL term; with lora and none given: the model without adapter")
    entropy_bonus: float = knob(0.0, "coefficient of the entropy in the loss", low=0.0)
    old_policy: str = knob(
        "stored",
        "what the ratio is taken against: stored logprobs, or this model's own at the start of the round (decoupled)",
        choices=("stored", "recompute"),
    )
    is_cap: float = knob(2.0, "recompute: largest importance weight of recomputed over stored; 0: no weight", low=0.0)
    is_mode: str = knob(
        "truncate", "recompute: weights above the cap are cut to it or masked", choices=("truncate", "mask")
    )
    max_grad_norm: float = knob(1.0, "gradient clipping; 0 is off", low=0.0)
    weight_decay: float = knob(0.0, "AdamW's weight decay", low=0.0)
    lora_rank: int = knob(0, "train an adapter of this rank instead of all weights (needs peft); 0: off", low=0)
    lora_alpha: float = knob(32.0, "scale of the adapter: alpha / rank", low=0.0)
    lora_targets: str = knob("all-linear", "comma-separated names of adapted layers; all-linear: all but the head")
    lora_4bit: bool = knob(
        False, "lora: keep the base's linear layers in 4 bits (QLoRA; needs toolsample[qlora], one device)"
    )
    merge: bool = knob(True, "lora: the checkpoint holds merged weights, so that any engine loads it")
    loss_length: int = knob(0, "constant length that dr_grpo divides by; 0: max_new_tokens of the rollouts", low=0)
    max_refused: int = knob(
        3, "steps with a non-finite gradient are skipped; so many of them end the round; 0: never", low=0
    )
    advantage: str = knob(
        "group_std",
        "how rewards become advantages",
        choices=("group_std", "group_std_floor", "group_mean", "leave_one_out", "gdpo"),
    )
    mask_truncated: bool = knob(False, "leave completions that ran out of tokens out of the loss")
    bonus_mode: str = knob(
        "std_floor", "self-exemplifying bonus and the group's std", choices=("literal", "excluded", "std_floor")
    )
    token_budget: int = knob(
        0, "token slots in one micro-batch; bounds memory; 0: 2,048 on CPU, where caches are small, else 16,384", low=0
    )
    layout: str = knob(
        "auto",
        "packed: the prompt once a group, completions behind it; padded: one row a rollout; auto: packed where the model allows it",
        choices=("auto", "packed", "padded"),
    )
    gradient_checkpointing: bool = knob(False, "keep fewer activations and compute them again")
    save_every: int = knob(0, "optimizer steps between saved states of an unfinished round; 0: none", low=0)
    keep: int = knob(0, "newest saved steps that stay as model folders OUT.step-NUMBER; 0: none", low=0)
    subtasks: bool = knob(True, "record each rollout's share of the loss on tool names, parameter names and values")
    stop_on_collapse: bool = knob(False, "end with an error when the collapse alarm rings")
    track: str = knob("", "trackers to log to, comma-separated: tensorboard, wandb, trackio")
    threads: int = knob(0, "CPU threads; 0: one for models below 20 million parameters, else torch's choice", low=0)
    seed: int = knob(0, "order of the groups", low=0)
    dtype: str = knob(
        "auto", "weights' type; `auto`: float32 on CPU, bfloat16 on GPU", choices=("auto", "float32", "bfloat16")
    )
    device: str = knob("auto", "`auto`, `cpu`, `cuda`, `mps`")
    allow_test_data: bool = knob(False, "train on rows marked as benchmark test data")


@dataclass(frozen=True)
class EvalConfig:
    """`toolsample eval-bfcl`: ask a model BFCL's questions, score by the official checker."""

    version: str = knob("v4", "release of the official evaluator", choices=("v4", "v3"))
    categories: str = knob(
        "simple_python,multiple,parallel,parallel_multiple,irrelevance", "comma-separated categories or groups"
    )
    protocol: str = knob(
        "hermes", "how the model is asked and writes its calls; `prompting` is BFCL's own prompt and Python calls"
    )
    backend: str = knob(
        "transformers",
        "engine that answers; openai is any compatible server",
        choices=("transformers", "vllm", "openai"),
    )
    base_url: str = knob("", "backend openai: the server's address, as in http://localhost:8000/v1")
    concurrency: int = knob(16, "backend openai: requests under way at once", low=1)
    dots: str = knob(
        "underscore", "backend openai: dots in function names, which the API forbids", choices=("underscore", "keep")
    )
    self_examples: bool = knob(False, "ask for self-made examples inside the thought, as `rollout` does")
    prompt_like: str = knob("", "protocol rlla: tasks whose system prompt is used, those the model was trained on")
    max_new_tokens: int = knob(512, "longest answer in tokens", low=1)
    seconds: float = knob(20.0, "longest the checker may take over one answer; beyond it the answer is wrong", low=0.1)
    megabytes: int = knob(2048, "memory of the checker's process", low=256)
    scorer_python: str = knob(
        "", "interpreter (3.10 to 3.12) to build the checker's environment from; default: this one"
    )
    dtype: str = knob("auto", "weights' type", choices=("auto", "float32", "bfloat16", "float16"))
    device: str = knob("auto", "`auto`, `cpu`, `cuda`, `mps`")
    batch_tokens: int = knob(32768, "tokens generated together (transformers)", low=1)


@dataclass(frozen=True)
class RunConfig:
    """`toolsample run`: rounds of all stages in one process."""

    corpus: str = knob("", "folder of task shards to draw from")
    model: str = knob("", "policy to start from: folder or hub id")
    rounds: int = knob(8, "rounds of rollout, score, filter, curriculum, train", low=0)
    heldout: str = knob("", "comma-separated folders of held-out tasks, answered greedily")
    evaluate_every: int = knob(1, "rounds between held-out evaluations; 0: only at the end", low=0)
    seeds: str = knob("0", "comma-separated seeds; each is a run of its own")
    max_rollouts: int = knob(0, "stop once so many completions were sampled; 0 is off", low=0)
    max_minutes: float = knob(
        0.0, "stop at the end of the round in which so many minutes have passed; 0 is off", low=0.0
    )
    target_exact: float = knob(
        0.0, "stop once the first held-out set is answered exactly this often; 0 is off", low=0.0, high=1.0
    )
    stop_on_collapse: bool = knob(False, "stop when held-out exact match falls below half of its best")
    keep_checkpoints: int = knob(1, "checkpoints kept a run, the newest; 0 keeps all", low=0)


STAGES: dict[str, type] = {
    "import": ImportConfig,
    "rollout": RolloutConfig,
    "score": ScoreConfig,
    "filter": FilterConfig,
    "curriculum": CurriculumConfig,
    "train": TrainConfig,
    "eval-bfcl": EvalConfig,
    "run": RunConfig,
}
"""Recipe table name -> dataclass."""


def read_recipe(path: Path) -> dict[str, Any]:
    """A recipe (TOML) as {stage: {key: value}}, every key checked against the stage's dataclass.

    The table `arms` holds variants: [arms.NAME.STAGE] overrides [STAGE] in the arm NAME. Raises ConfigError
    with the file, the unknown key and the nearest valid one.
    """
    try:
        import tomllib
    except ModuleNotFoundError:  # Python 3.10
        import tomli as tomllib
    try:
        recipe = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError(f"{path}: no such recipe file") from None
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror or error}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: not valid TOML: {error}") from None
    arms = recipe.get("arms", {})
    if not isinstance(arms, dict) or not all(isinstance(tables, dict) for tables in arms.values()):
        raise ConfigError(f"{path}: arms must be tables, as in [arms.NAME.train]")
    _check_tables({table: values for table, values in recipe.items() if table != "arms"}, str(path))
    for arm, tables in arms.items():
        _check_tables(tables, f"{path}: arm {arm}")
    return recipe


def _check_tables(tables: dict[str, Any], where: str) -> None:
    for table, values in tables.items():
        refuse_unknown(table, [*STAGES, "arms"], f"{where}: unknown table")
        if not isinstance(values, dict) or table not in STAGES:
            raise ConfigError(f"{where}: {table} must be a table, as in [{table}]")
        for key in values:
            valid = [item.name for item in dataclasses.fields(STAGES[table])]
            refuse_unknown(key, valid, f"{where}: unknown key in [{table}]")
        checked(STAGES[table], values, f"{where}: [{table}] ")
