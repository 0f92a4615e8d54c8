"""One task's rollouts -> one row of statistics, and how a row grows from visit to visit.

Variance is the population variance (ddof 0) everywhere, the same as in the advantage. An errored rollout
(null reward) counts in `n_error` and nowhere else. A group of one has no variance: null, not 0.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import polars as pl

from toolsample_cli.errors import DataError
from toolsample_cli.filter.verdict import verdict
from toolsample_cli.shards import schema
from toolsample_cli.shards.repeats import refuse_repeats
from toolsample_cli.shards.schema import PASS_AT

COLUMNS = [
    "sample",
    *("task_id", "slot_id", "shots", "source", "category", "round", "exact", "reward", "reward_min", "reward_max"),
    "calls_json",
    *(name for component in schema.COMPONENTS for name in (component, f"{component}_max")),
]
"""Columns of `scores` that the statistics need."""

CONSTANT = [
    *("task_id", "slot_id", "shots", "source", "category", "round", "reward_min", "reward_max"),
    *(f"{component}_max" for component in schema.COMPONENTS),
]
"""Columns that all rows of a group share."""

PRIOR = ["slot_id", "shots", "visits", "misses", "flat_visits", "last_round"]
"""Columns of an earlier `groups` row that the next visit builds on."""

STATISTICS = [
    *("task_id", "slot_id", "shots", "source", "category", "n", "n_error", "n_exact"),
    *("reward_mean", "reward_var", "reward_best", "reward_min", "reward_max"),
    *(*(f"pass_at_{k}" for k in PASS_AT), "agreement", "majority_right", "verdict"),
    *(f"{component}_{kind}" for component in schema.COMPONENTS for kind in ("mean", "var")),
]
"""Columns that `statistics` makes, besides `round`."""


def statistics(scores: pl.DataFrame, where: Path | str = "scores") -> pl.DataFrame:
    """Scores of whole groups (`COLUMNS`) -> one row per task, in order of first appearance.

    Columns: `STATISTICS` and `round`. Component statistics are of component / component_max, in [0, 1], and
    null where the task has no such component (no gold call, or calls without parameters).
    Raises DataError, which begins with `where`, for a sample that occurs twice and when two forms of one task
    (zero-shot and few-shot) were rolled out in the same round.
    """
    runs = Runs.of(scores["task_id"])
    heads = runs.heads(scores.select(CONSTANT))
    apart = bool(heads["task_id"].is_duplicated().any())
    if "sample" in scores.columns and (apart or not runs.rising(scores["sample"].to_numpy())):
        refuse_repeats(Path(where), scores, ["task_id", "sample"])
    if apart:  # not a shard of ours, but harmless
        return statistics(_together(scores), where)
    scored = scores["reward"].is_not_null().to_numpy()
    n = runs.count(scored)
    columns = {
        "n": n,
        "n_error": (runs.sizes - n).astype(np.int32),
        "n_exact": runs.count(scores["exact"].fill_null(False).to_numpy() & scored),
    }
    for name in ("reward", *schema.COMPONENTS):
        # an errored rollout may carry zeros; only a scored one counts
        values = np.where(scored, scores[name].to_numpy(), np.nan)
        columns[f"{name}_mean"], columns[f"{name}_var"], best = runs.moments(values)
        columns |= {"reward_best": best} if name == "reward" else {}
    columns |= majority(scores, scored, runs)
    columns |= {f"pass_at_{k}": pass_at(k, columns["n"], columns["n_exact"]) for k in PASS_AT}
    groups = heads.with_columns(pl.Series(name, values, nan_to_null=True) for name, values in columns.items())
    groups = groups.with_columns(scaled for name in schema.COMPONENTS for scaled in _scaled(name))
    _refuse_two_forms(groups)
    return groups.with_columns(verdict=verdict()).select(*STATISTICS, "round")


def _together(scores: pl.DataFrame) -> pl.DataFrame:
    """The same rows with those of each task side by side, tasks in order of their first row."""
    first = pl.col("row__").min().over("task_id").alias("first__")
    placed = scores.with_row_index("row__").with_columns(first)
    return placed.sort("first__", "row__").drop("first__", "row__")


def _scaled(name: str) -> tuple[pl.Expr, pl.Expr]:
    # all samples of a task share the maximum, so that scaling can wait until there is one row per task
    most, mean, var = pl.col(f"{name}_max"), pl.col(f"{name}_mean"), pl.col(f"{name}_var")
    return pl.when(most > 0).then((mean / most).clip(0.0, 1.0)), pl.when(most > 0).then(var / (most * most))


@dataclass(frozen=True)
class Runs:
    """Rows of equal id that stand together: first row and length of each run, in order."""

    starts: np.ndarray
    sizes: np.ndarray
    lengths: np.ndarray  # the different sizes there are

    @classmethod
    def of(cls, ids: pl.Series) -> Runs:
        """The runs of a column."""
        starts = (ids != ids.shift()).fill_null(True).arg_true().to_numpy()
        sizes = np.diff(starts, append=len(ids))
        return cls(starts, sizes, np.unique(sizes))

    def rising(self, values: np.ndarray) -> bool:
        """Whether the values of every run rise, which leaves no room for one that occurs twice."""
        falls = np.diff(values) <= 0
        falls[self.starts[1:] - 1] = False
        return not falls.any()

    def heads(self, frame: pl.DataFrame) -> pl.DataFrame:
        """The first row of each run."""
        return frame.gather_every(int(self.lengths[0])) if len(self.lengths) == 1 else frame[self.starts]

    def count(self, marks: np.ndarray) -> np.ndarray:
        """True values in each run, int32."""
        return np.add.reduceat(marks, self.starts, dtype=np.int32) if len(self.starts) else np.empty(0, np.int32)

    def moments(self, values: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Mean, population variance and largest value of each run, NaN left out; NaN below one, two and one values.

        Runs of one length are columns of a matrix, so that every step is one pass over contiguous memory.
        """
        mean, variance, best = np.full((3, len(self.starts)), np.nan)
        for alike, matrix in self.matrices(values):
            mean[alike], variance[alike], best[alike] = _columns(matrix)
        return mean, variance, best

    def matrices(self, values: np.ndarray) -> Iterator[tuple[slice | np.ndarray, np.ndarray]]:
        """(which runs, their values as a matrix with one run per column) for each length."""
        for size in self.lengths:
            if len(self.lengths) == 1:
                yield slice(None), np.ascontiguousarray(values.reshape(-1, size).T)
            else:
                alike = self.sizes == size
                yield alike, values[self.starts[alike] + np.arange(size)[:, None]]


def pass_at(k: int, n: np.ndarray, right: np.ndarray) -> np.ndarray:
    """The unbiased estimate of pass@k (Chen et al., arXiv 2107.03374): 1 - C(n - right, k) / C(n, k).

    The chance that k of the n completions, drawn without replacement, hold a right one; NaN where n < k.
    """
    none = np.ones(len(n))
    with np.errstate(divide="ignore", invalid="ignore"):
        for i in range(k):
            none *= np.maximum(n - right - i, 0) / (n - i)
    return np.where(n >= k, 1.0 - none, np.nan)


def majority(scores: pl.DataFrame, scored: np.ndarray, runs: Runs) -> dict[str, np.ndarray]:
    """What most of a group's scored completions answer, told by the calls that were read; the first of equals wins.

    `agreement`: the share that gives that answer (NaN without a scored one); `majority_right`: whether its calls are
    the gold ones, that is, some completion with them is exactly right; `majority_calls`: whether it calls at all.
    """
    answers = scores["calls_json"].hash().to_numpy()
    marks = scored.astype(np.uint8) + 2 * scores["exact"].fill_null(False).to_numpy()
    marks += 4 * (scores["calls_json"] != "[]").to_numpy()
    share = np.full(len(runs.starts), np.nan)
    right, calls = np.zeros((2, len(runs.starts)), bool)
    for (alike, answer), (_, mark) in zip(runs.matrices(answers), runs.matrices(marks), strict=True):
        valid = (mark & 1) > 0
        counts = valid.astype(np.uint16)
        for i in range(1, len(answer)):
            same = (answer[:i] == answer[i]) & (valid[:i] & valid[i])
            counts[:i] += same
            counts[i] += same.view(np.uint8).sum(axis=0, dtype=np.uint16)
        most, top = counts[0].copy(), answer[0].copy()
        called = mark[0].copy()
        for i in range(1, len(answer)):
            more = counts[i] > most
            for best, row in ((most, counts[i]), (top, answer[i]), (called, mark[i])):
                np.copyto(best, row, where=more)
        with np.errstate(invalid="ignore"):
            share[alike] = most / valid.view(np.uint8).sum(axis=0, dtype=np.uint16)
        right[alike] = ((answer == top) & ((mark & 3) == 3)).any(axis=0)
        calls[alike] = (called & 4) > 0
    return {"agreement": share, "majority_right": right, "majority_calls": calls}


def _columns(matrix: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    unknown = np.isnan(matrix)
    count = len(matrix) - unknown.view(np.uint8).sum(axis=0, dtype=np.uint16).astype(np.int32)
    gap = matrix.copy()
    np.copyto(gap, 0.0, where=unknown)
    with np.errstate(divide="ignore", invalid="ignore"):
        mean = gap.sum(axis=0) / count
        np.subtract(gap, mean, out=gap)
        np.copyto(gap, 0.0, where=unknown)
        variance = np.where(count > 1, np.square(gap, out=gap).sum(axis=0) / count, np.nan)
    # equal values can leave a variance of rounding errors, and "flat" must mean exactly 0
    best = np.fmax.reduce(matrix)
    flat = best == np.fmin.reduce(matrix)
    return mean, np.where(flat & (count > 1), 0.0, variance), best


def _refuse_two_forms(groups: pl.DataFrame) -> None:
    doubled = groups.filter(pl.col("slot_id").is_duplicated())
    if doubled.height:
        slot = doubled["slot_id"][0]
        forms = ", ".join(doubled.filter(pl.col("slot_id") == slot)["task_id"].to_list())
        raise DataError(
            f"task {slot}: two forms in one round: {forms}",
            hint="a few-shot form takes the place of its zero-shot task; roll out one of them",
        )


def visited(groups: pl.DataFrame, prior: pl.DataFrame | None) -> pl.DataFrame:
    """Statistics of this round's visits, grown by `prior` (`PRIOR` columns, at most one row per slot).

    Adds last_round, visits, misses and flat_visits; drops `round`. A visit that errored throughout leaves
    both counters as they were. Raises DataError when the prior already saw this round or a later one.
    """
    if prior is None:
        prior = pl.DataFrame(schema={name: schema.GROUPS.schema[name] for name in PRIOR})
    old = prior.rename({name: f"{name}_before" for name in PRIOR if name != "slot_id"})
    joined = groups.join(old, on="slot_id", how="left", maintain_order="left")
    _refuse_same_round(joined)
    same_form = pl.col("shots_before") == pl.col("shots")
    before = pl.when(same_form).then(pl.col("misses_before")).fill_null(0)
    n, n_exact = pl.col("n"), pl.col("n_exact")
    flat = (n > 0) & ((n_exact == 0) | (n_exact == n))
    # all right after all wrong starts a new count: the earlier visit's side shows in its misses
    same_side = (n_exact == 0) == (pl.col("misses_before") > 0)
    flat_before = pl.when(same_form & same_side).then(pl.col("flat_visits_before")).fill_null(0)
    return joined.with_columns(
        last_round=pl.col("round"),
        visits=pl.col("visits_before").fill_null(0) + 1,
        misses=pl.when(n_exact > 0).then(0).otherwise(before + n).cast(pl.Int32),
        flat_visits=pl.when(n == 0)
        .then(pl.when(same_form).then(pl.col("flat_visits_before")).fill_null(0))
        .when(flat)
        .then(flat_before + 1)
        .otherwise(0)
        .cast(pl.Int32),
    ).select(*STATISTICS, "last_round", "visits", "misses", "flat_visits")


def _refuse_same_round(joined: pl.DataFrame) -> None:
    again = joined.filter(pl.col("last_round_before") >= pl.col("round"))
    if again.height:
        row = again.row(0, named=True)
        raise DataError(
            f"task {row['slot_id']}: these scores are of round {row['round']}, "
            f"but the history already holds its round {row['last_round_before']}",
            hint="--history takes the groups of the round before",
        )
