"""Finds demonstrations for the hard tasks of a draw by streaming the corpus; bounded by tools, not by tasks."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import numpy as np
import polars as pl

from toolsample_cli.config import CurriculumConfig
from toolsample_cli.curriculum import fewshot
from toolsample_cli.curriculum.mastery import State
from toolsample_cli.curriculum.sampling import uniforms
from toolsample_cli.hashing import hash_ids
from toolsample_cli.shards import schema
from toolsample_cli.shards.reading import Folder
from toolsample_cli.toolcalls.call import canonical


@dataclass(frozen=True)
class Sources:
    """Where demonstrations may come from: the corpus; for `own` ones the groups and this round's completions."""

    corpus: Folder
    groups: Folder | None = None
    scores: Folder | None = None
    rollouts: Folder | None = None


def with_demonstrations(
    rows: pl.DataFrame, sources: Sources, state: State, config: CurriculumConfig, counts: Counter[str]
) -> pl.DataFrame:
    """Hard rows in few-shot form; a task for which no demonstration fits stays as it is and is counted."""
    is_hard = pl.col("task_id").is_in(list(state.hard))
    if config.demo_for == "calls":
        counts["without demonstration"] += rows.filter(is_hard, gold_json="[]").height
        is_hard &= pl.col("gold_json") != "[]"
    hard = rows.filter(is_hard)
    if not hard.height:
        return rows
    bank = None if config.hard == "hint" else _bank(hard, sources, config, state.round + 1)
    rewritten = []
    for row in hard.iter_rows(named=True):
        if bank is None:
            rewritten.append(fewshot.hint(row))
        else:
            shots = state.hard[row["task_id"]].shots
            rewritten.append(fewshot.rewrite(row, bank.choose(fewshot.Example.of(row), shots, config.demo_tokens)))
        counts["few-shot" if rewritten[-1]["parent_task_id"] else "without demonstration"] += 1
    easy = rows.filter(~is_hard)
    return pl.concat([easy, schema.frame(schema.TASKS, rewritten)]).sort("task_id")


def _bank(hard: pl.DataFrame, sources: Sources, config: CurriculumConfig, round: int) -> fewshot.Bank:
    """Candidates for these tasks from all over the corpus, in an order that changes from round to round."""
    offers: dict[bool, set[str]] = {}
    for row in hard.iter_rows(named=True):
        task = fewshot.Example.of(row)
        offers.setdefault(task.calling, set()).update(task.offered)
    solved = _solved(sources.groups) if config.demo_source == "own" else None
    empty = pl.DataFrame(schema={**schema.TASKS.schema, "chance": pl.Float64, "near": pl.Boolean})
    best = dict.fromkeys(offers, empty)
    for shard in sources.corpus.shards:
        frame = sources.corpus.read(shard)
        hashes = hash_ids(frame["task_id"])
        frame = frame.with_columns(pl.Series("chance", uniforms(hashes, config.seed, round)))
        if solved is not None:
            frame = frame.filter(pl.Series(np.isin(hashes, solved)))
        for calling, names in offers.items():
            best[calling] = _nearest(best[calling], frame, names, calling)
    found = pl.concat(best.values()).sort("chance")
    bank = fewshot.Bank(_own_texts(sources, found["task_id"]) if config.demo_source == "own" else {})
    bank.add(found.drop("near", "chance").iter_rows(named=True))
    return bank


def _nearest(best: pl.DataFrame, frame: pl.DataFrame, names: set[str], calling: bool) -> pl.DataFrame:
    """`best` and `frame` cut to the candidates that bear on these tools, and some others for the search by words."""
    patterns = [f'"name":{canonical(name)}' for name in sorted(names)]
    same = (pl.col("gold_json") != "[]") == calling
    near = pl.col("gold_json" if calling else "tools_json").str.contains_any(patterns)
    most = fewshot.PER_TOOL * max(len(names), 1) + fewshot.GENERAL
    found = pl.concat([best, frame.filter(same).with_columns(near=near)])
    return found.sort("near", "chance", descending=[True, False]).head(most)


def _solved(groups: Folder | None) -> np.ndarray:
    """Hashes of the slots that the model got exactly right, without demonstrations, at their latest visit."""
    if groups is None:
        return np.empty(0, np.uint64)
    own = pl.col("n_exact") > 0, pl.col("shots") == 0
    found = [hash_ids(frame.filter(*own)["slot_id"]) for _, frame in groups.frames(["slot_id", "n_exact", "shots"])]
    return np.concatenate(found) if found else np.empty(0, np.uint64)


def _own_texts(sources: Sources, tasks: pl.Series) -> dict[str, str]:
    """Task -> its first exactly right completion of this round, where the rollouts are given."""
    if sources.rollouts is None or sources.scores is None:
        return {}
    wanted = pl.col("task_id").is_in(tasks.implode()), pl.col("exact")
    columns = ["rollout_id", "task_id", "exact"]
    right = [frame.filter(*wanted)["rollout_id"] for _, frame in sources.scores.frames(columns)]
    if not right:
        return {}
    among = pl.concat(right).implode()
    texts: dict[str, str] = {}
    for _, frame in sources.rollouts.frames(["rollout_id", "task_id", "text"]):
        for _, task, text in frame.filter(pl.col("rollout_id").is_in(among)).iter_rows():
            texts.setdefault(task, text)
    return texts
