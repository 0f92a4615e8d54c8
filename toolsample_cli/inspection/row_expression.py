"""SQL conditions that people type: they see one row, reach no file and run nothing.

`polars.sql_expr` reads them; functions are a closed list, checked on the text, so that none looks beyond its row
(aggregates, windows, subqueries would mean another thing in every shard) or makes values that outgrow memory.
"""

from __future__ import annotations

import re

import polars as pl

from toolsample_cli.errors import ConfigError

LONGEST = 2000
"""Characters of one expression."""
FUNCTIONS = frozenset(
    "abs array_contains array_get array_length cast ceil char_length coalesce concat ends_with exp floor greatest if"  # noqa: SIM905
    " ifnull least left length ln log10 log2 lower ltrim mod nullif octet_length pow regexp_like right round rtrim sign"
    " sqrt starts_with strpos substr substring trim try_cast upper".split()
)
"""Functions of one row whose result is no larger than what they are given."""
WORDS = frozenset(
    [
        "all",
        "and",
        "any",
        "between",
        "else",
        "ilike",
        "in",
        "is",
        "like",
        "not",
        "or",
        "regexp",
        "rlike",
        "then",
        "when",
    ]
)
"""Words that may stand before a bracket without being a function."""
BEYOND = frozenset(["exists", "from", "over", "select", "union", "unnest", "with"])
_TOKEN = re.compile(
    r"""'(?:[^']|'')*'|"(?:[^"]|"")*"|(?P<word>[A-Za-z_]\w*)\s*(?P<call>\()?|(?P<other>--|/\*|[`$;#])"""
)


def row_expression(text: str, what: str) -> pl.Expr:
    """The expression; ConfigError, which begins with `what`, says what is wrong with it."""
    if len(text) > LONGEST:
        raise ConfigError(f"{what}: longer than {LONGEST:,} characters")
    for token in _TOKEN.finditer(text):
        if token["other"]:  # comments and further quotes could hide a function from this check
            raise ConfigError(f"{what}: {token['other']} is not allowed outside quotes")
        word = (token["word"] or "").lower()
        if word in BEYOND or (token["call"] and word not in FUNCTIONS | WORDS):
            raise ConfigError(
                f"{what}: {word} is not a function of one row, and only those are allowed",
                hint=f"--by COLUMN counts rows and takes means; functions: {', '.join(sorted(FUNCTIONS))}",
            )
    try:
        return pl.sql_expr(text)
    except pl.exceptions.PolarsError as error:
        raise ConfigError(f"{what}: {first_line(error)}", hint="as in: name = name_max and value < value_max") from None


def first_line(error: Exception) -> str:
    """What polars says, without the query plan below it."""
    return str(error).strip().partition("\n")[0] or type(error).__name__
