"""What of a rollout stands on disk already, told without loading a model."""

from __future__ import annotations

from pathlib import Path

import polars as pl

from toolsample_cli.config import RolloutConfig
from toolsample_cli.json_types import Row
from toolsample_cli.models.chat import Chat
from toolsample_cli.models.digests import model_digest
from toolsample_cli.models.tokenizer_files import known_fingerprint
from toolsample_cli.rollout.types import LOCAL
from toolsample_cli.shards.journal import count_records
from toolsample_cli.shards.manifest import Manifest, manifest_path, verify
from toolsample_cli.shards.reading import numbered, read_footer
from toolsample_cli.shards.slice import Slice

RESOLVED = {"dtype": "auto", "device": "auto", "tokenizer": ""}
"""Settings that the engine, where they are left so, replaces by what it found."""


def rows_there(out: Path, slice: Slice) -> int:
    """Completions without error in finished shards of this slice and in the spools of unfinished ones."""
    count = 0
    for number, file in numbered(out) if out.is_dir() else []:
        if slice.owns(number):
            read_footer(file)  # names a torn file
            scan = pl.scan_parquet(file, glob=False, hive_partitioning=False)
            count += scan.filter(pl.col("error").is_null()).select(pl.len()).collect().item()
    for file in (out.parent / f"{out.name}.tmp").glob("part-*.spool"):
        if slice.owns(int(file.stem.removeprefix("part-"))):
            count += count_records(file)
    return count


def finished_rows(
    out: Path, model: str | None, config: RolloutConfig, record: Row, inputs: dict[str, str], slice: Slice
) -> int | None:
    """Rollouts in `out` when this very slice is finished there without an error, else None.

    `record` is the lineage without what the engine adds. Weights, tokenizer and template are compared by content, so
    only a local model folder can be known to be the same; any difference is left to the stage to tell. DataError when
    a shard or the manifest is damaged.
    """
    manifest = manifest_path(out, slice.suffix)
    if config.backend not in LOCAL or model is None or not Path(model).is_dir() or not manifest.is_file():
        return None
    standing = Manifest.read(manifest)
    counts, made = standing.counts, standing.config
    if not all((out / shard.name).is_file() for shard in standing.shards):
        return None
    for shard in standing.shards:
        verify(out / shard.name, shard)
    if standing.inputs != inputs or any(name.startswith("error ") for name in counts):
        return None
    asked = {key: value for key, value in record.items() if RESOLVED.get(key) != value}
    if made.get("batch_tokens", 0) < config.batch_tokens and made.get("device") == "cpu":
        asked.pop("batch_tokens", None)  # lowered for a large model, whose size only its weights tell
    digest = model_digest(model, config.adapter)
    if any(made.get(key) != value for key, value in {**asked, "model_digest": digest}.items()):
        return None
    hashes = known_fingerprint(model) or Chat.load(model).fingerprint
    return int(counts.get("rollouts", 0)) if all(made.get(key) == value for key, value in hashes.items()) else None
