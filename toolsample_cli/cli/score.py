"""`toolsample score`: reward components of every completion."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from toolsample_cli.cli.command import stage_command
from toolsample_cli.config import ScoreConfig


def register(app: typer.Typer) -> None:
    """Add the command."""

    @stage_command(app, "score", ScoreConfig)
    def score(
        tasks: Annotated[Path, typer.Argument(help="folder of tasks the rollouts were made from")],
        rollouts: Annotated[Path, typer.Argument(help="folder of rollouts")],
        out: Annotated[Path, typer.Option("--out", "-o", help="folder of scores to write")],
        config: ScoreConfig,
        options: Any,
    ) -> Any:
        """Score every completion: what was called, what was right, what it earns. Needs no model, so rescoring is free.

        ToolRL's reward by default, in the four parts format, name, key and value. An errored rollout is kept with a
        null reward.

        Rewards for --rewards: toolrl, toolrl_coarse, toolrl_intermediate, toolrl_strict_lists, toolrl_equal_max,
        toolrl_two_stage, toolrl_smooth, toolrl_length, toolrl_length_dynamic, dscl_literal, tool_n1, bfcl, schema,
        irrelevance, overlong, self_example.

        Quirks for --lift: first_tag, one_line, parameters_only, all_or_nothing (reading); ungated_format,
        free_response (paying).

        Protocols: rlla, hermes, tool_n1, llama3, mistral, qwen_xml, pythonic, openai, json.
        """
        from toolsample_cli.score.stage import run

        return run(tasks, rollouts, out=out, config=config, options=options)
