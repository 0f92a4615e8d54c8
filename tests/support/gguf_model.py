"""A Qwen3 folder with a byte-level BPE tokenizer as one float32 GGUF file, for llama.cpp: `gguf_model.py FOLDER FILE`.

Runs in the environment of test_backends_llamacpp.py, which has gguf and safetensors.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

TENSORS = {
    "model.embed_tokens.weight": "token_embd.weight",
    "model.norm.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
}
LAYER = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def main(folder: Path, out: Path) -> None:
    """Write the file: the shape, the tokenizer with the kinds of its tokens, every tensor."""
    import gguf
    from safetensors.numpy import load_file

    config = json.loads((folder / "config.json").read_text())
    writer = gguf.GGUFWriter(out, "qwen3")
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_key_length(config["head_dim"])
    writer.add_value_length(config["head_dim"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_freq_base(config["rope_parameters"]["rope_theta"])
    add_tokenizer(writer, folder)
    for name, tensor in load_file(folder / "model.safetensors").items():
        writer.add_tensor(tensor_name(name), tensor.astype("float32"))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def tensor_name(name: str) -> str:
    """What llama.cpp calls a tensor of transformers."""
    if name in TENSORS:
        return TENSORS[name]
    _, _, layer, rest = name.split(".", 3)
    return f"blk.{layer}.{LAYER[rest.removesuffix('.weight')]}.weight"


def add_tokenizer(writer: object, folder: Path) -> None:
    """Tokens in the order of their ids; special ones are control tokens, other added ones are taken as they stand."""
    import gguf

    tokenizer = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))
    tokens = {index: token for token, index in tokenizer["model"]["vocab"].items()}
    kinds = dict.fromkeys(tokens, gguf.TokenType.NORMAL)
    for added in tokenizer["added_tokens"]:
        tokens[added["id"]] = added["content"]
        kinds[added["id"]] = gguf.TokenType.CONTROL if added["special"] else gguf.TokenType.USER_DEFINED
    merges = [pair if isinstance(pair, str) else " ".join(pair) for pair in tokenizer["model"]["merges"]]
    settings = json.loads((folder / "tokenizer_config.json").read_text(encoding="utf-8"))
    ids = {token: index for index, token in tokens.items()}
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list([tokens[i] for i in range(len(tokens))])
    writer.add_token_types([kinds[i] for i in range(len(tokens))])
    writer.add_token_merges(merges)
    writer.add_eos_token_id(ids[settings["eos_token"]])
    writer.add_pad_token_id(ids[settings["pad_token"]])
    writer.add_add_bos_token(False)
    writer.add_chat_template((folder / "chat_template.jinja").read_text(encoding="utf-8"))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
