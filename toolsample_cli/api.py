"""Curation in a notebook: the stages of the command line as functions of frames.

    import toolsample_cli as ts

    tasks = ts.read("run/round-0/tasks")
    scores = ts.scores(tasks, ts.import_rollouts("my_rollouts.jsonl", tasks))
    groups = ts.groups(scores, method="rds")
    picked = ts.pick(tasks, groups, n=64)

Wherever a frame is taken, a folder of shards, an Arrow table, a pandas frame or a list of rows will do. Every
function runs the stage of its command, so that numbers, refusals and errors are the same; settings are those of
docs/settings.md, as keywords. Frames come back as polars.
"""

from __future__ import annotations

import dataclasses
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar, Union

import polars as pl

from toolsample_cli.bridges.answers import judge, pairs_of, right_of
from toolsample_cli.bridges.label import Label
from toolsample_cli.bridges.trainer_reward import score_label
from toolsample_cli.config import (
    CurriculumConfig,
    ExportConfig,
    FilterConfig,
    ImportConfig,
    RolloutsInConfig,
    ScoreConfig,
)
from toolsample_cli.config.settings import refuse_unknown, resolve
from toolsample_cli.errors import DataError
from toolsample_cli.json_types import Row
from toolsample_cli.shards import schema
from toolsample_cli.shards.reading import open_folder
from toolsample_cli.shards.writing import Output
from toolsample_cli.stage import Account, Options
from toolsample_cli.toolcalls.tool_schema import read_tools

if TYPE_CHECKING:
    import pandas
    import pyarrow

Frame: TypeAlias = Union[pl.DataFrame, "pyarrow.Table", "pandas.DataFrame", Sequence[Row], Path, str]
"""What every function takes: a frame, rows, or the folder of shards that holds them."""
Setting: TypeAlias = str | int | float | bool
T = TypeVar("T")


def read(path: Path | str, kind: str | None = None) -> pl.DataFrame:
    """A finished folder of shards (or one shard) as a frame; its kind is what its shards say, unless given."""
    from toolsample_cli.shards.reading import read_footer

    path = Path(path)
    if kind is None:
        first = next(iter(sorted(path.glob("part-*.parquet"))), None) if path.is_dir() else path
        if first is None:
            raise DataError(f"{path}: no shards in it", hint="give kind=, as in kind='tasks', for an empty folder")
        kind = str(read_footer(first).get("kind", ""))
    if kind not in schema.KINDS:
        raise DataError(f"{path}: does not say what it holds", hint=f"give kind=, one of {', '.join(schema.KINDS)}")
    return open_folder(path, schema.KINDS[kind]).load()


def write(frame: Frame, path: Path | str, kind: str) -> Path:
    """A frame as a finished folder of one shard, which every command reads. ConfigError where another one is."""
    known = schema.KINDS[kind]
    with Output(Path(path), known, {}, {}) as output:
        output.write(0, _frame(frame, known))
        output.finish()
    return Path(path)


def import_tasks(files: Path | str | Sequence[Path | str], **settings: Setting) -> pl.DataFrame:
    """Raw files, folders or hub paths as tasks (`toolsample import`)."""
    from toolsample_cli.importing.stage import run

    given = [files] if isinstance(files, str | Path) else files
    with _scratch() as at:
        run([str(one) for one in given], at / "tasks", _config(ImportConfig, settings), Options())
        return open_folder(at / "tasks", schema.TASKS).load()


def import_rollouts(
    files: Path | str | Sequence[Path | str], tasks: Frame, model: str | None = None, **settings: Setting
) -> pl.DataFrame:
    """Another trainer's rollouts, or plain lines of {task_id, text}, as rollouts (`toolsample import-rollouts`)."""
    from toolsample_cli.bridges.rollouts_in import run

    given = [Path(one) for one in ([files] if isinstance(files, str | Path) else files)]
    with _scratch() as at:
        run(given, _folder(at, tasks, schema.TASKS), at / "out", model, _config(RolloutsInConfig, settings), Options())
        return open_folder(at / "out", schema.ROLLOUTS).load()


def scores(tasks: Frame, rollouts: Frame, **settings: Setting) -> pl.DataFrame:
    """What every completion earned (`toolsample score`)."""
    from toolsample_cli.score.stage import run

    with _scratch() as at:
        folders = _folder(at, tasks, schema.TASKS), _folder(at, rollouts, schema.ROLLOUTS)
        run(*folders, out=at / "out", config=_config(ScoreConfig, settings), options=Options())
        return open_folder(at / "out", schema.SCORES).load()


def groups(scores: Frame, history: Frame | None = None, **settings: Setting) -> pl.DataFrame:
    """Statistics of each task's rewards and the verdict on it (`toolsample filter`).

    The moving numbers of `greso` and `adarft` are in the folder of the round before, so give `history` as that folder
    where they matter.
    """
    from toolsample_cli.filter.stage import run

    with _scratch() as at:
        before = None if history is None else _folder(at, history, schema.GROUPS)
        run(_folder(at, scores, schema.SCORES), before, at / "out", _config(FilterConfig, settings), Options())
        return open_folder(at / "out", schema.GROUPS).load()


def pick(
    tasks: Frame, groups: Frame | None = None, n: int = 64, seed: int = 0, round: int = 1, method: str = "rds"
) -> pl.DataFrame:
    """The tasks of the round after `round`, drawn by the importance of their groups (`toolsample curriculum`).

    Nothing waits for the mean reward here. `tasks` are the corpus; without groups every task is equally wanted. The
    same arguments draw the same tasks.
    """
    from dataclasses import replace

    from toolsample_cli.curriculum.corpus import Corpus
    from toolsample_cli.curriculum.demonstrations import DemoSources
    from toolsample_cli.curriculum.mastery import first_weights
    from toolsample_cli.curriculum.next_tasks import next_tasks
    from toolsample_cli.curriculum.state import State

    config = resolve(CurriculumConfig, {"tasks_per_round": n, "seed": seed})
    with _scratch() as at:
        corpus = Corpus.open(_folder(at, tasks, schema.TASKS), Options())
        folder = None
        if groups is not None:
            folder = open_folder(_folder(at, groups, schema.GROUPS, {"method": method}), schema.GROUPS)
        state = replace(State(corpus.identity), weights=first_weights(config), round=round, active=True)
        return next_tasks(corpus, DemoSources(corpus.folder, folder), state, config, None).rows


def right(scores: Frame, rollouts: Frame, per_task: int = 1) -> pl.DataFrame:
    """Answers worth imitating: task_id, sample, text, reward; at most `per_task` different ones per task."""
    return right_of(_judged(scores, rollouts), per_task)


def pairs(scores: Frame, rollouts: Frame, per_task: int = 1) -> pl.DataFrame:
    """Right answers, each beside the worst one of its task: task_id, chosen, rejected and both rewards."""
    return pairs_of(_judged(scores, rollouts), per_task)


def export(
    tasks: Frame,
    to: str,
    out: Path | str,
    model: str | None = None,
    *,
    groups: Frame | None = None,
    rollouts: Frame | None = None,
    scores: Frame | None = None,
    overwrite: bool = False,
    **settings: Setting,
) -> Account:
    """Write another trainer's file (`toolsample export`); the account has what was left out and why."""
    from toolsample_cli.bridges.stage import Paths, run

    with _scratch() as at:
        given = ((groups, schema.GROUPS), (rollouts, schema.ROLLOUTS), (scores, schema.SCORES))
        others = [None if frame is None else _folder(at, frame, kind) for frame, kind in given]
        paths = Paths(_folder(at, tasks, schema.TASKS), *others)
        return run(paths, Path(out), model, _config(ExportConfig, {**settings, "to": to}), Options(overwrite=overwrite))


class Reward:
    """The reward of one task: `Reward(task)(text)` is a number, `Reward(task).score(text)` all its parts.

    `task` is a row of tasks or the label of an exported one. It can be pickled and used from threads.
    """

    def __init__(self, task: Row | str, **settings: str) -> None:
        self.label = task if isinstance(task, str) else Label.of(task).text
        self.settings = settings

    @classmethod
    def of(cls, calls: Sequence[Row], tools: Sequence[Row] = (), protocol: str = "hermes", **settings: str) -> Reward:
        """From gold calls {name, arguments} ([]: no call is right) and tools, also in OpenAI's form."""
        kind = "calls" if calls else "response"
        return cls(Label("", protocol, kind, list(calls), read_tools(list(tools))).text, **settings)

    def __call__(self, text: str | None, finish_reason: str | None = None) -> float:
        """The reward of one completion; a missing text counts as an empty one."""
        return self.score(text, finish_reason)["score"]

    def score(self, text: str | None, finish_reason: str | None = None) -> dict[str, float]:
        """`score`, `acc` (exactly right), the shares of format, name, key and value, and further numbers."""
        return score_label(text, self.label, finish_reason, **self.settings)


def _config(cls: type[T], settings: Mapping[str, Setting]) -> T:
    for name in settings:
        refuse_unknown(name, [item.name for item in dataclasses.fields(cls)], "unknown setting")  # type: ignore[arg-type]
    return resolve(cls, dict(settings))


@contextmanager
def _scratch() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="toolsample-") as folder:
        yield Path(folder)


def _folder(at: Path, value: Frame, kind: schema.Kind, config: Mapping[str, Setting] | None = None) -> Path:
    """The folder of shards that holds a frame: itself where it is one, else made in `at`."""
    if isinstance(value, str | Path):
        return Path(value)
    with Output(at / kind.name, kind, config or {}, {}) as output:
        output.write(0, _frame(value, kind))
        output.finish()
    return at / kind.name


def _frame(value: Frame, kind: schema.Kind) -> pl.DataFrame:
    """Any frame as one of this kind. Of rollouts task_id and text are enough; what else is missing is unknown."""
    if isinstance(value, str | Path):
        return open_folder(Path(value), kind).load()
    frame = _polars(value)
    if kind is schema.ROLLOUTS and not set(kind.schema) <= set(frame.columns):
        frame = _whole_rollouts(frame)
    cast = frame.with_columns(pl.col(name).cast(kind.schema[name]) for name in kind.schema if name in frame.columns)
    return schema.check(kind, cast, kind.name).select(list(kind.schema))


def _polars(value: Any) -> pl.DataFrame:
    if isinstance(value, pl.DataFrame):
        return value
    if isinstance(value, pl.LazyFrame):
        return value.collect()
    if hasattr(value, "__arrow_c_stream__") or hasattr(value, "__dataframe__"):
        made = pl.from_pandas(value) if type(value).__module__.startswith("pandas") else pl.DataFrame(value)
        return made if isinstance(made, pl.DataFrame) else made.to_frame()
    return pl.DataFrame(list(value), infer_schema_length=None)


def _whole_rollouts(frame: pl.DataFrame) -> pl.DataFrame:
    from toolsample_cli.bridges.incoming_forms import plain_lines
    from toolsample_cli.bridges.rollouts_in import rollout_rows

    if not {"task_id", "text"} <= set(frame.columns):
        raise DataError("rollouts need the columns task_id and text", hint="sample, finish_reason, ... are optional")
    rows: list[Row] = []
    for (task_id,), part in frame.group_by(["task_id"], maintain_order=True):
        found = [one for row in part.iter_rows(named=True) for one in plain_lines(row)]
        round = int(part["round"][0]) if "round" in part.columns else 0
        rows += rollout_rows(str(task_id), found, None, RolloutsInConfig(round=round))
    return schema.frame(schema.ROLLOUTS, rows)


def _judged(scores: Frame, rollouts: Frame) -> pl.DataFrame:
    return judge(_frame(scores, schema.SCORES), _frame(rollouts, schema.ROLLOUTS))
