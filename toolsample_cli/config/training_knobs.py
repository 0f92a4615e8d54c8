"""Knobs of the stages that train and measure: train, eval-bfcl, run."""

from __future__ import annotations

from dataclasses import dataclass

from toolsample_cli.config.settings import knob


@dataclass(frozen=True)
class TrainConfig:
    """`toolsample train`: optimizer steps from rollouts and batch."""

    objective: str = knob(
        "grpo",
        "grpo: from scored rollouts; sft: gold answers of tasks, or right answers of rollouts and scores",
        choices=("grpo", "sft"),
    )
    right_per_task: int = knob(1, "sft from rollouts: right answers of a task that are imitated, at most", low=1)
    loss: str = knob("dapo", "policy loss", choices=("grpo", "dapo", "dr_grpo", "gspo", "cispo", "sapo"))
    lr: float | None = knob(
        None,
        "initial learning rate [default: 1e-6; 1e-5 for sft; with an adapter ten times either]",
        low=0.0,
        group="Learning rate and steps",
    )
    lr_schedule: str = knob(
        "constant",
        "learning rate over the run; exponential is ToolExpander's",
        choices=("constant", "exponential", "cosine", "linear"),
    )
    lr_decay: float = knob(
        0.7, "gamma of the exponential decay (ToolExpander; the value is our reading)", low=0.0, high=1.0
    )
    lr_decay_unit: str = knob(
        "pass",
        "what gamma counts: passes over the corpus, rounds of the loop or optimizer steps",
        choices=("pass", "round", "step"),
    )
    lr_floor: float = knob(1e-7, "smallest learning rate", low=0.0)
    lr_horizon: float = knob(
        10.0, "passes (unit round or step: rounds) until cosine and linear reach their end", low=0.01
    )
    warmup_steps: int = knob(0, "optimizer steps of linear warm-up", low=0)
    steps: int = knob(4, "optimizer steps per round; the batch is cut into as many mini-batches of whole groups", low=1)
    epochs: int = knob(1, "passes over the batch", low=1)
    clip_low: float | None = knob(
        None,
        "ratio clipped below 1 - clip_low [default: the loss's own, 0.2; gspo 3e-4]",
        low=0.0,
        high=1.0,
        group="Loss",
    )
    clip_high: float | None = knob(
        None, "ratio clipped above 1 + clip_high [default: the loss's own, 0.2; dapo 0.28, gspo 4e-4]", low=0.0
    )
    dual_clip: float | None = knob(
        None,
        "largest ratio that a negative advantage is multiplied by; 0 is off [default: the loss's own, off]",
        low=0.0,
    )
    cispo_cap: float = knob(
        5.0, "cispo: upper bound of the ratio itself (not of its distance from 1); there is no lower one", low=0.0
    )
    loss_divide: str = knob(
        "auto",
        "what the summed loss of a step is divided by; `auto`: as the loss was published",
        choices=("auto", "tokens", "rollouts", "constant"),
    )
    kl: float = knob(0.0, "coefficient of the KL term against the reference", low=0.0)
    kl_kind: str = knob("k3", "estimator of the KL per token", choices=("k1", "k2", "k3"))
    reference: str = knob("", "reference policy of the KL term (default with an adapter: the model without it)")
    entropy_bonus: float = knob(0.0, "coefficient of the entropy in the loss", low=0.0)
    old_policy: str = knob(
        "stored",
        "what the ratio is taken against: the stored logprobs, or this model's own at the start of the round (decoupled)",
        choices=("stored", "recompute"),
    )
    is_cap: float = knob(2.0, "recompute: largest importance weight of recomputed over stored; 0: no weights", low=0.0)
    is_mode: str = knob(
        "truncate", "recompute: weights above the cap are cut to it or masked", choices=("truncate", "mask")
    )
    max_grad_norm: float = knob(1.0, "norm that gradients are clipped to; 0 is off", low=0.0)
    weight_decay: float = knob(0.0, "AdamW's weight decay", low=0.0)
    lora_rank: int = knob(
        0, "train an adapter of this rank instead of all weights (needs peft); 0 is off", low=0, group="Adapter"
    )
    lora_alpha: float = knob(32.0, "scale of the adapter: alpha / rank", low=0.0)
    lora_targets: str = knob("all-linear", "comma-separated names of adapted layers; all-linear: all but the head")
    lora_4bit: bool = knob(
        False, "keep the base's linear layers in 4 bits (QLoRA; needs toolsample[qlora], one device)"
    )
    merge: bool = knob(True, "store merged weights, so that any engine loads the checkpoint")
    loss_length: int = knob(
        0,
        "constant length that dr_grpo divides by; 0: max_new_tokens of the rollouts",
        low=0,
        group="Advantage and masks",
    )
    max_refused: int = knob(3, "skipped steps (gradient not finite) after which the round fails; 0: never", low=0)
    advantage: str = knob(
        "auto",
        "how rewards become advantages; `auto`: group_mean for dr_grpo, else group_std",
        choices=("auto", "group_std", "group_sample_std", "group_std_floor", "group_mean", "leave_one_out", "gdpo"),
    )
    mask_truncated: bool = knob(False, "leave truncated completions out of the loss")
    bonus_mode: str = knob(
        "std_floor",
        "how the bonus for self-made examples enters the group's std",
        choices=("literal", "excluded", "std_floor"),
    )
    token_budget: int = knob(
        0,
        "token slots in one micro-batch, which bounds memory; 0: 2,048 on CPU, where caches are small, else 16,384",
        low=0,
        group="Memory, saving and logging",
    )
    layout: str = knob(
        "auto",
        "packed: one prompt per group, completions behind it; padded: one row per rollout; auto: packed where the model allows it",
        choices=("auto", "packed", "padded"),
    )
    gradient_checkpointing: bool = knob(False, "recompute activations instead of keeping them")
    save_every: int = knob(0, "optimizer steps between saved states of an unfinished round; 0: none", low=0)
    keep: int = knob(0, "newest saved steps to keep as model folders OUT.step-NUMBER; 0: none", low=0)
    subtasks: bool = knob(True, "record each rollout's share of the loss on tool names, parameter names and values")
    stop_on_collapse: bool = knob(False, "fail when the collapse alarm rings")
    track: str = knob("", "trackers to log to, comma-separated: tensorboard, wandb, trackio")
    threads: int = knob(0, "CPU threads; 0: one for models below 20 million parameters, else what torch chooses", low=0)
    seed: int = knob(0, "order of the groups", low=0)
    dtype: str = knob(
        "auto", "type of the weights; `auto`: float32 on CPU, bfloat16 on GPU", choices=("auto", "float32", "bfloat16")
    )
    device: str = knob("auto", "`auto`, `cpu`, `cuda`, `cuda:1`, `mps`")
    allow_test_data: bool = knob(False, "train even on rows marked as benchmark test data")


@dataclass(frozen=True)
class EvalConfig:
    """`toolsample eval-bfcl`: ask a model BFCL's questions, score by the official checker."""

    version: str = knob("v4", "release of the official evaluator", choices=("v4", "v3"))
    categories: str = knob(
        "simple_python,multiple,parallel,parallel_multiple,irrelevance", "comma-separated categories or groups"
    )
    protocol: str = knob(
        "auto",
        "how the model is asked and writes its calls; `prompting`: BFCL's own prompt and Python calls; `auto`: as the "
        "checkpoint was trained, with its prompt, else hermes",
    )
    backend: str = knob(
        "transformers",
        "engine that answers; openai: any compatible server",
        choices=("transformers", "vllm", "openai"),
    )
    base_url: str = knob(
        "",
        "address of the server, as in http://localhost:8000/v1; several with commas between",
        group="Server (--backend openai)",
    )
    api_key_env: str = knob("OPENAI_API_KEY", "environment variable that holds the key, if the server wants one")
    concurrency: int = knob(16, "requests in flight", low=1)
    retries: int = knob(5, "further attempts of a request that failed", low=0)
    timeout: float = knob(600.0, "seconds one attempt may take", low=0.1)
    dots: str = knob(
        "underscore", "what becomes of dots in function names, which the API forbids", choices=("underscore", "keep")
    )
    self_examples: bool = knob(
        False, "ask for self-made examples inside the thought, as `rollout` does", group="Prompts, limits and devices"
    )
    prompt_like: str = knob(
        "", "protocol rlla: folder of tasks whose system prompt is used, those the model was trained on"
    )
    max_new_tokens: int = knob(512, "longest answer in tokens", low=1)
    seconds: float = knob(20.0, "seconds the checker may spend on one answer; beyond that the answer is wrong", low=0.1)
    megabytes: int = knob(2048, "memory of the checker's process in MB", low=256)
    scorer_python: str = knob(
        "", "interpreter (3.10 to 3.12) to build the checker's environment from (default: this one)"
    )
    dtype: str = knob("auto", "type of the weights", choices=("auto", "float32", "bfloat16", "float16"))
    device: str = knob("auto", "`auto`, `cpu`, `cuda`, `cuda:1`, `mps`")
    batch_tokens: int = knob(32768, "tokens generated together (transformers)", low=1)


@dataclass(frozen=True)
class RunConfig:
    """`toolsample run`: rounds of all stages in one process."""

    corpus: str = knob("", "folder of task shards to draw from")
    model: str = knob("", "policy to start from: folder or hub id")
    rounds: int = knob(8, "rounds of rollout, score, filter, curriculum, train", low=0)
    heldout: str = knob("", "folders of held-out tasks, comma-separated, answered greedily")
    evaluate_every: int = knob(1, "rounds between held-out evaluations; 0: only at the end", low=0)
    seeds: str = knob("0", "seeds, comma-separated; each is a run of its own")
    max_rollouts: int = knob(0, "stop once this many completions were sampled; 0 is off", low=0)
    max_minutes: float = knob(0.0, "stop after the round in which this many minutes have passed; 0 is off", low=0.0)
    target_exact: float = knob(
        0.0, "stop once this share of the first held-out set is answered exactly right; 0 is off", low=0.0, high=1.0
    )
    stop_on_collapse: bool = knob(False, "stop when held-out exact match falls below half of its best")
    keep_checkpoints: int = knob(1, "newest checkpoints to keep per run; 0 keeps all", low=0)
    refill: int = knob(
        10,
        "filter method dapo: most draws per round, until as many groups are kept as tasks_per_round says; 1: a single one",
        low=1,
    )
    heldout_limit: int = knob(0, "answer only the first N tasks of each held-out folder; 0: all", low=0)
