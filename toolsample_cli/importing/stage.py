"""`import`: raw rows of any known format to tasks; what cannot become one goes to `<out>.rejects` with its reason.

Rows are read and written in the order given, one shard in memory at a time.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from toolsample_cli.config import ImportConfig
from toolsample_cli.config.settings import as_record, nearest
from toolsample_cli.errors import ConfigError, DataError, location
from toolsample_cli.hashing import digest, sha256
from toolsample_cli.importing.base import Context, Draft, Reject
from toolsample_cli.importing.bfcl_questions import read_answers
from toolsample_cli.importing.columns import read_map
from toolsample_cli.importing.hub import PREFIX
from toolsample_cli.importing.raw_rows import Raw, raw_rows
from toolsample_cli.importing.screen import Screen
from toolsample_cli.importing.sources import Source, sources
from toolsample_cli.importing.splits import known_split, split_of_file, split_of_row
from toolsample_cli.importing.task_builder import Builder
from toolsample_cli.shards import schema
from toolsample_cli.shards.reading import refuse_nested
from toolsample_cli.shards.writing import Output
from toolsample_cli.stage import Account, Options
from toolsample_cli.toolcalls.call import canonical
from toolsample_cli.toolcalls.protocols import PROTOCOLS

ROWS = 8192
"""Tasks in one shard."""
BYTES = 64 << 20
"""... or fewer, when their text is longer than this."""
MISFIT = (KeyError, TypeError, AttributeError, ValueError, IndexError, OverflowError)
"""What a row of another shape does to the code that reads its format: it becomes a reject, never the end."""
BENCHMARK = re.compile(r"(live_)?(simple|multiple|parallel|parallel_multiple|irrelevance|relevance)(_python)?_\d[\d-]*")
"""Ids of BFCL's questions: in training data they mean that the benchmark has leaked into it."""


@dataclass
class _Sink:
    """Collects rows of one output and writes full shards of them."""

    output: Output
    rows: list[dict[str, Any]] = field(default_factory=list)
    size: int = 0
    number: int = 0

    def add(self, row: dict[str, Any]) -> None:
        self.rows.append(row)
        self.size += sum(len(value) for value in row.values() if isinstance(value, str))
        if len(self.rows) >= ROWS or self.size >= BYTES:
            self.flush()

    def flush(self) -> None:
        if self.rows and not self.output.done(self.number):
            self.output.write(self.number, schema.frame(self.output.kind, self.rows))
        if self.rows:
            self.rows, self.size, self.number = [], 0, self.number + 1


def run(raw: list[str], out: Path, config: ImportConfig, options: Options) -> Account:
    """Import raw files or folders into `out`. Raises ConfigError for settings, DataError for unreadable input."""
    options.refuse_slice("import", "it reads all rows in order; import other files into folders of their own")
    out = Path(out)
    refuse_nested(out, *(name for name in raw if not name.startswith(PREFIX)))
    columns = read_map(config.column, config.map)
    named = sources(raw, config.format, skip_broken=config.broken == "reject", columns=columns)
    found = named.files
    _refuse(found, config)
    formats = list(dict.fromkeys(source.format.name for source in found))
    account = Account("import", extra={"format": ", ".join(formats)})
    if named.passed_over:
        more = f" and {len(named.passed_over) - 3} more" if len(named.passed_over) > 3 else ""
        account.extra["passed over"] = ", ".join(named.passed_over[:3]) + more
    if options.dry_run:
        account.extra |= {"would import": f"{len(found)} file(s)", "files": [source.label for source in found]}
        return account
    record = {**as_record(config), **options.selection()}
    inputs = {"raw": digest([[f.name, sha256(f)] for source in found for f in (source.path, *source.answers)])}
    if config.tools:
        inputs["tools"] = sha256(Path(config.tools))
    screen = Screen(config)
    with ExitStack() as stack:
        kinds = ((out, schema.TASKS), (out.parent / f"{out.name}.rejects", schema.REJECTS))
        tasks, rejects = (
            _Sink(stack.enter_context(Output(path, kind, record, inputs, options.overwrite, lock=options.lock)))
            for path, kind in kinds
        )
        _fill(found, config, options, tasks, rejects, account, screen)
        for sink in (rejects, tasks):
            sink.flush()
        tasks.output.counts.update({"rows": account.rows_in, "tasks": account.rows_out, **account.extra["counts"]})
        rejects.output.counts.update(account.dropped)
        for sink in (rejects, tasks):
            sink.output.finish()
    account.wrote = out
    screen.tell(account)
    if account.rows_in and not account.rows_out:
        account.extra["no row became a task"] = f"see toolsample inspect {out}.rejects -i 1"
        account.exit_code = DataError.exit_code
    return account


def _refuse(found: list[Source], config: ImportConfig) -> None:
    if config.protocol != "auto" and config.protocol not in PROTOCOLS:
        raise ConfigError(
            f"protocol = {config.protocol!r}: not one of auto, {', '.join(PROTOCOLS)}",
            hint=nearest(config.protocol, ["auto", *PROTOCOLS]),
        )
    for source in found:
        form = source.format
        if form.verbatim and config.protocol not in ("auto", form.protocol):
            raise ConfigError(
                f"{source.label}: {form.name} prompts ask for the protocol {form.protocol}, not {config.protocol}"
            )
        if form.test and config.split not in ("auto", "test"):
            raise ConfigError(
                f"{source.label}: {form.name} is benchmark data, it cannot be split {config.split}",
                hint="to train on it all the same, import it as test and give train --allow-test-data",
            )


def _builder(source: Source, config: ImportConfig) -> Builder:
    split = "test" if source.format.test else ("" if config.split == "auto" else config.split)
    protocol = config.protocol if config.protocol != "auto" else source.format.protocol
    stem = source.path.name.partition(".")[0]
    worded = not source.format.verbatim and not PROTOCOLS[protocol].tools_in_template
    return Builder(
        config.source or stem, split, split_of_file(source.path) or "train", protocol, config.license, worded
    )


def _fill(
    found: list[Source],
    config: ImportConfig,
    options: Options,
    tasks: _Sink,
    rejects: _Sink,
    account: Account,
    screen: Screen,
) -> None:
    wanted = options.wanted_ids()
    counts: Counter[str] = Counter()
    dropped: Counter[str] = Counter()
    builder: tuple[Source, Builder] | None = None
    context = Context()
    for source, raw in _limited(found, options.limit):
        account.rows_in += 1
        options.tick(1)
        if builder is None or builder[0] is not source:
            builder = (source, _same_ids(_builder(source, config), builder))
            answers = {key: gold for file in source.answers for key, gold in read_answers(file).items()}
            context = Context(config.turns, answers, source.path.name, screen.catalogue, config.distractors)
        for place, item in enumerate(_built(source, raw, config, builder[1], context)):
            counts["further_answers"] += place > 0
            if not isinstance(item, Reject):
                item = screen.judge(item)
            if isinstance(item, Reject):
                dropped[item.reason] += 1
                rejects.add(_reject_row(source, raw, item))
            elif wanted is None or item["task_id"] in wanted:
                account.rows_out += 1
                _count(item, counts)
                tasks.add(item)
            else:
                dropped["not_in_ids"] += 1
    account.dropped = dict(dropped)
    if further := counts.pop("further_answers", 0):
        account.extra["further answers"] = further  # rows that gave several: in + further = out + dropped
    account.extra["flagged"] = counts["flagged"]
    if counts["flagged"]:
        account.extra["flagged rows"] = "those whose gold_issues_json is not []"
    if builder is not None and builder[1].repeats:
        account.extra["repeats"] = counts["repeats"] = sum(builder[1].repeats.values())
    if counts["benchmark_ids"]:
        account.extra["WARNING benchmark ids in training data"] = counts["benchmark_ids"]
    account.extra["counts"] = dict(sorted(counts.items()))


def _same_ids(builder: Builder, before: tuple[Source, Builder] | None) -> Builder:
    """Ids are unique over all files of one run."""
    if before is not None:
        builder.seen, builder.repeats = before[1].seen, before[1].repeats
    return builder


def _limited(found: list[Source], limit: int | None) -> Iterator[tuple[Source, Raw]]:
    left = limit
    for source in found:
        for raw in raw_rows(source.path):
            if left is not None:
                if left <= 0:
                    return
                left -= 1
            yield source, raw


def _built(
    source: Source, raw: Raw, config: ImportConfig, builder: Builder, context: Context
) -> Iterator[dict[str, Any] | Reject]:
    if raw.fault is not None:
        if config.broken == "stop":
            raise DataError(
                f"{location(source.label, row=raw.number)}: {raw.fault}", hint="mend it, or give --broken reject"
            )
        yield Reject("broken_row", raw.fault)
        return
    if not isinstance(raw.value, dict):
        yield Reject("not_an_object", f"the row is {type(raw.value).__name__}")
        return
    made = False
    try:
        row = raw.value if source.columns is None else source.columns.apply(raw.value)
        for draft in source.format.drafts(row, context):
            made = True
            if isinstance(draft, Draft):
                draft.split = known_split(draft.split) or split_of_row(row)
                draft.license = _license(row)
            yield _row(builder, draft) if isinstance(draft, Draft) else draft
    except Reject as reject:
        yield reject
    except RecursionError:  # in JSON that stands as text inside the row
        yield Reject("too_deep", "nested too deeply")
    except MISFIT as error:
        yield Reject("misfit", _misfit(source.format.name, error))
    else:
        if not made:
            yield Reject("no_task", "nothing in it to learn from")


def _license(row: dict[str, Any]) -> str:
    named = next((row[key] for key in ("license", "licence") if isinstance(row.get(key), str)), "")
    return named.strip()


def _misfit(form: str, error: Exception) -> str:
    """What is odd about a row that does not have the form of its format."""
    if isinstance(error, KeyError):
        return f"not a row of {form}: the key {error} is missing"
    return f"not a row of {form}: {type(error).__name__}: {error}"


def _row(builder: Builder, draft: Draft) -> dict[str, Any] | Reject:
    try:
        return builder.row(draft)
    except Reject as reject:
        return reject
    except RecursionError:
        return Reject("too_deep", "nested too deeply")
    except MISFIT as error:
        return Reject("misfit", f"cannot be stored: {type(error).__name__}: {error}")


def _reject_row(source: Source, raw: Raw, reject: Reject) -> dict[str, Any]:
    text = raw.text if raw.fault is not None else _shown(raw.value)
    return {
        "file": source.label,
        "row": raw.number,
        "reason": reject.reason,
        "detail": str(reject)[:1000],
        "raw_json": text[:4000],
    }


def _shown(value: Any) -> str:
    try:
        return canonical(value)
    except MISFIT:  # keys of mixed kinds, from a table or a Python literal
        return repr(value)


def _count(row: dict[str, Any], counts: Counter[str]) -> None:
    issues = {item["issue"] for item in json.loads(row["gold_issues_json"])}
    counts["flagged"] += bool(issues)
    counts.update(f"flagged_{issue}" for issue in issues)
    counts[f"gold_{row['gold_kind']}"] += 1
    if row["split"] != "test":
        extra = json.loads(row["extra_json"])
        counts["benchmark_ids"] += any(BENCHMARK.fullmatch(str(extra.get(key))) for key in ("id", "source_id"))
