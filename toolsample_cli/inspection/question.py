"""Questions over shards: which rows, in which order, which columns, or counts and means by a column.

Narrow columns decide; long texts are read for the rows that are shown only.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

import polars as pl

from toolsample_cli.errors import ConfigError
from toolsample_cli.inspection.row_expression import first_line, row_expression
from toolsample_cli.inspection.shard_folders import ShardFolder, rows_of
from toolsample_cli.inspection.views import View, scan
from toolsample_cli.json_types import Row

ROW = "row__"
REQUEST = "request"
"""A column for show: the text of the last user message of the row's task."""
DEFAULT = {
    "scores": ("rollout_id", "category", "parse_status", "format", "name", "key", "value", "reward", "exact"),
    "groups": ("task_id", "category", "n", "n_exact", "reward_mean", "reward_var", "importance", "keep", "reason"),
    "tasks": ("task_id", "category", "gold_kind", REQUEST, "gold_json"),
    "rollouts": ("rollout_id", "finish_reason", "error", "text"),
}
"""Columns that are shown unless others are asked for."""
MEANS = {
    "scores": ("reward", "format", "name", "key", "value", "exact"),
    "groups": ("n", "n_exact", "reward_mean", "reward_var", "importance", "keep"),
}
"""Columns whose mean (share of true ones) is shown by a column unless others are asked for."""


@dataclass(frozen=True)
class ShardQuestion:
    """What is asked; `sort` is an expression too, `limit` None shows all rows."""

    where: str | None = None
    sort: str | None = None
    desc: bool = False
    columns: tuple[str, ...] = ()
    by: str | None = None
    limit: int | None = None


@dataclass(frozen=True)
class AnsweredRows:
    """The rows that are shown, and how many matched."""

    rows: pl.DataFrame
    matched: int


def expression(text: str, what: str, view: View) -> pl.Expr:
    """A row expression over the columns of the view; ConfigError says what is wrong with it."""
    parsed = row_expression(text, what)
    view.refuse_unknown(parsed.meta.root_names(), what)
    return parsed


def ask(view: View, question: ShardQuestion) -> AnsweredRows:
    """The answer, in the order of the shards unless a sort is given; equal rows keep that order."""
    where = expression(question.where, "--where", view) if question.where else None
    if question.by is not None:
        return _by(view, question, where)
    sort = expression(question.sort, "--sort", view) if question.sort else None
    shown = question.columns or _default(view)
    view.refuse_unknown([name for name in shown if name != REQUEST], "--columns")
    deciding = [*_names(where), *_names(sort)]
    frame = _frame(view, deciding)
    frame = _filtered(frame, where, question.where)
    order = [] if sort is None else [sort.alias("sort__")]
    found = _collect(frame.select(ROW, *order), question)
    keys = ["sort__", ROW] if order else [ROW]
    found = found.sort(keys, descending=[question.desc, False] if order else False, nulls_last=True)
    chosen = found[ROW] if question.limit is None else found[ROW].head(question.limit)
    return AnsweredRows(_shown(view, chosen, list(shown)), found.height)


def _default(view: View) -> tuple[str, ...]:
    known = [*view.columns, *([REQUEST] if "messages_json" in view.columns else [])]
    names = DEFAULT.get(view.main.kind or "", ())
    if not names:
        names = tuple(name for name, dtype in view.schema.items() if not isinstance(dtype, pl.List))[:10]
    return tuple(name for name in names if name in known)


def _names(expr: pl.Expr | None) -> list[str]:
    return [] if expr is None else expr.meta.root_names()


def _frame(view: View, names: list[str]) -> pl.LazyFrame:
    """The row numbers and the columns `names` of every row."""
    joins = view.joins(names)
    keys = {key for one, _ in joins for key in one.keys}
    own = [name for name in view.schema if name in names or name in keys]
    frame = scan(view.main).select(own or [next(iter(view.schema))]).with_row_index(ROW)
    for one, mine in joins:
        frame = frame.join(one.frame(mine), on=list(one.keys), how="left", maintain_order="left")
    return frame


def _filtered(frame: pl.LazyFrame, where: pl.Expr | None, text: str | None) -> pl.LazyFrame:
    if where is None:
        return frame
    try:
        dtype = frame.select(where.alias("where__")).collect_schema()["where__"]
    except pl.exceptions.PolarsError as error:
        raise ConfigError(f"--where: {first_line(error)}") from None
    if dtype != pl.Boolean:
        raise ConfigError(f"--where {text!r}: is neither true nor false", hint="as in: reward < 1")
    return frame.filter(where)


def _collect(frame: pl.LazyFrame, question: ShardQuestion) -> pl.DataFrame:
    try:
        return frame.collect(engine="streaming")
    except pl.exceptions.PolarsError as error:
        asked = ", ".join(text for text in (question.where, question.sort) if text)
        raise ConfigError(f"{asked!r}: {first_line(error)}") from None


def _by(view: View, question: ShardQuestion, where: pl.Expr | None) -> AnsweredRows:
    by = str(question.by)
    means = question.columns or tuple(n for n in MEANS.get(view.main.kind or "", ()) if n in view.columns and n != by)
    view.refuse_unknown([by, *means], "--by and --columns")
    frame = _filtered(_frame(view, [by, *means, *_names(where)]), where, question.where)
    averages = [pl.col(name).cast(pl.Float64).mean().alias(name) for name in means]
    groups = _collect(frame.group_by(by).agg(pl.len().alias("rows"), *averages), question)
    sort = question.sort or "rows"
    if sort not in groups.columns:
        raise ConfigError(f"--sort {sort}: not a column of the answer", hint=f"one of {', '.join(groups.columns)}")
    down = question.desc if question.sort else True
    groups = groups.sort([sort, by], descending=[down, False], nulls_last=True)
    return AnsweredRows(groups if question.limit is None else groups.head(question.limit), groups.height)


def _shown(view: View, chosen: pl.Series, names: list[str]) -> pl.DataFrame:
    """The columns `names` of the chosen rows, in their order."""
    asked = ["messages_json" if name == REQUEST else name for name in names]
    joins = view.joins(asked)
    keys = [key for one, _ in joins for key in one.keys]
    own = [name for name in view.schema if name in asked or name in keys]
    rows = _rows(view.main, chosen, own)
    for one, mine in joins:
        key = next(iter(one.keys))
        wanted = rows[key].drop_nulls().unique()
        part = one.frame(mine).filter(pl.col(key).is_in(wanted.implode())).collect(engine="streaming")
        rows = rows.join(part, on=list(one.keys), how="left", maintain_order="left")
    rows = pl.DataFrame({ROW: chosen}).join(rows, on=ROW, how="left", maintain_order="left")
    if REQUEST in names:
        rows = rows.with_columns(pl.Series(REQUEST, [_request(text) for text in rows["messages_json"]], pl.String))
    return rows.select(list(dict.fromkeys(names)))


def _rows(place: ShardFolder, chosen: pl.Series, columns: list[str]) -> pl.DataFrame:
    """Columns of rows by number; shards without a chosen row are left alone."""
    parts: list[pl.DataFrame] = []
    start = 0
    for file in place.files:
        count = rows_of(file)
        here = chosen.filter((chosen >= start) & (chosen < start + count))
        if len(here) or not parts:
            frame = place.scan(file).select(columns)
            numbered = frame.with_row_index(ROW, offset=start).filter(pl.col(ROW).is_in(here.implode()))
            parts.append(numbered.collect(engine="streaming"))
        start += count
    return pl.concat(parts)


def _request(messages: str | None) -> str | None:
    try:
        turns: list[Row] = json.loads(messages or "[]")
        return next((str(turn["content"]) for turn in reversed(turns) if turn.get("role") == "user"), None)
    except (ValueError, KeyError, AttributeError, RecursionError):
        return None
