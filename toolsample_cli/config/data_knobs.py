"""Knobs of the stages that make data: import, rollout, score."""

from __future__ import annotations

from dataclasses import dataclass

from toolsample_cli.config.settings import knob


@dataclass(frozen=True)
class ImportConfig:
    """`toolsample import`: raw files to tasks."""

    format: str = knob("auto", "raw format; `auto` decides by the keys of the first row and names its choice")
    source: str = knob("", "name of the data set, stored in every row (default: the file's name)")
    split: str = knob(
        "auto",
        "split stored in every row; `auto`: as the row or its file's name says, test for benchmarks, else train",
        choices=("auto", "train", "validation", "test"),
    )
    protocol: str = knob("auto", "how the model writes its calls; `auto`: as the raw format does")
    license: str = knob("", "licence stored in every row; default: the row's own")
    turns: str = knob("every", "which answers of a conversation become tasks", choices=("every", "calls", "last"))
    tools: str = knob("", "file of tools, one per row, for data that keeps them apart from the requests")
    distractors: int = knob(4, "tools of the same field offered besides the right ones, from `tools`", low=0)
    column: str = knob(
        "", "where a row of another shape has what: query=PATH,tools=PATH,answers=PATH, or messages, system, response"
    )
    map: str = knob("", "JSON file with the same as an object")
    decontaminate: str = knob(
        "",
        "test sets, comma-separated: raw benchmark files or folders, or folders of tasks; rows like theirs are contaminated",
    )
    contaminated: str = knob("drop", "what happens to such rows: drop them, or flag them", choices=("drop", "flag"))
    near: float = knob(0.7, "share of words in common from which two requests count as alike", low=0.1, high=1.0)
    dedup: bool = knob(
        False, "leave out repeats: the same request, but for case and punctuation, and the same gold calls"
    )
    flagged: str = knob("keep", "what happens to rows whose gold answer is doubtful", choices=("keep", "drop"))
    broken: str = knob(
        "stop", "what happens at a line that is not JSON: stop, or reject that line", choices=("stop", "reject")
    )


@dataclass(frozen=True)
class RolloutConfig:
    """`toolsample rollout`: n completions per task, with token ids and logprobs."""

    backend: str = knob("transformers", "engine that generates", choices=("transformers", "vllm", "openai", "replay"))
    n: int = knob(8, "completions per task", low=1)
    temperature: float = knob(1.0, "sampling temperature; 0 is greedy", low=0.0)
    top_p: float = knob(1.0, "nucleus sampling mass; 1 is off", low=0.0, high=1.0)
    top_k: int = knob(0, "sample from the k likeliest tokens; 0 is off", low=0)
    min_p: float = knob(
        0.0, "drop tokens less likely than this share of the likeliest token; 0 is off", low=0.0, high=1.0
    )
    generation_config: bool = knob(
        False, "take sampling settings that are left at their defaults from the model's generation config"
    )
    stop: str = knob("", "text that ends a completion and stays in it, or a JSON list of several")
    max_new_tokens: int = knob(512, "longest completion in tokens", low=1)
    max_prompt_tokens: int = knob(
        0, "longer prompts become error rows and are never truncated; 0: the model's own limit", low=0
    )
    seed: int = knob(0, "base seed; every (task, round, sample) derives its own from it", low=0)
    round: int = knob(0, "round of the loop that these rollouts belong to", low=0)
    self_examples: bool = knob(
        False, "ask the model for examples of its own inside its thought (self-exemplifying thinking)"
    )
    dtype: str = knob(
        "auto",
        "type of the weights; `auto`: float32 on CPU, bfloat16 on GPU",
        choices=("auto", "float32", "bfloat16", "float16"),
        group="Engine on this machine",
    )
    device: str = knob("auto", "`auto`, `cpu`, `cuda`, `cuda:1`, `mps`")
    threads: int = knob(0, "CPU threads; 0: one for models below 20 million parameters, else what torch chooses", low=0)
    batch_tokens: int = knob(
        65536, "prompt and completion tokens generated together (transformers); fewer on a CPU for a large model", low=1
    )
    tasks_per_shard: int = knob(512, "tasks in one output shard", low=1)
    adapter: str = knob("", "folder of a LoRA adapter on top of the model (transformers, vllm)")
    tensor_parallel: int = knob(1, "vllm: GPUs that share one engine", low=1)
    gpu_memory: float = knob(0.9, "vllm: share of a GPU's memory it may take", low=0.05, high=1.0)
    base_url: str = knob(
        "http://127.0.0.1:8000/v1",
        "base URL of the server; several, comma-separated",
        group="Server (--backend openai)",
    )
    tokenizer: str = knob("", "folder or hub id of the served model's tokenizer (default: the model's name)")
    endpoint: str = knob(
        "auto",
        "API to use: completions (token-exact) or chat; `auto` takes what the server has",
        choices=("auto", "completions", "chat"),
    )
    api_key_env: str = knob("OPENAI_API_KEY", "environment variable that holds the API key, if the server wants one")
    concurrency: int = knob(64, "requests in flight", low=1)
    retries: int = knob(5, "further attempts at a request that failed", low=0)
    timeout: float = knob(600.0, "seconds that one attempt may take", low=0.1)
    ray: str = knob(
        "",
        "spread over a Ray cluster: its address, `auto` for the one this machine is in, or `local`",
        group="Ray and replay",
    )
    ray_engines: int = knob(1, "Ray: engines, each in an actor of its own", low=1)
    ray_gpus: float = knob(0.0, "Ray: GPUs of each engine", low=0.0)
    texts: str = knob("", "replay: file of {task_id, sample, text} (JSON lines or Parquet); default: the gold answers")


@dataclass(frozen=True)
class ScoreConfig:
    """`toolsample score`: reward components of every completion (ToolRL's reward by default)."""

    protocol: str = knob("task", "how calls are written; `task`: as each task says, `auto`: by each completion's marks")
    reading: str = knob(
        "strict",
        "which calls earn: those that the protocol's reference parser reads, or also those that are clear despite faults of form",
        choices=("strict", "lenient"),
    )
    thought_in_prompt: bool = knob(
        False, "the prompt ended with <think>, so that every reply begins inside its thought (docs/scoring.md)"
    )
    lift: str = knob("", "quirks of ToolRL's code to switch off, comma-separated, or `all` (docs/names.md)")
    match: str = knob("greedy", "how predicted calls are paired with gold calls", choices=("greedy", "optimal"))
    values: str = knob("toolrl", "how values are compared: toolrl, json, bfcl, lenient, or as in lenient:case=exact")
    rewards: str = knob(
        "", "further rewards to store in extra_json, comma-separated (docs/names.md); `all` for every one"
    )
    component: str = knob("", "your own components to store in extra_json, comma-separated my_file.py:function")
    step: int = knob(0, "training step, for rewards that change with it", low=0)
    overlong_max: int = knob(1024, "completion length in tokens from which the overlong penalty is full", low=1)
    overlong_buffer: int = knob(256, "tokens below that length over which the penalty grows", low=1)
