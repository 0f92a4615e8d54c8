"""What can be asked of a folder: its own columns, and those of the shards of the same run that belong to its rows.

A view has one row per row of its main shards. Columns of other kinds are joined by id when a question names them; a
name that is taken already gets its kind before it, as in `batch_reward`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from pathlib import Path

import polars as pl

from toolsample_cli.config.settings import nearest
from toolsample_cli.errors import ConfigError, DataError
from toolsample_cli.inspection.shard_folders import ShardFolder, companions, look, rows_of

MAIN = ("scores", "rollouts", "groups", "tasks")
"""Kinds whose rows are asked about in a round's folder, the first that is there."""
SHARED = frozenset({"task_id", "slot_id", "shots", "source", "category", "round", "sample", "rollout_id"})
"""Columns that mean the same in every kind."""
KEYS: dict[tuple[str, str], dict[str, str]] = {
    ("scores", "rollouts"): {"rollout_id": "rollout_id"},
    ("scores", "batch"): {"rollout_id": "rollout_id"},
    ("scores", "records"): {"rollout_id": "rollout_id"},
    ("scores", "groups"): {"task_id": "task_id", "round": "last_round"},
    ("scores", "tasks"): {"task_id": "task_id"},
    ("scores", "before"): {"task_id": "task_id", "sample": "sample"},
    ("rollouts", "scores"): {"rollout_id": "rollout_id"},
    ("rollouts", "batch"): {"rollout_id": "rollout_id"},
    ("rollouts", "records"): {"rollout_id": "rollout_id"},
    ("rollouts", "groups"): {"task_id": "task_id", "round": "last_round"},
    ("rollouts", "tasks"): {"task_id": "task_id"},
    ("groups", "tasks"): {"task_id": "task_id"},
    ("groups", "answer"): {"task_id": "task_id", "last_round": "round"},
    ("groups", "before"): {"slot_id": "slot_id"},
    ("tasks", "groups"): {"task_id": "task_id"},
    ("batch", "scores"): {"rollout_id": "rollout_id"},
    ("batch", "rollouts"): {"rollout_id": "rollout_id"},
    ("batch", "tasks"): {"task_id": "task_id"},
    ("records", "rollouts"): {"rollout_id": "rollout_id"},
    ("records", "scores"): {"rollout_id": "rollout_id"},
}
"""(main kind, other kind) -> {column of the main kind: column of the other}."""


@dataclass(frozen=True)
class JoinedShards:
    """Shards of another kind: `keys` main column -> its column, `columns` name in the view -> its column."""

    kind: str
    place: ShardFolder
    keys: dict[str, str]
    columns: dict[str, str]

    def frame(self, names: list[str]) -> pl.LazyFrame:
        """The key columns under the main kind's names and the columns `names`, one row per key."""
        picked = [pl.col(theirs).alias(mine) for mine, theirs in self.keys.items()]
        picked += [pl.col(self.columns[name]).alias(name) for name in names]
        source = commonest_answers(self.place) if self.kind == "answer" else scan(self.place)
        return source.select(picked).unique(list(self.keys), keep="first", maintain_order=True)


@dataclass(frozen=True)
class View:
    """The main shards, and what can be joined to them."""

    main: ShardFolder
    schema: dict[str, pl.DataType]
    joined: tuple[JoinedShards, ...]

    @property
    def columns(self) -> list[str]:
        """All names a question may use, the main kind's own first."""
        return [*self.schema, *(name for one in self.joined for name in one.columns)]

    def refuse_unknown(self, names: list[str], where: str) -> None:
        """ConfigError that names the nearest column, unless all are known."""
        for name in names:
            if name not in self.columns:
                shown = ", ".join(self.columns)
                hint = nearest(name, self.columns) or f"columns: {shown}"
                raise ConfigError(f"{where}: no column {name!r} in {self.main.kind or self.main.path}", hint=hint)

    def joins(self, names: list[str]) -> list[tuple[JoinedShards, list[str]]]:
        """The other shards that hold some of these columns, each with those that it holds."""
        found = [(one, [name for name in dict.fromkeys(names) if name in one.columns]) for one in self.joined]
        return [(one, mine) for one, mine in found if mine]


def scan(place: ShardFolder) -> pl.LazyFrame:
    """All rows of a place; DataError names a torn file."""
    for file in place.files:
        place.verify(file)
        rows_of(file)
    return pl.scan_parquet(list(place.files), glob=False, hive_partitioning=False)


def commonest_answers(scores: ShardFolder) -> pl.LazyFrame:
    """The commonest readable answer to each task of a round: its share of the scored samples, calls, exact, valid."""
    read = scan(scores).filter(pl.col("reward").is_not_null())
    total = pl.len().over("task_id", "round")
    each = read.select("task_id", "round", "calls_json", "exact", "schema_valid", "parse_status", total.alias("all"))
    groups = each.filter(pl.col("parse_status") == "ok").group_by("task_id", "round", "calls_json")
    counted = groups.agg(
        share=pl.len() / pl.col("all").first(), exact=pl.col("exact").first(), valid=pl.col("schema_valid").first()
    )
    return counted.sort("share", "calls_json", descending=[True, False])


def open_view(paths: list[Path], kind: str | None = None) -> View:
    """The view of a folder of shards, a round or a run; `kind` asks for rows of that kind.

    Further paths are shards to join; one of the same kind is the state before, whose columns begin with `before_`.
    ConfigError when there are no such shards.
    """
    places = _in_folder(paths[0])
    main = _main(places, kind, paths[0])
    others = [place for place in places if place.kind != main.kind]
    if paths[0].resolve() == main.path.resolve() or look(paths[0]) is not None:
        others = companions([main])[1:]
    before = _earlier(main, "groups") if main.kind == "groups" else None
    for path in paths[1:]:
        place = look(path)
        if place is None:
            raise ConfigError(f"{path}: no shards in it", hint="further folders are joined to the first")
        before = place if place.kind == main.kind else before
        others.insert(0, place)
    tasks = [one for one in (_earlier(main, "tasks"), *others) if one is not None and one.kind == "tasks"]
    others = [one for one in others if one.kind not in ("tasks", main.kind)]
    if tasks:
        others.append(_united(tasks, "tasks"))
    if before is not None:
        others.append(replace(before, kind="before"))
    if main.kind == "groups":
        others += [replace(one, kind="answer") for one in others if one.kind == "scores"]
    return _joined(main, others)


def _in_folder(path: Path) -> list[ShardFolder]:
    """The place itself, or the shards of a round's folder, or of all rounds of a run."""
    place = look(path)
    if place is not None:
        return [place]
    rounds = sorted(path.glob("round-*"), key=lambda one: int("".join(re.findall(r"\d+$", one.name)) or 0))
    found: dict[str, list[ShardFolder]] = {}
    for folder in rounds or [path]:
        for manifest in sorted(folder.glob("*.manifest*.json")):
            inside = look(folder / manifest.name.partition(".manifest")[0])
            if inside is not None and inside.kind is not None and inside.files:
                found.setdefault(inside.kind, []).append(inside)
    if "groups" in found:  # each round's groups hold those of the rounds before
        found["groups"] = found["groups"][-1:]
    places = [_united(group, kind) for kind, group in found.items()]
    if rounds and "tasks" in found and (path / "corpus").is_dir():
        corpus = look(path / "corpus")
        places += [corpus] if corpus is not None else []
    return places


def _main(places: list[ShardFolder], kind: str | None, path: Path) -> ShardFolder:
    if kind is not None and places and all(place.kind != kind for place in places):
        places = [*places, *companions(places)[1:]]
    order = [kind] if kind is not None else [*MAIN, *(place.kind for place in places)]
    for wanted in order:
        for place in places:
            if place.kind == wanted:
                return place
    what = f"no {kind} in it or beside it" if kind else "no shards in it"
    raise ConfigError(f"{path}: {what}", hint="give a folder of shards, a round or a run")


def _united(places: list[ShardFolder], kind: str) -> ShardFolder:
    files = tuple(dict.fromkeys(file for place in places for file in place.files))
    return places[0] if len(places) == 1 else ShardFolder(places[0].path, kind, files, ())


def _earlier(main: ShardFolder, name: str) -> ShardFolder | None:
    """The shards `name` of the round before the one that the main shards are in."""
    folder = main.path.resolve().parent
    match = re.fullmatch(r"round-(\d+)", folder.name)
    path = folder.parent / f"round-{int(match[1]) - 1}" / name if match else None
    return look(path) if path is not None and path.is_dir() else None


def _joined(main: ShardFolder, others: list[ShardFolder]) -> View:
    if not main.files:
        raise DataError(f"{main.path}: no shards", hint="rerun the stage that writes it")
    rows_of(main.files[0])
    own = dict(pl.read_parquet_schema(main.files[0]))
    joined: list[JoinedShards] = []
    taken = set(own)
    for place in others:
        keys = KEYS.get((main.kind or "", place.kind or ""))
        if keys is None or not place.files or any(one.kind == place.kind for one in joined):
            continue
        rows_of(place.files[0])
        theirs = ["share", "calls_json", "exact", "valid"] if place.kind == "answer" else None
        names = theirs or [name for name in pl.read_parquet_schema(place.files[0]) if name not in keys.values()]
        columns = _named(str(place.kind), names, taken)
        taken |= set(columns)
        joined.append(JoinedShards(str(place.kind), place, keys, columns))
    return View(main, own, tuple(joined))


def _named(kind: str, names: list[str], taken: set[str]) -> dict[str, str]:
    always = kind in ("before", "answer")
    columns = {f"{kind}_{name}" if always or name in taken else name: name for name in names}
    return columns if always else {view: name for view, name in columns.items() if name not in SHARED or view == name}
