"""Tasks times an engine to rollouts: n completions a task, all of a task in one shard, in order (task_id, sample).

Resuming goes by (task, sample): what stands in a shard or in its spool is kept, errored rows are made again, a larger
n tops up. Batches are planned from what a shard lacks as a whole, so that a killed run ends in the same bytes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl

from toolsample_cli.config import RolloutConfig
from toolsample_cli.config.settings import as_record
from toolsample_cli.errors import ConfigError, DataError
from toolsample_cli.hashing import digest
from toolsample_cli.models.chat import Chat, conversation
from toolsample_cli.rollout.engines.model_defaults import with_model_settings
from toolsample_cli.rollout.finished import finished, rows_there
from toolsample_cli.rollout.spool import Spool
from toolsample_cli.rollout.types import (
    Completion,
    Request,
    Sampling,
    check_start,
    open_engine,
    rollout_seed,
    stop_strings,
)
from toolsample_cli.shards import schema
from toolsample_cli.shards.reading import Folder, numbered, open_folder, read_footer, refuse_nested
from toolsample_cli.shards.slice import Slice
from toolsample_cli.shards.writing import Output
from toolsample_cli.stage import Account, Options

COLUMNS = ["task_id", "protocol", "messages_json", "tools_json", "demos_json", "gold_text"]
TOO_LONG = "prompt_too_long"
FREE = frozenset({"n", "base_url", "tensor_parallel"})
"""Settings that may change between runs into one folder: they do not touch rows that are there."""
UNRECORDED = {
    *("api_key_env", "concurrency", "retries", "timeout", "gpu_memory"),
    *("ray", "ray_engines", "ray_gpus"),
}
"""Settings of how the work is carried out; they are no part of a shard's lineage."""


@dataclass(frozen=True)
class Plan:
    """The tasks wanted, in order: `rows` per output shard come from `chunks`."""

    folder: Folder
    ids: pl.Series
    wanted: frozenset[str] | None
    size: int

    @property
    def shards(self) -> int:
        """Output shards in all."""
        return -(-len(self.ids) // self.size)

    def rows(self, slice: Slice) -> int:
        """Tasks in the output shards of a slice."""
        return sum(min(self.size, len(self.ids) - k * self.size) for k in range(self.shards) if slice.owns(k))

    def chunks(self) -> Iterator[tuple[int, list[dict[str, Any]]]]:
        """(output shard number, its task rows); one input shard and one output shard in memory."""
        number, rows, left = 0, [], len(self.ids)
        for _, frame in self.folder.frames(COLUMNS):
            if self.wanted is not None:
                frame = frame.filter(pl.col("task_id").is_in(self.wanted))
            for row in frame.head(left).iter_rows(named=True):
                rows.append(row)
                left -= 1
                if len(rows) == self.size or left == 0:
                    yield number, rows
                    number, rows = number + 1, []
            if left == 0:
                return


def run(
    tasks: Path, out: Path, model: str | None, config: RolloutConfig, options: Options, *, engine: Any = None
) -> Account:
    """Sample `config.n` completions of every task with a model; an `engine` that holds it already may be given."""
    refuse_nested(out, tasks)
    config = with_model_settings(config, model)
    plan = _plan(tasks, config, options)
    account = Account("rollout", rows_in=len(plan.ids))
    account.extra |= options.idle_slice(plan.shards, "a smaller --tasks-per-shard cuts finer")
    _check(model, config, engine)
    total = plan.rows(options.slice) * config.n
    if options.dry_run:
        check_start(config.backend, model)
        account.extra.update(would_write=total, shards=plan.shards, already_there=rows_there(Path(out), options.slice))
        return account
    options.expect(total)
    if config.ray:
        from toolsample_cli.rollout.ray import run_on_ray

        return run_on_ray(tasks, out, model, config, options, plan.shards)
    settings = {key: value for key, value in as_record(config).items() if key not in UNRECORDED}
    settings["stop"] = list(stop_strings(config.stop)) or None
    record, inputs = {**settings, "model": model, **options.selection()}, {"tasks": plan.folder.digest}
    there = None if engine or options.overwrite else finished(Path(out), model, config, record, inputs, options.slice)
    if there is not None:
        account.rows_out, account.wrote = there, Path(out)
        account.extra["nothing to do"] = "all rollouts are there"
        return account
    options.phase("loading the model")
    backend = engine or open_engine(config.backend, model, config)
    options.phase("sampling")
    try:
        record = {**record, **backend.describe()}
        if config.texts:
            backend.refuse_unknown(plan.ids.to_list(), tasks)
        with Output(out, schema.ROLLOUTS, record, inputs, options.overwrite, options.slice, FREE) as output:
            _refuse_fewer(output, config.n)
            if options.overwrite:
                _forget_spools(output)
            work = _Work(output, backend, config, options, digest([record, inputs]))
            for number, rows in plan.chunks():
                if options.slice.owns(number):
                    work.shard(number, rows)
            output.counts.update(work.counts)
            output.finish()
    finally:
        if engine is None:
            backend.close()
    return work.account(account, output.path)


def _plan(tasks: Path, config: RolloutConfig, options: Options) -> Plan:
    folder = open_folder(tasks, schema.TASKS)
    ids, wanted = folder.load(["task_id"])["task_id"], options.wanted_ids()
    repeated = ids.filter(ids.is_duplicated())
    if len(repeated):
        raise DataError(f"{tasks}: task {repeated[0]} occurs twice", hint="task ids must be unique; import anew")
    if wanted is not None:
        ids = ids.filter(ids.is_in(wanted))
    return Plan(folder, ids.head(options.limit) if options.limit is not None else ids, wanted, config.tasks_per_shard)


def _check(model: str | None, config: RolloutConfig, engine: Any) -> None:
    if model is None and engine is None and config.backend != "replay":
        raise ConfigError(f"backend {config.backend} needs --model", hint="a model folder, a hub id or a server's name")
    stop_strings(config.stop)  # refused before a model is loaded
    if config.texts and config.backend != "replay":
        raise ConfigError("texts are for --backend replay", hint="add --backend replay, or leave --texts out")


def _refuse_fewer(output: Output, n: int) -> None:
    for number, file in numbered(output.path):
        if output.slice.owns(number) and read_footer(file).get("config", {}).get("n", n) > n:
            raise ConfigError(
                f"{file}: holds {read_footer(file)['config']['n']} samples a task, -n is {n}",
                hint="a larger -n tops up; to make fewer, give another folder or --overwrite",
            )


def _spool_path(output: Output, number: int) -> Path:
    return output.path.parent / f"{output.path.name}.tmp" / f"part-{number:05d}.spool"


def _forget_spools(output: Output) -> None:
    for file in _spool_path(output, 0).parent.glob("part-*.spool"):
        if output.slice.owns(int(file.stem.removeprefix("part-"))):
            file.unlink()


@dataclass
class _Work:
    """Makes one shard after the other and counts."""

    output: Output
    backend: Any
    config: RolloutConfig
    options: Options
    identity: str

    def __post_init__(self) -> None:
        chat = self.backend.chat
        self.chat = Chat(chat.tokenizer, self_examples=self.config.self_examples) if chat else None
        limits = [x for x in (self.config.max_prompt_tokens, self.backend.max_prompt_tokens) if x]
        self.longest = min(limits) if limits else None
        self.sampling = Sampling.of(self.config, self.chat.end_ids if self.chat else ())
        self.counts: Counter[str] = Counter()
        self.tokens = 0

    def shard(self, number: int, rows: list[dict[str, Any]]) -> None:
        """Write shard `number` unless it stands there without a gap or an error."""
        old = self.output.existing(number)
        good = None if old is None else old.filter(pl.col("error").is_null())
        if good is not None and good.height == len(rows) * self.config.n and self.output.done(number):
            self.options.found(good.height)
            self._count(good)
            _spool_path(self.output, number).unlink(missing_ok=True)  # of a run killed right after this shard
            return
        have = set() if good is None else set(good.select("task_id", "sample").iter_rows())
        if have:
            self.options.found(len(have))
        made = self._make(number, rows, have)
        frame = made if good is None else pl.concat([good, made])
        frame = frame.sort("task_id", "sample")
        self.output.write(number, frame)
        _spool_path(self.output, number).unlink(missing_ok=True)
        self._count(frame)

    def _make(self, number: int, rows: list[dict[str, Any]], have: set[tuple[str, int]]) -> pl.DataFrame:
        prompts, faults = self._prompts(rows)
        requests, done = [], {}
        talks = getattr(self.backend, "wants_conversation", False)
        for row, prompt, fault in zip(rows, prompts, faults, strict=True):
            for sample in range(self.config.n):
                key = (row["task_id"], sample)
                if key in have:
                    continue
                seed = rollout_seed(self.config.seed, row["task_id"], self.config.round, sample)
                talk = conversation(row, self_examples=self.config.self_examples) if talks and not fault else None
                requests.append(Request(row["task_id"], prompt, sample, seed, row["gold_text"], talk))
                if fault:
                    done[key] = Completion(*key, error=fault)
        todo = [r for r in requests if (r.key, r.sample) not in done]
        if getattr(self.backend, "spools", True):
            with Spool(_spool_path(self.output, number), digest([self.identity, sorted(have)])) as spool:
                done.update(self._spooled(todo, spool))
        else:
            done.update(((c.key, c.sample), c) for c in self._ticking(self.backend.generate(todo, self.sampling)))
        return self._frame(rows, prompts, requests, done)

    def _prompts(self, rows: Sequence[Mapping[str, Any]]) -> tuple[list[list[int]], list[str | None]]:
        """Prompt ids a task, and what is wrong with it: a prompt is never truncated."""
        if self.chat is None:
            return [[] for _ in rows], [None] * len(rows)
        texts, faults = [], []
        for row in rows:
            try:
                texts.append(self.chat.prompt_text(row))
                faults.append(None)
            except DataError as error:
                texts.append("")
                faults.append(f"prompt: {error}")
        prompts = self.chat.encode_many(texts)
        for i, prompt in enumerate(prompts):
            if self.longest is not None and len(prompt) > self.longest:
                faults[i] = f"{TOO_LONG}: {len(prompt)} tokens, the limit is {self.longest}"
        return prompts, faults

    def _spooled(self, todo: list[Request], spool: Spool) -> dict[tuple[str, int], Completion]:
        """Generate what the spool does not hold; a batch that is not whole there is made anew as a whole."""
        found = {key: done for key, done in spool.found.items() if done.error is None}
        together = hasattr(self.backend, "batches")
        batches = self.backend.batches(todo, self.sampling) if together else [[r] for r in todo]
        missing = [batch for batch in batches if any((r.key, r.sample) not in found for r in batch)]
        kept = {(r.key, r.sample) for batch in batches for r in batch} - {(r.key, r.sample) for b in missing for r in b}
        done = {key: found[key] for key in kept}
        self.options.found(len(done))
        for batch in missing if together else [[r for b in missing for r in b]] if missing else []:
            held: list[Completion] = []
            for completion in self._ticking(self.backend.generate(batch, self.sampling)):
                done[completion.key, completion.sample] = completion
                held.append(completion)
                if not together:
                    spool.add(held)
                    held = []
            spool.add(held)
        return done

    def _ticking(self, completions: Iterator[Completion]) -> Iterator[Completion]:
        for completion in completions:
            self.options.tick(1)
            self.tokens += len(completion.completion_ids)
            yield completion

    def _frame(self, rows: list, prompts: list, requests: list[Request], done: Mapping) -> pl.DataFrame:
        place = {row["task_id"]: i for i, row in enumerate(rows)}
        got = [done[r.key, r.sample] for r in requests]
        unread = [i for i, c in enumerate(got) if c.text is None and c.error is None]
        texts = [c.text or "" for c in got]
        decoded = self.chat.texts([got[i].completion_ids for i in unread]) if unread else []
        for i, text in zip(unread, decoded, strict=True):
            texts[i] = text
        ids, logps = schema.ROLLOUTS.schema["prompt_ids"], schema.ROLLOUTS.schema["logprobs"]
        count, config = len(requests), self.config
        columns = {
            "rollout_id": [f"{r.key}/{config.round}/{r.sample}" for r in requests],
            "task_id": [r.key for r in requests],
            "round": [config.round] * count,
            "sample": [r.sample for r in requests],
            "policy": [self.backend.policy] * count,
            "backend": [self.backend.name] * count,
            "seed": [r.seed for r in requests],
            "prompt_ids": pl.Series(prompts, dtype=ids).gather([place[r.key] for r in requests]),
            "completion_ids": pl.Series([list(c.completion_ids) for c in got], dtype=ids),
            "logprobs": pl.Series([None if c.logprobs is None else list(c.logprobs) for c in got], dtype=logps),
            "finish_reason": [c.finish_reason for c in got],
            "ids_from_text": [c.ids_from_text for c in got],
            "text": [t.encode("utf-8", "replace").decode() for t in texts],
            "error": [c.error for c in got],
        }
        return schema.frame(schema.ROLLOUTS, columns)

    def _count(self, frame: pl.DataFrame) -> None:
        self.counts["rollouts"] += frame.height
        for column, prefix in (("finish_reason", "finish"), ("error", "error")):
            kinds = frame[column].drop_nulls().str.splitn(":", 2).struct[0].value_counts()
            self.counts.update({f"{prefix} {kind}": count for kind, count in kinds.iter_rows()})

    def account(self, account: Account, path: Path) -> Account:
        """What was done; exit code 1 when rows errored for another reason than a prompt that is too long."""
        account.rows_out, account.wrote = self.counts["rollouts"], path
        account.dropped = {k.removeprefix("error "): v for k, v in self.counts.items() if k.startswith("error ")}
        account.extra["tokens"] = self.tokens
        account.exit_code = 1 if any(kind != TOO_LONG for kind in account.dropped) else 0
        return account
