"""Knobs of the stages that choose data: filter, curriculum."""

from __future__ import annotations

from dataclasses import dataclass

from toolsample_cli.config.settings import knob


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
        "what pass-rate methods count: exactly right completions, or the scaled mean reward",
        choices=("exact", "reward"),
    )
    state_weight: float = knob(
        0.5, "lambda: weight of the state (unlearned share) against the potential (variance)", low=0.0, high=1.0
    )
    floor: float = knob(0.05, "epsilon: added to every importance, so that nothing is forgotten", low=0.0)
    kappa: float = knob(0.3, "vcrl keeps groups whose scaled variance is at least this", low=0.0, high=1.0)
    drop_flat: bool = knob(
        True, "drop groups whose rewards are all equal, which carry no advantage; method none keeps them all the same"
    )


@dataclass(frozen=True)
class CurriculumConfig:
    """`toolsample curriculum`: sub-task weights, hard tasks, the next draw."""

    tasks_per_round: int = knob(64, "tasks drawn for the next round", low=1)
    draw: str = knob(
        "auto",
        "how tasks are drawn: in shuffled epochs, in epochs that skip tasks by chance, by importance or by rank; `auto`: as the filter's method asks for",
        choices=("auto", "epochs", "skips", "importance", "rank"),
    )
    mix: str = knob(
        "",
        "shares of the draw, as in `category:simple=0.5,parallel=0.2` or `source:a=1,b=1`; what is left is drawn freely",
    )
    activation_mean: float = knob(
        1.0,
        "for rds and its forms: the draw goes by importance once the mean reward has exceeded this ...",
        group="Delayed activation",
    )
    activation_passes: float = knob(
        1.0, "... for as many tasks in a row as this many passes over the corpus have", low=0.0
    )
    activation_tasks: int = knob(
        3584, "... or for this many tasks in a row, where that is less (7 batches of 512)", low=0
    )
    weighting: str = knob(
        "weights",
        "how sub-tasks are weighed (TDCL)",
        group="Task-based curriculum",
        choices=("weights", "stage", "sample", "none"),
    )
    mastery: str = knob(
        "scores",
        "what mastery is measured by: the scores, or the share of training loss on a sub-task's tokens (needs --records)",
        choices=("scores", "loss"),
    )
    decay: float = knob(0.9, "rho: inertia of the mastery average", low=0.0, high=1.0)
    temperature: float = knob(0.5, "tau: lower moves more weight to the least mastered sub-task", low=1e-6)
    weight_low: float = knob(0.5, "smallest weight of a sub-task", low=0.0)
    weight_high: float = knob(2.0, "largest weight of a sub-task", low=0.0)
    stage_at: float = knob(
        0.9, "weighting stage: mastery of a sub-task at which the next one may start", low=0.0, high=1.0
    )
    stage_rounds: int = knob(7, "weighting stage: consecutive rounds for which that must hold", low=1)
    hard: str = knob(
        "keep",
        "what happens to tasks without a correct completion",
        choices=("keep", "drop", "fewshot", "hint"),
        group="Hard tasks and demonstrations",
    )
    hard_after: int = knob(
        10, "consecutive completions, over visits, without a correct one that make a task hard", low=1
    )
    hard_share: float = knob(
        0.25,
        "largest share of a round that gets demonstrations; further hard tasks are drawn as they are",
        low=0.0,
        high=1.0,
    )
    hard_stop: float = knob(
        0.01,
        "no task gets demonstrations any more once a pass over the corpus ends with less than this share of it hard",
        low=0.0,
        high=1.0,
    )
    hard_passes: int = knob(
        5, "passes over the corpus after which no task gets demonstrations any more; 0: no end", low=0
    )
    shots_step: int = knob(2, "demonstrations added to a hard task at a time", low=1)
    shots_max: int = knob(4, "most demonstrations of one task", low=1)
    fade_at: float = knob(
        0.8, "share of correct completions at which demonstrations are taken away again", low=0.0, high=1.0
    )
    demos: str = knob("", "folder of tasks to take demonstrations from, before other tasks of the corpus")
    demo_source: str = knob(
        "all",
        "where demonstrations come from: `own` right completions of this round with their thoughts, then the `bank` given as demos, then `gold` answers of other tasks",
        choices=("all", "own", "bank", "gold"),
    )
    demo_fit: str = knob(
        "shown",
        "worst fit that is still shown: the same tool with the same parameters, the same tool, tools offered anyway, or other tools added to the offer with their schemas",
        choices=("parameters", "tool", "offered", "shown"),
    )
    demo_for: str = knob(
        "calls",
        "which hard tasks get demonstrations; one that declines gives away that a task wants no call",
        choices=("all", "calls"),
    )
    demo_tokens: int = knob(1024, "budget for the demonstrations of one prompt, in tokens of about 4 bytes", low=1)
    update_on: str = knob(
        "shown",
        "prompt under which completions with demonstrations are trained on: the one shown, or the task's plain prompt, off-policy",
        choices=("shown", "plain"),
    )
    reward: str = knob(
        "",
        "train on this further reward (of `score --rewards` or `--component`) instead of the weighted one; selection keeps the base reward",
        group="Reward and draw",
    )
    bonus: float = knob(0.0, "bonus for self-made examples (0.01 in ToolExpander); 0 is off", low=0.0)
    seed: int = knob(0, "seed of the draw", low=0)
