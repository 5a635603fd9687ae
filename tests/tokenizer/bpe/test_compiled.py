"""What machine code makes of texts is what is made of them without it."""

from __future__ import annotations

import random
import subprocess
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kukri.quant.jit.kernel_cache import KernelCache, kernel_cache
from kukri.runtime.model import tokenizer_kernel
from kukri.runtime.model.tokenizer_kernel import TokenizerKernel, compile_into_cache, kernel_key
from kukri.tokenizer import Tokenizer, core, load_tokenizer, tokenizer_from_gguf
from kukri.tokenizer.bpe.bpe import BPE
from kukri.tokenizer.bpe.compiled import encoder as compiled
from kukri.tokenizer.bpe.compiled.encoder import CompiledEncoder, EncodeKernel
from kukri.tokenizer.bpe.compiled.patterns import alternatives, program
from kukri.tokenizer.bpe.ranks import score_ranks
from kukri.tokenizer.pretokenize import patterns
from kukri.tokenizer.pretokenize.pretokenize import BYTE_SYMBOLS, Split, spell_bytes
from kukri.tokenizer.strings import Lookup, PackedLookup

from ..test_goldens import FAMILIES
from .test_batch import merging, packed, same, vocabulary, words

UNKNOWN_CUTS = ("falcon", "gguf/deepseek-coder")  # tokenizers without machine code
ENGLISH = "The Quick brown fox's 2,345 jumps; they'LL (over) the lazy dogs...\n\n  And I'd say: don't!\t \n x"


@cache
def the_kernel() -> EncodeKernel:
    compile_into_cache([str(kernel_cache().folder)])
    code = kernel_cache().load(kernel_key())
    assert code is not None
    return code.ctypes


@pytest.fixture
def compiling(monkeypatch: pytest.MonkeyPatch) -> Callable[[Tokenizer], Tokenizer]:
    """Makes a tokenizer encode whatever it can by machine code."""
    monkeypatch.setattr(core, "_COMPILED_PAYS", 0)

    def accelerate(tokenizer: Tokenizer) -> Tokenizer:
        tokenizer.accelerate(lambda n: the_kernel())
        tokenizer.encode("")
        assert tokenizer._compiled is not None
        return tokenizer

    return accelerate


@pytest.fixture
def fresh(
    unpacked: Callable[[str], Path], metadata: Callable[[str], dict[str, Any]]
) -> Callable[[str], Tokenizer]:
    def load(name: str) -> Tokenizer:
        if name.startswith("gguf/"):
            return tokenizer_from_gguf(metadata(name))
        return load_tokenizer(unpacked(name))

    return load


def text_of(rng: random.Random, n: int) -> str:
    """Words, numbers, signs and white space of ASCII, now and then something else."""
    letters = "etaoinshrdluETAOINS'"
    parts = []
    for _ in range(n):
        kind = rng.random()
        if kind < 0.6:
            parts.append(" " + "".join(rng.choices(letters, k=rng.randint(1, 9))))
        elif kind < 0.7:
            parts.append("".join(rng.choices("0123456789", k=rng.randint(1, 7))))
        elif kind < 0.8:
            parts.append("".join(rng.choices('!"#$%&()*+,-./:;<=>?@[\\]^_`{|}~', k=rng.randint(1, 4))))
        elif kind < 0.9:
            parts.append(
                "".join(rng.choices(" \n\t\r\v\f\x1c\x00", (9, 4, 2, 1, 1, 1, 1, 1), k=rng.randint(1, 4)))
            )
        elif kind < 0.97:
            parts.append(rng.choice(("'s", "'LL", " don't", "'re ", "<|im_end|>", "</s>", "x" * 40)))
        else:
            parts.append(rng.choice("é\u00a0\u2009字\u2581😀\u3000\u0301“\u2028"))
    return "".join(parts)


@pytest.mark.slow
@pytest.mark.parametrize("family", [f for f in FAMILIES if f not in UNKNOWN_CUTS])
def test_goldens_and_random_texts(
    family: str,
    fresh: Callable[[str], Tokenizer],
    compiling: Callable[[Tokenizer], Tokenizer],
    goldens: Callable[[str], dict[str, Any]],
    strings: dict[str, str],
) -> None:
    tokenizer, plain = compiling(fresh(family)), fresh(family)
    for id, row in goldens(family).items():
        for _ in range(2):  # remembered and not
            assert tokenizer.encode(strings[id], special=True) == row["ids"], id
        assert tokenizer.encode(strings[id]) == row.get("ids_plain", row["ids"]), id
    rng = random.Random(family)
    for n in [*range(1, 60), 2000]:
        text = text_of(rng, n)
        assert tokenizer.encode(text) == plain.encode(text), ascii(text)


def test_small_memory(
    fresh: Callable[[str], Tokenizer],
    compiling: Callable[[Tokenizer], Tokenizer],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Parts are forgotten when there is no room for more of them."""
    for name, size in (("_PARTS", 32), ("_BYTES", 160), ("_IDS", 100)):
        monkeypatch.setattr(compiled, name, size)
    tokenizer, plain = compiling(fresh("gguf/gpt-2")), fresh("gguf/gpt-2")
    rng = random.Random(1)
    for _ in range(50):
        text = text_of(rng, 100)
        assert tokenizer.encode(text) == plain.encode(text)


def encoder(model: BPE) -> CompiledEncoder:
    tables = model.tables()
    assert tables is not None
    cutting = program(())
    assert cutting is not None
    return CompiledEncoder(the_kernel(), tables, False, cutting, None)


def same_by_kernel(model: BPE, other: BPE, texts: list[str]) -> None:
    model.merge_by(encoder(model))
    same(model, other, texts)


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("several_cuts", [False, True])
@pytest.mark.parametrize("whole", [False, True])
def test_merges(seed: int, several_cuts: bool, whole: bool) -> None:
    pieces, merges = vocabulary(seed, several_cuts)
    if several_cuts:
        merges += merges[:5]  # the last of equal ones counts

    def model(packs: bool) -> BPE:
        return merging(pieces, merges, packs, whole)

    same_by_kernel(model(True), model(False), [*words(seed), *pieces])
    same_by_kernel(model(False), model(True), [*words(seed), *pieces])


@pytest.mark.parametrize("several", [1, 5])
def test_scores(several: int) -> None:
    """Also where several entries have the same score: the leftmost pair goes first."""
    pieces, _ = vocabulary(3, True)
    scores = np.random.default_rng(3).permutation(len(pieces)).astype(np.float32) // several - 9
    usable = bytes(i < 6 or (i not in (7, 8) and i % 9 != 3) for i in range(len(pieces)))

    def model() -> BPE:
        vocab = PackedLookup(packed(pieces), usable=usable)
        vocab.respell({"ab字c": 7, "é字": 8})
        return BPE(vocab, score_ranks(vocab, scores), "", unknown_id=0)

    same_by_kernel(model(), model(), words(3))


@pytest.mark.parametrize("merges", [["a  b"], [" ab"], ["ab"]])
def test_merges_that_are_no_pairs(merges: list[str]) -> None:
    vocab = Lookup({"a": 0, "b": 1, "ab": 2})
    model = BPE(vocab, Lookup(dict.fromkeys(merges, 0), 1 << 80), " ")
    with pytest.raises(ValueError, match="vocabulary"):
        encoder(model)


def test_patterns_that_cannot_be_said() -> None:
    for source in (r"a|(?=b)", r"a+?", "^a", r"(?!\S)a", "a)"):
        with pytest.raises(ValueError, match=r"."):
            alternatives(source)
    assert program([Split(patterns.GPT2), spell_bytes, Split(patterns.PUNCTUATION)]) is None
    assert program([Split(patterns.GPT2, "Removed")]) is None
    assert program([Split("[a-z]+")]) is None


def test_a_vocabulary_without_some_bytes(
    load_small: Callable[[], Tokenizer], small: dict[str, Any], compiling: Callable[[Tokenizer], Tokenizer]
) -> None:
    for symbol in (BYTE_SYMBOLS[0x20], "z"):
        del small["model"]["vocab"][symbol]
    small["model"]["merges"].pop()
    tokenizer, plain = compiling(load_small()), load_small()
    for text in ("hell hello", "zzz hz ell", "a<tool>b hell<|end|> z", "", " ", "\x00 \x00"):
        assert tokenizer.encode(text) == plain.encode(text)


def test_the_kernel_is_compiled_elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    started = []

    class Process:
        def poll(self) -> int | None:
            return None

    monkeypatch.setattr(
        tokenizer_kernel, "_start_compiler", lambda cache, key: started.append(key) or Process()
    )
    monkeypatch.setattr(tokenizer_kernel, "_POLL_SECONDS", 0)
    kernels = TokenizerKernel(lambda: KernelCache(tmp_path))
    assert kernels(100) is None
    assert not started  # that little text is not worth it
    assert kernels(100_000) is None
    assert kernels(200_000) is None
    assert started == [kernel_key()]
    the_kernel()
    name = f"{kernel_key()}.kernel"
    (tmp_path / name).write_bytes((kernel_cache().folder / name).read_bytes())
    assert kernels(100) is not None


def test_one_process_compiles(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[Any] = []

    def start(*command: Any, **options: Any) -> str:
        started.append(command)
        return "process"

    monkeypatch.setattr(subprocess, "Popen", start)
    cache = KernelCache(tmp_path)
    assert tokenizer_kernel._start_compiler(cache, "key") == "process"
    assert tokenizer_kernel._start_compiler(cache, "key") is None
    monkeypatch.setattr(tokenizer_kernel, "_GIVE_UP", -1)  # the other one must be dead
    assert tokenizer_kernel._start_compiler(cache, "key") == "process"
    assert len(started) == 2


def test_texts_that_are_packed_in_one_call(fresh: Callable[[str], Tokenizer], compiling: Any) -> None:
    tokenizer = compiling(fresh("gguf/gpt-2"))
    expected = fresh("gguf/gpt-2").encode(ENGLISH)
    assert tokenizer.encode(ENGLISH) == expected
    assert tokenizer.encode(ENGLISH + "<|endoftext|>" + ENGLISH, special=True) == [
        *expected,
        50256,
        *expected,
    ]
