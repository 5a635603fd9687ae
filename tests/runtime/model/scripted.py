"""A model whose machine answers with given ids, and the metadata of its tokenizer, whose ids are bytes."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import numpy as np

from kukri.runtime.engine.cache import Batch, PageTable
from kukri.runtime.engine.engine import Engine
from kukri.runtime.engine.sampling.params import SamplingParams
from kukri.runtime.engine.sampling.top_k import TopK, top_k_of
from kukri.runtime.model.model import Model
from kukri.tokenizer import tokenizer_from_gguf

GREEDY = SamplingParams(temperature=0)
TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if tools %}TOOLS {{ tools | length }}{% endif %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
HELLO = [{"role": "user", "content": "hi"}]
SPECIAL = ["<|bos|>", "<|im_start|>", "<|im_end|>"]
BOS, START, END = 256, 257, 258
VOCAB = 260


def byte_symbols() -> list[str]:
    """The 256 characters that stand for bytes in byte-level BPE (GPT-2's encoder.py), by byte."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = iter(range(256, 512))
    return [chr(byte) if byte in printable else chr(next(others)) for byte in range(256)]


def metadata(**more) -> dict:
    """GGUF metadata of a tokenizer: ids 0–255 are bytes, then SPECIAL and 'zq'."""
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": [*byte_symbols(), *SPECIAL, "zq"],
        "tokenizer.ggml.token_type": np.array([1] * 256 + [3] * 3 + [1], np.int32),
        "tokenizer.ggml.merges": ["z q"],
        "tokenizer.ggml.bos_token_id": BOS,
        "tokenizer.ggml.eos_token_id": END,
        "tokenizer.chat_template": TEMPLATE,
        **more,
    }


class ScriptedMachine:
    """Answers with the ids of `script`, one after another, whatever it is fed."""

    max_rows = max_logits = 16

    def __init__(self, script: list[int]) -> None:
        self.script = list(script)
        self.fed: list[int] = []
        self.n_seen = 0  # of them, where the last logits were asked for
        self.closed = 0

    def step(self, batch: Batch, table: PageTable) -> np.ndarray:
        self.fed += batch.tokens.tolist()
        logits = np.zeros((len(batch.logits_indices), VOCAB), np.float32)
        if len(batch.logits_indices):
            forced = self.fed[self.n_seen + 1 :]  # where a grammar leaves nothing else
            if forced == self.script[: len(forced)]:
                del self.script[: len(forced)]
            self.n_seen = len(self.fed)
            logits[-1, self.script.pop(0)] = 1.0
        return logits

    def top_k(self, batch: Batch, table: PageTable, k: int, n_tokens: int) -> list[TopK]:
        return top_k_of(self.step(batch, table), k)

    def close(self) -> None:
        self.closed += 1


def scripted(script: str | bytes | list[int], context: int = 256, **more) -> Model:
    if isinstance(script, str):
        script = script.encode()
    tokenizer = tokenizer_from_gguf(metadata(**more))
    source = SimpleNamespace(
        config=SimpleNamespace(vocab_size=VOCAB),
        path=Path("dir/tiny.gguf"),
        name="Tiny",
        paths=[],
        n_bytes=1,
        tokenizer=tokenizer,
        adapters=(),
    )
    machine = ScriptedMachine([*script, END])
    table = PageTable(-(-context // 64))
    # The script goes on with each step, so that a step must be one token.
    engine = Engine(machine, table, source.config, tokenizer.end_ids, context=context, speculate=False)
    return Model(source, machine, engine)
