"""Published rivals of RDS on the same statistics, so that a comparison changes one word on the command line.

Each works on a pass rate p: the share of exactly right rollouts, or the scaled mean reward (`metric = reward`).
They are selection rules only; the losses their papers pair them with are those of `train`. docs/methods.md says of
each what is as published and what is our reading.
"""

from __future__ import annotations

import polars as pl

from toolsample_cli.config import FilterConfig
from toolsample_cli.filter import judgement
from toolsample_cli.filter.judgement import Judgement
from toolsample_cli.filter.run_state import RunState

EVER = pl.lit(1.0)


def none(config: FilterConfig, at: RunState) -> Judgement:
    """Plain GRPO: every group is trained on, tasks are drawn in epochs."""
    return Judgement(EVER, pl.lit(True), pl.lit("all"), judgement.potential())


def dapo(config: FilterConfig, at: RunState) -> Judgement:
    """DAPO dynamic sampling (arXiv 2503.14476): keep iff 0 < p < 1 for the exact metric, spread > 0 for the reward.

    The original samples further prompts until the batch is full, at most ten times; that is the business of `run`.
    """
    return Judgement(EVER, ~judgement.flat(config), judgement.flat_reason(config), judgement.potential())


def vcrl(config: FilterConfig, at: RunState) -> Judgement:
    """VCRL (arXiv 2509.19803): keep iff the scaled variance is at least kappa; it is the importance, too.

    With k of n right, the unbiased variance over its largest value is k (n - k) / floor(n^2 / 4). For
    `metric = reward` it is the variance over Popoviciu's bound (our extension). The paper's replay bank of
    high-variance prompts is here the draw by importance (our reading).
    """
    scaled: pl.Expr = judgement.potential()
    if config.metric == "exact":
        pairs = judgement.N_EXACT * (judgement.N - judgement.N_EXACT)
        scaled = pl.when(judgement.N > 1).then(pairs / (judgement.N * judgement.N // 4))
    kept = (scaled >= config.kappa).fill_null(False)
    reason = pl.when(kept).then(pl.lit("mixed")).when(judgement.flat(config)).then(judgement.flat_reason(config))
    return Judgement(judgement.known(scaled), kept, reason.otherwise(pl.lit("narrow")), judgement.potential())


GRESO_EASY, GRESO_HARD = 0.98, 0.11
"""GRESO's code: mean reward of a group that is all right (at least), and all wrong (at most; a reward for the form of
an answer is 0.1 there)."""
GRESO_LEAST = 0.01


def greso_sides(config: FilterConfig) -> tuple[pl.Expr, pl.Expr]:
    """Whether a group is all right, and all wrong: by its pass rate, or by GRESO's thresholds on the scaled reward."""
    if config.metric == "exact":
        return judgement.N_EXACT == judgement.N, judgement.N_EXACT == 0
    rate = judgement.pass_rate(config)
    return rate >= GRESO_EASY, rate <= GRESO_HARD


def greso(config: FilterConfig, at: RunState) -> Judgement:
    """GRESO (arXiv 2506.02177): a prompt all right or all wrong z visits in a row is skipped before rollout with
    probability 1 - max(q^z, 0.01); every group with spread is trained on.

    As in its code: q starts at 0.5 for either side and, once the first epoch is over, moves by 0.01 a round so that
    the shares of solved and unsolved groups approach 0.25 / 3 and 0.5 / 3 (`RunState`); the draw walks through
    shuffled epochs and skips each task by a coin of its own. The importance is the chance max(q^z, 0.01) of not being
    skipped. z is `flat_visits`, which counts exact matches, and at least 1 for a group that meets the rule now.
    Our reading: for `metric = reward` z still counts exact matches.
    """
    easy, hard = greso_sides(config)
    visits = pl.max_horizontal(pl.col("flat_visits"), pl.lit(1, pl.Int32)).cast(pl.Float64)
    chance = (
        pl.when(easy)
        .then(pl.lit(at.greso_easy).pow(visits))
        .when(hard)
        .then(pl.lit(at.greso_hard).pow(visits))
        .otherwise(1.0)
        .clip(GRESO_LEAST, 1.0)
    )
    return Judgement(chance, ~judgement.flat(config), judgement.flat_reason(config), judgement.potential())


def speed(config: FilterConfig, at: RunState) -> Judgement:
    """SPEED-RL (arXiv 2506.09016): keep iff the first rollouts show spread; importance 4 p (1 - p).

    Its second stage is more rollouts for the kept tasks, `rollout --ids KEPT -n LARGER` on the same output, then score
    and filter again. It draws its prompts in epochs; the importance, its bound on the signal-to-noise ratio, is our
    reading (`curriculum --draw epochs` is the original).
    """
    rate = judgement.pass_rate(config)
    wanted = pl.when(judgement.N > 1).then(4 * rate * (1 - rate)).otherwise(1.0)
    return Judgement(wanted, ~judgement.flat(config), judgement.flat_reason(config), judgement.potential())


def adarft(config: FilterConfig, at: RunState) -> Judgement:
    """AdaRFT (arXiv 2504.05520): take the tasks whose difficulty d in [0, 100] is nearest to a moving target T.

    T starts at 0 and moves to clip(T + 50 tanh(2 (mean - 0.5)), 0, 100) after each round, mean being the scaled
    mean reward (`RunState`). The paper needs d beforehand; ours is 100 * state of the latest visit (our reading),
    so that never-visited tasks come first. Importance 1 - |d - T| / 100; drawn by rank.
    """
    difficulty = 100 * judgement.state()
    nearness = 1 - (difficulty - at.adarft_target).abs() / 100
    return Judgement(nearness, pl.lit(True), judgement.flat_reason(config), judgement.potential())


def pcl(config: FilterConfig, at: RunState) -> Judgement:
    """Nearest to half, after PCL (arXiv 2510.01135): importance 1 - 2 |p - 1/2|.

    The paper predicts p with a value model; ours is the latest visit's pass rate (our reading).
    """
    wanted = pl.when(judgement.N > 1).then(1 - 2 * (judgement.pass_rate(config) - 0.5).abs()).otherwise(1.0)
    return Judgement(wanted, pl.lit(True), judgement.flat_reason(config), judgement.potential())


POOL_EASY, POOL_HARD, POOL_WEIGHT = 0.8, 0.2, 0.1


def pools(config: FilterConfig, at: RunState) -> Judgement:
    """Difficulty pools in the way of prime-rl's buffer: p >= 0.8 easy, p <= 0.2 hard, else normal.

    Easy and hard tasks are drawn at a tenth of the normal weight, and groups without spread are left out of the
    batch (its online filter). There the tenth is a share of the batch; as a weight it is our reading.
    """
    rate = judgement.pass_rate(config)
    easy, hard = rate >= POOL_EASY, rate <= POOL_HARD
    pool = pl.when(easy).then(pl.lit("easy")).when(hard).then(pl.lit("hard")).otherwise(pl.lit("normal"))
    reason = pl.when(judgement.flat(config)).then(judgement.flat_reason(config)).otherwise(pool)
    return Judgement(
        pl.when(easy | hard).then(POOL_WEIGHT).otherwise(1.0), ~judgement.flat(config), reason, judgement.potential()
    )
