"""Recipes: the table of stages and the TOML files that set their knobs."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

from toolsample_cli.config.bridge_knobs import ExportConfig, RolloutsInConfig
from toolsample_cli.config.data_knobs import ImportConfig, RolloutConfig, ScoreConfig
from toolsample_cli.config.selection_knobs import CurriculumConfig, FilterConfig
from toolsample_cli.config.settings import checked, refuse_unknown
from toolsample_cli.config.training_knobs import EvalConfig, RunConfig, TrainConfig
from toolsample_cli.errors import ConfigError

STAGES: dict[str, type] = {
    "import": ImportConfig,
    "rollout": RolloutConfig,
    "score": ScoreConfig,
    "filter": FilterConfig,
    "curriculum": CurriculumConfig,
    "train": TrainConfig,
    "eval-bfcl": EvalConfig,
    "run": RunConfig,
    "export": ExportConfig,
    "import-rollouts": RolloutsInConfig,
}
"""Recipe table name -> dataclass."""


def read_recipe(path: Path) -> dict[str, Any]:
    """A recipe (TOML) as {stage: {key: value}}, every key checked against the stage's dataclass.

    The table `arms` holds variants: [arms.NAME.STAGE] overrides [STAGE] in the arm NAME. Raises ConfigError
    with the file, the unknown key and the nearest valid one.
    """
    try:
        import tomllib
    except ModuleNotFoundError:  # Python 3.10
        import tomli as tomllib
    try:
        recipe = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError(f"{path}: no such recipe file") from None
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror or error}") from None
    except RecursionError:
        raise ConfigError(f"{path}: nested too deeply") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: not valid TOML: {error}") from None
    arms = recipe.get("arms", {})
    if not isinstance(arms, dict) or not all(isinstance(tables, dict) for tables in arms.values()):
        raise ConfigError(f"{path}: arms must be tables, as in [arms.NAME.train]")
    _check_tables({table: values for table, values in recipe.items() if table != "arms"}, str(path))
    for arm, tables in arms.items():
        _check_tables(tables, f"{path}: arm {arm}")
    return recipe


def _check_tables(tables: dict[str, Any], where: str) -> None:
    for table, values in tables.items():
        refuse_unknown(table, [*STAGES, "arms"], f"{where}: unknown table")
        if not isinstance(values, dict) or table not in STAGES:
            raise ConfigError(f"{where}: {table} must be a table, as in [{table}]")
        for key in values:
            valid = [item.name for item in dataclasses.fields(STAGES[table])]
            refuse_unknown(key, valid, f"{where}: unknown key in [{table}]")
        checked(STAGES[table], values, f"{where}: [{table}] ")
