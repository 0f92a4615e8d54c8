"""Published rivals of RDS on the same statistics, so that a comparison changes one word on the command line.

Each works on a pass rate p: the share of exactly right rollouts, or the scaled mean reward (`metric = reward`).
They are selection rules only; the losses their papers pair them with live in `grpo`.
"""

from __future__ import annotations

import polars as pl

from toolsample_cli.config import FilterConfig
from toolsample_cli.filter import verdict
from toolsample_cli.filter.run_state import Standing
from toolsample_cli.filter.verdict import Verdict

EVER = pl.lit(1.0)


def none(config: FilterConfig, standing: Standing) -> Verdict:
    """Plain GRPO: every group is trained on, tasks are drawn in epochs."""
    return Verdict(EVER, pl.lit(True), pl.lit("all"), verdict.potential())


def dapo(config: FilterConfig, standing: Standing) -> Verdict:
    """DAPO dynamic sampling (arXiv 2503.14476): keep iff 0 < p < 1 for the exact metric, spread > 0 for the reward."""
    return Verdict(EVER, ~verdict.flat(config), verdict.flat_reason(config), verdict.potential())


def vcrl(config: FilterConfig, standing: Standing) -> Verdict:
    """VCRL (arXiv 2509.19803): keep iff the scaled variance is at least kappa; it is the importance, too.

    With k of n right, the unbiased variance over its largest value is k (n - k) / floor(n^2 / 4). For
    `metric = reward` it is the variance over Popoviciu's bound (our extension). The paper's replay bank of
    high-variance prompts is here the draw by importance.
    """
    if config.metric == "exact":
        pairs = verdict.N_EXACT * (verdict.N - verdict.N_EXACT)
        scaled = pl.when(verdict.N > 1).then(pairs / (verdict.N * verdict.N // 4))
    else:
        scaled = verdict.potential()
    kept = (scaled >= config.kappa).fill_null(False)
    reason = pl.when(kept).then(pl.lit("mixed")).when(verdict.flat(config)).then(verdict.flat_reason(config))
    return Verdict(verdict.known(scaled), kept, reason.otherwise(pl.lit("narrow")), verdict.potential())


GRESO_EASY, GRESO_HARD = 0.98, 0.11
"""All right and all wrong in GRESO's code: pass rate at least, at most."""
GRESO_LEAST = 0.01


def greso(config: FilterConfig, standing: Standing) -> Verdict:
    """GRESO (arXiv 2506.02177): a prompt all right (p >= 0.98) or all wrong (p <= 0.11) z visits in a row is
    skipped before rollout with probability 1 - max(q^z, 0.01).

    q starts at 0.5 for either side and moves by 0.01 a round so that the shares of solved and unsolved groups
    approach 0.25 / 3 and 0.5 / 3 (`Standing`). The importance is max(q^z, 0.01). z is `flat_visits`, which
    counts exact matches, and at least 1 for a group that meets the rule on this visit.
    """
    rate = verdict.pass_rate(config)
    easy, hard = rate >= GRESO_EASY, rate <= GRESO_HARD
    visits = pl.max_horizontal(pl.col("flat_visits"), pl.lit(1, pl.Int32)).cast(pl.Float64)
    chance = (
        pl.when(easy)
        .then(pl.lit(standing.greso_easy).pow(visits))
        .when(hard)
        .then(pl.lit(standing.greso_hard).pow(visits))
        .otherwise(1.0)
        .clip(GRESO_LEAST, 1.0)
    )
    reason = pl.when(easy).then(pl.lit("solved")).when(hard).then(pl.lit("unsolved")).otherwise(pl.lit("mixed"))
    return Verdict(chance, ~(easy | hard), reason, verdict.potential())


def speed(config: FilterConfig, standing: Standing) -> Verdict:
    """SPEED-RL (arXiv 2506.09016): keep iff the first rollouts show spread; importance 4 p (1 - p), its SNR bound.

    Its second stage is a top-up: `rollout --ids KEPT -n LARGER` on the same output, then score and filter again.
    """
    rate = verdict.pass_rate(config)
    wanted = pl.when(verdict.N > 1).then(4 * rate * (1 - rate)).otherwise(1.0)
    return Verdict(wanted, ~verdict.flat(config), verdict.flat_reason(config), verdict.potential())


def adarft(config: FilterConfig, standing: Standing) -> Verdict:
    """AdaRFT (arXiv 2504.05520): take the tasks whose difficulty d in [0, 100] is nearest to a moving target T.

    T starts at 0 and moves to clip(T + 50 tanh(2 (mean - 0.5)), 0, 100) after each round, mean being the scaled
    mean reward (`Standing`). The paper needs d beforehand; ours is 100 * state of the latest visit (our reading),
    so that never-visited tasks come first. Importance 1 - |d - T| / 100; drawn by rank.
    """
    difficulty = 100 * verdict.state()
    nearness = 1 - (difficulty - standing.adarft_target).abs() / 100
    return Verdict(nearness, pl.lit(True), verdict.flat_reason(config), verdict.potential())


def pcl(config: FilterConfig, standing: Standing) -> Verdict:
    """Nearest to half, after PCL (arXiv 2510.01135): importance 1 - 2 |p - 1/2|.

    The paper predicts p with a value model; ours is the latest visit's pass rate (our reading).
    """
    wanted = pl.when(verdict.N > 1).then(1 - 2 * (verdict.pass_rate(config) - 0.5).abs()).otherwise(1.0)
    return Verdict(wanted, pl.lit(True), verdict.flat_reason(config), verdict.potential())


POOL_EASY, POOL_HARD, POOL_WEIGHT = 0.8, 0.2, 0.1


def pools(config: FilterConfig, standing: Standing) -> Verdict:
    """Difficulty pools in the way of prime-rl's buffer: p >= 0.8 easy, p <= 0.2 hard, else normal.

    Easy and hard tasks are drawn at a tenth of the normal weight, and groups without spread are left out of the
    batch (its online filter). There the tenth is a share of the batch; as a weight it is our reading.
    """
    rate = verdict.pass_rate(config)
    easy, hard = rate >= POOL_EASY, rate <= POOL_HARD
    pool = pl.when(easy).then(pl.lit("easy")).when(hard).then(pl.lit("hard")).otherwise(pl.lit("normal"))
    reason = pl.when(verdict.flat(config)).then(verdict.flat_reason(config)).otherwise(pool)
    return Verdict(
        pl.when(easy | hard).then(POOL_WEIGHT).otherwise(1.0), ~verdict.flat(config), reason, verdict.potential()
    )
