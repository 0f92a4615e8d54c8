"""Every knob of every stage, declared once: default, range and meaning (standard library only).

A stage's dataclass is at once its command-line flags, its table in a recipe file and the record of how a
shard was made. Precedence: flag > recipe file > default.
"""

from toolsample_cli.config.bridge_knobs import ExportConfig, RolloutsInConfig
from toolsample_cli.config.data_knobs import ImportConfig, RolloutConfig, ScoreConfig
from toolsample_cli.config.recipes import STAGES, read_recipe
from toolsample_cli.config.selection_knobs import CurriculumConfig, FilterConfig
from toolsample_cli.config.training_knobs import EvalConfig, RunConfig, TrainConfig

__all__ = [
    "STAGES",
    "CurriculumConfig",
    "EvalConfig",
    "ExportConfig",
    "FilterConfig",
    "ImportConfig",
    "RolloutConfig",
    "RolloutsInConfig",
    "RunConfig",
    "ScoreConfig",
    "TrainConfig",
    "read_recipe",
]
