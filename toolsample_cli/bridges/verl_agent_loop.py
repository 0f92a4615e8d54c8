"""verl's single-turn agent loop with each row's own tools, for rows of `toolsample export --to verl --prompt messages`.

verl takes one list of tools per run; this loop hands the chat template those of the row. Register it with
examples/verl/agent.yaml. Without it, the default export has the tools as text in the system message.
"""

from __future__ import annotations

import json
from typing import Any

from verl.experimental.agent_loop.agent_loop import AgentLoopOutput
from verl.experimental.agent_loop.single_turn_agent_loop import SingleTurnAgentLoop


class ToolsampleAgentLoop(SingleTurnAgentLoop):
    """verl makes a loop for every sample, so the tools of the sample may be kept on it."""

    async def run(self, sampling_params: dict[str, Any], priority: int = 0, **kwargs: Any) -> AgentLoopOutput:
        """One answer to the row's messages, rendered with the row's tools."""
        given = kwargs["extra_info"]
        self._row_tools = json.loads(given["tools_json"]) or None
        kwargs["raw_prompt"] = json.loads(given["messages_json"])
        return await super().run(sampling_params, priority=priority, **kwargs)

    async def ct_build_initial_tokens(self, messages: list[dict[str, Any]], *_: Any, **media: Any) -> list[int]:
        """Prompt ids with the row's tools, whatever verl would have given."""
        return await super().ct_build_initial_tokens(messages, **{**media, "tools": self._row_tools})
