"""The contract of what lies on disk: the kinds of shard, each column's type and meaning.

Nested values (messages, schemas, arguments) are compact JSON text, never Struct columns: inferring their
type loses or invents keys. Readers pass these dtypes explicitly; `check` says which column breaks the rule.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import polars as pl

from toolsample_cli.errors import DataError

VERSION = 1
"""Schema version, in every footer. A change that old readers cannot read raises it."""


@dataclass(frozen=True)
class Column:
    """One column: name, polars dtype, meaning; `null` allows missing values; `low`/`high` are inclusive.

    A float is a finite number unless `infinite` allows what a diverged training step measures.
    """

    name: str
    dtype: pl.DataType | type[pl.DataType]
    meaning: str
    null: bool = False
    low: float | None = None
    high: float | None = None
    infinite: bool = False


@dataclass(frozen=True)
class Kind:
    """One kind of shard: its columns in order and the columns that identify a row."""

    name: str
    meaning: str
    columns: tuple[Column, ...]
    key: tuple[str, ...]

    @property
    def schema(self) -> dict[str, pl.DataType | type[pl.DataType]]:
        """Column name -> dtype, in the order on disk."""
        return {column.name: column.dtype for column in self.columns}


STR, I32, I64, F64, BOOL = pl.String, pl.Int32, pl.Int64, pl.Float64, pl.Boolean
IDS, LOGPS = pl.List(pl.Int32), pl.List(pl.Float32)

COMPONENTS = ("format", "name", "key", "value")
"""The four sub-tasks of a tool call (DSCL, section 1.2 of the paper's reward)."""


def _component_columns(meanings: dict[str, str]) -> tuple[Column, ...]:
    columns = []
    for name, meaning in meanings.items():
        columns.append(Column(name, F64, meaning, null=True, low=0))
        columns.append(Column(f"{name}_max", F64, f"largest possible {name} of this task", null=True, low=0))
    return tuple(columns)


def _statistic_columns() -> tuple[Column, ...]:
    columns = []
    for name in COMPONENTS:
        share, variance = (
            f"mean of {name} / {name}_max over the group; null without one",
            "population variance (ddof 0)",
        )
        columns.append(Column(f"{name}_mean", F64, share, null=True, low=0, high=1))
        columns.append(Column(f"{name}_var", F64, f"{variance} of {name} / {name}_max", null=True, low=0))
    return tuple(columns)


PASS_AT = (2, 4, 8)
"""Values of k for which a group has an unbiased pass@k; pass@1 is n_exact / n."""


def _pass_columns() -> tuple[Column, ...]:
    meaning = "unbiased pass@{k}: the chance that {k} of its completions hold an exactly right one; null when n < {k}"
    return tuple(Column(f"pass_at_{k}", F64, meaning.format(k=k), null=True, low=0, high=1) for k in PASS_AT)


TASKS = Kind(
    "tasks",
    "one request with its tools and its gold answer",
    (
        Column(
            "task_id",
            STR,
            "stable id: a hash of messages, tools and gold; `-2`, `-3` ... for exact repeats; `@2shot` for a few-shot form",
        ),
        Column("source", STR, "data set it came from"),
        Column("split", STR, "train, validation or test; test rows are refused by train"),
        Column("category", STR, "kind of request, as the source names it or by the number of gold calls"),
        Column("protocol", STR, "how calls are written: the name of a protocol"),
        Column("messages_json", STR, "the prompt: list of {role, content, ...}, without the gold answer"),
        Column(
            "tools_json",
            STR,
            "offered tools: list of {name, description, parameters}, parameters in normalised JSON Schema",
        ),
        Column("gold_json", STR, "gold calls: list of {name, arguments}; [] when none is right"),
        Column("gold_kind", STR, "what the gold answer holds: calls, response, both or none"),
        Column(
            "gold_text",
            STR,
            "the gold answer as text in the task's protocol, with thought where the source has one",
            null=True,
        ),
        Column(
            "gold_issues_json",
            STR,
            "list of doubts about the gold answer, such as arguments that break their own schema",
        ),
        Column("demos_json", STR, "demonstrations put before the request: list of {messages}; [] for a zero-shot task"),
        Column("demo_task_ids", pl.List(STR), "tasks that the demonstrations came from"),
        Column("parent_task_id", STR, "the zero-shot task this one is a few-shot form of", null=True),
        Column("license", STR, "licence of the row"),
        Column("extra_json", STR, "whatever else the source had, as an object"),
    ),
    ("task_id",),
)

ROLLOUTS = Kind(
    "rollouts",
    "one sampled completion, with the tokens as they were sampled",
    (
        Column("rollout_id", STR, "task_id/round/sample"),
        Column("task_id", STR, "the task"),
        Column("round", I32, "round of the loop", low=0),
        Column("sample", I32, "number of the sample within its task, from 0", low=0),
        Column("policy", STR, "model that generated: its path or name"),
        Column("backend", STR, "engine that generated"),
        Column("seed", I64, "seed derived from (base seed, task, round, sample)"),
        Column("prompt_ids", IDS, "token ids that were sent"),
        Column("completion_ids", IDS, "token ids that came back, the end token included when it was sampled"),
        Column(
            "logprobs", LOGPS, "log-probability of each completion token under the distribution sampled from", null=True
        ),
        Column("finish_reason", STR, "as the engine gave it: stop, length, ...; null for an error", null=True),
        Column("ids_from_text", BOOL, "true when the ids were re-made from text because the engine gave none"),
        Column("text", STR, "the completion as text, special tokens of the protocol kept, end token dropped"),
        Column("error", STR, "why there is no completion; such rows are done again on a rerun", null=True),
    ),
    ("task_id", "sample"),
)

SCORES = Kind(
    "scores",
    "what one completion earned, component by component",
    (
        Column("rollout_id", STR, "the rollout"),
        Column("task_id", STR, "its task"),
        Column("round", I32, "its round", low=0),
        Column("sample", I32, "its number within the task", low=0),
        Column("slot_id", STR, "the zero-shot task whose place its task takes; equals task_id for a zero-shot task"),
        Column("shots", I32, "demonstrations in its prompt", low=0),
        Column("source", STR, "data set of its task"),
        Column("category", STR, "kind of request of its task"),
        Column("parse_status", STR, "how reading the completion went: ok, no_call, bad_json, truncated, error, ..."),
        Column("calls_json", STR, "calls that were read: list of {name, arguments}"),
        *_component_columns(
            {
                "format": "1 when the whole completion has the form the protocol demands, else 0",
                "name": "agreement of tool names (Jaccard index); null where the gold has no call",
                "key": "agreement of parameter names, summed over gold calls",
                "value": "number of gold arguments whose value is right",
            }
        ),
        Column("exact", BOOL, "format right and the calls equal the gold calls in any order", null=True),
        Column(
            "schema_valid", BOOL, "every call names an offered tool and fits its schema; null without a call", null=True
        ),
        Column(
            "self_example",
            BOOL,
            "the thought holds a self-made example that meets the conditions of the bonus",
            null=True,
        ),
        Column(
            "extra_json", STR, "further components: rewards of other presets, the user's own components, as an object"
        ),
        Column(
            "reward",
            F64,
            "format + mapped correctness, all weights 1, no bonus; null for an errored rollout",
            null=True,
        ),
        Column("reward_min", F64, "smallest possible reward of this task"),
        Column("reward_max", F64, "largest possible reward of this task"),
    ),
    ("task_id", "sample"),
)

GROUPS = Kind(
    "groups",
    "one task's rollouts of its latest visit as statistics, and the verdict on it",
    (
        Column("task_id", STR, "the task as it was rolled out"),
        Column("slot_id", STR, "the zero-shot task whose place it takes; its own task_id for a zero-shot task"),
        Column("shots", I32, "demonstrations in its prompt", low=0),
        Column("source", STR, "its data set"),
        Column("category", STR, "its kind of request"),
        Column("n", I32, "scored rollouts", low=0),
        Column("n_error", I32, "rollouts that errored; they count nowhere else", low=0),
        Column("n_exact", I32, "rollouts that were exactly right", low=0),
        Column("reward_mean", F64, "mean of the base reward; null when n = 0", null=True),
        Column("reward_var", F64, "population variance (ddof 0) of the base reward; null when n < 2", null=True, low=0),
        Column("reward_min", F64, "smallest possible reward of this task"),
        Column("reward_max", F64, "largest possible reward of this task"),
        Column("reward_best", F64, "largest base reward in the group: best of n; null when n = 0", null=True),
        *_pass_columns(),
        Column("agreement", F64, "share of completions with the most frequent calls; null when n = 0", null=True),
        Column("majority_right", BOOL, "whether these are the gold calls: the majority vote"),
        Column("verdict", STR, "train, mastered, hopeless or doubtful, by the latest visit alone"),
        *_statistic_columns(),
        Column("state", F64, "reward's range still missing: 1 unlearned, 0 mastered", null=True, low=0, high=1),
        Column("potential", F64, "variance over the largest variance its bounds allow", null=True, low=0),
        Column("importance", F64, "how much the method wants this task in the next draw", low=0),
        Column("keep", BOOL, "whether its rollouts go into the training batch"),
        Column("reason", STR, "why, in one word"),
        Column("last_round", I32, "round of the latest visit", low=0),
        Column("visits", I32, "rounds in which it was rolled out", low=0),
        Column("misses", I32, "completions since the last exactly right one, over visits with the same shots", low=0),
        Column(
            "flat_visits", I32, "consecutive visits in which all completions were exactly right, or none was", low=0
        ),
    ),
    ("slot_id",),
)

BATCH = Kind(
    "batch",
    "the rollouts to train on, with the reward the advantage is made from",
    (
        Column("rollout_id", STR, "the rollout"),
        Column("task_id", STR, "its task: rollouts of one task and round form a group"),
        Column("reward", F64, "training reward: sub-task weights applied, bonus added"),
        Column("base_reward", F64, "all weights 1, no bonus: for statistics and plots"),
        Column("bonus", F64, "the self-exemplifying bonus contained in reward", low=0),
        Column("format", F64, "format component in [0, 1]", null=True, low=0, high=1),
        Column("name", F64, "name component over its maximum", null=True, low=0, high=1),
        Column("key", F64, "key component over its maximum", null=True, low=0, high=1),
        Column("value", F64, "value component over its maximum", null=True, low=0, high=1),
        Column("exact", BOOL, "exactly right"),
        Column("prompt", STR, "the prompt its update conditions on: shown (or null) or plain", null=True),
        Column("plain_task_id", STR, "the task without demonstrations, for prompt = plain", null=True),
        Column("weight_name", F64, "weight of the name component in this round", low=0),
        Column("weight_key", F64, "weight of the key component in this round", low=0),
        Column("weight_value", F64, "weight of the value component in this round", low=0),
    ),
    ("rollout_id",),
)

STEPS = Kind(
    "steps",
    "metrics of one optimizer step",
    (
        Column("step", I64, "optimizer step since the first round", low=0),
        Column("round", I32, "round of the loop", low=0),
        Column("metric", STR, "name of the metric"),
        Column("value", F64, "its value", null=True, infinite=True),
    ),
    ("step", "metric"),
)

RECORDS = Kind(
    "records",
    "what training did with one rollout",
    (
        Column("rollout_id", STR, "the rollout"),
        Column("step", I64, "optimizer step that used it", low=0),
        Column("advantage", F64, "its advantage"),
        Column("tokens", I32, "tokens in the loss", low=0),
        Column("dropped_tokens", I32, "tokens without a usable stored logprob", low=0),
        Column("ratio_mean", F64, "mean importance ratio over its tokens", null=True, infinite=True),
        Column("clipped_share", F64, "share of its tokens whose ratio was clipped", null=True, low=0, high=1),
        Column("loss", F64, "its contribution to the step's loss", null=True, infinite=True),
        Column("loss_name", F64, "share of that on tokens of tool names", null=True),
        Column("loss_key", F64, "share on tokens of parameter names", null=True),
        Column("loss_value", F64, "share on tokens of values", null=True),
    ),
    ("rollout_id",),
)

ENTRIES = Kind(
    "entries",
    "one question of BFCL, the answer and the official verdict",
    (
        Column("entry_id", STR, "id of the question"),
        Column("category", STR, "official category"),
        Column("prompt", STR, "the prompt as text"),
        Column("answer", STR, "the model's answer", null=True),
        Column("calls_json", STR, "calls that were decoded: list of {name, arguments}"),
        Column("valid", BOOL, "the official checker's verdict; null when inference failed", null=True),
        Column("error_type", STR, "the checker's error type, or why inference failed", null=True),
        Column("finish_reason", STR, "as the engine gave it", null=True),
    ),
    ("entry_id",),
)

REJECTS = Kind(
    "rejects",
    "raw rows that did not become tasks",
    (
        Column("file", STR, "raw file"),
        Column("row", I64, "row or line in it, from 1", low=1),
        Column("reason", STR, "why, in one word"),
        Column("detail", STR, "the same in a sentence"),
        Column("raw_json", STR, "the raw row as text, cut at 4,000 characters"),
    ),
    ("file", "row"),
)

KINDS: dict[str, Kind] = {
    kind.name: kind for kind in (TASKS, ROLLOUTS, SCORES, GROUPS, BATCH, STEPS, RECORDS, ENTRIES, REJECTS)
}


def frame(kind: Kind, rows: list[dict] | Mapping[str, Sequence[object] | pl.Series]) -> pl.DataFrame:
    """Rows (or columns) as a frame of this kind, dtypes forced, columns in order; missing columns are null."""
    if isinstance(rows, list):
        rows = {column.name: [row.get(column.name) for row in rows] for column in kind.columns}
    try:
        return pl.DataFrame(rows, schema=kind.schema, strict=True)
    except UnicodeEncodeError:  # a lone surrogate, as in a model's "\\ud800": no column can hold it
        whole = {name: [_whole(value) for value in values] for name, values in rows.items()}
        return pl.DataFrame(whole, schema=kind.schema, strict=True)


def _whole(value: object) -> object:
    if isinstance(value, list):
        return [_whole(item) for item in value]
    return (
        value.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace") if isinstance(value, str) else value
    )


def check(kind: Kind, data: pl.DataFrame, where: str) -> pl.DataFrame:
    """The frame itself if it keeps the contract; otherwise DataError naming `where`, column, row and value."""
    missing = [c.name for c in kind.columns if c.name not in data.columns]
    extra = [name for name in data.columns if name not in kind.schema]
    if missing or extra:
        named = {"missing": missing, "unknown": extra}
        wrong = "; ".join(f"{which} column(s) {', '.join(names)}" for which, names in named.items() if names)
        raise DataError(f"{where}: not a {kind.name} shard: {wrong}")
    found = data.schema
    for column in kind.columns:
        if found[column.name] != column.dtype:
            raise DataError(f"{where}: column {column.name} is {found[column.name]}, expected {column.dtype}")
    suspect = data.select([_may_fail(column).alias(column.name) for column in kind.columns]).row(0, named=True)
    for column in kind.columns:
        if suspect[column.name] and data.select(_fault(column).any()).item():
            bad = data.with_row_index("row__").filter(_fault(column)).row(0, named=True)
            raise DataError(
                f"{where} row {bad['row__'] + 1} ({kind.key[0]} {bad[kind.key[0]]}): column {column.name} = {bad[column.name]!r}, expected {_rule(column)}"
            )
    return data


def _may_fail(column: Column) -> pl.Expr:
    """False when no value of the column breaks its rule, told from aggregates, which cost less than a pass per rule."""
    value = pl.col(column.name)
    tests = [] if column.null else [value.null_count() > 0]
    if column.low is not None:
        tests.append(value.min() < column.low)
    if column.high is not None:
        tests.append(value.max() > column.high)
    if column.dtype == F64:  # a sum is finite only if all its terms are
        tests.append(value.is_nan().any() if column.infinite else ~value.sum().is_finite())
    return pl.any_horizontal(pl.lit(False), *tests).fill_null(False)


def _fault(column: Column) -> pl.Expr:
    # a comparison with null is null, which neither `sum` nor `filter` counts
    value = pl.col(column.name)
    fault = pl.lit(False) if column.null else value.is_null()
    if column.low is not None:
        fault = fault | (value < column.low)
    if column.high is not None:
        fault = fault | (value > column.high)
    if column.dtype == F64:
        fault = fault | (value.is_nan() if column.infinite else ~value.is_finite())
    return fault


def _rule(column: Column) -> str:
    parts = [] if column.null else ["a value"]
    if column.dtype == F64:
        parts.append("a number" if column.infinite else "a finite number")
    if column.low is not None:
        parts.append(f">= {column.low:g}")
    if column.high is not None:
        parts.append(f"<= {column.high:g}")
    return " and ".join(parts)
