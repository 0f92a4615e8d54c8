"""A random Qwen3 of a few ten thousand parameters with its own BPE tokenizer and a Hermes-style chat template.

`tiny_model(folder)` writes it once; its text is noise, but every engine must agree about it.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

TAGS = ("<tool_call>", "</tool_call>", "<tools>", "</tools>", "<think>", "</think>")
TEMPLATE = """\
{%- if tools %}
{{- '<|im_start|>system\n' }}
{%- if messages[0].role == 'system' %}{{- messages[0].content + '\n' }}{% endif %}
{{- '<tools>' }}
{%- for tool in tools %}{{- '\n' + (tool | tojson) }}{% endfor %}
{{- '\n</tools><|im_end|>\n' }}
{%- elif messages[0].role == 'system' %}
{{- '<|im_start|>system\n' + messages[0].content + '<|im_end|>\n' }}
{%- endif %}
{%- for message in messages %}
{%- if message.role != 'system' %}
{{- '<|im_start|>' + message.role + '\n' + message.content }}
{%- for call in message.tool_calls or [] %}
{%- if message.content or not loop.first %}{{- '\n' }}{% endif %}
{{- '<tool_call>\n{"name": "' + call.function.name + '", "arguments": ' }}
{{- call.function.arguments | tojson + '}\n</tool_call>' }}
{%- endfor %}
{{- '<|im_end|>\n' }}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\n' }}{% endif %}"""

END = 0.15
WORDS = (
    "find the weather in Paris tomorrow please set an alarm for seven book a table get price of stock city date name "
    '{"name": "get_weather", "arguments": {"city": "Berlin", "days": 3}} {"type": "object", "properties": {}} '
    "I cannot do that with these tools. What is the time? convert 12 euros to dollars, send mail to Ana"
)


def tiny_tokenizer(folder: Path, vocab_size: int = 420) -> None:
    """Write tokenizer.json, its config and the chat template into a folder."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size - len(TAGS),
        special_tokens=["<|endoftext|>", "<|im_start|>", "<|im_end|>"],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator([WORDS] * 4, trainer)
    tokenizer.add_tokens([AddedToken(tag, normalized=False) for tag in TAGS])
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": 2048,
        "clean_up_tokenization_spaces": False,
        "eos_token": "<|im_end|>",
        "pad_token": "<|endoftext|>",
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")
    (folder / "chat_template.jinja").write_text(TEMPLATE, encoding="utf-8")


def tiny_model(folder: Path, *, seed: int = 0, tokens: int = 420, **overrides: Any) -> Path:
    """Write tokenizer and random weights into `folder / "tiny"` and return that path.

    The head is sharpened so that sampling is neither uniform nor deterministic, and the end token is likely enough
    that completions end at very different lengths. With 265 `tokens` every token is a byte or a tag. `overrides` go
    into Qwen3Config.
    """
    import torch
    from transformers import AutoTokenizer, Qwen3Config, Qwen3ForCausalLM

    path = Path(folder) / "tiny"
    tiny_tokenizer(path, tokens)
    tokenizer = AutoTokenizer.from_pretrained(path)
    settings = {
        "vocab_size": len(tokenizer),
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 64,
        "max_position_embeddings": 2048,
        "tie_word_embeddings": False,
        "bos_token_id": None,
        "eos_token_id": tokenizer.eos_token_id,
        "pad_token_id": tokenizer.pad_token_id,
        **overrides,
    }
    torch.manual_seed(seed)
    model = Qwen3ForCausalLM(Qwen3Config(**settings))
    with torch.no_grad():
        model.model.embed_tokens.weight.normal_(0, 0.5)
        model.model.embed_tokens.weight[:, :8] = 1.0  # a direction that every position shares ...
        model.lm_head.weight.normal_(0, 0.25)
        model.lm_head.weight[tokenizer.eos_token_id, :8] += END  # ... so that the end is likely everywhere
    model.save_pretrained(path)
    return path


def task_row(number: int, request: str = "find the weather in Paris", **overrides: Any) -> dict[str, Any]:
    """A row of tasks with one tool and one gold call, every column filled."""
    tool = {
        "name": "get_weather",
        "description": "the weather",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    }
    row = {
        "task_id": f"t{number:05d}",
        "source": "tiny",
        "split": "train",
        "category": "simple",
        "protocol": "hermes",
        "messages_json": json.dumps([{"content": request, "role": "user"}]),
        "tools_json": json.dumps([tool]),
        "gold_json": json.dumps([{"name": "get_weather", "arguments": {"city": "Paris"}}]),
        "gold_kind": "calls",
        "gold_text": '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Paris"}}\n</tool_call>',
        "gold_issues_json": "[]",
        "demos_json": "[]",
        "demo_task_ids": [],
        "parent_task_id": None,
        "license": "none",
        "extra_json": "{}",
    }
    return {**row, **overrides}
