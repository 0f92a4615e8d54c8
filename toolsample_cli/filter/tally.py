"""What a round's groups say about the data as a whole: how many tasks of each verdict, and pass@k of the split."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

import polars as pl

from toolsample_cli.filter.verdict import VERDICTS
from toolsample_cli.json_types import Row
from toolsample_cli.shards.schema import PASS_AT

MEANS = {
    "pass@1": pl.when(pl.col("n") > 0).then(pl.col("n_exact") / pl.col("n")),
    **{f"pass@{k}": pl.col(f"pass_at_{k}") for k in PASS_AT},
    "majority right": pl.when(pl.col("n") > 0).then(pl.col("majority_right").cast(pl.Float64)),
    "best of n, reward": pl.col("reward_best"),
    "mean reward": pl.col("reward_mean"),
}
"""Name -> a task's value, null where it has none; a split's is the mean over its tasks."""


@dataclass
class VerdictTally:
    """Counts of verdicts and sums of `MEANS` over the frames of `groups` that were added."""

    verdicts: Counter[str] = field(default_factory=Counter)
    sums: Counter[str] = field(default_factory=Counter)
    tasks: Counter[str] = field(default_factory=Counter)

    def add(self, groups: pl.DataFrame) -> None:
        """Take in one frame."""
        self.verdicts.update(dict(groups["verdict"].value_counts().iter_rows()))
        values = groups.select(**MEANS)
        self.sums.update(values.sum().fill_null(0.0).row(0, named=True))
        self.tasks.update(values.count().row(0, named=True))

    def facts(self) -> Row:
        """For `--json`: tasks by verdict and the means, each where some task has it."""
        return {
            "verdicts": {word: self.verdicts[word] for word in VERDICTS},
            "means": {name: round(self.sums[name] / self.tasks[name], 6) for name in MEANS if self.tasks[name]},
        }

    def table(self) -> str:
        """The same for people."""
        total = max(sum(self.verdicts.values()), 1)
        lines = [
            f"{word:9} {self.verdicts[word]:9,}  {self.verdicts[word] / total:6.1%}  {meaning}"
            for word, meaning in VERDICTS.items()
        ]
        return "\n".join([*lines, ", ".join(f"{name} {mean:.3f}" for name, mean in self.facts()["means"].items())])
