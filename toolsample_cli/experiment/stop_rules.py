"""When a run ends, and how long its stages took."""

from __future__ import annotations

import json
import time
from pathlib import Path

from toolsample_cli.experiment.recipe import Plan
from toolsample_cli.json_types import Row


class StageClock:
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


def stop_reason(plan: Plan, rounds: list[Row], minutes: float) -> str | None:
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
