"""Throughput of `import`: raw rows of four formats, JSON lines in, tasks out, one core.

    python benchmarks/import.py --json [--rows 100000] [--datasets PYTHON]

Each format is written first (not timed) and imported in a process of its own. `peak_mb_10th` is the peak of a tenth of
the rows: memory is bounded when it is close to `peak_mb`. `--datasets` names a Python that has Hugging Face `datasets`;
`load_dataset` plus a loop that only decodes tools and calls is then measured on the same files, without any check.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

from meter import peak_mb

TOOLS = [
    {
        "name": f"tool_{number}",
        "description": "Looks something up for a city and a day",
        "parameters": {
            "type": "object",
            "properties": {
                "city": {"type": "string", "description": "Where"},
                "days": {"type": "integer", "description": "How long"},
                "units": {"type": "string", "enum": ["metric", "imperial"]},
            },
            "required": ["city"],
        },
    }
    for number in range(12)
]


class Raw(NamedTuple):
    """One request with the tools it is offered and the call that is right."""

    request: str
    tools: list[dict]
    call: dict


def raw(number: int) -> Raw:
    """Request `number`; three of twelve tools are offered, as in the sets that people import."""
    tools = [TOOLS[(number + step) % len(TOOLS)] for step in (0, 5, 7)]
    arguments = {"city": f"City {number % 997}", "days": number % 14, "units": "metric"}
    request = f"Request {number}: what is it like in City {number % 997} for {number % 14} days, in metric units?"
    return Raw(request, tools, {"name": tools[0]["name"], "arguments": arguments})


def xlam(number: int) -> dict:
    """Tools and answers as JSON text."""
    request, tools, call = raw(number)
    return {"id": number, "query": request, "tools": json.dumps(tools), "answers": json.dumps([call])}


def messages(number: int) -> dict:
    """OpenAI's messages, with arguments as JSON text."""
    request, tools, call = raw(number)
    function = {**call, "arguments": json.dumps(call["arguments"])}
    answer = {"role": "assistant", "content": "", "tool_calls": [{"type": "function", "function": function}]}
    asked = {"role": "user", "content": request}
    return {"messages": [asked, answer], "tools": json.dumps([{"type": "function", "function": t} for t in tools])}


def sharegpt(number: int) -> dict:
    """ShareGPT as LLaMA-Factory stores it."""
    request, tools, call = raw(number)
    turns = [{"from": "human", "value": request}, {"from": "function_call", "value": json.dumps(call)}]
    return {"conversations": turns, "tools": json.dumps(tools)}


def rlla(number: int) -> dict:
    """ToolRL's raw rows: tools are text in the prompt, the answer is tagged text."""
    request, tools, call = raw(number)
    listed = "\n".join(
        f"{place}. Name: {tool['name']}\nDescription: {tool['description']}\n"
        f"Parameters: {json.dumps(tool['parameters']['properties'])}"
        for place, tool in enumerate(tools, start=1)
    )
    call = {"name": call["name"], "parameters": call["arguments"]}
    return {
        "instruction": f"You call tools.\n\n**Available Tools**\n{listed}\n\n**Steps for Each Turn**\nThink, call.",
        "input": f"**Dialogue Records History**\n<user> {request} </user>",
        "output": f"<think> One tool fits. </think>\n<tool_call>\n{json.dumps(call)}\n</tool_call>",
    }


FORMATS = {"xlam": xlam, "messages": messages, "sharegpt": sharegpt, "rlla": rlla}

LOOP = """
import json, resource, sys
import datasets
datasets.disable_progress_bars()
rows = datasets.load_dataset("json", data_files=sys.argv[1], split="train", cache_dir=sys.argv[2])
def opened(value):
    return json.loads(value) if isinstance(value, str) and value[:1] in "[{" else value
count = 0
for row in rows:
    for key in ("tools", "answers"):
        opened(row.get(key))
    for turn in row.get("conversations") or ():
        opened(turn["value"])
    for message in row.get("messages") or ():
        for call in message.get("tool_calls") or ():
            opened(call["function"]["arguments"])
    count += 1
used = resource.getrusage(resource.RUSAGE_SELF)
print(json.dumps({"rows": count, "cpu_s": used.ru_utime + used.ru_stime}))
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout")
    parser.add_argument("--datasets", default="", help="Python that has Hugging Face datasets, to compare with")
    parser.add_argument("--child", default="", help=argparse.SUPPRESS)
    parser.add_argument("--folder", default="", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        print(json.dumps(imported(Path(arguments.child), Path(arguments.folder))))
        return
    result: dict[str, object] = {"rows": arguments.rows}
    with tempfile.TemporaryDirectory() as folder:
        for name in FORMATS:
            result |= measured(name, Path(folder) / name, arguments.rows, arguments.datasets)
    print(json.dumps(result) if arguments.json else "\n".join(f"{key:>28} {value}" for key, value in result.items()))


def measured(name: str, folder: Path, rows: int, datasets: str) -> dict[str, object]:
    """Rates and peaks of one format. RuntimeError when a row was lost."""
    folder.mkdir()
    whole, tenth = written(name, folder / "whole.jsonl", rows), written(name, folder / "tenth.jsonl", rows // 10)
    command = [sys.executable, __file__, "--child"]
    large = answer_of([*command, str(whole), "--folder", str(folder / "tasks")])
    small = answer_of([*command, str(tenth), "--folder", str(folder / "few")])
    if large["tasks"] != rows:
        raise RuntimeError(f"{name}: {large['tasks']} tasks from {rows} rows")
    found: dict[str, object] = {
        f"{name}_rows_per_cpu_s": round(rows / large["cpu_s"]),
        f"{name}_peak_mb": round(large["peak_mb"]),
        f"{name}_peak_mb_10th": round(small["peak_mb"]),
    }
    if datasets:
        loop = answer_of([datasets, "-c", LOOP, str(whole), str(folder / "cache")])
        if loop["rows"] != rows:
            raise RuntimeError(f"{name}: load_dataset gave {loop['rows']} of {rows} rows")
        found[f"{name}_load_dataset_rows_per_cpu_s"] = round(rows / loop["cpu_s"])
    return found


def written(name: str, file: Path, rows: int) -> Path:
    """A file of JSON lines in this format."""
    with file.open("w", encoding="utf-8") as handle:
        for number in range(rows):
            handle.write(json.dumps(FORMATS[name](number)) + "\n")
    return file


def answer_of(command: list[str]) -> dict[str, float]:
    """The JSON object a child process prints, on one thread."""
    once = {"OMP_NUM_THREADS": "1", "POLARS_MAX_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(command, check=True, capture_output=True, text=True, env={**os.environ, **once})
    return json.loads(done.stdout.splitlines()[-1])


def imported(file: Path, folder: Path) -> dict[str, float]:
    """Tasks and CPU seconds of one import in this process, without the start of Python."""
    from toolsample_cli.config import ImportConfig
    from toolsample_cli.importing.stage import run
    from toolsample_cli.stage import Options

    begun = time.process_time()
    account = run([str(file)], folder, ImportConfig(), Options())
    return {"tasks": account.rows_out, "cpu_s": time.process_time() - begun, "peak_mb": peak_mb()}


if __name__ == "__main__":
    main()
