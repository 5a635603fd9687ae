"""Small models whose next token is written down, or whose shapes are unusual."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import numpy as np

from ...tiny_model import CONTROL, MERGES, TEMPLATE, tokens

N = len(tokens())
END = N - 1  # <|im_end|>
LAST = ord("\n")  # what the template ends with is spelled so; the byte symbol of it is token 10
BIG = 30.0


def base_writer(path: Path, vocabulary: list[str], template: str | None = TEMPLATE) -> gguf.GGUFWriter:
    """A writer with everything about text in it."""
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_name("trap")
    writer.add_vocab_size(len(vocabulary))
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(vocabulary)
    special = [
        gguf.TokenType.CONTROL if t in CONTROL or t.startswith("<|") else gguf.TokenType.NORMAL
        for t in vocabulary
    ]
    writer.add_token_types(special)
    writer.add_token_merges(list(MERGES))
    writer.add_bos_token_id(vocabulary.index("<|endoftext|>"))
    writer.add_eos_token_id(vocabulary.index("<|im_end|>"))
    if template is not None:
        writer.add_chat_template(template)
    return writer


def write_shaped(
    path: Path,
    *,
    hidden: int = 64,
    heads: int = 4,
    kv_heads: int = 2,
    head_dim: int = 16,
    layers: int = 2,
    tied: bool = False,
    context: int = 512,
    zero: bool = False,
    keys: dict[str, Any] | None = None,
    add_bos: bool = False,
    template: str | None = TEMPLATE,
    output_value: float | None = None,
) -> Path:
    """A llama of random weights (or of zeros) with these shapes. `output_value` fills the output matrix."""
    rng = np.random.default_rng(3)
    vocabulary = tokens()
    writer = base_writer(path, vocabulary, template)
    writer.add_add_bos_token(add_bos)
    writer.add_context_length(context)
    writer.add_embedding_length(hidden)
    writer.add_feed_forward_length(2 * hidden)
    writer.add_block_count(layers)
    writer.add_head_count(heads)
    writer.add_head_count_kv(kv_heads)
    writer.add_key_length(head_dim)
    writer.add_value_length(head_dim)
    writer.add_rope_dimension_count(head_dim)
    writer.add_layer_norm_rms_eps(1e-5)
    for key, value in (keys or {}).items():
        add = {int: writer.add_uint32, float: writer.add_float32, str: writer.add_string}[type(value)]
        add(f"llama.{key}", value)

    def matrix(rows: int, columns: int, size: float = 1.0) -> np.ndarray:
        values = rng.standard_normal((rows, columns)) * size / np.sqrt(columns)
        return (values * (not zero)).astype(np.float32)

    writer.add_tensor("token_embd.weight", matrix(N, hidden, 8.0))
    writer.add_tensor("output_norm.weight", np.ones(hidden, np.float32))
    if output_value is not None:
        writer.add_tensor("output.weight", np.full((N, hidden), output_value, np.float32))
    elif not tied:
        writer.add_tensor("output.weight", matrix(N, hidden, 8.0))
    for i in range(layers):
        for name, rows, columns in (
            ("attn_q", heads * head_dim, hidden),
            ("attn_k", kv_heads * head_dim, hidden),
            ("attn_v", kv_heads * head_dim, hidden),
            ("attn_output", hidden, heads * head_dim),
            ("ffn_gate", 2 * hidden, hidden),
            ("ffn_up", 2 * hidden, hidden),
            ("ffn_down", hidden, 2 * hidden),
        ):
            writer.add_tensor(f"blk.{i}.{name}.weight", matrix(rows, columns))
        writer.add_tensor(f"blk.{i}.attn_norm.weight", np.ones(hidden, np.float32))
        writer.add_tensor(f"blk.{i}.ffn_norm.weight", np.ones(hidden, np.float32))
    return _written(writer, path)


def write_script(path: Path, answer: bytes, *, ends: str = "<|im_end|>", eot: str = "") -> Path:
    """A model that answers `answer`, byte by byte, and ends with the token `ends`.

    Every token has a hidden unit of its own, attention and FFN are zero, and the output matrix names the
    next token. A byte that comes twice has copies in the vocabulary behind the control tokens.
    """
    vocabulary = [*tokens()]
    chain, seen = [], {LAST}
    for byte in answer:
        if byte in seen:  # another token for the same byte, spelled alike is not allowed: a longer merge
            raise ValueError("each byte may come once, and no newline")
        seen.add(byte)
        chain.append(_token_of(byte))
    chain.append(vocabulary.index(ends))
    hidden = 320
    writer = base_writer(path, vocabulary)
    writer.add_add_bos_token(False)
    writer.add_context_length(512)
    writer.add_embedding_length(hidden)
    writer.add_feed_forward_length(64)
    writer.add_block_count(1)
    writer.add_head_count(5)
    writer.add_head_count_kv(5)
    writer.add_layer_norm_rms_eps(1e-5)
    if eot:
        writer.add_eot_token_id(vocabulary.index(eot))
    embedding = np.zeros((N, hidden), np.float32)
    embedding[np.arange(N), np.arange(N)] = 1.0
    output = np.zeros((N, hidden), np.float32)
    for before, after in zip([_token_of(LAST), *chain], chain, strict=False):
        output[after, before] = BIG
    writer.add_tensor("token_embd.weight", embedding)
    writer.add_tensor("output.weight", output)
    writer.add_tensor("output_norm.weight", np.ones(hidden, np.float32))
    for name, rows, columns in (
        *(("attn_q", 320, 320), ("attn_k", 320, 320), ("attn_v", 320, 320), ("attn_output", 320, 320)),
        *(("ffn_gate", 64, 320), ("ffn_up", 64, 320), ("ffn_down", 320, 64)),
    ):
        writer.add_tensor(f"blk.0.{name}.weight", np.zeros((rows, columns), np.float32))
    writer.add_tensor("blk.0.attn_norm.weight", np.ones(hidden, np.float32))
    writer.add_tensor("blk.0.ffn_norm.weight", np.ones(hidden, np.float32))
    return _written(writer, path)


def _token_of(byte: int) -> int:
    return byte  # the vocabulary begins with the 256 bytes in order


def _written(writer: gguf.GGUFWriter, path: Path) -> Path:
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
