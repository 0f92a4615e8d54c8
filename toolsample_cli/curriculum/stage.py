"""The curriculum stage: groups and scores of a round, the corpus and the state -> batch, next tasks, next state.

`OUT/batch` has one shard per score shard, `OUT/tasks` the drawn tasks in order of their slot, `OUT/state.json` is
written last. The corpus and the groups are streamed; what stays in memory is 8 bytes per task and the draw.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from toolsample_cli.config import CurriculumConfig
from toolsample_cli.config.settings import as_record
from toolsample_cli.curriculum import activation, mastery
from toolsample_cli.curriculum.corpus import LEAVE_OUT, Corpus
from toolsample_cli.curriculum.demonstrations import DemoSources
from toolsample_cli.curriculum.intake import RoundData, dead_advice, read_state, take_in
from toolsample_cli.curriculum.next_tasks import Drawn, next_tasks
from toolsample_cli.curriculum.reweighting import write_batch
from toolsample_cli.curriculum.sampling import Mix
from toolsample_cli.curriculum.state import State
from toolsample_cli.errors import ConfigError, EmptyBatch
from toolsample_cli.hashing import digest
from toolsample_cli.json_types import Row
from toolsample_cli.shards import schema
from toolsample_cli.shards.reading import Folder, open_folder, refuse_nested
from toolsample_cli.shards.sealed import write_sealed
from toolsample_cli.shards.test_rows import refuse_test_folder
from toolsample_cli.shards.writing import Output
from toolsample_cli.stage import Account, Options


@dataclass(frozen=True)
class Paths:
    """What the stage reads: the corpus; groups and scores of the round (neither for the first draw); the state.

    `tasks` are the round's tasks, looked through for test data; `rollouts` give own demonstrations their thoughts,
    `records` of the latest training the losses for `mastery = loss`.
    """

    corpus: Path
    groups: Path | None = None
    scores: Path | None = None
    tasks: Path | None = None
    state: Path | None = None
    rollouts: Path | None = None
    records: Path | None = None


@dataclass(frozen=True)
class Inputs:
    """The paths, opened. `round`: groups and scores, or None for the first draw."""

    corpus: Corpus
    round: RoundData | None
    demonstrations: DemoSources

    @classmethod
    def open(cls, paths: Paths, config: CurriculumConfig, options: Options) -> Inputs:
        """Open what is given; the errors are those of `open_folder` and `Corpus.open`."""
        corpus = Corpus.open(paths.corpus, options)
        rollouts = open_folder(paths.rollouts, schema.ROLLOUTS) if paths.rollouts else None
        bank = open_folder(Path(config.demos), schema.TASKS) if config.demos else None
        if paths.groups is None or paths.scores is None:
            return cls(corpus, None, DemoSources(corpus.folder, bank=bank))
        records = open_folder(paths.records, schema.RECORDS) if paths.records else None
        groups, scores = open_folder(paths.groups, schema.GROUPS), open_folder(paths.scores, schema.SCORES)
        sources = DemoSources(corpus.folder, groups, scores, rollouts, bank)
        return cls(corpus, RoundData(groups, scores, records), sources)

    def digests(self) -> dict[str, str]:
        """Name -> digest of everything given."""
        given: dict[str, Folder | None] = {"corpus": self.corpus.folder}
        if self.round:
            given |= {"groups": self.round.groups, "scores": self.round.scores}
            given |= {"rollouts": self.demonstrations.rollouts, "records": self.round.records}
        given["demos"] = self.demonstrations.bank
        return {name: folder.digest for name, folder in given.items() if folder}


def run(paths: Paths, out: Path, config: CurriculumConfig, options: Options) -> Account:
    """Take in one round and draw the next. Exit code 5, with everything written, when no group was kept."""
    account = Account("curriculum")
    mastery.refuse_contradictions(config)
    refuse_nested(out)
    mix = Mix.parse(config.mix)
    _refuse_flags(paths, options)
    inputs = Inputs.open(paths, config, options)
    corpus = inputs.corpus
    if paths.tasks:
        refuse_test_folder(open_folder(paths.tasks, schema.TASKS), hint=LEAVE_OUT)
    fresh = State(corpus.identity, weights=mastery.first_weights(config))
    before = read_state(paths.state, corpus, config) if paths.state else fresh
    if options.dry_run:
        account.rows_in = corpus.rows
        account.extra["would draw"] = min(config.tasks_per_round, corpus.rows)
        account.extra["schedule"] = activation.describe(config, corpus.rows)
        return account
    state, kept = take_in(before, inputs.round, config, account) if inputs.round else (before, None)
    drawn = next_tasks(corpus, inputs.demonstrations, state, config, mix)  # first of all: it refuses what is foreign
    made_from = {**inputs.digests(), "state": digest(before.record())}
    record = {**as_record(config), **options.selection()}
    if inputs.round and kept is not None:
        with Output(out / "batch", schema.BATCH, record, made_from, options.overwrite, lock=options.lock) as output:
            output.counts.update({"passes before": before.passes, "passes": state.passes})
            account.rows_out = write_batch(inputs.round.scores, kept, before.weights, config, output, options)
            output.finish()
    _write_tasks(drawn, out / "tasks", record, made_from, options)
    state = _logged(drawn)
    write_sealed(out / "state.json", state.record())
    account.wrote = out
    account.extra.update(_facts(state, drawn, config, corpus.rows))
    if inputs.round and state.dead_rounds:
        where = inputs.round.groups.path
        raise EmptyBatch(
            f"{where}: no group of round {state.round} was kept, the batch is empty", hint=dead_advice(state)
        )
    return account


def _write_tasks(drawn: Drawn, out: Path, record: Row, made_from: dict[str, str], options: Options) -> None:
    with Output(out, schema.TASKS, record, made_from, options.overwrite, lock=options.lock) as output:
        for number, frame in enumerate(drawn.shards()):
            if not output.done(number):
                output.write(number, frame)
        output.counts.update(drawn.counts)
        output.finish()


def _logged(drawn: Drawn) -> State:
    """The drawn state, whose latest entry of the log says how the draw came about."""
    state = drawn.state
    if not state.log or not drawn.counts:
        return state
    return replace(state, log=(*state.log[:-1], {**state.log[-1], "next draw": dict(sorted(drawn.counts.items()))}))


def _facts(state: State, drawn: Drawn, config: CurriculumConfig, corpus_tasks: int) -> Row:
    """What the closing line says beside the counts of rows."""
    facts: Row = {"drawn": drawn.rows.height, **drawn.counts, "weights": state.weights}
    facts["passes"] = f"{state.passes:.2f} over {corpus_tasks:,} tasks, {state.visited:,} of them visited"
    if not state.active:
        facts["schedule"] = activation.describe(config, corpus_tasks)
    if state.hard_ended:
        facts["hard sampling is over"] = state.hard_ended
    return facts


def _refuse_flags(paths: Paths, options: Options) -> None:
    if (paths.groups is None) != (paths.scores is None):
        raise ConfigError("--groups and --scores belong together: the batch is made from both")
    if paths.scores is None and (paths.rollouts or paths.records):
        raise ConfigError("--rollouts and --records belong to a round: give its --groups and --scores, too")
    options.refuse_slice("curriculum", "it draws once over the whole corpus; filter and score take it")
