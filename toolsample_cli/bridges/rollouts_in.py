"""`import-rollouts`: another trainer's completions as rollouts of our tasks, joined by label, id or prompt.

Only tasks that occur are written; finish reasons, ids and logprobs are kept as far as they are known. From there
score, filter, curriculum and inspect work as on our own rollouts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

from toolsample_cli.bridges.incoming import dump_files, incoming
from toolsample_cli.bridges.incoming_forms import Incoming
from toolsample_cli.config import RolloutsInConfig
from toolsample_cli.config.settings import as_record
from toolsample_cli.errors import DataError, location
from toolsample_cli.hashing import digest, sha256
from toolsample_cli.json_types import Row
from toolsample_cli.models.chat import Chat, task_conversation
from toolsample_cli.shards import schema
from toolsample_cli.shards.reading import Folder, open_folder, refuse_nested
from toolsample_cli.shards.writing import Output
from toolsample_cli.stage import Account, Options

SHOWN = 3
"""Rows without a task that the closing line names."""
SURELY_SHORTER = 0.75
"""Ids made again from text can be fewer than were sampled; below this share of the limit it was surely not reached."""


class Known:
    """The tasks by id, and by prompt once a row needs it; a prompt that several tasks share finds none of them."""

    def __init__(self, tasks: Folder, chat: Chat | None) -> None:
        self._tasks, self._chat = tasks, chat
        ids = [one for _, frame in tasks.frames(["task_id"]) for one in frame["task_id"]]
        self.order = {one: at for at, one in enumerate(ids)}

    def find(self, one: Incoming) -> tuple[str | None, str]:
        """The task of a completion, and how it was found: id, prompt or unmatched."""
        if one.task_id in self.order:
            return one.task_id, "id"
        task = self._by_prompt.get(_prompt_key(one.prompt)) if one.prompt else None
        return task, "prompt" if task else "unmatched"

    @cached_property
    def _by_prompt(self) -> dict[str, str | None]:
        """Digest of each way a prompt may be logged -> its task; prompts are rendered when there is a tokenizer."""
        found: dict[str, str | None] = {}
        for _, frame in self._tasks.frames(["task_id", "protocol", "messages_json", "tools_json", "demos_json"]):
            for row in frame.iter_rows(named=True):
                for key in set(_prompt_keys(row, self._chat)):
                    found[key] = None if key in found else row["task_id"]
        return found


def _prompt_keys(task: Row, chat: Chat | None) -> Iterator[str]:
    yield _prompt_key(task_conversation(task).messages)
    if chat is not None:
        text = chat.prompt_text(task)
        yield _prompt_key(text)
        yield _prompt_key(str(chat.tokenizer.decode(chat.encode(text), skip_special_tokens=True)))


def _prompt_key(prompt: str | Sequence[Row]) -> str:
    """Digest of a text as it is but for white space; of messages by role and content."""
    if not isinstance(prompt, str):
        prompt = "\n".join(f"{turn.get('role')}: {turn.get('content') or ''}" for turn in prompt)
    return digest(" ".join(prompt.split()))


@dataclass
class Joined:
    """Completions by task, what was left out and why, and where the first rows without a task are."""

    found: dict[str, list[Incoming]] = field(default_factory=dict)
    rows: int = 0
    by: Counter[str] = field(default_factory=Counter)
    left_out: Counter[str] = field(default_factory=Counter)
    unmatched: list[str] = field(default_factory=list)


def run(
    paths: Sequence[Path], tasks: Path, out: Path, model: str | None, config: RolloutsInConfig, options: Options
) -> Account:
    """Write `out`, a folder of rollouts; see `toolsample import-rollouts --help`."""
    options.refuse_slice("import-rollouts", "import all files at once")
    refuse_nested(out, tasks, *paths)
    account = Account("import-rollouts", wrote=None if options.dry_run else Path(out), left_out="left out")
    folder, files = open_folder(tasks, schema.TASKS), dump_files(paths)
    chat = Chat.load(model) if model else None
    known = Known(folder, chat)
    joined = _joined(files, known, config, options)
    if not joined.found:
        raise DataError(
            f"{', '.join(map(str, paths))}: none of {joined.rows} rows belongs to a task of {tasks}",
            hint="export the tasks with `toolsample export`, whose label comes back, or give --model to match prompts",
        )
    _tell(account, joined, known)
    if not options.dry_run:
        inputs = {"tasks": folder.digest, "files": digest([sha256(file) for file in files])}
        record = {**as_record(config), "backend": "import", "logprobs": "unknown", **options.selection()}
        record |= {"model": model, **(chat.fingerprint if chat else {})}
        ids = sorted(joined.found, key=known.order.__getitem__)
        with Output(out, schema.ROLLOUTS, record, inputs, options.overwrite) as output:
            for number, start in enumerate(range(0, len(ids), config.tasks_per_shard)):
                if not output.done(number):
                    some = ids[start : start + config.tasks_per_shard]
                    rows = [row for task in some for row in rollout_rows(task, joined.found[task], chat, config)]
                    output.write(number, schema.frame(schema.ROLLOUTS, rows))
            output.counts.update({"rollouts": account.rows_out})
            output.finish()
    return account


def _tell(account: Account, joined: Joined, known: Known) -> None:
    account.rows_in, account.rows_out = joined.rows, sum(map(len, joined.found.values()))
    account.dropped = {reason: count for reason, count in joined.left_out.items() if count}
    account.extra["matched by id"], account.extra["by prompt"] = joined.by["id"], joined.by["prompt"]
    account.extra["tasks"] = f"{len(joined.found)} of {len(known.order)}"
    if joined.unmatched:
        account.extra["first unmatched"] = "; ".join(joined.unmatched[:SHOWN])


def _joined(files: Sequence[Path], known: Known, config: RolloutsInConfig, options: Options) -> Joined:
    joined, wanted = Joined(), options.wanted_ids()
    for met in incoming(files, config.form):
        joined.rows += max(1, len(met.completions))
        options.tick(1)
        if not met.completions:
            joined.left_out[met.fault or "without_answer"] += 1
        for one in met.completions:
            task, how = known.find(one)
            if one.repeated:
                joined.left_out["repeated"] += 1
            elif one.text is None and one.completion_ids is None:
                joined.left_out["no_text"] += 1
            elif task is None:
                joined.left_out["unmatched"] += 1
                joined.unmatched.append(location(met.file, row=met.number))
            elif wanted is not None and task not in wanted:
                joined.left_out["not_in_ids"] += 1
            elif options.limit is not None and sum(joined.by.values()) >= options.limit:
                joined.left_out["over_limit"] += 1
            else:
                joined.by[how] += 1
                joined.found.setdefault(task, []).append(one)
    return joined


def rollout_rows(task: str, completions: Sequence[Incoming], chat: Chat | None, config: RolloutsInConfig) -> list[Row]:
    """Rows of `rollouts` of one task, by sample. Numbers of samples are kept where they are given and all differ."""
    given = [one.sample for one in completions]
    if None in given or len(set(given)) < len(given):
        completions = [replace(one, sample=number) for number, one in enumerate(completions)]
    rows = [_row(task, one, chat, config) for one in completions]
    return sorted(rows, key=lambda row: int(row["sample"]))


def _row(task: str, one: Incoming, chat: Chat | None, config: RolloutsInConfig) -> Row:
    ids, from_text, text = one.completion_ids, False, one.text
    if ids is not None and chat is not None:
        text = chat.text(ids)  # what the model wrote: trainers log texts without special tokens
    reason = _reason(one, chat, config.max_new_tokens)
    if ids is None and chat is not None and text is not None:
        ids, from_text = (chat.completion_ids(text) if reason == "stop" else chat.encode(text)), True
    keeps = one.logprobs is not None and ids is not None and len(one.logprobs) == len(ids) and not from_text
    return {
        "rollout_id": f"{task}/{config.round}/{one.sample}",
        "task_id": task,
        "round": config.round,
        "sample": one.sample,
        "policy": config.policy or one.policy or "unknown",
        "backend": "import",
        "seed": 0,
        "prompt_ids": list(one.prompt_ids or ()),
        "completion_ids": list(ids or ()),
        "logprobs": list(one.logprobs or ()) if keeps else None,
        "finish_reason": reason,
        "ids_from_text": from_text,
        "text": text or "",
        "error": None,
    }


def _reason(one: Incoming, chat: Chat | None, limit: int) -> str | None:
    """As the file says, or as the tokens prove: an end token means stop, and without one the limit tells.

    None where neither is known, so that nothing that may have been cut passes for a whole answer.
    """
    if one.finish_reason is not None or chat is None:
        return one.finish_reason
    if one.completion_ids is not None:
        if len(one.completion_ids) and one.completion_ids[-1] in chat.end_ids:
            return "stop"
        return None if not limit else ("length" if len(one.completion_ids) >= limit else "stop")
    if not limit or one.text is None:
        return None
    made_again = len(chat.encode(one.text)) + 1
    return "length" if made_again > limit else ("stop" if made_again <= SURELY_SHORTER * limit else None)
