"""Gold calls against calls that were read, argument by argument, for people to look at."""

from __future__ import annotations

from toolsample_cli.json_types import Row
from toolsample_cli.toolcalls.call import canonical

Line = tuple[str, str, str, str, str]


def compare(gold: list[Row], given: list[Row]) -> list[Line]:
    """(mark, call, argument, gold value, given value); marks: = equal, ≠ differs, - missing, + not wanted.

    Calls of one name are paired by most equal arguments, in the order of the gold, as the reward does.
    """
    lines: list[Line] = []
    left = list(given)
    for wanted in gold:
        rivals = [call for call in left if call["name"] == wanted["name"]]
        if not rivals:
            lines.append(("-", wanted["name"], "", canonical(wanted["arguments"]), ""))
            continue
        best = max(rivals, key=lambda call: _likeness(wanted["arguments"], call["arguments"]))
        left.remove(best)
        lines += _pair(wanted, best)
    lines += [("+", call["name"], "", "", canonical(call["arguments"])) for call in left]
    return lines


def _likeness(gold: Row, given: Row) -> tuple[int, int]:
    return (
        sum(key in given and given[key] == value for key, value in gold.items()),
        sum(key in given for key in gold) - sum(key not in gold for key in given),
    )


def _pair(gold: Row, given: Row) -> list[Line]:
    wanted, found = gold["arguments"], given["arguments"]
    lines: list[Line] = []
    for key, value in wanted.items():
        if key not in found:
            lines.append(("-", gold["name"], key, canonical(value), ""))
        else:
            mark = "=" if found[key] == value else "≠"
            lines.append((mark, gold["name"], key, canonical(value), canonical(found[key])))
    lines += [("+", gold["name"], key, "", canonical(found[key])) for key in found if key not in wanted]
    return lines or [("=", gold["name"], "", "{}", "{}")]
