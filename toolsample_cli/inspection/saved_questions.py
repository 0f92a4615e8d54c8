"""Questions that curators ask again and again, by name (`inspect FOLDER --ask NAME`)."""

from __future__ import annotations

from dataclasses import dataclass

from toolsample_cli.config.settings import refuse_unknown
from toolsample_cli.inspection.question import REQUEST, ShardQuestion


@dataclass(frozen=True)
class Saved:
    """A question about rows of one kind, and what it finds."""

    kind: str
    meaning: str
    question: ShardQuestion


_TASK = ("task_id", "category", "shots", "visits", "n", "n_exact", "reward_mean")

SAVED = {
    "never-solved": Saved(
        "groups",
        "tasks without an exactly right completion, those tried most often first",
        ShardQuestion("n > 0 and n_exact = 0", "misses", True, (*_TASK, "misses", "reason", REQUEST)),
    ),
    "highest-variance": Saved(
        "groups",
        "tasks whose rewards differ most",
        ShardQuestion("n > 1", "reward_var", True, (*_TASK, "reward_var", "keep", REQUEST)),
    ),
    "newly-solved": Saved(
        "groups",
        "tasks solved in this round that were not at their visit before",
        ShardQuestion(
            "before_n_exact = 0 and n_exact > 0 and last_round > before_last_round",
            "n_exact",
            True,
            (*_TASK, "before_n_exact", "before_last_round", REQUEST),
        ),
    ),
    "newly-broken": Saved(
        "groups",
        "tasks solved at their visit before and never in this round",
        ShardQuestion(
            "before_n_exact > 0 and n > 0 and n_exact = 0 and last_round > before_last_round",
            "before_n_exact",
            True,
            (*_TASK, "before_n_exact", "before_last_round", REQUEST),
        ),
    ),
    "suspect-gold": Saved(
        "groups",
        "most samples agree on a valid answer that is not the gold",
        ShardQuestion(
            "answer_share >= 0.5 and answer_valid and not answer_exact",
            "answer_share - cast(n_exact as double) / n",
            True,
            ("task_id", "category", "n", "n_exact", "answer_share", "answer_calls_json", "gold_json", REQUEST),
        ),
    ),
    "dropped": Saved(
        "groups",
        "tasks that filter dropped, with the reason",
        ShardQuestion("not keep", "reason", False, (*_TASK, "reason", REQUEST)),
    ),
    "name-right-value-wrong": Saved(
        "scores",
        "right tools and parameters, a wrong value",
        ShardQuestion(
            "name = name_max and key = key_max and value < value_max",
            "reward",
            True,
            ("rollout_id", "category", "value", "value_max", "calls_json", "gold_json"),
        ),
    ),
    "unread": Saved(
        "scores",
        "completions whose calls could not be read",
        ShardQuestion(
            "parse_status not in ('ok', 'no_call')", "parse_status", False, ("rollout_id", "parse_status", "text")
        ),
    ),
    "flagged-gold": Saved(
        "tasks",
        "tasks whose gold answer was doubted at import",
        ShardQuestion("gold_issues_json <> '[]'", None, False, ("task_id", "category", "gold_issues_json", REQUEST)),
    ),
    "truncated": Saved(
        "rollouts",
        "completions that ran out of tokens",
        ShardQuestion("finish_reason = 'length'", None, False, ("rollout_id", "finish_reason", "text")),
    ),
    "failed": Saved(
        "rollouts",
        "rollouts without a completion",
        ShardQuestion("error is not null", "error", False, ("rollout_id", "error")),
    ),
}


def saved(name: str) -> Saved:
    """The saved question of this name; ConfigError with the nearest one otherwise."""
    refuse_unknown(name, list(SAVED), "no saved question")
    return SAVED[name]
