"""What is fuzzed: kinds of files, how each is changed, and what reads them the way a command does."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from random import Random

import numpy as np

from kukri.quant.errors import DamagedFile
from kukri.runtime.engine.errors import BadLogits, ContextExceeded
from kukri.runtime.engine.sampling.params import SamplingParams
from kukri.runtime.model.loading import load_model
from kukri.runtime.model.memory_check import NotEnoughMemory
from kukri.runtime.model.options import LoadOptions
from kukri.runtime.model.source import open_source
from kukri.runtime.program.build import build_program
from kukri.runtime.weights.binding import Weights
from kukri.tokenizer import TemplateError, Tokenizer, TokenizerError, load_tokenizer
from kukri.tokenizer.chat import budget
from kukri.tokenizer.chat.template import render_until

from . import seeds
from .gguf_parts import gguf_bytes
from .jinja import template_bytes
from .mutate import change_bytes, json_bytes
from .protobuf import model_bytes
from .seeds import Seed

# What the loaders promise to raise for a bad file, and nothing else.
DOCUMENTED = (DamagedFile, TokenizerError, TemplateError, NotEnoughMemory, BadLogits, ContextExceeded)
TEXT = "Hello <|im_end|>\n\u00e9\u1112\u1161\u11ab 日本\U0001f600 1234567  it's\t<s>[INST] <0x0A>\u2581x"
MESSAGES = [
    {"role": "system", "content": "be brief"},
    {"role": "user", "content": TEXT},
    {"role": "assistant", "content": "yes", "reasoning_content": "hm"},
    {"role": "user", "content": "ok?"},
]
TOOLS = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}]


@dataclass(frozen=True)
class Target:
    """`seeds` makes sound files in an empty folder; `change` changes one; `read` raises one of DOCUMENTED, or
    nothing. `run` goes further with a file that was read, and is slower."""

    name: str
    seeds: Callable[..., list[Seed]]
    change: Callable[[Random, bytes], bytes]
    read: Callable[[Path], None]
    run: Callable[[Path], None] | None = None


def _read_model(path: Path) -> None:
    source = open_source(path)
    build_program(source.config, Weights(source.config, source.tensors))
    if source.tokenizer:
        try_tokenizer(source.tokenizer)
        if source.tokenizer.chat_template:
            _render(source.tokenizer.chat_template)


def _run_model(path: Path) -> None:
    """Its kernels on what the file holds: a prompt, a few tokens, and logits of all positions."""
    with load_model(path, LoadOptions(context=64, threads=1), warn=lambda text: None) as model:
        top = model.config.vocab_size
        ids = [0, top - 1, top // 2, *range(min(top, 5))]
        for kind in (0.0, 1.0):
            list(islice(model.generate(ids, SamplingParams(temperature=kind, max_tokens=3, seed=0)), 3))
        np.isfinite(model.logits(ids)).all()


def _read_gguf(folder: Path) -> None:
    _read_model(folder / "model.gguf")


def _run_gguf(folder: Path) -> None:
    _run_model(folder / "model.gguf")


def _read_tokenizer(folder: Path) -> None:
    try_tokenizer(load_tokenizer(folder))


def try_tokenizer(tokenizer: Tokenizer) -> None:
    for special in (False, True):
        ids = tokenizer.encode(TEXT, special=special)
        if ids and not 0 <= min(ids) <= max(ids) < tokenizer.vocab_size:
            raise AssertionError(f"id outside of {tokenizer.vocab_size}: {ids}")
        tokenizer.decode(ids)
    for id in (*range(0, tokenizer.vocab_size, 1 + tokenizer.vocab_size // 16), *tokenizer.end_ids):
        tokenizer.token_bytes(id)
        tokenizer.token_text(id)
    for named in (tokenizer.bos_id, tokenizer.eos_id, *tokenizer.end_ids, *tokenizer.special_tokens.values()):
        if named is not None and not 0 <= named < tokenizer.vocab_size:
            raise AssertionError(f"a named id outside of {tokenizer.vocab_size}: {named}")


def _read_template(folder: Path) -> None:
    _render((folder / "chat_template.jinja").read_bytes().decode("utf-8", "replace"))


def _render(template: str) -> None:
    tools = TOOLS if len(template) % 2 else None
    given = {"bos_token": "<s>", "eos_token": "</s>"}
    # A tenth of the time that a template may take, or the few that take it all would be most of a run.
    until = budget.deadline() - 0.9 * budget.MAX_SECONDS
    render_until(until, template, MESSAGES, tools, True, "2026-01-02T03:04:05", given)


def _changed_safetensors(rng: Random, raw: bytes) -> bytes:
    """The header as the JSON that it is, with its length mended or not; or bytes anywhere."""
    if raw[:1] == b"{":  # the index
        return json_bytes(rng, raw)
    if rng.random() < 0.2:
        return change_bytes(rng, raw, None if rng.random() < 0.3 else 4096)
    size = int.from_bytes(raw[:8], "little")
    header = json_bytes(rng, raw[8 : 8 + size])
    if rng.random() < 0.9:
        size = len(header)
    return size.to_bytes(8, "little") + header + raw[8 + int.from_bytes(raw[:8], "little") :]


TARGETS = {
    target.name: target
    for target in (
        Target("gguf", seeds.gguf_seeds, gguf_bytes, _read_gguf, _run_gguf),
        Target("safetensors", seeds.safetensors_seeds, _changed_safetensors, _read_model, _run_model),
        Target("config.json", seeds.config_seeds, json_bytes, _read_model, _run_model),
        Target("tokenizer.json", seeds.tokenizer_json_seeds, json_bytes, _read_tokenizer),
        Target("tokenizer.model", seeds.tokenizer_model_seeds, model_bytes, _read_tokenizer),
        Target("tekken.json", seeds.tekken_seeds, json_bytes, _read_tokenizer),
        Target("chat_template", seeds.template_seeds, template_bytes, _read_template),
    )
}
