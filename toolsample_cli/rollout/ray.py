"""Rollouts on a Ray cluster: Ray Data hands out shard numbers, each actor holds one engine and runs the ordinary stage.

Every output shard is a slice of its own, so that actors share nothing but the file system (which all nodes must
see), and a killed cluster resumes like a killed process. At the end the slices' manifests become one.
"""

from __future__ import annotations

import dataclasses
import importlib.util
import json
from collections import Counter
from pathlib import Path

from toolsample_cli.config import RolloutConfig
from toolsample_cli.errors import ConfigError, MissingDependency, StageFailure
from toolsample_cli.json_types import Row
from toolsample_cli.rollout.shard_maker import make_shards
from toolsample_cli.rollout.task_plan import TaskPlan, plan_tasks
from toolsample_cli.rollout.types import open_engine
from toolsample_cli.shards.manifest import merge_slices
from toolsample_cli.shards.slice import Slice
from toolsample_cli.stage import Account, Options, silent


def run_on_ray(
    plan: TaskPlan, out: Path, model: str | None, config: RolloutConfig, record: Row, options: Options
) -> Account:
    """What `make_shards` does, spread over `config.ray_engines` actors; the shards are the same bytes."""
    if importlib.util.find_spec("ray") is None:
        raise MissingDependency("ray", needed_for="--ray", install="pip install 'toolsample[ray]'")
    if options.slice.count != 1:
        raise ConfigError("--ray spreads the shards itself", hint="leave --slice out")
    import ray

    shards = plan.shards
    ray.init(address=None if config.ray == "local" else config.ray, ignore_reinit_error=True, log_to_driver=False)
    account = Account("rollout", rows_in=len(plan.ids))
    try:
        work = ray.data.from_items([{"slice": i} for i in range(shards)], override_num_blocks=shards)
        quiet = dataclasses.replace(options, tick=silent, found=silent, expect=silent, phase=silent)
        folders = (str(plan.folder.path.resolve()), str(out.resolve()))
        done = work.map_batches(
            _Actor,
            fn_constructor_args=(*folders, model, config, record, quiet),
            batch_size=1,
            concurrency=config.ray_engines,
            num_gpus=config.ray_gpus,
        )
        for row in done.iter_rows():
            made = json.loads(row["record"])
            options.tick(made["rows_out"])
            account.rows_out += made["rows_out"]
            account.dropped = dict(Counter(account.dropped) + Counter(made["dropped"]))
            account.exit_code = max(account.exit_code, made["exit_code"])
            account.extra["tokens"] = account.extra.get("tokens", 0) + made["tokens"]
    except ray.exceptions.RayError as error:
        lines = [line for line in str(error).splitlines() if line.strip()]
        raise StageFailure(
            f"a Ray actor failed: {lines[-1]}", hint="finished shards are kept; rerun to resume"
        ) from error
    finally:
        ray.shutdown()
    merge_slices(Path(out))
    account.wrote = Path(out)
    return account


class _Actor:
    """One engine; called with a batch of one shard number."""

    def __init__(
        self, tasks: str, out: str, model: str | None, config: RolloutConfig, record: Row, options: Options
    ) -> None:
        self.plan, self.out = plan_tasks(Path(tasks), config, options), Path(out)
        self.config, self.record, self.options = config, record, options
        self.engine = open_engine(config.backend, model, config)

    def __call__(self, batch: Row) -> Row:
        records = []
        for number in batch["slice"]:
            options = dataclasses.replace(self.options, slice=Slice(int(number), self.plan.shards, joined=True))
            account = make_shards(self.plan, self.out, self.engine, self.config, self.record, options)
            records.append(json.dumps({**account.record(), "exit_code": account.exit_code}))
        return {"record": records}
