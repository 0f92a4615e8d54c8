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
from typing import Any

from toolsample_cli.config import RolloutConfig
from toolsample_cli.errors import ConfigError, MissingDependency, StageFailure
from toolsample_cli.shards.reading import write_json
from toolsample_cli.shards.slice import Slice
from toolsample_cli.stage import Account, Options, silent


def run_on_ray(
    tasks: Path, out: Path, model: str | None, config: RolloutConfig, options: Options, shards: int
) -> Account:
    """What `stages.rollout.run` does, spread over `config.ray_engines` actors; the shards are the same bytes."""
    if importlib.util.find_spec("ray") is None:
        raise MissingDependency("ray", needed_for="--ray", install="pip install 'toolsample[ray]'")
    if options.slice.count != 1:
        raise ConfigError("--ray spreads the shards itself", hint="leave --slice out")
    import ray

    ray.init(address=None if config.ray == "local" else config.ray, ignore_reinit_error=True, log_to_driver=False)
    account = Account("rollout")
    try:
        work = ray.data.from_items([{"part": i} for i in range(shards)], override_num_blocks=shards)
        given = (str(Path(tasks).resolve()), str(Path(out).resolve()), model, dataclasses.replace(config, ray=""))
        quiet = dataclasses.replace(options, tick=silent, found=silent, expect=silent, phase=silent)
        done = work.map_batches(
            _Actor,
            fn_constructor_args=(*given, quiet, shards),
            batch_size=1,
            concurrency=config.ray_engines,
            num_gpus=config.ray_gpus,
        )
        for row in done.iter_rows():
            record = json.loads(row["record"])
            options.tick(record["rows_out"])
            account.rows_out += record["rows_out"]
            account.rows_in += record["tasks"]
            account.dropped = dict(Counter(account.dropped) + Counter(record["dropped"]))
            account.exit_code = max(account.exit_code, record["exit_code"])
            account.extra["tokens"] = account.extra.get("tokens", 0) + record["tokens"]
    except ray.exceptions.RayError as error:
        lines = [line for line in str(error).splitlines() if line.strip()]
        raise StageFailure(
            f"a Ray actor failed: {lines[-1]}", hint="finished shards are kept; rerun to go on"
        ) from error
    finally:
        ray.shutdown()
    merge_manifests(Path(out), shards)
    account.wrote = Path(out)
    return account


class _Actor:
    """One engine; called with a batch of one shard number."""

    def __init__(self, tasks: str, out: str, model: str | None, config: RolloutConfig, options: Options, shards: int):
        from toolsample_cli.rollout.types import open_engine

        self.paths, self.model, self.config = (Path(tasks), Path(out)), model, config
        self.options, self.shards = options, shards
        self.engine = open_engine(config.backend, model, config)

    def __call__(self, batch: dict[str, Any]) -> dict[str, Any]:
        from toolsample_cli.rollout.stage import run

        records = []
        for part in batch["part"]:
            options = dataclasses.replace(self.options, slice=Slice(int(part), self.shards, joined=True))
            account = run(*self.paths, self.model, self.config, options, engine=self.engine)
            record = {**account.record(), "tasks": account.rows_out // self.config.n, "exit_code": account.exit_code}
            records.append(json.dumps(record))
        return {"record": records}


def merge_manifests(out: Path, count: int) -> Path:
    """The manifests of slices 0..count-1 as the one a single run would have written; they are removed."""
    parts = [out.parent / f"{out.name}.manifest{Slice(i, count).suffix}.json" for i in range(count)]
    whole = out.parent / f"{out.name}.manifest.json"
    if count == 1:
        return whole
    manifests = [json.loads(part.read_text(encoding="utf-8")) for part in parts]
    counts: Counter[str] = Counter()
    for manifest in manifests:
        counts.update(manifest["counts"])
    shards = sorted((shard for m in manifests for shard in m["shards"]), key=lambda shard: shard["name"])
    rows = sum(m["rows"] for m in manifests)
    write_json(whole, {**manifests[0], "rows": rows, "counts": dict(sorted(counts.items())), "shards": shards})
    for part in parts:
        part.unlink()
    return whole
