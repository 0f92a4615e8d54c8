"""Our reward inside other trainers, loaded by this file's path or by its name; needs no torch and no tokenizer.

verl        reward.custom_reward_function.path = THIS FILE, .name = compute_score
OpenRLHF    --reward.remote_url THIS FILE
slime       --custom-rm-path toolsample_cli.bridges.trainer_reward.slime_reward
TRL         GRPOTrainer(reward_funcs=TrlReward(tokenizer), ...)

Each takes the label that `toolsample export` wrote as the ground truth. All functions are thread-safe, can be
pickled, and give the numbers of `toolsample score`. Special tokens that a trainer strips before it calls the reward
(Mistral's [TOOL_CALLS]) cannot be seen by `compute_score`; the manager of verl_reward_manager.py keeps them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Protocol

from toolsample_cli.bridges.label import Label
from toolsample_cli.config import ScoreConfig
from toolsample_cli.config.settings import refuse_unknown, resolve
from toolsample_cli.score.scorer import Gold, Rules, Scorer
from toolsample_cli.toolcalls.call import canonical
from toolsample_cli.toolcalls.tools import Toolbox

KEYS = ("score", "acc", "format", "name", "key", "value", "schema_valid", "parsed", "reward_scaled")
"""What `compute_score` returns, always all of them and always numbers: the reward; whether the answer is exactly
right; each component as a share of its maximum (1 where nothing can be earned); whether calls fit their schemas (1
without a call); whether the text was read without fault; the reward scaled to [0, 1]."""

SETTINGS = ("protocol", "reading", "lift", "match", "values")
"""Settings of `toolsample score` that change these numbers and may be given to every function here."""

LABELS = 1024
"""Tasks whose gold answers and schemas are kept ready, per process."""

ENDS = ("<|im_end|>", "<|eot_id|>", "<|eom_id|>", "<|end|>", "<|endoftext|>", "<|end_of_text|>", "</s>", "<eos>",
        "<end_of_turn>")  # fmt: skip
"""Tokens that end an answer, for trainers that hand over a text with its end token."""

_COMPONENTS = ("format", "name", "key", "value")
_VERL_EXTRAS = frozenset({"reward_router_address", "reward_model_tokenizer"})


class BadLabel(ValueError):
    """The ground truth is not a label of `toolsample export`."""


class Decoder(Protocol):
    """What is needed of a tokenizer."""

    eos_token_id: int | None

    def batch_decode(self, sequences: list[list[int]], **options: bool) -> list[str]:
        """Texts of lists of token ids."""


class SlimeSample(Protocol):
    """What is needed of slime's Sample."""

    response: str
    label: str
    metadata: dict[str, object]
    status: object


@lru_cache(maxsize=LABELS)
def _scorer(label: str, settings: tuple[tuple[str, str], ...]) -> Scorer:
    read = Label.read(label)
    if read is None:
        raise BadLabel(f"not a label of `toolsample export`: {label[:120]!r}")
    for name, _ in settings:
        refuse_unknown(name, list(SETTINGS), "the reward in a trainer: unknown setting")
    config = resolve(ScoreConfig, dict(settings))
    try:
        gold, tools = Gold.of(canonical(list(read.gold)), read.gold_kind), Toolbox.of(read.tools)
    except (ValueError, KeyError, TypeError) as error:
        raise BadLabel(f"task {read.task_id}: its label is broken: {error}") from None
    protocol = read.protocol if config.protocol == "task" else config.protocol
    return Scorer(gold, protocol, Rules.of(config), tools)


def score_label(text: str | None, label: str, finish_reason: str | None = None, **settings: str) -> dict[str, float]:
    """KEYS of one completion; `settings` are those of SETTINGS.

    A missing text counts as an empty one. Raises BadLabel when `label` is not one of ours, ConfigError for a setting
    that the reward does not know.
    """
    scorer = _scorer(label, tuple(sorted(settings.items())))
    scored = scorer.score(text or "", finish_reason)
    low, high = scorer.limits.reward_min, scorer.limits.reward_max
    reward = low if scored.reward is None else scored.reward
    shares = {name: _share(getattr(scored, name), getattr(scored.limits, f"{name}_max")) for name in _COMPONENTS}
    return {
        "score": float(reward),
        "acc": float(bool(scored.exact)),
        **shares,
        "schema_valid": float(scored.schema_valid is not False),
        "parsed": float(scored.parse_status in ("ok", "no_call")),
        "reward_scaled": (float(reward) - low) / (high - low),
    }


def _share(earned: float | None, most: float | None) -> float:
    return 1.0 if earned is None or not most else float(earned) / float(most)


def compute_score(
    data_source: str = "",
    solution_str: str | None = "",
    ground_truth: str = "",
    extra_info: Mapping[str, object] | None = None,
    **settings: str,
) -> dict[str, float]:
    """verl's custom reward function; `reward_kwargs` of verl's configuration may hold SETTINGS."""
    del data_source, extra_info
    return score_label(
        solution_str, ground_truth, **{key: one for key, one in settings.items() if key not in _VERL_EXTRAS}
    )


def reward_func(queries: Sequence[str], prompts: Sequence[str], labels: Sequence[str]) -> dict[str, object]:
    """OpenRLHF's reward function: `queries` are prompt and answer in one text, special tokens kept.

    ValueError when a query does not begin with its prompt, as when OpenRLHF cut it from the left.
    """
    found = []
    for query, prompt, label in zip(queries, prompts, labels, strict=True):
        if not query.startswith(prompt):
            raise ValueError("the query does not begin with its prompt: leave out long prompts by --max-prompt-tokens")
        found.append(score_label(without_end(query[len(prompt) :]), label))
    return {
        "rewards": [one["score"] for one in found],
        "scores": [one["reward_scaled"] for one in found],
        "extra_logs": {key: [one[key] for one in found] for key in KEYS if key != "score"},
    }


def without_end(text: str) -> str:
    """An answer without the token that closed it."""
    bare = text.rstrip("\n")
    for end in ENDS:
        if bare.endswith(end):
            return bare[: -len(end)]
    return text


async def slime_reward(args: object, sample: SlimeSample, **_: object) -> float:
    """slime's reward of one sample: `sample.response` against `sample.label`; all KEYS go to `sample.metadata`."""
    del args
    cut = "length" if "TRUNCATED" in str(sample.status).upper() else None
    found = score_label(without_end(sample.response), sample.label, cut)
    if isinstance(sample.metadata, dict):
        sample.metadata["toolsample"] = found
    return found["score"]


class TrlReward:
    """TRL's reward function for GRPOTrainer over a dataset of `toolsample export --to trl`.

    The text is decoded from `completion_ids` with special tokens kept; a completion without an end token was cut. With
    `log_extra` (TRL 1.0 on) it logs task_id and completion_ids, which TRL's completions files would not hold.
    """

    __name__ = "toolsample_reward"

    def __init__(self, tokenizer: Decoder, **settings: str) -> None:
        self.tokenizer, self.settings = tokenizer, settings

    def __call__(
        self,
        prompts: Sequence[object],
        completions: Sequence[object],
        completion_ids: Sequence[Sequence[int]] | None = None,
        label: Sequence[str] = (),
        log_extra: Callable[[str, list[object]], None] | None = None,
        log_metric: Callable[[str, float], None] | None = None,
        **_: object,
    ) -> list[float]:
        """One reward per completion."""
        del prompts
        texts, reasons = self.texts(completions, completion_ids)
        found = [
            score_label(text, one, reason, **self.settings)
            for text, reason, one in zip(texts, reasons, label, strict=True)
        ]
        if log_extra is not None:
            log_extra("task_id", [read.task_id if (read := Label.read(one)) else "" for one in label])
            log_extra("exact", [bool(one["acc"]) for one in found])
            if completion_ids is not None:
                log_extra("completion_ids", [list(map(int, ids)) for ids in completion_ids])
        if log_metric is not None and found:
            for key in KEYS[1:]:
                log_metric(f"toolsample/{key}", sum(one[key] for one in found) / len(found))
        return [one["score"] for one in found]

    def texts(
        self, completions: Sequence[object], completion_ids: Sequence[Sequence[int]] | None
    ) -> tuple[list[str], list[str | None]]:
        """The completions as text, special tokens kept and end tokens dropped, and their finish reasons."""
        if completion_ids is None:
            return [_message_text(one) for one in completions], [None] * len(completions)
        end = self.tokenizer.eos_token_id
        reasons: list[str | None] = ["stop" if len(ids) and ids[-1] == end else "length" for ids in completion_ids]
        ended = zip(completion_ids, reasons, strict=True)
        bodies = [[int(i) for i in (ids[:-1] if reason == "stop" else ids)] for ids, reason in ended]
        options = {"skip_special_tokens": False, "clean_up_tokenization_spaces": False}
        return self.tokenizer.batch_decode(bodies, **options), reasons


def _message_text(completion: object) -> str:
    if isinstance(completion, str):
        return completion
    turns = completion if isinstance(completion, Sequence) else []
    return "".join(str(turn.get("content") or "") for turn in turns if isinstance(turn, Mapping))
