"""The curriculum stage: batch, next tasks and state; the loop over rounds; refusals."""

from __future__ import annotations

import json
import math
import random
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from support.curation_data import HALF, RIGHT, WRONG, score_frame, task_row, write

from toolsample_cli.config import CurriculumConfig, FilterConfig, RolloutConfig, ScoreConfig
from toolsample_cli.curriculum import mastery as tdcl
from toolsample_cli.curriculum import reweighting
from toolsample_cli.curriculum.stage import Paths, run
from toolsample_cli.curriculum.state import EVEN, WEIGHTED, HardTask, State
from toolsample_cli.errors import ConfigError, DataError
from toolsample_cli.filter.stage import run as run_filter
from toolsample_cli.rollout.stage import run as rollout
from toolsample_cli.score.scorer import combine
from toolsample_cli.score.stage import run as score
from toolsample_cli.shards import schema
from toolsample_cli.shards.reading import open_folder
from toolsample_cli.shards.sealed import write_sealed
from toolsample_cli.shards.slice import Slice
from toolsample_cli.stage import Options
from toolsample_cli.train.advantage import advantages

NAMES = [f"t{i:02d}" for i in range(24)]


class Loop:
    """A run folder without a model: outcomes come from the test."""

    def __init__(self, folder: Path, config: CurriculumConfig, filter: FilterConfig = FilterConfig(method="none")):
        self.folder, self.config, self.filter = folder, config, filter
        self.corpus = write(schema.TASKS, folder / "corpus", [schema.frame(schema.TASKS, [task_row(n) for n in NAMES])])
        self.round = -1
        run(Paths(self.corpus), folder / "start", config, Options())
        self.last = folder / "start"

    def tasks(self) -> list[dict]:
        return open_folder(self.last / "tasks", schema.TASKS).load().to_dicts()

    def step(self, outcome) -> dict:
        """Roll out the drawn tasks with `outcome(task) -> outcomes`; returns the new state."""
        self.round += 1
        r = self.round
        frame = score_frame({task["task_id"]: outcome(task) for task in self.tasks()}, round=r)
        scores = write(schema.SCORES, self.folder / f"scores{r}", [frame])
        history = self.folder / f"groups{r - 1}" if r else None
        run_filter(scores, history, self.folder / f"groups{r}", self.filter, Options())
        paths = Paths(self.corpus, self.folder / f"groups{r}", scores, state=self.last / "state.json")
        self.last = self.folder / f"round{r}"
        self.account = run(paths, self.last, self.config, Options())
        return self.state()

    def state(self) -> dict:
        return json.loads((self.last / "state.json").read_text())

    def batch(self) -> list[dict]:
        return open_folder(self.last / "batch", schema.BATCH).load().to_dicts()


def small(**changes) -> CurriculumConfig:
    return CurriculumConfig(**{"tasks_per_round": 8, **changes})


def test_a_run_of_three_rounds(tmp_path):
    """Epochs visit every task once before any comes again; the state counts rounds and logs them."""
    loop = Loop(tmp_path, small())
    drawn = []
    for _ in range(3):
        drawn += [task["task_id"] for task in loop.tasks()]
        state = loop.step(lambda task: [RIGHT, WRONG, HALF, HALF])
    assert sorted(drawn) == NAMES
    assert state["round"] == 2 and state["next_round"] == 3 and [entry["round"] for entry in state["log"]] == [0, 1, 2]
    assert state["log"][0]["exact"] == 0.25 and state["log"][0]["unsolved"] == 0
    assert len(loop.batch()) == 32


def test_all_weights_one_leaves_the_reward_as_it_is(tmp_path):
    """In the first round nothing is measured: training reward and base reward agree to the last bit."""
    loop = Loop(tmp_path, small())
    loop.step(lambda task: [RIGHT, WRONG, HALF])
    assert all(row["reward"] == row["base_reward"] and row["weight_key"] == 1 for row in loop.batch())


def test_weights_follow_mastery_one_round_later(tmp_path):
    """Values are mastered least, so they weigh most from the second round on; reward keeps its bounds."""
    loop = Loop(tmp_path, small())
    state = loop.step(lambda task: [RIGHT, HALF, HALF, HALF])
    assert state["mastery"] == {"format": 1.0, "name": 1.0, "key": 1.0, "value": pytest.approx(5 / 8)}
    raised = [math.exp((1 - m) / 0.5) for m in (1, 1, 5 / 8)]
    assert state["weights"]["value"] == pytest.approx(3 * raised[2] / sum(raised), abs=1e-6)
    loop.step(lambda task: [RIGHT, HALF, WRONG])
    right, half, wrong = loop.batch()[:3]
    assert (right["reward"], wrong["reward"]) == (4.0, -3.0)
    weights = state["weights"]
    earned = weights["name"] + weights["key"] + weights["value"]
    assert half["reward"] == pytest.approx(1 - 3 + 6 * earned / (earned + weights["value"]))
    assert half["reward"] < half["base_reward"] == 2.5


def test_bonus_is_added_and_recorded(tmp_path):
    """The self-exemplifying bonus lies on the training reward alone."""
    frame = score_frame({"a": [RIGHT, RIGHT]}).with_columns(self_example=pl.Series([True, None]))
    rows = reweighting.batch(frame, EVEN, 0.01).to_dicts()
    assert [row["reward"] for row in rows] == [4.01, 4.0]
    assert [row["bonus"] for row in rows] == [0.01, 0.0] and rows[0]["base_reward"] == 4.0


def test_a_further_reward_can_be_what_is_trained_on(tmp_path):
    """A reward beside the base one, as `score` writes it, takes its place in the batch alone, and must be there."""
    gold = {"gold_json": '[{"arguments":{},"name":"f"}]', "gold_kind": "calls"}
    rows = [task_row(name, **gold) for name in NAMES]
    corpus = write(schema.TASKS, tmp_path / "corpus", [schema.frame(schema.TASKS, rows)])
    (tmp_path / "own.py").write_text("def wordy(answer):\n    return len(answer.text)\n")
    texts = ['<tool_call>\n{"name": "f", "arguments": {}}\n</tool_call>', "no"]
    with (tmp_path / "texts.jsonl").open("w") as file:
        for sample, text in enumerate(texts):
            file.write(json.dumps({"task_id": "t00", "sample": sample, "text": text}) + "\n")
    (tmp_path / "ids").write_text("t00\n")
    only = Options(ids=tmp_path / "ids")
    replayed = RolloutConfig(backend="replay", n=2, texts=str(tmp_path / "texts.jsonl"))
    rollout(corpus, tmp_path / "rollouts", None, replayed, only)
    rules = ScoreConfig(rewards="toolrl_coarse", component=f"{tmp_path}/own.py:wordy")
    score(corpus, tmp_path / "rollouts", out=tmp_path / "scores", config=rules, options=only)
    run_filter(tmp_path / "scores", None, tmp_path / "groups", FilterConfig(method="none"), Options())
    paths = Paths(corpus, tmp_path / "groups", tmp_path / "scores")
    for name, rewards in {"toolrl_coarse": [4.0, -3.0], "wordy": [float(len(text)) for text in texts]}.items():
        run(paths, tmp_path / name, small(reward=name), Options())
        batch = open_folder(tmp_path / name / "batch", schema.BATCH).load()
        assert batch["reward"].to_list() == rewards
        assert batch["base_reward"].to_list() == [4.0, -3.0]
    with pytest.raises(DataError, match="has no reward 'tool_n1'") as caught:
        run(paths, tmp_path / "other", small(reward="tool_n1"), Options())
    assert "--rewards tool_n1" in caught.value.hint


@pytest.mark.parametrize(
    ("mode", "first", "rest"),
    [("literal", 2.999, -0.333), ("excluded", 0.009, -0.001), ("std_floor", 0.09, -0.01)],
)
def test_the_bonus_reaches_the_advantage_by_its_mode(mode, first, rest):
    """Ten right completions, one with an example of its own: taken literally the bonus is as large as an answer."""
    frame = score_frame({"a": [RIGHT] * 10}).with_columns(self_example=pl.Series([True] + [False] * 9))
    rows = reweighting.batch(frame, EVEN, 0.01)
    given = {"bonus_R": rows["bonus"].to_numpy(), "bonus_mode": mode}
    found = advantages(rows["reward"].to_numpy(), np.zeros(10, int), **given)
    assert found.value_R == pytest.approx([first] + [rest] * 9, abs=2e-3) and found.dead_G.all()


def test_hard_tasks_come_back_in_few_shot_form_and_fade(tmp_path):
    """Hard after enough misses over visits; first in the next draw with demonstrations; solved, they lose them."""
    loop = Loop(tmp_path, small(hard="fewshot", hard_after=6, tasks_per_round=24, hard_share=0.5))
    bad = "t03"
    loop.step(lambda task: [WRONG if task["task_id"] == bad else RIGHT] * 4)
    assert loop.state()["hard"] == {}  # 4 misses so far
    state = loop.step(lambda task: [WRONG if task["task_id"] == bad else RIGHT] * 4)
    assert state["hard"] == {bad: {"shots": 2, "since": 1, "waiting": True, "unsolved": True, "unfit": False}}
    assert state["log"][1]["hard"] == {bad: 2}
    [form] = [task for task in loop.tasks() if task["parent_task_id"]]
    assert form["task_id"] == "t03@2shot" and form["parent_task_id"] == bad and len(form["demo_task_ids"]) == 2
    assert bad not in form["demo_task_ids"] and len(loop.tasks()) == 24
    state = loop.step(lambda task: [WRONG] * 7 if task["parent_task_id"] else [RIGHT] * 4)
    assert state["hard"][bad]["shots"] == 4
    state = loop.step(lambda task: [RIGHT] * 8)
    assert state["log"][3]["faded"] == {bad: 2}
    state = loop.step(lambda task: [RIGHT] * 8)
    assert state["hard"] == {} and all(task["parent_task_id"] is None for task in loop.tasks())


def test_hard_drop_keep_and_hint(tmp_path):
    """Dropped tasks leave the draw, kept ones are only logged, a hint shows the answer under a name of its own."""
    bad = "t05"

    def outcome(task):
        return [WRONG if task["task_id"].startswith(bad) else RIGHT] * 12

    for name in ("drop", "keep", "hint"):
        (tmp_path / name).mkdir()
        loop = Loop(tmp_path / name, small(hard=name, tasks_per_round=24))
        state = loop.step(outcome)
        ids = [task["task_id"] for task in loop.tasks()]
        if name == "drop":
            assert state["dropped"] == {bad: 0} and bad not in ids and len(ids) == 23
        elif name == "keep":
            assert state["log"][0]["hard"] == {bad: 0} and bad in ids
        else:
            [hinted] = [task for task in loop.tasks() if task["task_id"] == f"{bad}@hint"]
            assert f'"city":"{bad}"' in hinted["demos_json"] and hinted["demo_task_ids"] == [bad]


def test_a_rerun_writes_the_same_bytes(tmp_path):
    """Same inputs, same seed: batch, tasks and state do not change, and nothing is refused."""
    loop = Loop(tmp_path, small(hard="fewshot", hard_after=4))
    loop.step(lambda task: [WRONG] * 4)
    files = [f for f in sorted(loop.last.rglob("*")) if f.is_file()]
    before = {f: f.read_bytes() for f in files}
    paths = Paths(loop.corpus, tmp_path / "groups0", tmp_path / "scores0", state=tmp_path / "start" / "state.json")
    run(paths, loop.last, loop.config, Options())
    assert {f: f.read_bytes() for f in files} == before
    run(paths, tmp_path / "again", loop.config, Options())
    assert (tmp_path / "again" / "state.json").read_bytes() == (loop.last / "state.json").read_bytes()


def test_state_reads_back_what_it_wrote():
    """The record is JSON and `read` its inverse."""
    state = State({"tasks": 1, "fingerprint": "x"}, hard={"a": HardTask(2, 0)}, log=({"round": 0},))
    assert State.read(json.loads(json.dumps(state.record()))) == state


def test_dead_rounds_end_with_exit_code_5_and_advice(tmp_path):
    """Tasks and state are there nevertheless; after three such rounds the hint says what to change."""
    loop = Loop(tmp_path, small(), FilterConfig(method="dapo"))
    hints = []
    for _ in range(3):
        with pytest.raises(DataError, match=r"no group of round \d was kept") as caught:
            loop.step(lambda task: [WRONG] * 4)
        assert caught.value.exit_code == 5
        hints.append(caught.value.hint)
    assert "go on with the next round" in hints[0] and "--hard fewshot" in hints[2]
    assert loop.state()["dead_rounds"] == 3 and len(loop.tasks()) == 8 and loop.batch() == []


class TestWeighting:
    def test_soft_weights_by_hand(self):
        """exp(0), exp(1), exp(2) over tau = 0.5, then clipped to [0.5, 2]."""
        mastery = {"format": 0.1, "name": 1.0, "key": 0.5, "value": 0.0}
        total = 1 + math.e + math.e**2
        exact = {"name": 3 / total, "key": 3 * math.e / total, "value": 3 * math.e**2 / total}
        free = tdcl.soft_weights(mastery, CurriculumConfig(weight_low=0.0, weight_high=9.0))
        assert free == {name: round(w, 6) for name, w in exact.items()} and sum(free.values()) == pytest.approx(3)
        clipped = {"name": 0.5, "key": free["key"], "value": free["value"]}
        assert tdcl.soft_weights(mastery, CurriculumConfig()) == clipped

    def test_equal_or_no_mastery_weighs_evenly(self):
        for mastery in ({}, {"format": 1.0}, {"name": 0.3, "key": 0.3, "value": 0.3}, {"name": 0.3}):
            assert tdcl.soft_weights(mastery, CurriculumConfig(temperature=1e-6)) == EVEN

    def test_mastery_starts_at_the_first_measurement_and_moves_slowly(self):
        first = tdcl.grow({}, {"name": 0.5}, 0.9)
        assert first == {"name": 0.5}
        assert tdcl.grow(first, {"name": 1.0, "value": 0.2}, 0.9) == {"name": pytest.approx(0.55), "value": 0.2}
        assert tdcl.grow(first, {}, 0.9) == first

    def test_stages_open_one_after_another(self):
        """Format first (weights all 0: the reward is the format), then name, key and value."""
        config = CurriculumConfig(weighting="stage", stage_at=0.9, stage_rounds=2, decay=0.0)
        state = State({}, weights=tdcl.first_weights(config))
        assert state.weights == {"name": 0.0, "key": 0.0, "value": 0.0}
        seen = []
        for _ in range(6):
            state = tdcl.advance(state, {"format": 0.95, "name": 0.9, "key": 1.0, "value": 0.1}, config)
            seen.append((state.stage, *state.weights.values()))
        assert seen == [(0, 0, 0, 0), (1, 1, 0, 0), (1, 1, 0, 0), (2, 1, 1, 0), (2, 1, 1, 0), (3, 1, 1, 1)]
        assert State.read(state.record()) == state
        slow = tdcl.advance(State({}, stage=1), {"format": 1.0, "name": 0.5}, config)
        assert (slow.stage, slow.stage_rounds) == (1, 0)

    def test_weights_of_zero_reward_the_format_alone(self):
        frame = score_frame({"a": [RIGHT, HALF, WRONG]})
        rows = reweighting.batch(frame, tdcl.staged_weights(0), 0.0)
        assert rows["reward"].to_list() == [1.0, 1.0, 0.0] and rows["base_reward"].to_list() == [4.0, 2.5, -3.0]

    def test_lag_prefers_tasks_weak_where_mastery_is_weak(self):
        """sum (1 - m)(1 - s) / sum (1 - m), at least 0.05; a missing sub-task counts as mastered."""
        mastery = {"format": 1.0, "name": 0.8, "key": 0.6, "value": 0.4}  # open: 0, 0.2, 0.4, 0.6
        rows = [
            {"n": 4, "format_mean": 0.0, "name_mean": 1.0, "key_mean": 1.0, "value_mean": 0.0},
            {"n": 4, "format_mean": 0.0, "name_mean": 0.5, "key_mean": 1.0, "value_mean": None},
            {"n": 4, "format_mean": 0.0, "name_mean": 1.0, "key_mean": 1.0, "value_mean": 1.0},
            {"n": 0, "format_mean": None, "name_mean": None, "key_mean": None, "value_mean": None},
        ]
        found = pl.DataFrame(rows).select(tdcl.lag(mastery))
        assert found.to_series().to_list() == pytest.approx([0.5, 0.1 / 1.2, 0.05, 1.0])
        assert pl.DataFrame(rows).select(tdcl.lag({"name": 1.0})).to_series().to_list() == [1.0]

    def test_mastery_by_loss(self):
        """Absolute loss on the tokens: names 1 + 1, keys 0, values 6; the sign of the advantage does not matter."""
        spans = {"loss": [2.0, -4.0, None], "loss_name": [0.5, 0.25, 0.1], "loss_key": [0.0, 0.0, 0.1]}
        records = pl.DataFrame({**spans, "loss_value": [1.0, 1.0, 0.1]})
        assert tdcl.measure_loss(records) == {"name": 0.75, "key": 1.0, "value": 0.25}
        assert tdcl.measure_loss(records.with_columns(loss=0.0)) == {}

    def test_mastery_by_loss_needs_the_records(self, tmp_path):
        """The first round has none and weighs evenly; the second one takes them, or says that they are missing."""
        loop = Loop(tmp_path, small(mastery="loss"))
        assert loop.step(lambda task: [RIGHT, HALF])["weights"] == EVEN
        with pytest.raises(ConfigError, match="needs --records"):
            loop.step(lambda task: [RIGHT, HALF])
        row = {**dict.fromkeys(schema.RECORDS.schema), "rollout_id": "a", "step": 0, "advantage": 1.0, "tokens": 9}
        row |= {"dropped_tokens": 0, "loss": 1.0, "loss_name": 0.1, "loss_key": 0.1, "loss_value": 0.8}
        records = write(schema.RECORDS, tmp_path / "records", [schema.frame(schema.RECORDS, [row])])
        last = tmp_path / "round0" / "state.json"
        paths = Paths(loop.corpus, tmp_path / "groups1", tmp_path / "scores1", state=last, records=records)
        run(paths, tmp_path / "again", loop.config, Options())
        state = json.loads((tmp_path / "again" / "state.json").read_text())
        assert state["mastery"]["value"] == pytest.approx(0.2) and state["weights"]["value"] > state["weights"]["key"]

    def test_random_weights_meet_combine_and_the_bounds(self):
        """Full marks stay 4 and nothing stays -3 (and 0) whatever the weights are."""
        frame = score_frame({"a": [RIGHT, HALF, WRONG] * 3})
        for seed in range(20):
            draw = random.Random(seed)
            weights = {name: draw.uniform(0.5, 2) for name in WEIGHTED}
            rewards = reweighting.batch(frame, weights, 0.0)["reward"].to_list()
            for row, reward in zip(frame.to_dicts(), rewards, strict=True):
                parts, maxima = ([row[f"{name}{end}"] for name in WEIGHTED] for end in ("", "_max"))
                assert reward == combine(row["format"], *parts, maxima, tuple(weights.values()))
            assert (max(rewards), min(rewards)) == (pytest.approx(4.0, abs=1e-12), -3.0)


def test_sampling_form_draws_weak_tasks_more_often(tmp_path):
    """`weighting = sample` leaves the reward alone and draws by importance times lag."""
    loop = Loop(tmp_path, small(weighting="sample", tasks_per_round=24, activation_passes=0.0), FilterConfig())
    state = loop.step(lambda task: [RIGHT, RIGHT] if task["task_id"] < "t12" else [HALF, RIGHT])
    assert state["weights"] == EVEN and state["mastery"]["value"] < 1


class TestBadInput:
    def test_state_of_another_corpus(self, tmp_path):
        loop = Loop(tmp_path, small())
        other = write(schema.TASKS, tmp_path / "other", [schema.frame(schema.TASKS, [task_row("x")])])
        with pytest.raises(DataError, match=r"state\.json: belongs to another corpus"):
            run(Paths(other, state=loop.last / "state.json"), tmp_path / "out", small(), Options())

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            ({"version": 9}, "version 9, expected 2"),
            ({"weights": {"name": 0, "key": 0, "value": 0}, "stage": 1}, "weights sum to nothing"),
            ({"weights": {"name": "much", "key": 1, "value": 1}}, "not all finite numbers"),
            ({"hard": {"a": 7}}, "not a curriculum state"),
        ],
    )
    def test_a_state_edited_by_hand(self, tmp_path, change, message):
        loop = Loop(tmp_path, small())
        path = loop.last / "state.json"
        write_sealed(path, {**json.loads(path.read_text()), **change})
        with pytest.raises(DataError, match=message):
            run(Paths(loop.corpus, state=path), tmp_path / "out", small(), Options())

    def test_no_state_file_and_no_json(self, tmp_path):
        loop = Loop(tmp_path, small())
        with pytest.raises(DataError, match=r"nowhere\.json: no such file"):
            run(Paths(loop.corpus, state=tmp_path / "nowhere.json"), tmp_path / "out", small(), Options())
        (tmp_path / "bad.json").write_text("{")
        with pytest.raises(DataError, match="damaged: not valid JSON"):
            run(Paths(loop.corpus, state=tmp_path / "bad.json"), tmp_path / "out", small(), Options())

    def test_a_round_taken_in_twice(self, tmp_path):
        loop = Loop(tmp_path, small())
        loop.step(lambda task: [RIGHT, WRONG])
        paths = Paths(loop.corpus, tmp_path / "groups0", tmp_path / "scores0", state=loop.last / "state.json")
        with pytest.raises(DataError, match="already took in round 0"):
            run(paths, tmp_path / "out", small(), Options())

    def test_groups_with_foreign_ids(self, tmp_path):
        loop = Loop(tmp_path, small())
        scores = write(schema.SCORES, tmp_path / "s", [score_frame({"elsewhere": [RIGHT, WRONG]})])
        run_filter(scores, None, tmp_path / "g", FilterConfig(), Options())
        with pytest.raises(DataError, match=r"task elsewhere\): not in the corpus"):
            run(Paths(loop.corpus, tmp_path / "g", scores), tmp_path / "out", small(), Options())
        assert not (tmp_path / "out").exists()

    def test_a_history_with_foreign_ids(self, tmp_path):
        """Not even the batch is written, though all of this round's tasks are known."""
        loop = Loop(tmp_path, small())
        for number, tasks in enumerate((["elsewhere"], NAMES[:3])):
            frame = score_frame({name: [RIGHT, WRONG] for name in tasks}, round=number)
            scores = write(schema.SCORES, tmp_path / f"s{number}", [frame])
            history = tmp_path / "g0" if number else None
            run_filter(scores, history, tmp_path / f"g{number}", FilterConfig(), Options())
        with pytest.raises(DataError, match=r"g1.*task elsewhere\): not in the corpus"):
            run(Paths(loop.corpus, tmp_path / "g1", scores), tmp_path / "out", small(), Options())
        assert not (tmp_path / "out").exists()

    def test_a_state_without_any_weight(self, tmp_path):
        """All weights 0 are the first stage of `weighting = stage` and a mistake in every other form."""
        loop = Loop(tmp_path, small(weighting="stage"))
        paths = Paths(loop.corpus, state=loop.last / "state.json")
        run(paths, tmp_path / "staged", small(weighting="stage"), Options())
        with pytest.raises(DataError, match="its weights sum to nothing"):
            run(paths, tmp_path / "out", small(), Options())

    def test_a_mix_with_a_value_that_no_task_has(self, tmp_path):
        loop = Loop(tmp_path, small())
        with pytest.raises(ConfigError, match="has the category 'simpel'") as caught:
            run(Paths(loop.corpus), tmp_path / "out", small(mix="category:simpel=0.5"), Options())
        assert "'simple'" in caught.value.hint and not (tmp_path / "out").exists()

    def test_benchmark_test_data(self, tmp_path):
        rows = [task_row("a"), task_row("b", split="test")]
        corpus = write(schema.TASKS, tmp_path / "corpus", [schema.frame(schema.TASKS, rows)])
        with pytest.raises(DataError, match=r"row 2 \(task b\): benchmark test data"):
            run(Paths(corpus), tmp_path / "out", small(), Options())

    def test_few_shot_forms_are_no_corpus(self, tmp_path):
        rows = [task_row("a@2shot", parent_task_id="a")]
        corpus = write(schema.TASKS, tmp_path / "corpus", [schema.frame(schema.TASKS, rows)])
        with pytest.raises(DataError, match="a few-shot form, not a task of a corpus"):
            run(Paths(corpus), tmp_path / "out", small(), Options())

    def test_the_same_task_twice(self, tmp_path):
        rows = [task_row("a"), task_row("a")]
        corpus = write(schema.TASKS, tmp_path / "corpus", [schema.frame(schema.TASKS, rows)])
        with pytest.raises(DataError, match=r"task a\): occurs more than once"):
            run(Paths(corpus), tmp_path / "out", small(), Options())

    def test_contradicting_settings(self, tmp_path):
        loop = Loop(tmp_path, small())
        for config, message in (
            (small(weight_low=3.0), "weight_low = 3 is above weight_high"),
            (small(weight_low=0.0, weight_high=0.0), "sum to nothing"),
            (small(mix="color:red=1"), "expected source: or category:"),
            (small(mix="source:a=0"), "shares sum to nothing"),
        ):
            with pytest.raises(ConfigError, match=message):
                run(Paths(loop.corpus), tmp_path / "out", config, Options())
        with pytest.raises(ConfigError, match="belong together"):
            run(Paths(loop.corpus, groups=tmp_path), tmp_path / "out", small(), Options())
        with pytest.raises(ConfigError, match="--slice is not for curriculum"):
            run(Paths(loop.corpus), tmp_path / "out", small(), Options(slice=Slice(0, 2)))
