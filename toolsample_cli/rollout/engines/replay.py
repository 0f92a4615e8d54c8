"""The scripted engine: completions come from a file or from the gold answers, no model needed.

With a tokenizer the ids are those of the text with its end token; without one they are empty.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path

from toolsample_cli.config import RolloutConfig
from toolsample_cli.errors import DataError, location
from toolsample_cli.json_types import Json
from toolsample_cli.models.chat import Chat
from toolsample_cli.rollout.types import Completion, Engine, Request, Sampling


class ReplayEngine(Engine):
    """`model` names a tokenizer (or is None); `config.texts` a file of {task_id, sample?, text}, else golds are used.

    In a file, texts of a task without `sample` are numbered in their order.
    """

    name = "replay"
    spools = False

    def __init__(self, model: str | Path | None, config: RolloutConfig, *, chat: Chat | None = None) -> None:
        self.policy = config.texts or "gold"
        self.chat = chat or (Chat.load(model, self_examples=config.self_examples) if model else None)
        self._texts = read_texts(Path(config.texts)) if config.texts else None

    def describe(self) -> Mapping[str, object]:
        """No model: only the tokenizer's hashes, where there is one. Logprobs do not exist."""
        return {"logprobs": None, **(self.chat.fingerprint if self.chat else {})}

    def refuse_unknown(self, tasks: Collection[str], where: Path) -> None:
        """DataError when texts are of tasks that are not among `tasks` while others have none: a wrong id or file."""
        if self._texts is None:
            return
        foreign, bare = self._texts.keys() - set(tasks), set(tasks) - self._texts.keys()
        if foreign and bare:
            raise DataError(
                f"{self.policy}: task {min(foreign)} is not in {where} ({len(foreign)} such ids), "
                f"while task {min(bare)} has no text"
            )

    def generate(self, requests: Sequence[Request], sampling: Sampling) -> Iterator[Completion]:
        """The scripted text of each request, at once."""
        del sampling
        for request in requests:
            text = request.reference if self._texts is None else self._texts.get(request.key, {}).get(request.sample)
            if text is None:
                missing = "the task has no gold_text" if self._texts is None else "no text for this sample"
                yield Completion(request.key, request.sample, error=f"replay: {missing}")
                continue
            ids = self.chat.completion_ids(text) if self.chat else ()
            yield Completion(request.key, request.sample, ids, None, "stop", ids_from_text=True, text=text)

    def load_weights(self, weights: object) -> None:
        """There are none."""


def read_texts(path: Path) -> dict[str, dict[int, str]]:
    """{task_id: {sample: text}} from JSON lines or Parquet; DataError names the row that is wrong."""
    if not path.exists():
        raise DataError(f"{path}: no such file", hint="texts are JSON lines or Parquet with task_id, sample, text")
    found: dict[str, dict[int, str]] = {}
    for number, row in _rows(path):
        where = location(path, row=number)
        if not isinstance(row, dict) or not isinstance(row.get("task_id"), str) or not isinstance(row.get("text"), str):
            raise DataError(f"{where}: expected an object with task_id and text, both strings")
        mine = found.setdefault(row["task_id"], {})
        sample = row.get("sample")
        sample = len(mine) if sample is None else sample
        if not isinstance(sample, int) or isinstance(sample, bool) or sample < 0:
            raise DataError(f"{where}: sample = {sample!r}, expected a whole number from 0")
        if sample in mine:
            raise DataError(f"{where}: sample {sample} of task {row['task_id']} occurs twice")
        mine[sample] = row["text"]
    if not found:
        raise DataError(f"{path}: no texts in it", hint="texts are JSON lines or Parquet with task_id, sample, text")
    return found


def _rows(path: Path) -> Iterator[tuple[int, Json]]:
    if path.suffix == ".parquet":
        import polars as pl

        try:
            frame = pl.read_parquet(path, glob=False, hive_partitioning=False)
        except (pl.exceptions.PolarsError, OSError) as error:
            raise DataError(f"{path}: cannot be read: {error}") from None
        yield from enumerate(frame.iter_rows(named=True), 1)
        return
    with path.open(encoding="utf-8") as handle:
        for number, line in enumerate(handle, 1):
            if line.strip():
                try:
                    yield number, json.loads(line)
                except ValueError as error:
                    raise DataError(f"{location(path, row=number)}: not valid JSON: {error}") from None
