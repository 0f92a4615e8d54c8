"""Official categories of both releases: names, groups, kinds, languages, and where their files lie.

Names differ between v3 and v4 (`java` / `simple_java`), and so do the data: a v3 number comes from the v3 release only.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from toolsample_cli.config.settings import nearest
from toolsample_cli.errors import ConfigError

LIVE_AST = ("live_simple", "live_multiple", "live_parallel", "live_parallel_multiple")
LIVE = (*LIVE_AST, "live_irrelevance", "live_relevance")
MULTI_TURN = ("multi_turn_base", "multi_turn_miss_func", "multi_turn_miss_param", "multi_turn_long_context")
MEMORY = ("memory_kv", "memory_vector", "memory_rec_sum")
WEB = ("web_search_base", "web_search_no_snippet")

FORMATS = "format_sensitivity"
"""200 single-turn questions in 26 forms of prompt, for the prompting mode; enters no total."""

_REST = ("multiple", "parallel", "parallel_multiple", "irrelevance")
SIMPLE = {"v4": ("simple_python", "simple_java", "simple_javascript"), "v3": ("simple", "java", "javascript")}
NON_LIVE = {version: (*simple, *_REST) for version, simple in SIMPLE.items()}
SCORED = {
    "v4": (*NON_LIVE["v4"], *LIVE, *MULTI_TURN, *MEMORY, *WEB),
    "v3": (*NON_LIVE["v3"], *LIVE, *MULTI_TURN),
}
"""Categories that enter a release's overall number, in the order they are reported."""

NOT_RUN = {name: "needs a search engine on the network" for name in WEB} | {
    "memory_vector": "needs a sentence-embedding model and its packages",
}
"""Categories that are not run, and why."""

_COMMON = {
    "multiple": 200, "parallel": 200, "parallel_multiple": 200, "irrelevance": 240, "live_simple": 258,
    "live_multiple": 1053, "live_parallel": 16, "live_parallel_multiple": 24, **dict.fromkeys(MULTI_TURN, 200),
}  # fmt: skip
SIZES = {
    "v4": {
        "simple_python": 400, "simple_java": 100, "simple_javascript": 50, "live_irrelevance": 884,
        "live_relevance": 16, "memory_kv": 155, "memory_rec_sum": 155, FORMATS: 5200, **_COMMON,
    },
    "v3": {"simple": 400, "java": 100, "javascript": 50, "live_irrelevance": 882, "live_relevance": 18, **_COMMON},
}  # fmt: skip
"""Questions per category of the pinned releases, for a plan without them."""

PREFIX = {"v4": "BFCL_v4", "v3": "BFCL_v3"}


def groups(version: str) -> dict[str, tuple[str, ...]]:
    """Group name -> categories, as the official command names them."""
    simple, live = SIMPLE[version], LIVE
    python = tuple(name for name in (*NON_LIVE[version], *live) if name not in simple[1:])
    table = {
        "all": SCORED[version],
        "all_scoring": SCORED[version],
        "single_turn": (*NON_LIVE[version], *live),
        "non_live": NON_LIVE[version],
        "live": live,
        "multi_turn": MULTI_TURN,
        "python": python,
        "non_python": simple[1:],
        "ast": tuple(name for name in (*NON_LIVE[version], *live) if "relevance" not in name),
    }
    if version == "v4":
        table |= {"memory": MEMORY, "web_search": WEB, "agentic": (*MEMORY, *WEB)}
    return table


def select(text: str, version: str) -> tuple[str, ...]:
    """Categories named by a comma-separated list of categories and groups, in reporting order, without repeats.

    A single-turn v4 name is understood for v3 too (`simple_java` means `java`), and the other way round. Raises
    ConfigError with the nearest valid name.
    """
    known, table = SCORED[version] + ((FORMATS,) if version == "v4" else ()), groups(version)
    other = "v3" if version == "v4" else "v4"
    renamed = dict(zip(SIMPLE[other], SIMPLE[version], strict=True))
    wanted: set[str] = set()
    for word in (part.strip() for part in text.split(",")):
        word = renamed.get(word, word)
        if word in table:
            wanted.update(table[word])
        elif word in known:
            wanted.add(word)
        elif word:
            valid = [*table, *known]
            raise ConfigError(
                f"categories: {word!r} is no category or group of BFCL {version}",
                hint=nearest(word, valid) or f"groups: {', '.join(table)}; categories: {', '.join(known)}",
            )
    if not wanted:
        raise ConfigError("categories: none named", hint=f"groups: {', '.join(table)}")
    return tuple(name for name in known if name in wanted)


def kind_of(category: str) -> str:
    """How a category is judged: ast, relevance, irrelevance, multi_turn, memory or web_search."""
    for kind in ("multi_turn", "memory", "web_search", "irrelevance", "relevance"):
        if kind in category:
            return kind
    return "ast"


def language_of(category: str) -> str:
    """Language its functions are written in: python, java or javascript."""
    return "javascript" if "javascript" in category else "java" if "java" in category else "python"


def group_of(category: str) -> str:
    """Folder of the official result tree: non_live, live, multi_turn or agentic (with its memory kind)."""
    if kind_of(category) == "memory":
        return f"agentic/memory/{category.removeprefix('memory_')}"
    if category == FORMATS:
        return FORMATS
    if kind_of(category) == "web_search":
        return "agentic"
    if kind_of(category) == "multi_turn":
        return "multi_turn"
    return "live" if category.startswith("live") else "non_live"


def category_of_file(name: str) -> str | None:
    """`simple_python` from `BFCL_v4_simple_python.json`; None for a file named otherwise."""
    match = re.fullmatch(r"BFCL_v\d+_(\w+?)(?:_result|_score)?\.jsonl?", name)
    return match[1] if match else None


def category_of_id(entry_id: str) -> str | None:
    """`live_simple` from `live_simple_3-1-0`; None when the id has no trailing number."""
    match = re.fullmatch(r"(\w[\w.-]*?)_\d+(?:-\d+)*", entry_id)
    return match[1] if match else None


def in_order(categories: Iterable[str]) -> list[str]:
    """Official reporting order first, anything else after it by name."""
    order = {name: place for place, name in enumerate(dict.fromkeys((*SCORED["v4"], *SCORED["v3"], FORMATS)))}
    return sorted(categories, key=lambda name: (order.get(name, len(order)), name))
