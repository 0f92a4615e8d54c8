"""Finds demonstrations for the hard tasks of a draw by streaming corpus and bank; bounded by tools, not by tasks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

import polars as pl

from toolsample_cli.config import CurriculumConfig
from toolsample_cli.curriculum import fewshot
from toolsample_cli.curriculum.corpus import LEAVE_OUT
from toolsample_cli.curriculum.example import Example
from toolsample_cli.curriculum.sampling import task_uniforms
from toolsample_cli.curriculum.state import State
from toolsample_cli.hashing import hash_ids
from toolsample_cli.json_types import Row
from toolsample_cli.shards import schema
from toolsample_cli.shards.reading import Folder
from toolsample_cli.shards.test_rows import refuse_test_rows
from toolsample_cli.toolcalls.call import canonical


@dataclass(frozen=True)
class DemoSources:
    """Where demonstrations may come from: the corpus, the user's bank, and right completions of this round."""

    corpus: Folder
    groups: Folder | None = None
    scores: Folder | None = None
    rollouts: Folder | None = None
    bank: Folder | None = None


@dataclass(frozen=True)
class Rewritten:
    """The drawn rows, hard ones in few-shot form: `fitted` slots got demonstrations, for `unfit` ones none fits.

    `facts`: counts of forms, of fits and sources of the demonstrations, and of reasons why a task has none.
    """

    rows: pl.DataFrame
    fitted: frozenset[str] = frozenset()
    unfit: frozenset[str] = frozenset()
    facts: Counter[str] = field(default_factory=Counter)


def with_demonstrations(
    rows: pl.DataFrame, order: list[str], sources: DemoSources, state: State, config: CurriculumConfig
) -> Rewritten:
    """Hard rows in few-shot form, at most `hard_share` of all rows: those that come first in `order` (slots).

    A task for which no demonstration fits, or that comes too late, stays as it is.
    """
    facts: Counter[str] = Counter()
    is_hard = pl.col("task_id").is_in(list(state.hard))
    if config.demo_for == "calls":
        wordy = rows.filter(is_hard, gold_json="[]").height
        facts.update({"without: wants no call": wordy} if wordy else {})
        is_hard &= pl.col("gold_json") != "[]"
    by_slot: dict[str, Row] = {row["task_id"]: row for row in rows.filter(is_hard).iter_rows(named=True)}
    if not by_slot:
        return Rewritten(rows, facts=facts)
    most = int(config.hard_share * config.tasks_per_round)
    bank = None if config.hard == "hint" else _collected(list(by_slot.values()), sources, config, state.round + 1)
    forms: dict[str, Row] = {}
    unfit: set[str] = set()
    for slot in (slot for slot in order if slot in by_slot):
        if len(forms) >= most:
            facts["without: beyond hard_share"] += 1
        elif bank is None:
            forms[slot] = fewshot.hint(by_slot[slot])
            facts["hints"] += 1
        else:
            shots = state.hard[slot].shots
            choice = bank.choose(Example.of(by_slot[slot]), shots, config.demo_tokens, config.demo_fit)
            if choice.why:
                unfit.add(slot)
                facts[f"without: {choice.why}"] += 1
            else:
                forms[slot] = fewshot.rewrite(by_slot[slot], choice.examples)
                facts["few-shot"] += 1
                facts.update(f"fit {fit}" for fit in choice.fits)
                facts.update(f"from {example.source}" for example in choice.examples)
    rest = rows.filter(~pl.col("task_id").is_in(list(forms)))
    made = pl.concat([rest, schema.frame(schema.TASKS, list(forms.values()))]).sort("task_id")
    return Rewritten(made, frozenset(forms), frozenset(unfit), facts)


def _collected(hard: list[Row], sources: DemoSources, config: CurriculumConfig, round: int) -> fewshot.Bank:
    """Candidates for these tasks from all over the sources, in an order that changes from round to round."""
    offers: dict[bool, set[str]] = {}
    for row in hard:
        task = Example.of(row)
        offers.setdefault(task.calling, set()).update(task.tools)
    bank = fewshot.Bank()
    own = _own_answers(sources) if config.demo_source in ("all", "own") else {}
    if own:
        mine = [rows.filter(pl.col("task_id").is_in(list(own))) for rows in _shuffled(sources.corpus, config, round)]
        bank.add(pl.concat(mine).sort("chance").iter_rows(named=True), "own", own)
    if sources.bank and config.demo_source in ("all", "bank"):
        bank.add(_nearest(_shuffled(sources.bank, config, round), offers).iter_rows(named=True), "bank")
    if config.demo_source in ("all", "gold"):
        bank.add(_nearest(_shuffled(sources.corpus, config, round), offers).iter_rows(named=True), "gold")
    return bank


def _shuffled(folder: Folder, config: CurriculumConfig, round: int) -> Iterator[pl.DataFrame]:
    """Each shard's zero-shot tasks with their place (`chance`) in this round's order."""
    for shard in folder.shards:
        frame = folder.read(shard)
        refuse_test_rows(shard.path, frame, hint=LEAVE_OUT)
        chance = task_uniforms(hash_ids(frame["task_id"]), config.seed, round)
        yield frame.with_columns(pl.Series("chance", chance)).filter(pl.col("parent_task_id").is_null())


def _nearest(frames: Iterator[pl.DataFrame], offers: dict[bool, set[str]]) -> pl.DataFrame:
    """The candidates that bear on the offered tools, and some others: by whether they call, in the round's order."""
    empty = pl.DataFrame(schema={**schema.TASKS.schema, "chance": pl.Float64, "near": pl.Boolean})
    best = dict.fromkeys(offers, empty)
    for frame in frames:
        for calling, names in offers.items():
            patterns = [f'"name":{canonical(name)}' for name in sorted(names)]
            same = (pl.col("gold_json") != "[]") == calling
            near = pl.col("gold_json" if calling else "tools_json").str.contains_any(patterns)
            most = fewshot.PER_TOOL * max(len(names), 1) + fewshot.GENERAL
            merged = pl.concat([best[calling], frame.filter(same).with_columns(near=near)])
            best[calling] = merged.sort("near", "chance", descending=[True, False]).head(most)
    return pl.concat(best.values()).sort("chance")


def _own_answers(sources: DemoSources) -> dict[str, str]:
    """Slot -> the model's first exactly right completion of this round, where the rollouts are given."""
    if sources.rollouts is None or sources.scores is None:
        return {}
    columns = ["rollout_id", "slot_id", "exact"]
    right: dict[str, str] = {}
    for _, frame in sources.scores.frames(columns):
        right.update(frame.filter(pl.col("exact")).select("rollout_id", "slot_id").iter_rows())
    texts: dict[str, str] = {}
    among = pl.Series(list(right), dtype=pl.String).implode()
    for _, frame in sources.rollouts.frames(["rollout_id", "text"]):
        for rollout, text in frame.filter(pl.col("rollout_id").is_in(among)).iter_rows():
            texts.setdefault(right[rollout], text)
    return texts
