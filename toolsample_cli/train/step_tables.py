"""A round's step metrics and records as shards beside the checkpoint, and its summary in a few numbers."""

from __future__ import annotations

from pathlib import Path

import polars as pl

from toolsample_cli.shards import schema
from toolsample_cli.shards.writing import Output
from toolsample_cli.train.checkpoint import Position


def write_tables(out: Path, position: Position, rollout_ids: pl.Series, *, lock: bool = True) -> None:
    """`<out>.steps` and `<out>.records`; rows of records are in the order of training."""
    steps = pl.DataFrame(position.metrics, schema=schema.STEPS.schema, orient="row")
    records = position.records.with_columns(rollout_id=rollout_ids.gather(position.records["row"]))
    frames = {
        "steps": (schema.STEPS, steps),
        "records": (schema.RECORDS, records.select(list(schema.RECORDS.schema))),
    }
    for name, (kind, frame) in frames.items():
        place = out.parent / f"{out.name}.{name}"
        with Output(place, kind, position.config, inputs=position.inputs, overwrite=True, lock=lock) as output:
            output.write(0, frame)
            output.finish()


def totals(position: Position) -> dict[str, list[float]]:
    """Values of each metric over the round's steps, in order."""
    values: dict[str, list[float]] = {}
    for one in position.metrics:
        if one.value is not None:
            values.setdefault(one.metric, []).append(one.value)
    return values


def dead_share(position: Position) -> float:
    """Share of the round's groups whose rollouts all have advantage 0."""
    values = totals(position)
    return sum(values.get("dead_groups", [0.0])) / max(sum(values.get("groups", [0.0])), 1.0)


def summary(position: Position, *, sft: bool) -> dict[str, str | int]:
    """The round in a few numbers for the closing line: means over its steps, the last learning rate."""
    values = totals(position)
    facts: dict[str, str | int] = {"steps": len(values.get("loss", []))}
    shown = {"loss": ("loss", "{:.4f}"), "grad norm": ("grad_norm", "{:.3f}"), "entropy": ("entropy", "{:.3f}")}
    for label, (name, form) in shown.items():
        if values.get(name):
            facts[label] = form.format(sum(values[name]) / len(values[name]))
    facts["lr"] = f"{values['lr'][-1]:.2e}" if values.get("lr") else "0"
    if not sft:
        first = values.get("log_ratio_first")
        facts["first |log ratio|"] = f"{first[0]:.4f}" if first else "unknown"
        dead, groups = sum(values.get("dead_groups", [0])), sum(values.get("groups", [0]))
        facts["dead groups"] = f"{int(dead)} of {int(groups)}"
    if refused := int(sum(values.get("refused", [0]))):
        facts["refused steps"] = refused
    return facts
