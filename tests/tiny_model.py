"""A tiny llama with random weights, as a GGUF file: everything a real model has, in about 300 kB.

The vocabulary is byte-level: 256 tokens for the bytes, a few merges, three control tokens. The weights
come from a fixed seed, so the file, and with it every greedy answer, is always the same.
"""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np

HIDDEN, HEADS, KV_HEADS, FFN, LAYERS = 64, 4, 2, 128, 2
MERGES = ("t h", "th e", "Ġ the", "i n", "a n", "o u")
CONTROL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def byte_letters() -> list[str]:
    """The printable stand-ins for the 256 bytes, by byte, as GPT-2's vocabulary has them."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    letters = {byte: chr(byte) for byte in printable}
    for byte in range(256):
        letters.setdefault(byte, chr(256 + len(letters) - len(printable)))
    return [letters[byte] for byte in range(256)]


def tokens() -> list[str]:
    return [*byte_letters(), *("".join(merge.split()) for merge in MERGES), *CONTROL]


def write_tiny_model(
    path: Path,
    *,
    context: int = 512,
    template: str | None = TEMPLATE,
    seed: int = 0,
    silent: bool = False,
    name: str = "tiny",
) -> Path:
    """Write the model to `path`.

    `template=None` makes it a base model. `silent` makes the end token the likeliest after anything;
    otherwise control tokens are never the likeliest, and greedy answers are as long as asked for.
    """
    vocabulary = tokens()
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_name(name)
    writer.add_license("apache-2.0")
    writer.add_context_length(context)
    writer.add_embedding_length(HIDDEN)
    writer.add_feed_forward_length(FFN)
    writer.add_block_count(LAYERS)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_rope_dimension_count(HIDDEN // HEADS)
    writer.add_rope_freq_base(10000.0)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(len(vocabulary))
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(vocabulary)
    control = len(vocabulary) - len(CONTROL)
    writer.add_token_types([gguf.TokenType.NORMAL] * control + [gguf.TokenType.CONTROL] * len(CONTROL))
    writer.add_token_merges(list(MERGES))
    writer.add_bos_token_id(vocabulary.index("<|endoftext|>"))
    writer.add_eos_token_id(vocabulary.index("<|im_end|>"))
    writer.add_add_bos_token(False)
    if template is not None:
        writer.add_chat_template(template)
    for tensor, values in _weights(len(vocabulary), seed, silent).items():
        writer.add_tensor(tensor, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _weights(n_vocab: int, seed: int, silent: bool) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)

    def matrix(rows: int, columns: int) -> np.ndarray:
        return (rng.standard_normal((rows, columns)) / np.sqrt(columns)).astype(np.float32)

    kv = HIDDEN // HEADS * KV_HEADS
    weights = {"token_embd.weight": matrix(n_vocab, HIDDEN) * 8}
    for layer in range(LAYERS):
        weights |= {
            f"blk.{layer}.attn_norm.weight": np.ones(HIDDEN, np.float32),
            f"blk.{layer}.attn_q.weight": matrix(HIDDEN, HIDDEN),
            f"blk.{layer}.attn_k.weight": matrix(kv, HIDDEN),
            f"blk.{layer}.attn_v.weight": matrix(kv, HIDDEN),
            f"blk.{layer}.attn_output.weight": matrix(HIDDEN, HIDDEN),
            f"blk.{layer}.ffn_norm.weight": np.ones(HIDDEN, np.float32),
            f"blk.{layer}.ffn_gate.weight": matrix(FFN, HIDDEN),
            f"blk.{layer}.ffn_up.weight": matrix(FFN, HIDDEN),
            f"blk.{layer}.ffn_down.weight": matrix(HIDDEN, FFN),
        }
    # The last hidden unit starts the same for every token: output rows favour or exclude tokens with it.
    weights["token_embd.weight"][:, -1] = 8.0
    output = matrix(n_vocab, HIDDEN) * 8
    output[:, -1] = 0.0
    output[-len(CONTROL) :, -1] = -100.0
    output[:32, -1] = -100.0  # unprintable bytes, and those that are no UTF-8 on their own
    output[127:256, -1] = -100.0
    if silent:
        output[-1, -1] = 100.0
    weights["output_norm.weight"] = np.ones(HIDDEN, np.float32)
    weights["output.weight"] = output
    return weights
