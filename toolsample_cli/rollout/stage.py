"""Tasks times an engine to rollouts: n completions per task, here or on a Ray cluster.

What was finished before is kept: a rerun makes what is missing or errored, and without anything to do loads no model.
"""

from __future__ import annotations

from pathlib import Path

from toolsample_cli.config import RolloutConfig
from toolsample_cli.config.settings import as_record
from toolsample_cli.errors import ConfigError
from toolsample_cli.json_types import Row
from toolsample_cli.models.prompting import prompting_of
from toolsample_cli.rollout.engines.model_defaults import with_model_settings
from toolsample_cli.rollout.finished import finished_rows, rows_there
from toolsample_cli.rollout.ray import run_on_ray
from toolsample_cli.rollout.shard_maker import make_shards
from toolsample_cli.rollout.task_plan import plan_tasks
from toolsample_cli.rollout.types import Engine, check_start, open_engine, stop_strings
from toolsample_cli.shards.reading import refuse_nested
from toolsample_cli.shards.writing import sweep_finished
from toolsample_cli.stage import Account, Options

UNRECORDED = {
    *("api_key_env", "concurrency", "retries", "timeout", "gpu_memory", "threads"),
    *("ray", "ray_engines", "ray_gpus"),
}
"""Settings of how the work is carried out; they are no part of a shard's lineage."""


def run(
    tasks: Path,
    out: Path,
    model: str | None,
    config: RolloutConfig,
    options: Options,
    *,
    engine: Engine | None = None,
) -> Account:
    """Sample `config.n` completions of every task with a model; an `engine` that holds it already may be given."""
    out = Path(out)
    refuse_nested(out, tasks)
    config = with_model_settings(config, model)
    plan = plan_tasks(tasks, config, options)
    idle = options.idle_slice(plan.shards, "a smaller --tasks-per-shard cuts finer")
    _check(model, config, engine)
    total = plan.rows(options.slice) * config.n
    if options.dry_run:
        check_start(config.backend, model)
        would = {"would_write": total, "shards": plan.shards, "already_there": rows_there(out, options.slice)}
        return Account("rollout", rows_in=len(plan.ids), extra={**idle, **would})
    options.expect(total)
    record = _lineage(model, config, options)
    asked = prompting_of(plan.folder, config.self_examples)
    record["prompting"] = asked.record() if asked else None
    if config.ray:
        return run_on_ray(plan, out, model, config, record, options)
    if engine is None and not options.overwrite:
        inputs = {"tasks": plan.folder.digest}
        there = finished_rows(out, model, config, record, inputs, options.slice)
        if there is not None:
            sweep_finished(out, options.slice, lock=options.lock)
            extra = {**idle, "nothing to do": "all rollouts exist"}
            return Account("rollout", rows_in=len(plan.ids), rows_out=there, wrote=out, extra=extra)
    options.phase("loading the model")
    used = engine or open_engine(config.backend, model, config)
    options.phase("sampling")
    try:
        account = make_shards(plan, out, used, config, record, options)
    finally:
        if engine is None:
            used.close()
    account.extra = {**idle, **account.extra}
    return account


def _lineage(model: str | None, config: RolloutConfig, options: Options) -> Row:
    settings = {key: value for key, value in as_record(config).items() if key not in UNRECORDED}
    settings["stop"] = list(stop_strings(config.stop)) or None
    return {**settings, "model": model, **options.selection()}


def _check(model: str | None, config: RolloutConfig, engine: Engine | None) -> None:
    if model is None and engine is None and config.backend != "replay":
        raise ConfigError(f"backend {config.backend} needs --model", hint="a model folder, a hub id or a server's name")
    stop_strings(config.stop)  # refused before a model is loaded
    if config.texts and config.backend != "replay":
        raise ConfigError("texts are for --backend replay", hint="add --backend replay, or leave --texts out")
