"""What is checked before the first round of a plan: inputs, packages and models, the disk, and the plan before it."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

from toolsample_cli.errors import ConfigError, MissingDependency
from toolsample_cli.experiment.recipe import Plan
from toolsample_cli.json_types import Row
from toolsample_cli.models.digests import check_model, model_digest
from toolsample_cli.rollout.types import LOCAL, check_start
from toolsample_cli.shards import schema
from toolsample_cli.shards.made_from import refuse_changes
from toolsample_cli.shards.reading import open_folder, refuse_nested
from toolsample_cli.shards.sealed import read_sealed, write_sealed
from toolsample_cli.train import adapter
from toolsample_cli.train.preconditions import bytes_needed
from toolsample_cli.train.tracking import check_trackers


def check_inputs(plan: Plan, out: Path, *, dry: bool) -> None:
    """Whatever a plan reads must be there before its first round; a dry run also looks for the tokenizer."""
    corpus, model, backend = plan.run.corpus, plan.run.model, plan.configs["rollout"].backend
    if not corpus or not model:
        raise ConfigError("[run] needs corpus (a folder of tasks) and model", hint="or give --corpus and --model")
    refuse_nested(out)
    for folder in (Path(corpus), *plan.heldout):
        open_folder(folder, schema.TASKS)
    if not plan.heldout and (plan.run.stop_on_collapse or plan.run.target_exact):
        name = "stop_on_collapse" if plan.run.stop_on_collapse else "target_exact"
        raise ConfigError(
            f"[run] {name} looks at held-out tasks, and there are none",
            hint="give heldout; [train] stop_on_collapse looks at the round's own tasks",
        )
    training = plan.configs["train"]
    check_trackers(training.track)
    check_packages(backend)
    adapter.check_adapter(training)
    if training.lora_rank and not training.merge and plan.run.rounds > 1:
        raise ConfigError(
            "[train] merge = false: the next round samples from the checkpoint, which would hold no weights",
            hint="leave merge out",
        )
    if backend in LOCAL:
        check_start(backend, model) if dry else check_model(model)


FREE = frozenset(
    f"run.{key}"
    for key in ("rounds", "max_rollouts", "max_minutes", "target_exact", "stop_on_collapse", "keep_checkpoints")
)
"""Stop rules may change between a run and its rerun."""


def same_plan(plan: Plan, folder: Path) -> None:
    """Remember the plan of a run and what it reads, by digest, and refuse to go on with another one."""
    path, record = folder / "plan.json", {**plan.record(), "inputs": _digests(plan)}
    if path.exists():
        old = _flat(read_sealed(path, hint="delete it, if the recipe is the one that the run was started with"))
        new = _flat(record)
        younger = new.keys() - old.keys()
        refuse_changes(folder, old, new, free=FREE | younger, hint="choose another output folder")
    write_sealed(path, record)


def _digests(plan: Plan) -> dict[str, str]:
    folders = {"corpus": Path(plan.run.corpus)} | {f"heldout {folder.name}": folder for folder in plan.heldout}
    found = {name: open_folder(folder, schema.TASKS).digest for name, folder in folders.items()}
    return found | ({"model": model_digest(plan.run.model)} if plan.configs["rollout"].backend in LOCAL else {})


def _flat(record: Row) -> Row:
    tables = {stage: table for stage, table in record.items() if isinstance(table, dict)}
    return {f"{stage}.{key}": value for stage, table in tables.items() for key, value in table.items()}


def checkpoint_bytes(plan: Plan) -> int:
    """Bytes of the checkpoints that are kept at once, about."""
    rounds, keep = plan.run.rounds, plan.run.keep_checkpoints
    return bytes_needed(plan.run.model, plan.configs["train"]) * (min(rounds, keep + 1) if keep else rounds)


def check_packages(backend: str) -> None:
    """MissingDependency for an engine whose package is absent: it would be missed after the first draw."""
    if backend == "vllm" and find_spec("vllm") is None:
        raise MissingDependency("vllm", needed_for="backend vllm", install="pip install 'toolsample[vllm]'")
