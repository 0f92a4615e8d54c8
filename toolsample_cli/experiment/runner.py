"""Whole experiments: rounds of the stages in one process, on disk exactly as the single commands write them.

The model is loaded once and takes each round's new weights in place. A round whose `round.json` stands is
finished; a rerun after a kill goes on inside the first unfinished one, because every stage resumes by itself.
"""

from __future__ import annotations

import contextlib
import dataclasses
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from toolsample_cli.config import ScoreConfig
from toolsample_cli.curriculum import stage as curriculum_stage
from toolsample_cli.errors import EmptyBatch
from toolsample_cli.experiment import refill
from toolsample_cli.experiment.plan_checks import check_inputs, checkpoint_bytes, same_plan
from toolsample_cli.experiment.plan_text import describe_plans
from toolsample_cli.experiment.recipe import Plan
from toolsample_cli.experiment.round_metrics import read_summary, round_metrics, score_metrics
from toolsample_cli.experiment.stop_rules import StageClock, stop_reason
from toolsample_cli.filter import stage as filter_stage
from toolsample_cli.json_types import Row
from toolsample_cli.rollout import stage as rollout_stage
from toolsample_cli.rollout.types import open_engine
from toolsample_cli.score import stage as score_stage
from toolsample_cli.shards import schema
from toolsample_cli.shards.disk import check_room
from toolsample_cli.shards.folder_sums import verify_folder
from toolsample_cli.shards.locks import FolderLock
from toolsample_cli.shards.manifest import verify_below
from toolsample_cli.shards.sealed import read_sealed, sealed, write_json, write_sealed
from toolsample_cli.stage import Account, Options
from toolsample_cli.train import checkpoint
from toolsample_cli.train import stage as train_stage
from toolsample_cli.train.tracking import TrackedRun

Say = Callable[[str], None]


def run(plans: list[Plan], out: Path, options: Options, say: Say = lambda _: None) -> Account:
    """Carry out every plan below `out` and write `out/summary.json`; resumable at any moment.

    `say` gets one line per round. With `options.dry_run` nothing is written and the plans stand in the account.
    """
    account = Account("run", rows_in=len(plans), wrote=out / "summary.json")
    for plan in plans:
        check_inputs(plan, out, dry=options.dry_run)
    if options.dry_run:
        account.wrote = None
        account.extra["plan"] = [plan.record() for plan in plans]
        account.report = describe_plans(plans, out)
        return account
    summaries = []
    for plan in plans:
        folder = (out / plan.folder).absolute() if not plan.folder else out / plan.folder
        with FolderLock(folder, folder.parent / f"{folder.name}.tmp", enabled=options.lock):
            same_plan(plan, out / plan.folder)
            check_room(out, checkpoint_bytes(plan), what="the checkpoints of the run")
            rounds, stopped = Runner(plan, out / plan.folder, options, say).go()
        summaries.append(
            {"arm": plan.arm, "seed": plan.seed, "folder": plan.folder, "stopped": stopped, "rounds": rounds}
        )
        account.rows_out += 1
    write_json(out / "summary.json", [sealed(entry) for entry in _merged(out / "summary.json", summaries)])
    return account


def _merged(path: Path, summaries: list[Row]) -> list[Row]:
    """Runs of other arms and seeds that an earlier call left in the summary stay; order by folder."""
    old = read_summary(path) if path.exists() else []
    by_folder = {entry["folder"]: entry for entry in [*old, *summaries]}
    return [by_folder[folder] for folder in sorted(by_folder)]


class Learned(NamedTuple):
    """The policy that a round leaves, and how its batch was filled where it was."""

    policy: str
    filling: refill.Filling | None


class Runner:
    """One plan being carried out in one folder."""

    def __init__(self, plan: Plan, folder: Path, options: Options, say: Say) -> None:
        self.plan, self.folder, self.options, self.say = plan, folder, options, say
        self.corpus = Path(plan.run.corpus)
        self.heldout = plan.heldout
        self._engine: Any = None
        self._holds: str | None = None
        self._clock = StageClock()
        self._started = time.monotonic()

    def go(self) -> tuple[list[Row], str]:
        """All rounds, or until a stop rule fires: (metrics of each round, why it stopped)."""
        rounds: list[Row] = []
        try:
            while True:
                number = len(rounds)
                done = self.folder / f"round-{number}" / "round.json"
                if done.exists():
                    rounds.append(self._finished(done, number))
                else:
                    self._clock = StageClock()
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

    def _model(self, rounds: list[Row]) -> str:
        """The policy that the rounds so far left."""
        return next((entry["policy"] for entry in reversed(rounds) if entry.get("policy")), self.plan.run.model)

    def _round(self, number: int, rounds: list[Row]) -> Row:
        here, configs = self.folder / f"round-{number}", self.plan.configs
        metrics: Row = {"round": number, "rollouts": 0}
        policy = self._model(rounds)
        if number == 0:
            watched = self._watched(number, "curriculum")
            curriculum_stage.run(self._paths(number), here, configs["curriculum"], watched)
        else:
            learned = self._learn(number, here, policy)
            policy = learned.policy
            metrics |= round_metrics(here) | (learned.filling.facts() if learned.filling else {})
            metrics["rollouts"] += rounds[-1]["rollouts"]
            metrics["policy"] = policy
        if self.heldout and self._due(number):
            metrics["heldout"] = {folder.name: self._evaluate(folder, here, policy) for folder in self.heldout}
            self._clock.lap("evaluate")
        return metrics

    def _learn(self, number: int, here: Path, policy: str) -> Learned:
        """All stages of one round, in the order and with the paths of examples/round.sh."""
        configs, last = self.plan.configs, self.folder / f"round-{number - 1}"
        tasks, history = last / "tasks", last / "groups" if number > 1 else None
        filling = None
        if refill.wanted(configs["filter"].method, self.plan.run.refill):
            filling = self._fill(number, here, policy)
        else:
            self._roll_out(number, tasks, here, policy)
        filter_stage.run(here / "scores", history, here / "groups", configs["filter"], self._watched(number, "filter"))
        self._clock.lap("score, filter")
        try:
            curriculum_stage.run(self._paths(number), here, configs["curriculum"], self._watched(number, "curriculum"))
        except EmptyBatch:
            self._clock.lap("curriculum")
            return Learned(policy, filling)  # nothing to learn from, but the next draw is made and may be better
        self._clock.lap("curriculum")
        options = self._watched(number, "train")
        if filling is not None and len(filling.kept) > filling.size:  # what is left over is cut
            ids = refill.write_ids(here / "trained.txt", filling.kept[: filling.size])
            options = dataclasses.replace(options, ids=ids)
        train_stage.run(
            here / "rollouts",
            here / "batch",
            model=policy,
            out=here / "checkpoint",
            config=configs["train"],
            options=options,
            tasks=self.corpus if configs["curriculum"].update_on == "plain" else None,
            tracked=TrackedRun(self.folder, self.folder.resolve().name if not self.plan.folder else self.plan.folder),
        )
        self._clock.lap("train")
        return Learned(str(here / "checkpoint"), filling)

    def _paths(self, number: int) -> curriculum_stage.Paths:
        """What curriculum reads at the end of a round."""
        here, last = self.folder / f"round-{number}", self.folder / f"round-{number - 1}"
        if number == 0:
            return curriculum_stage.Paths(self.corpus)
        records = last / "checkpoint.records"  # none after the first draw and after a dead round
        return curriculum_stage.Paths(
            self.corpus,
            groups=here / "groups",
            scores=here / "scores",
            tasks=last / "tasks",
            state=last / "state.json",
            rollouts=here / "rollouts",
            records=records if records.exists() else None,
        )

    def _roll_out(self, number: int, tasks: Path, here: Path, policy: str, ids: Path | None = None) -> None:
        """Rollouts and scores of tasks, or of some of them, in `here`."""
        sampling = dataclasses.replace(self.plan.configs["rollout"], round=number)
        engine = self._take(policy, sampling)
        watched = dataclasses.replace(self._watched(number, f"rollout of {tasks.parent.name}"), ids=ids)
        rollout_stage.run(tasks, here / "rollouts", policy, sampling, watched, engine=engine)
        self._clock.lap("rollout")
        watched = self._watched(number, "score")
        config = self.plan.configs["score"]
        score_stage.run(tasks, here / "rollouts", out=here / "scores", config=config, options=watched)
        self._clock.lap("score, filter")

    def _fill(self, number: int, here: Path, policy: str) -> refill.Filling:
        """Draw and roll out until as many groups are kept as the round wants; rollouts and scores of all draws."""
        filling = refill.Filling(self.plan.configs["curriculum"].tasks_per_round)
        for draw in range(1, self.plan.run.refill + 1):
            place = here / f"{refill.FOLDER}{draw}"
            tasks = self._draw_again(number, draw, place)
            fresh = filling.fresh(tasks)
            if not fresh:
                break  # the corpus has no more
            self._roll_out(number, tasks, place, policy, refill.write_ids(place / "drawn.txt", fresh))
            watched = self._watched(number, f"filter of draw {draw}")
            filter_stage.run(place / "scores", None, place / "groups", self.plan.configs["filter"], watched)
            filling.take(place)
            if filling.full:
                break
        for name, kind in (("rollouts", schema.ROLLOUTS), ("scores", schema.SCORES)):
            refill.join(filling.draws, name, kind, here / name)
        return filling

    def _draw_again(self, number: int, draw: int, place: Path) -> Path:
        """The tasks of a round's draw: the first is the one made; a further one is that draw made larger."""
        if draw == 1:
            return self.folder / f"round-{number - 1}" / "tasks"
        config = self.plan.configs["curriculum"]
        larger = dataclasses.replace(config, tasks_per_round=draw * config.tasks_per_round)
        with contextlib.suppress(EmptyBatch):  # the round before may have had none
            curriculum_stage.run(self._paths(number - 1), place, larger, self._watched(number, f"draw {draw}"))
        return place / "tasks"

    def _due(self, number: int) -> bool:
        every = self.plan.run.evaluate_every
        return number in (0, self.plan.run.rounds) or (every > 0 and number % every == 0)

    def _evaluate(self, tasks: Path, here: Path, policy: str) -> Row:
        """Greedy answers to held-out tasks."""
        greedy = dataclasses.replace(self.plan.configs["rollout"], temperature=0.0, n=1, round=0)
        place = here / "heldout" / tasks.name
        watched = self._watched(int(here.name.rpartition("-")[2]), f"held-out {tasks.name}")
        watched = dataclasses.replace(watched, limit=self.plan.run.heldout_limit or None)
        engine = self._take(policy, greedy)
        rollout_stage.run(tasks, place / "rollouts", policy, greedy, watched, engine=engine)
        watched = dataclasses.replace(watched, limit=None)
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
        for place in refill.leftovers(self.folder / f"round-{number}"):
            shutil.rmtree(place, ignore_errors=True)
        keep = self.plan.run.keep_checkpoints
        if keep and number - keep >= 1:
            checkpoint.remove(self.folder / f"round-{number - keep}" / "checkpoint")

    def _line(self, metrics: Row, seconds: float) -> str:
        held = "".join(
            f", {name} exact {_or_dash(values['exact'], '.1%')}" for name, values in metrics.get("heldout", {}).items()
        )
        trained = (
            f"reward {_or_dash(metrics['reward'], '.2f')}, exact {_or_dash(metrics['exact'], '.1%')}, "
            f"dead groups {_or_dash(metrics['dead'], '.0%')}"
            if "reward" in metrics
            else "start"
        )
        if metrics.get("draws"):
            size = self.plan.configs["curriculum"].tasks_per_round
            trained += f", {metrics['groups_trained']} of {size} groups in {metrics['draws']} draws"
        return f"{self.plan.folder or '.'} round {metrics['round']}: {trained}{held}; {seconds:.1f} s"


def _or_dash(value: float | None, form: str) -> str:
    return "–" if value is None else format(value, form)
