"""A model's own generation settings, for those who want them.

Off unless asked for: policy gradients need samples of the untouched distribution, and most models ship truncation.
"""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

from toolsample_cli.config import RolloutConfig
from toolsample_cli.errors import DataError
from toolsample_cli.json_types import Row

SETTINGS = ("temperature", "top_p", "top_k", "min_p")


def with_model_settings(config: RolloutConfig, model: str | None) -> RolloutConfig:
    """The config whose sampling settings, where left at their defaults, are those of the model's generation_config.

    Unchanged unless `config.generation_config` is set.
    """
    if not config.generation_config or model is None:
        return config
    theirs, plain, changes = _declared(model), RolloutConfig(), {}
    if theirs.get("do_sample") is False:
        theirs = {"temperature": 0.0}
    for name in SETTINGS:
        default = getattr(plain, name)
        if getattr(config, name) == default and theirs.get(name) is not None:
            changes[name] = type(default)(theirs[name])
    return dataclasses.replace(config, **changes)


def _declared(model: str) -> Row:
    file = Path(model) / "generation_config.json"
    if Path(model).is_dir():
        try:
            return json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
        except ValueError as error:
            raise DataError(f"{file}: not valid JSON: {error}") from None
    from transformers import GenerationConfig

    try:
        return GenerationConfig.from_pretrained(model).to_diff_dict()
    except OSError as error:
        raise DataError(f"{model}: no generation_config could be loaded: {str(error).splitlines()[0]}") from error
