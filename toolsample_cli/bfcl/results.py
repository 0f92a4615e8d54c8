"""What a user reads: the table of categories and the summary, partial results marked as such."""

from __future__ import annotations

from collections.abc import Mapping

from toolsample_cli.bfcl.aggregate import CategoryTally, overall
from toolsample_cli.json_types import Row


def evaluation_summary(counts: Mapping[str, CategoryTally], version: str, *, complete: bool, facts: Row) -> Row:
    """The record written as summary.json; official parts only when `complete` (no limit, ids or own entries)."""
    categories = {
        name: {
            "accuracy": tally.accuracy,
            "right": tally.right,
            "n": tally.n,
            "errors": tally.errors,
            "accuracy_errors_as_official": tally.officially(name),
            "low": tally.interval[0] if tally.interval else None,
            "high": tally.interval[1] if tally.interval else None,
        }
        for name, tally in counts.items()
    }
    right, n = sum(t.right for t in counts.values()), sum(t.n for t in counts.values())
    record = {
        **facts,
        "partial": not complete,
        "categories": categories,
        "all_entries": {"accuracy": right / n if n else None, "right": right, "n": n},
        "errors": sum(t.errors for t in counts.values()),
    }
    if complete:
        record["official"] = overall(counts, version)
    return record


def evaluation_table(record: Row) -> str:
    """The summary as lines of text."""
    lines = [f"{'category':<26}{'right':>8}{'of':>7}{'accuracy':>10}   95 % interval"]
    for name, item in record["categories"].items():
        lines.append(f"{name:<26}{item['right']:>8}{item['n']:>7}{_percent(item['accuracy']):>10}   {_interval(item)}")
    whole = record["all_entries"]
    lines.append(f"{'all entries':<26}{whole['right']:>8}{whole['n']:>7}{_percent(whole['accuracy']):>10}")
    for name, value in record.get("official", {}).items():
        if value is not None:
            lines.append(f"{'BFCL ' + record['version'] + ' ' + name:<41}{_percent(value):>10}")
    if record.get("format_sensitivity"):
        spread = record["format_sensitivity"]
        lines.append(
            f"{spread['forms']} forms of prompt: {spread['max_delta']:.2f} points apart, std {spread['std']:.2f}"
        )
    if record["errors"]:
        lines.append(f"{record['errors']} answers failed and are in no number; a rerun asks them again")
        lines.append("(the official evaluator would count them as right refusals, or wrong; see summary.json)")
    if record.get("unread_calls"):
        lines.append(f"{record['unread_calls']} replies seem to mean a call that the official reader does not see")
    lines += [f"{name}: not run, {why}" for name, why in record["not_run"].items()]
    if record["partial"]:
        lines.append("partial: not comparable with the leaderboard")
    return "\n".join(lines)


def _interval(item: Row) -> str:
    errors = f"   {item['errors']} errors" if item["errors"] else ""
    if item["low"] is None:
        return errors.strip()
    return f"{item['low'] * 100:5.1f} to {item['high'] * 100:5.1f}{errors}"


def _percent(value: float | None) -> str:
    return "" if value is None else f"{value * 100:.2f} %"
