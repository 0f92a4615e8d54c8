"""Whole experiments: rounds of the stages in one process, on disk exactly as the single commands write them.

The model is loaded once and takes each round's new weights in place. A round whose `round.json` stands is
finished; a rerun after a kill goes on inside the first unfinished one, because every stage resumes by itself.
"""

from __future__ import annotations

import dataclasses
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from toolsample_cli.config import ScoreConfig
from toolsample_cli.curriculum import stage as curriculum_stage
from toolsample_cli.errors import ConfigError, EmptyBatch
from toolsample_cli.experiment.recipe import Plan
from toolsample_cli.experiment.round_metrics import read_summary, round_metrics, score_metrics
from toolsample_cli.filter import stage as filter_stage
from toolsample_cli.json_types import Row
from toolsample_cli.models.digests import check_model, model_digest
from toolsample_cli.rollout import stage as rollout_stage
from toolsample_cli.rollout.types import LOCAL, check_start, open_engine
from toolsample_cli.score import stage as score_stage
from toolsample_cli.shards import schema
from toolsample_cli.shards.disk import check_room
from toolsample_cli.shards.folder_sums import verify_folder
from toolsample_cli.shards.lineage import refuse_changes
from toolsample_cli.shards.locks import FolderLock
from toolsample_cli.shards.manifest import verify_below
from toolsample_cli.shards.reading import open_folder, refuse_nested
from toolsample_cli.shards.sealed import read_sealed, sealed, write_json, write_sealed
from toolsample_cli.stage import Account, Options
from toolsample_cli.train import adapter, checkpoint
from toolsample_cli.train import stage as train_stage
from toolsample_cli.train.preconditions import bytes_needed

Say = Callable[[str], None]


def run(plans: list[Plan], out: Path, options: Options, say: Say = lambda _: None) -> Account:
    """Carry out every plan below `out` and write `out/summary.json`; resumable at any moment.

    `say` gets one line per round. With `options.dry_run` nothing is written and the plans stand in the account.
    """
    account = Account("run", rows_in=len(plans), wrote=out / "summary.json")
    for plan in plans:
        _check_inputs(plan, out, dry=options.dry_run)
    if options.dry_run:
        account.wrote = None
        account.extra["plan"] = [plan.record() for plan in plans]
        return account
    summaries = []
    for plan in plans:
        folder = (out / plan.folder).absolute() if not plan.folder else out / plan.folder
        with FolderLock(folder, folder.parent / f"{folder.name}.tmp", enabled=options.lock):
            _same_plan(plan, out / plan.folder)
            check_room(out, _bytes_needed(plan), what="the checkpoints of the run")
            rounds, stopped = Runner(plan, out / plan.folder, options, say).go()
        summaries.append(
            {"arm": plan.arm, "seed": plan.seed, "folder": plan.folder, "stopped": stopped, "rounds": rounds}
        )
        account.rows_out += 1
    write_json(out / "summary.json", [sealed(entry) for entry in _merged(out / "summary.json", summaries)])
    return account


def _check_inputs(plan: Plan, out: Path, *, dry: bool) -> None:
    """Whatever a plan reads must be there before its first round; a dry run also looks for the tokenizer."""
    corpus, model, backend = plan.run.corpus, plan.run.model, plan.configs["rollout"].backend
    if not corpus or not model:
        raise ConfigError("[run] needs corpus (a folder of tasks) and model", hint="or give --corpus and --model")
    refuse_nested(out)
    for folder in (Path(corpus), *plan.heldout):
        open_folder(folder, schema.TASKS)
    training = plan.configs["train"]
    adapter.check(training)
    if training.lora_rank and not training.merge and plan.run.rounds > 1:
        raise ConfigError(
            "[train] merge = false: the next round samples from the checkpoint, which would hold no weights",
            hint="leave merge out",
        )
    if backend in LOCAL:
        check_start(backend, model) if dry else check_model(model)


def _merged(path: Path, summaries: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Runs of other arms and seeds that an earlier call left in the summary stay; order by folder."""
    old = read_summary(path) if path.exists() else []
    by_folder = {entry["folder"]: entry for entry in [*old, *summaries]}
    return [by_folder[folder] for folder in sorted(by_folder)]


FREE = frozenset(
    f"run.{key}"
    for key in ("rounds", "max_rollouts", "max_minutes", "target_exact", "stop_on_collapse", "keep_checkpoints")
)
"""Stop rules may change between a run and its rerun."""


def _same_plan(plan: Plan, folder: Path) -> None:
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


def _bytes_needed(plan: Plan) -> int:
    """Bytes of the checkpoints that are kept at once, about."""
    rounds, keep = plan.run.rounds, plan.run.keep_checkpoints
    return bytes_needed(plan.run.model, plan.configs["train"]) * (min(rounds, keep + 1) if keep else rounds)


class Runner:
    """One plan being carried out in one folder."""

    def __init__(self, plan: Plan, folder: Path, options: Options, say: Say) -> None:
        self.plan, self.folder, self.options, self.say = plan, folder, options, say
        self.corpus = Path(plan.run.corpus)
        self.heldout = plan.heldout
        self._engine: Any = None
        self._holds: str | None = None
        self._clock = Clock()
        self._started = time.monotonic()

    def go(self) -> tuple[list[dict[str, Any]], str]:
        """All rounds, or until a stop rule fires: (metrics of each round, why it stopped)."""
        rounds: list[dict[str, Any]] = []
        try:
            while True:
                number = len(rounds)
                done = self.folder / f"round-{number}" / "round.json"
                if done.exists():
                    rounds.append(self._finished(done, number))
                else:
                    self._clock = Clock()
                    metrics = self._round(number, rounds)
                    write_sealed(done, metrics)
                    rounds.append(metrics)
                    self._clock.append(self.folder / "times.jsonl", number)
                    self.say(self._line(metrics, self._clock.total()))
                    self._prune(number)
                reason = stop_reason(self.plan, rounds, (time.monotonic() - self._started) / 60)
                if reason:
                    return rounds, reason
        finally:
            if self._engine is not None:
                self._engine.close()

    def _finished(self, done: Path, number: int) -> Row:
        """The metrics of a round that an earlier process finished, whose shards are compared with their manifests."""
        metrics = read_sealed(done, hint="delete it and rerun: the round's finished stages are kept")
        verify_below(done.parent)
        verify_folder(done.parent / "checkpoint")
        self._prune(number)  # that process may have died before it did
        return metrics

    def _watched(self, number: int, stage: str) -> Options:
        """The options for one stage, whose phases name the round."""
        self.options.phase(f"round {number}: {stage}")
        phase = self.options.phase
        return dataclasses.replace(self.options, phase=lambda text: phase(f"round {number}: {stage}, {text}"))

    def _model(self, rounds: list[dict[str, Any]]) -> str:
        """The policy that the rounds so far left."""
        return next((entry["policy"] for entry in reversed(rounds) if entry.get("policy")), self.plan.run.model)

    def _round(self, number: int, rounds: list[dict[str, Any]]) -> dict[str, Any]:
        here, configs = self.folder / f"round-{number}", self.plan.configs
        metrics: dict[str, Any] = {"round": number, "rollouts": 0}
        policy = self._model(rounds)
        if number == 0:
            watched = self._watched(number, "curriculum")
            curriculum_stage.run(curriculum_stage.Paths(self.corpus), here, configs["curriculum"], watched)
        else:
            policy = self._learn(number, here, policy)
            metrics |= round_metrics(here)
            metrics["rollouts"] += rounds[-1]["rollouts"]
            metrics["policy"] = policy
        if self.heldout and self._due(number):
            metrics["heldout"] = {folder.name: self._evaluate(folder, here, policy) for folder in self.heldout}
            self._clock.lap("evaluate")
        return metrics

    def _learn(self, number: int, here: Path, policy: str) -> str:
        """All stages of one round, in the order and with the paths of examples/round.sh; the policy it leaves."""
        configs, last = self.plan.configs, self.folder / f"round-{number - 1}"
        tasks, history = last / "tasks", last / "groups" if number > 1 else None
        sampling = dataclasses.replace(configs["rollout"], round=number)
        engine = self._take(policy, sampling)
        watched = self._watched(number, "rollout")
        rollout_stage.run(tasks, here / "rollouts", policy, sampling, watched, engine=engine)
        self._clock.lap("rollout")
        watched = self._watched(number, "score and filter")
        score_stage.run(tasks, here / "rollouts", out=here / "scores", config=configs["score"], options=watched)
        filter_stage.run(here / "scores", history, here / "groups", configs["filter"], watched)
        self._clock.lap("score, filter")
        records = last / "checkpoint.records"  # none after the first draw and after a dead round
        paths = curriculum_stage.Paths(
            self.corpus,
            groups=here / "groups",
            scores=here / "scores",
            tasks=tasks,
            state=last / "state.json",
            rollouts=here / "rollouts",
            records=records if records.exists() else None,
        )
        try:
            curriculum_stage.run(paths, here, configs["curriculum"], self._watched(number, "curriculum"))
        except EmptyBatch:
            self._clock.lap("curriculum")
            return policy  # nothing to learn from, but the next draw is made and may be better
        self._clock.lap("curriculum")
        train_stage.run(
            here / "rollouts",
            here / "batch",
            model=policy,
            out=here / "checkpoint",
            config=configs["train"],
            options=self._watched(number, "train"),
        )
        self._clock.lap("train")
        return str(here / "checkpoint")

    def _due(self, number: int) -> bool:
        every = self.plan.run.evaluate_every
        return number in (0, self.plan.run.rounds) or (every > 0 and number % every == 0)

    def _evaluate(self, tasks: Path, here: Path, policy: str) -> dict[str, Any]:
        """Greedy answers to held-out tasks."""
        greedy = dataclasses.replace(self.plan.configs["rollout"], temperature=0.0, n=1, round=0)
        place = here / "heldout" / tasks.name
        watched = self._watched(int(here.name.rpartition("-")[2]), f"held-out {tasks.name}")
        engine = self._take(policy, greedy)
        rollout_stage.run(tasks, place / "rollouts", policy, greedy, watched, engine=engine)
        score_stage.run(tasks, place / "rollouts", out=place / "scores", config=ScoreConfig(), options=watched)
        return score_metrics(place / "scores")

    def _take(self, model: str, config: Any) -> Any:
        """The engine, holding this model's weights."""
        if self._engine is None:
            self._engine = open_engine(config.backend, model, config)
        elif self._holds != model:
            self._engine.load_weights(model)
        self._holds = model
        return self._engine

    def _prune(self, number: int) -> None:
        keep = self.plan.run.keep_checkpoints
        if keep and number - keep >= 1:
            checkpoint.remove(self.folder / f"round-{number - keep}" / "checkpoint")

    def _line(self, metrics: dict[str, Any], seconds: float) -> str:
        held = "".join(
            f", {name} exact {_or_dash(values['exact'], '.1%')}" for name, values in metrics.get("heldout", {}).items()
        )
        trained = (
            f"reward {_or_dash(metrics['reward'], '.2f')}, exact {_or_dash(metrics['exact'], '.1%')}, "
            f"dead groups {_or_dash(metrics['dead'], '.0%')}"
            if "reward" in metrics
            else "start"
        )
        return f"{self.plan.folder or '.'} round {metrics['round']}: {trained}{held}; {seconds:.1f} s"


def _or_dash(value: float | None, form: str) -> str:
    return "–" if value is None else format(value, form)


class Clock:
    """Seconds of the wall and of this process's CPU, a stage; a resumed round counts only what was left of it."""

    def __init__(self) -> None:
        self.stages: dict[str, tuple[float, float]] = {}
        self._began = self._last = (time.monotonic(), time.process_time())

    def lap(self, stage: str) -> None:
        """What passed since the last lap belongs to `stage`."""
        now = (time.monotonic(), time.process_time())
        self.stages[stage] = (now[0] - self._last[0], now[1] - self._last[1])
        self._last = now

    def total(self) -> float:
        """Wall seconds so far."""
        return time.monotonic() - self._began[0]

    def append(self, path: Path, number: int) -> None:
        """One more line of times.jsonl."""
        stages = {name: {"wall": round(wall, 3), "cpu": round(cpu, 3)} for name, (wall, cpu) in self.stages.items()}
        with path.open("a", encoding="utf-8") as file:
            file.write(json.dumps({"round": number, **stages}, allow_nan=False) + "\n")


def stop_reason(plan: Plan, rounds: list[dict[str, Any]], minutes: float) -> str | None:
    """Why the run ends after these rounds, or None to go on."""
    rules, last = plan.run, rounds[-1]
    measured = [next(iter(entry["heldout"].values()))["exact"] for entry in rounds if entry.get("heldout")]
    held = [value for value in measured if value is not None]
    if last["round"] >= rules.rounds:
        return "rounds"
    if rules.max_rollouts and last["rollouts"] >= rules.max_rollouts:
        return "rollouts"
    if rules.max_minutes and minutes >= rules.max_minutes:
        return "time"
    if rules.target_exact and held and held[-1] >= rules.target_exact:
        return "target"
    if rules.stop_on_collapse and held and held[-1] < max(held) / 2:
        return "collapse"
    return None
