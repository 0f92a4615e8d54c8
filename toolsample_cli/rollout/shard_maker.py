"""Makes rollout shards with an engine: all of a task in one shard, in order (task_id, sample).

Resuming goes by (task, sample): what is in a shard or in its spool is kept, errored rows are made again, a larger n
tops up. Batches are planned from what a shard lacks as a whole, so that a killed run ends in the same bytes.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import polars as pl

from toolsample_cli.config import RolloutConfig
from toolsample_cli.errors import ConfigError, DataError
from toolsample_cli.hashing import digest
from toolsample_cli.json_types import Row
from toolsample_cli.models.chat import Chat, Conversation, task_conversation
from toolsample_cli.rollout.spool import Spool
from toolsample_cli.rollout.task_plan import TaskPlan
from toolsample_cli.rollout.types import Completion, Engine, Request, Sampling, rollout_seed
from toolsample_cli.shards import schema
from toolsample_cli.shards.reading import numbered, read_footer
from toolsample_cli.shards.writing import Output
from toolsample_cli.stage import Account, Options

TOO_LONG = "prompt_too_long"
FREE = frozenset({"n", "base_url", "tensor_parallel", "prompting"})
"""Settings that may change between runs into one folder: they do not touch rows that are there."""

Key = tuple[str, int]
"""Task id and sample."""


def make_shards(
    plan: TaskPlan, out: Path, engine: Engine, config: RolloutConfig, record: Row, options: Options
) -> Account:
    """Fill the shards of this slice; `record` is the lineage without what the engine adds."""
    record, inputs = {**record, **engine.describe()}, {"tasks": plan.folder.digest}
    if config.texts:
        engine.refuse_unknown(plan.ids.to_list(), plan.folder.path)
    with Output(out, schema.ROLLOUTS, record, inputs, options.overwrite, options.slice, FREE, options.lock) as output:
        _refuse_fewer(output, config.n)
        if options.overwrite:
            _forget_spools(output)
        maker = _Maker.of(output, engine, config, options, digest([record, inputs]))
        for number, rows in plan.chunks():
            if options.slice.owns(number):
                maker.shard(number, rows)
        output.counts.update(maker.counts)
        output.finish()
    return maker.account(len(plan.ids))


def _refuse_fewer(output: Output, n: int) -> None:
    for number, file in numbered(output.path):
        if output.slice.owns(number) and read_footer(file).get("config", {}).get("n", n) > n:
            raise ConfigError(
                f"{file}: holds {read_footer(file)['config']['n']} samples per task, -n is {n}",
                hint="a larger -n tops up; to make fewer, give another folder or --overwrite",
            )


def _spool_path(output: Output, number: int) -> Path:
    return output.path.parent / f"{output.path.name}.tmp" / f"part-{number:05d}.spool"


def _forget_spools(output: Output) -> None:
    for file in _spool_path(output, 0).parent.glob("part-*.spool"):
        if output.slice.owns(int(file.stem.removeprefix("part-"))):
            file.unlink()


@dataclass
class _Maker:
    """Makes one shard after the other and counts. `longest` is the longest prompt, None without a limit."""

    output: Output
    engine: Engine
    config: RolloutConfig
    options: Options
    identity: str
    chat: Chat | None
    sampling: Sampling
    longest: int | None
    counts: Counter[str] = field(default_factory=Counter)
    tokens: int = 0
    warned: bool = False

    @classmethod
    def of(cls, output: Output, engine: Engine, config: RolloutConfig, options: Options, identity: str) -> _Maker:
        """A maker for an engine, whose prompts may carry the self-exemplifying addition."""
        chat = Chat(engine.chat.tokenizer, self_examples=config.self_examples) if engine.chat else None
        limits = [x for x in (config.max_prompt_tokens, engine.max_prompt_tokens) if x]
        sampling = Sampling.of(config, chat.end_ids if chat else ())
        return cls(output, engine, config, options, identity, chat, sampling, min(limits) if limits else None)

    def shard(self, number: int, rows: list[Row]) -> None:
        """Write shard `number` unless it is there without a gap or an error."""
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

    def _make(self, number: int, rows: list[Row], have: set[Key]) -> pl.DataFrame:
        prompts, faults = self._prompts(rows)
        self._warn_of_long_golds(rows)
        requests: list[Request] = []
        done: dict[Key, Completion] = {}
        for row, prompt, fault in zip(rows, prompts, faults, strict=True):
            for sample in range(self.config.n):
                key = (row["task_id"], sample)
                if key in have:
                    continue
                seed = rollout_seed(self.config.seed, row["task_id"], self.config.round, sample)
                asked = self._conversation(row) if self.engine.wants_conversation and not fault else None
                requests.append(Request(row["task_id"], prompt, sample, seed, row["gold_text"], asked))
                if fault:
                    done[key] = Completion(*key, error=fault)
        todo = [r for r in requests if (r.key, r.sample) not in done]
        if self.engine.spools:
            with Spool(_spool_path(self.output, number), digest([self.identity, sorted(have)])) as spool:
                done.update(self._spooled(todo, spool))
        else:
            done.update(((c.key, c.sample), c) for c in self._ticking(self.engine.generate(todo, self.sampling)))
        return self._frame(rows, prompts, requests, done)

    def _conversation(self, row: Row) -> Conversation:
        return task_conversation(row, self_examples=self.config.self_examples)

    def _warn_of_long_golds(self, rows: Sequence[Row]) -> None:
        """Say once that answers as long as these golds would be cut."""
        if self.chat is None or self.warned:
            return
        most, golds = self.config.max_new_tokens, [row["gold_text"] for row in rows if row["gold_text"]]
        sizes = [len(ids) + 1 for ids in self.chat.encode_many(golds)]  # and the end of the turn
        if max(sizes, default=0) > most:
            self.warned = True
            cut = sum(size > most for size in sizes)
            print(
                f"rollout: {cut:,} of the first {len(rows):,} tasks have a gold answer of more than {most:,} tokens "
                f"(the longest {max(sizes):,}), so that right answers would be cut: raise --max-new-tokens",
                file=sys.stderr,
            )

    def _prompts(self, rows: Sequence[Row]) -> tuple[list[list[int]], list[str | None]]:
        """Prompt ids per task, and what is wrong with it: a prompt is never truncated."""
        if self.chat is None:
            return [[] for _ in rows], [None] * len(rows)
        texts: list[str] = []
        faults: list[str | None] = []
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

    def _spooled(self, todo: list[Request], spool: Spool) -> dict[Key, Completion]:
        """Generate what the spool does not hold; a batch that is not complete there is made anew as a whole."""
        found = {key: done for key, done in spool.found.items() if done.error is None}
        together, batches = self.engine.batched, self.engine.batches(todo, self.sampling)
        missing = [batch for batch in batches if any((r.key, r.sample) not in found for r in batch)]
        kept = {(r.key, r.sample) for batch in batches for r in batch} - {(r.key, r.sample) for b in missing for r in b}
        done = {key: found[key] for key in kept}
        self.options.found(len(done))
        for batch in missing if together else [[r for b in missing for r in b]] if missing else []:
            held: list[Completion] = []
            for completion in self._ticking(self.engine.generate(batch, self.sampling)):
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

    def _frame(
        self, rows: list[Row], prompts: list[list[int]], requests: list[Request], done: Mapping[Key, Completion]
    ) -> pl.DataFrame:
        index = {row["task_id"]: i for i, row in enumerate(rows)}
        got = [done[r.key, r.sample] for r in requests]
        unread = [i for i, c in enumerate(got) if c.text is None and c.error is None]
        texts = [c.text or "" for c in got]
        decoded = self.chat.texts([got[i].completion_ids for i in unread]) if unread and self.chat else []
        for i, text in zip(unread, decoded, strict=True):
            texts[i] = text
        ids, logps = schema.ROLLOUTS.schema["prompt_ids"], schema.ROLLOUTS.schema["logprobs"]
        count, config = len(requests), self.config
        columns: dict[str, Sequence[object] | pl.Series] = {
            "rollout_id": [f"{r.key}/{config.round}/{r.sample}" for r in requests],
            "task_id": [r.key for r in requests],
            "round": [config.round] * count,
            "sample": [r.sample for r in requests],
            "policy": [self.engine.policy] * count,
            "backend": [self.engine.name] * count,
            "seed": [r.seed for r in requests],
            "prompt_ids": pl.Series(prompts, dtype=ids).gather([index[r.key] for r in requests]),
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

    def account(self, tasks: int) -> Account:
        """What was done; exit code 1 when rows errored for another reason than a prompt that is too long."""
        errors = {k.removeprefix("error "): v for k, v in self.counts.items() if k.startswith("error ")}
        account = Account("rollout", tasks, self.counts["rollouts"], errors, self.output.path)
        account.extra["tokens"] = self.tokens
        account.exit_code = 1 if any(kind != TOO_LONG for kind in errors) else 0
        return account
