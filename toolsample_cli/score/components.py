"""Name, key and value components of predicted calls against gold calls (DSCL 1.2; ToolRL's sums, methods 3.4).

Greedy pairing follows the gold's order as ToolRL does (quirk Q8); optimal pairing maximises the sum.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import NamedTuple

from toolsample_cli.json_types import Json
from toolsample_cli.toolcalls.call import Call

Equal = Callable[[Json, Json], bool]


class Components(NamedTuple):
    """What the calls earn. `total` is name + key + value added up in ToolRL's order, so that its last bit is ToolRL's.

    `pairs` are (position in gold, position in prediction).
    """

    name: float
    key: float
    value: float
    total: float
    pairs: tuple[tuple[int, int], ...] = ()


NOTHING = Components(0.0, 0.0, 0.0, 0.0)


def components(
    gold: Sequence[Call],
    calls: Sequence[Call] | None,
    broken: Sequence[int] = (),
    equal: Equal = operator.eq,
    match: str = "greedy",
) -> Components:
    """Compare; `calls` None means that nothing could be read.

    A call in `broken` (no arguments object) that comes up for pairing voids everything, as it does in ToolRL.
    """
    if calls is None:
        return NOTHING
    if not broken and len(calls) == len(gold) and _in_step(gold, calls):
        return _side_by_side(gold, calls, equal)
    if match == "optimal":
        return _optimal(gold, calls, broken, equal)
    name = jaccard([call.name for call in gold], [call.name for call in calls])
    key, value, total = 0.0, 0.0, name
    pairs: list[tuple[int, int]] = []
    used: set[int] = set()
    for position, wanted in enumerate(gold):
        best, best_at = (0.0, 0.0, 0.0), -1
        for at, call in enumerate(calls):
            if at in used or call.name != wanted.name:
                continue
            if at in broken:
                return NOTHING
            keys, values = similarity(wanted, call, equal)
            if keys + values > best[0]:
                best, best_at = (keys + values, keys, values), at
        if best_at >= 0:
            used.add(best_at)
            pairs.append((position, best_at))
            total, key, value = total + best[0], key + best[1], value + best[2]
    return Components(name, key, value, total, tuple(pairs))


def _in_step(gold: Sequence[Call], calls: Sequence[Call]) -> bool:
    """Whether the names are the same in the same order, each once."""
    for wanted, call in zip(gold, calls, strict=True):
        if wanted.name != call.name:
            return False
    return len(gold) == 1 or len({call.name for call in gold}) == len(gold)


def _side_by_side(gold: Sequence[Call], calls: Sequence[Call], equal: Equal) -> Components:
    """There is one way to pair calls that are in step, under either rule."""
    key, value, total = 0.0, 0.0, 1.0
    pairs: list[tuple[int, int]] = []
    for at, (wanted, call) in enumerate(zip(gold, calls, strict=True)):
        keys, values = similarity(wanted, call, equal)
        if keys + values > 0.0:
            pairs.append((at, at))
            total, key, value = total + (keys + values), key + keys, value + values
    return Components(1.0, key, value, total, tuple(pairs))


def similarity(wanted: Call, found: Call, equal: Equal = operator.eq) -> tuple[float, float]:
    """(key, value) component of one pair: Jaccard of the keys, number of right values."""
    want, have = wanted.arguments, found.arguments
    if equal is operator.eq and want == have:
        return 1.0, float(len(want))
    common, values = 0, 0.0
    for key, value in want.items():
        if key in have:
            common += 1
            if equal(have[key], value):
                values += 1.0
    if common == len(want) == len(have):
        return 1.0, values
    return common / (len(want) + len(have) - common), values


def jaccard(wanted: Sequence[str], found: Sequence[str]) -> float:
    """Multiset Jaccard index; 1 for equal lists, also empty ones."""
    if wanted == found:
        return 1.0
    if not wanted or not found:
        return 0.0
    rest = list(found)
    common = 0
    for item in wanted:
        if item in rest:
            rest.remove(item)
            common += 1
    return common / (len(wanted) + len(found) - common)


def _optimal(gold: Sequence[Call], calls: Sequence[Call], broken: Sequence[int], equal: Equal) -> Components:
    name = jaccard([call.name for call in gold], [call.name for call in calls])
    scores = [
        [
            similarity(wanted, call, equal) if call.name == wanted.name and at not in broken else (0.0, 0.0)
            for at, call in enumerate(calls)
        ]
        for wanted in gold
    ]
    pairs = tuple((i, j) for i, j in assign([[-sum(cell) for cell in row] for row in scores]) if sum(scores[i][j]) > 0)
    key = sum(scores[i][j][0] for i, j in pairs)
    value = sum(scores[i][j][1] for i, j in pairs)
    return Components(name, key, value, name + sum(sum(scores[i][j]) for i, j in pairs), pairs)


def assign(costs: Sequence[Sequence[float]]) -> list[tuple[int, int]]:
    """Pairs (row, column) of least total cost, every row or every column used once (Hungarian method, O(n^2 m))."""
    if not costs or not costs[0]:
        return []
    if len(costs) > len(costs[0]):
        return sorted((i, j) for j, i in assign([list(column) for column in zip(*costs, strict=True)]))
    rows, columns = len(costs), len(costs[0])
    row_price, column_price = [0.0] * (rows + 1), [0.0] * (columns + 1)
    owner = [0] * (columns + 1)  # row that holds a column, from 1; 0 is free
    for row in range(1, rows + 1):
        _augment(costs, row, row_price, column_price, owner)
    return sorted((owner[column] - 1, column - 1) for column in range(1, columns + 1) if owner[column])


def _augment(costs: Sequence[Sequence[float]], row: int, u: list[float], v: list[float], owner: list[int]) -> None:
    columns = len(v) - 1
    owner[0] = row
    least, came, done = [float("inf")] * (columns + 1), [0] * (columns + 1), [False] * (columns + 1)
    at = 0
    while owner[at]:
        done[at] = True
        here, step, following = owner[at], float("inf"), 0
        for column in range(1, columns + 1):
            if done[column]:
                continue
            cost = costs[here - 1][column - 1] - u[here] - v[column]
            if cost < least[column]:
                least[column], came[column] = cost, at
            if least[column] < step:
                step, following = least[column], column
        for column in range(columns + 1):
            if done[column]:
                u[owner[column]] += step
                v[column] -= step
            else:
                least[column] -= step
        at = following
    while at:
        owner[at] = owner[came[at]]
        at = came[at]
