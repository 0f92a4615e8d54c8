"""What made a checkpoint or a folder of shards: from output to inputs, joined by digests, down to model and raw data.

A link is broken where nothing holds what its digest names, or where what holds it is damaged.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from toolsample_cli.config import STAGES
from toolsample_cli.config.settings import as_record
from toolsample_cli.errors import ConfigError, DataError
from toolsample_cli.hashing import digest
from toolsample_cli.json_types import Row
from toolsample_cli.models.digests import model_digest
from toolsample_cli.shards.folder_sums import verify_folder
from toolsample_cli.shards.manifest import Manifest, read_manifests, verify
from toolsample_cli.shards.sealed import read_json, read_sealed

MAKERS = {"tasks": ("import", "curriculum"), "rollouts": ("rollout",), "scores": ("score",), "groups": ("filter",)}
MAKERS |= {"batch": ("curriculum",), "checkpoint": ("train",), "entries": ("eval-bfcl",), "rejects": ("import",)}
MAKERS |= {"steps": ("train",), "records": ("train",)}
LEAVES = frozenset({"raw"})
"""Inputs that are no folder of ours: nothing of them is kept but the digest."""
UP = 2
"""Folders upwards in which inputs of a single folder are looked for."""


@dataclass(frozen=True)
class Node:
    """Something that a stage made, or a model that nothing here made; `inputs` are name -> digest."""

    kind: str
    path: Path
    digest: str
    version: str = ""
    settings: Row = field(default_factory=dict)
    inputs: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Link:
    """One input of the node above it: the node that holds it and its own inputs, or why it is broken."""

    name: str
    digest: str
    node: Node | None = None
    fault: str = ""
    again: bool = False
    links: tuple[Link, ...] = ()

    def broken(self) -> Iterator[Link]:
        """Itself and all links below it that are broken."""
        if self.fault:
            yield self
        for link in self.links:
            yield from link.broken()

    def record(self) -> Row:
        """For `--json`."""
        node = self.node
        facts: Row = {"input": self.name, "digest": self.digest}
        if node is not None:
            facts |= {"kind": node.kind, "path": str(node.path), "version": node.version, "settings": node.settings}
        if self.fault:
            facts["broken"] = self.fault
        return facts if self.again else facts | {"from": [link.record() for link in self.links]}

    def lines(self, depth: int = 0) -> Iterator[str]:
        """A line for this link and each below it, indented."""
        node, pad = self.node, "  " * depth
        where = f"{node.kind} {node.path}" if node else "?"
        version = f"  toolsample {node.version}" if node and node.version else ""
        fault = f"  BROKEN: {self.fault}" if self.fault else ""
        again = "  (as above)" if self.again else ""
        yield f"{pad}{self.name}: {where}  {self.digest}{version}{again}{fault}"
        if self.again:
            return
        if node is not None and node.settings:
            yield f"{pad}    " + ", ".join(f"{key} {value}" for key, value in node.settings.items())
        for link in self.links:
            yield from link.lines(depth + 1)


def trace(path: Path) -> Link:
    """The lineage of a checkpoint, of a folder of shards, or of the latest checkpoint below a run folder."""
    path = Path(path)
    if _is_model(path) or path.with_name(f"{path.name}.manifest.json").exists():
        root = path.absolute()
        for _ in range(UP):
            root = root.parent
        return Family(root).link("this", _node(path))
    models = [folder for folder in _folders(path) if _is_trained(folder)]
    if not models:
        raise ConfigError(f"{path}: no checkpoint in it", hint="give a run folder, a checkpoint or a folder of shards")
    latest = max(models, key=lambda folder: (_steps(folder), str(folder)))
    return Family(path).link("this", _node(latest))


class Family:
    """Everything below one folder, by digest."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._seen: set[str] = set()

    @cached_property
    def _nodes(self) -> dict[str, Node]:
        """Shards and states first: a model's digest is taken only where it is asked for."""
        found: dict[str, Node] = {}
        for folder in _folders(self._root):
            for made in _made_in(folder):
                found.setdefault(made.digest, made)
        return found

    @cached_property
    def _models(self) -> dict[str, Node]:
        paths = [folder for folder in _folders(self._root) if _is_model(folder)]
        named = {node.settings.get("model") for node in self._nodes.values()} | {self._plan.get("model")}
        paths += [Path(name) for name in named if isinstance(name, str) and _is_model(Path(name))]
        return {node.digest: node for node in map(_node, paths)}

    @cached_property
    def _plan(self) -> Row:
        """The table [run] of the plan that a run folder keeps: it names corpus and model by path."""
        for file in sorted(self._root.rglob("plan.json")):
            table = read_sealed(file, hint="rerun the run").get("run")
            if isinstance(table, dict):
                return table
        return {}

    def link(self, name: str, node: Node) -> Link:
        """A node with all that it was made from."""
        key = f"{node.kind} {node.path}"
        if key in self._seen:
            return Link(name, node.digest, node, again=True)
        self._seen.add(key)
        links = tuple(self._input(node, given, value) for given, value in sorted(node.inputs.items()))
        return Link(name, node.digest, node, _damage(node), links=links)

    def _input(self, node: Node, name: str, value: str) -> Link:
        if name in LEAVES:
            return Link(name, value)
        known = self._models if name == "model" else self._nodes
        if value in known:
            return self.link(name, known[value])
        outside = _outside(node, name) or _at(self._plan.get(name))
        if outside is not None and outside.digest == value:
            return self.link(name, outside)
        now = f"; {outside.path} is now {outside.digest}" if outside is not None else ""
        return Link(name, value, fault=f"nothing below {self._root} has this digest{now}")


def _outside(node: Node, name: str) -> Node | None:
    """What the settings of a node name by path, should it still be there."""
    return _at(node.settings.get(name))


def _at(given: object) -> Node | None:
    path = Path(given) if isinstance(given, str) and given else None
    if path is None or not path.exists():
        return None
    try:
        return _node(path)
    except DataError:
        return None


def _node(path: Path) -> Node:
    """What is at a path: a checkpoint, a plain model or a folder of shards."""
    if _is_trained(path):
        state = read_json(path / "trainer" / "state.json", hint="use the checkpoint before it")
        state = state if isinstance(state, dict) else {}
        config, inputs = state.get("config") or {}, state.get("inputs") or {}
        return Node("checkpoint", path, model_digest(str(path)), "", _own_settings("checkpoint", config), inputs)
    if _is_model(path):
        return Node("model", path, model_digest(str(path)))
    manifests = read_manifests(path)
    if not manifests:
        raise DataError(f"{path}: no manifest beside it: its stage has not finished")
    return _of_manifests(path, manifests)


def _of_manifests(path: Path, manifests: list[Manifest]) -> Node:
    first = manifests[0]
    shards = sorted((shard for one in manifests for shard in one.shards), key=lambda shard: shard.name)
    inputs = dict(first.inputs)
    if first.config.get("model_digest"):
        inputs["model"] = first.config["model_digest"]
    settings = _own_settings(first.kind, first.config)
    return Node(first.kind, path, digest([shard.sha256 for shard in shards]), first.version, settings, inputs)


def _own_settings(kind: str, config: Row) -> Row:
    """The settings that are not at their defaults."""
    defaults: Row = {}
    for stage in MAKERS.get(kind, ()):
        defaults |= {"limit": None, "ids": None} | as_record(STAGES[stage]())
    free = {"model_digest", "tokenizer", "template"}
    return {key: value for key, value in config.items() if key not in free and defaults.get(key) != value}


def _made_in(folder: Path) -> Iterator[Node]:
    if (folder / "state.json").is_file() and folder.name != "trainer":
        state = read_sealed(folder / "state.json", hint="rerun curriculum")
        tasks = read_manifests(folder / "tasks")
        inputs = dict(tasks[0].inputs) if tasks else {}
        yield Node("state", folder / "state.json", digest(state), tasks[0].version if tasks else "", {}, inputs)
    manifests = read_manifests(folder)
    if manifests:
        yield _of_manifests(folder, manifests)


def _damage(node: Node) -> str:
    """What is wrong with the bytes of a node, in one sentence."""
    try:
        if node.kind in ("checkpoint", "model"):
            verify_folder(node.path)
        elif node.path.is_dir():
            for manifest in read_manifests(node.path):
                for shard in manifest.shards:
                    verify(node.path / shard.name, shard)
    except DataError as error:
        return str(error)
    return ""


def _folders(root: Path) -> Iterator[Path]:
    """The folder and all below it, but for trainer states and what is being written."""
    yield root
    for path in sorted(root.iterdir()):
        if (
            path.is_dir()
            and not path.name.startswith(".")
            and not path.name.endswith(".tmp")
            and path.name != "trainer"
        ):
            yield from _folders(path)


def _is_model(folder: Path) -> bool:
    return any((folder / name).is_file() for name in ("config.json", "adapter_config.json"))


def _is_trained(folder: Path) -> bool:
    return (folder / "trainer" / "state.json").is_file()


def _steps(folder: Path) -> int:
    state = read_json(folder / "trainer" / "state.json", hint="use the checkpoint before it")
    step = state.get("step") if isinstance(state, dict) else None
    return step if isinstance(step, int) else 0
