"""A world without a model: tasks with latent difficulty per sub-task, and a learner that policy gradients improve.

The policy is a product of coins. For sub-task k (format, name, key, value) of task i the logit is
skill_k + skill_{tool(i), k} - difficulty_ik, plus a boost for each demonstration; keys are tried once the name is
right, values once their key is. Its gradient is exact, so the learner is REINFORCE with group advantages and Adam.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

SUB = ("format", "name", "key", "value")
FORMAT, NAME, KEY, VALUE = range(4)


@dataclass(frozen=True)
class Settings:
    """Shape of the world and of the learner; every number is a choice, none is measured on a model."""

    tasks: int = 1000
    tools: int = 40
    hard_tools: float = 0.25
    """Share of tools whose names and values start almost hopeless."""
    broken: float = 0.05
    """Share of tasks whose gold values cannot be hit."""
    without_call: float = 0.1
    """Share of tasks whose gold answer is text: only their format counts."""
    easiness: tuple[float, ...] = (1.5, 0.5, 1.0, -0.5)
    spread: float = 1.2
    hard_gap: float = 5.0
    demonstration: float = 1.5
    """What one demonstration adds to the logits of name, key and value."""
    transfer: float = 0.5
    """Share of a few-shot prompt's gradient that the zero-shot skill gets."""
    lr: float = 0.1
    carry: float = 0.1
    """Rate of the skills that all tools share, against a tool's own."""
    steps: int = 4
    forget: float = 0.001
    """Share of every tool's skill that is lost a round."""


@dataclass
class World:
    """Tasks and the learner's skills; all randomness from `seed`."""

    settings: Settings
    seed: int
    draw: np.random.Generator = field(init=False)

    def __post_init__(self) -> None:
        s = self.settings
        self.draw = np.random.default_rng(self.seed)
        self.tool = self.draw.integers(0, s.tools, s.tasks)
        hard = self.draw.random(s.tools) < s.hard_tools
        self.difficulty = self.draw.normal(0, s.spread, (s.tasks, 4)) - np.array(s.easiness)
        self.difficulty[:, [NAME, VALUE]] += s.hard_gap * hard[self.tool, None]
        self.arguments = self.draw.integers(1, 5, s.tasks)
        self.has_call = self.draw.random(s.tasks) >= s.without_call
        self.broken = self.draw.random(s.tasks) < s.broken
        self.shared = np.zeros(4)
        self.own = np.zeros((s.tools, 4))
        self.moments = [np.zeros((s.tools + 1, 4)) for _ in range(2)]
        self.updates = 0

    def chances(self, tasks: np.ndarray, shots: np.ndarray | int = 0) -> np.ndarray:
        """(task, sub-task) probabilities of getting each part right."""
        boost = np.zeros((len(tasks), 4))
        boost[:, NAME:] = self.settings.demonstration * np.broadcast_to(shots, len(tasks))[:, None]
        logits = self.shared + self.own[self.tool[tasks]] - self.difficulty[tasks] + boost
        chance = 1 / (1 + np.exp(-logits))
        chance[self.broken[tasks], VALUE] = 0.0
        return chance

    def roll(self, tasks: np.ndarray, shots: np.ndarray, n: int) -> tuple[dict[str, np.ndarray], np.ndarray]:
        """n completions of each task: components and maxima (task, sample), and gradients (task, sample, 4)."""
        chance = self.chances(tasks, shots)[:, None, :]
        shape = (len(tasks), n)
        wanted = self.arguments[tasks][:, None]
        form = self.draw.random(shape) < chance[..., FORMAT]
        name = (self.draw.random(shape) < chance[..., NAME]) & self.has_call[tasks][:, None]
        keys = self.draw.binomial(np.broadcast_to(wanted, shape), chance[..., KEY]) * name
        values = self.draw.binomial(keys, chance[..., VALUE])
        gradient = np.stack(
            [
                form - chance[..., FORMAT],
                (name - chance[..., NAME]) * self.has_call[tasks][:, None],
                keys - wanted * name * chance[..., KEY],
                values - keys * chance[..., VALUE],
            ],
            axis=-1,
        )
        parts = {"format": form.astype(float), "name": name.astype(float), "key": keys / wanted, "value": values * 1.0}
        return parts, gradient

    def learn(self, tasks: np.ndarray, shots: np.ndarray, advantage: np.ndarray, gradient: np.ndarray) -> None:
        """One round: the groups in `steps` mini-batches, Adam on shared and own skills. All (task, sample[, 4])."""
        s = self.settings
        share = np.where(shots > 0, s.transfer, 1.0)[:, None]
        pull = (advantage[..., None] * gradient).mean(axis=1) * share
        for part in np.array_split(self.draw.permutation(len(tasks)), s.steps):
            if not len(part):
                continue
            slope = np.zeros((s.tools + 1, 4))
            np.add.at(slope, self.tool[tasks[part]], pull[part])
            slope[-1] = pull[part].sum(axis=0)
            self._adam(slope / len(part))
        self.own *= 1 - s.forget

    def _adam(self, slope: np.ndarray) -> None:
        self.updates += 1
        first, second = self.moments
        first += 0.1 * (slope - first)
        second += 0.001 * (slope**2 - second)
        step = (first / (1 - 0.9**self.updates)) / (np.sqrt(second / (1 - 0.999**self.updates)) + 1e-4)
        self.own += self.settings.lr * step[:-1]
        self.shared += self.settings.lr * self.settings.carry * step[-1]

    def value(self) -> float:
        """Expected zero-shot reward over the whole corpus, each task's scaled to [0, 1] by its bounds."""
        chance = self.chances(np.arange(self.settings.tasks))
        return float(self._scaled(chance).mean())

    def ceiling(self) -> float:
        """The same for a learner that gets everything right that can be got right."""
        best = np.ones((self.settings.tasks, 4))
        best[self.broken, VALUE] = 0.0
        return float(self._scaled(best).mean())

    def _scaled(self, chance: np.ndarray) -> np.ndarray:
        form, name, key, value = chance.T
        earned = name * (1 + key * (1 + self.arguments * value))
        reward = form + 6 * earned / (2 + self.arguments)
        return np.where(self.has_call, reward / 7, form)
