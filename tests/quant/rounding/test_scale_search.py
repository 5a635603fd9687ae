"""The search for scales: the kernels against their NumPy twin, the results against the gguf package."""

from __future__ import annotations

import gguf
import numpy as np
import pytest
from gguf import quants

from kukri.quant.block import QTensor
from kukri.quant.errors import NonFinite
from kukri.quant.formats import FORMATS
from kukri.quant.rounding import encode as encode_module
from kukri.quant.rounding import scale_search
from kukri.quant.rounding.codebook import (
    Codebook,
    encode_blocks,
    fit_scales,
    nearest_codes,
    normalised_importance,
)
from kukri.quant.rounding.codebooks import CODEBOOKS
from kukri.quant.rounding.encode import encode, encode_tensor

SEARCHED = ("Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "IQ4_NL", "IQ4_XS")
LARGER = {"NVFP4": 200}  # weights without a factor, since scales are at least 2⁻⁹


def hostile(codebook: Codebook, n: int, seed: int) -> np.ndarray:
    """Blocks like those of models, and in every seventh something awkward."""
    rng = np.random.default_rng(seed)
    blocks = rng.laplace(size=(n, codebook.form.block_size)) / 50 * LARGER.get(codebook.form.name, 1)
    awkward = (
        lambda b: 0 * b,
        lambda b: -0.0 * np.abs(b),
        lambda b: 0 * b + 3.25,
        lambda b: 0 * b - 0.5,
        lambda b: b * 1e-38,
        lambda b: b * 1e-8,
        lambda b: b * 1e7,
        lambda b: (b * 1e39).clip(-3e38, 3e38),
        np.abs,
        lambda b: -np.abs(b),
        lambda b: np.where(np.arange(b.size) == 9, 1e5, b),
        lambda b: np.where(np.arange(b.size) < b.size // 2, 0, b),
        lambda b: np.where(np.arange(b.size) % 2, 1, -1) * 0.75,
        lambda b: (b * 100).round() / 4,
    )
    for i, change in enumerate(awkward):
        if 7 * i < n:
            blocks[7 * i] = change(blocks[7 * i])
    return blocks.astype(np.float32)


def importances(codebook: Codebook, k: int, seed: int) -> np.ndarray:
    """A wide range of importance, with columns that count nothing."""
    rng = np.random.default_rng(seed)
    found = np.exp(2 * rng.standard_normal((k, codebook.form.block_size)))
    found[rng.random(found.shape) < 0.05] = 0
    return found.astype(np.float32)


def stored(codebook: Codebook, packed: np.ndarray) -> np.ndarray:
    return quants.dequantize(packed, gguf.GGMLQuantizationType[codebook.form.name])


def error(weights: np.ndarray, back: np.ndarray, importance: np.ndarray) -> np.ndarray:
    """The weighted error of each block."""
    return (importance * (weights.astype(np.float64) - back) ** 2).sum(axis=1)


@pytest.mark.slow
@pytest.mark.parametrize("name", CODEBOOKS)
@pytest.mark.parametrize(("n", "k"), [(1, 1), (17, 17), (150, 5)])
def test_kernels_equal_their_twins(name: str, n: int, k: int) -> None:
    codebook = CODEBOOKS[name]
    weights, importance = hostile(codebook, n, n), importances(codebook, k, n)
    blocks = fit_scales(codebook, weights, importance)
    every = np.tile(normalised_importance(importance, codebook.form.block_size), (n // k, 1))
    scales = scale_search.find_scales(weights, every, codebook.levels, codebook.sub_block, codebook.search)
    assert blocks.tobytes() == codebook.blocks(scales).tobytes()
    codes = nearest_codes(codebook, weights, blocks)
    np.testing.assert_array_equal(
        codes, scale_search.nearest_codes(weights, codebook.levels, *codebook.scales(blocks))
    )


@pytest.mark.parametrize("name", CODEBOOKS)
def test_a_code_stands_for_scale_times_level_minus_minimum(name: str) -> None:
    """Any codes, packed, come back as the numbers that the codebook says, here and in the gguf package."""
    codebook = CODEBOOKS[name]
    n, size = 60, codebook.form.block_size
    blocks = fit_scales(codebook, hostile(codebook, n, 1)[1:])
    codes = np.random.default_rng(2).integers(0, len(codebook.levels), (n - 1, size)).astype(np.uint8)
    packed = codebook.pack(blocks, codes)
    assert packed.shape == (n - 1, codebook.form.type_size)
    scale, minimum = codebook.scales(blocks)
    assert scale.dtype == minimum.dtype == np.float32
    assert scale.shape == minimum.shape == (n - 1, size // codebook.sub_block)
    want = (
        scale[..., None] * codebook.levels[codes].reshape(n - 1, -1, codebook.sub_block) - minimum[..., None]
    )
    for back in (codebook.form.dequantize(packed), stored(codebook, packed)):
        np.testing.assert_array_equal(back, want.reshape(n - 1, size))
    assert (np.diff(codebook.levels) > 0).all()
    sound = (np.abs(scale) > 1e-20).all(axis=1) & (np.abs(want).reshape(n - 1, -1).max(axis=1) < 1e5)
    assert sound.sum() > 40
    again = codebook.pack(blocks, nearest_codes(codebook, want.reshape(n - 1, size), blocks))
    np.testing.assert_array_equal(again[sound], packed[sound])


@pytest.mark.parametrize("name", CODEBOOKS)
def test_hostile_blocks_come_back_close(name: str) -> None:
    """All that is stored is finite, and, where fp16 has such scales, within a part of the block's span."""
    codebook = CODEBOOKS[name]
    weights = hostile(codebook, 100, 3)
    back = stored(codebook, encode_blocks(codebook, weights))
    assert np.isfinite(back).all()
    with np.errstate(over="ignore"):
        span = np.maximum(weights.max(axis=1), 0) - np.minimum(weights.min(axis=1), 0)
    held = (span < (2600 if name == "NVFP4" else 1e6)) & (np.abs(weights).max(axis=1) > 1e-3)
    assert held.sum() > 85
    worst = np.abs(back - weights).max(axis=1)[held] / span[held]
    coarse = {"Q2_K": 0.4, "Q3_K": 0.3, "Q8_0": 0.01, "Q6_K": 0.04}
    assert worst.max() < coarse.get(name, 0.2)
    zero = (weights == 0).all(axis=1)
    assert zero.sum() == 2
    np.testing.assert_array_equal(back[zero], 0)


@pytest.mark.parametrize("name", CODEBOOKS)
def test_the_search_beats_plain_rounding_and_minds_importance(name: str) -> None:
    codebook = CODEBOOKS[name]
    rng = np.random.default_rng(4)
    weights = rng.standard_normal((400, codebook.form.block_size)) / 50 * LARGER.get(name, 1)
    weights, importance = weights.astype(np.float32), importances(codebook, 8, 5)
    every = np.tile(importance, (50, 1))
    found = error(weights, stored(codebook, encode_blocks(codebook, weights, importance)), every).sum()
    uniform = error(weights, stored(codebook, encode_blocks(codebook, weights)), every).sum()
    assert found < 0.99 * uniform
    if codebook.form.quantize is not None:
        plain = error(weights, stored(codebook, codebook.form.quantize(weights)), every).sum()
        assert found < 0.97 * plain


# What llama.cpp leaves of Σ importance · weight² for the weights below, without importance and with it.
LLAMA_CPP = {
    "Q8_0": (4.597e-05, 4.572e-05),
    "Q4_0": (0.01146, 0.009782),
    "Q4_1": (0.008398, 0.005726),
    "Q5_0": (0.002869, 0.00249),
    "Q5_1": (0.001972, 0.001339),
    "Q2_K": (0.1182, 0.0721),
    "Q3_K": (0.03117, 0.0255),
    "Q4_K": (0.007101, 0.005955),
    "Q5_K": (0.00183, 0.001564),
    "Q6_K": (0.0004719, 0.0004077),
    "IQ4_NL": (0.007756, 0.006725),
    "IQ4_XS": (0.007872, 0.006893),
    "MXFP4": (0.01588, 0.01575),
}


@pytest.mark.parametrize("name", LLAMA_CPP)
def test_no_more_is_lost_than_by_llama_cpp(name: str) -> None:
    codebook = CODEBOOKS[name]
    rng = np.random.default_rng(11)
    weights = (rng.laplace(size=(64, 1024)) / 50).astype(np.float32)
    importance = np.exp(rng.standard_normal(1024)).astype(np.float32)
    for counts, limit in zip((None, importance), LLAMA_CPP[name], strict=True):
        packed = encode(weights, FORMATS[name], counts)
        back = stored(codebook, packed)
        weight = np.ones(1024) if counts is None else counts
        lost = error(weights, back, weight).sum() / error(weights, 0 * weights, weight).sum()
        assert lost <= limit * (1.001 if counts is None else 0.97)


@pytest.mark.parametrize("name", SEARCHED)
@pytest.mark.parametrize("counts", [None, "importance"])
def test_threads_chunks_and_sources_change_nothing(
    name: str, counts: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    codebook = CODEBOOKS[name]
    rng = np.random.default_rng(6)
    weights = (rng.standard_normal((41, 512)) / 50).astype(np.float32)
    importance = None if counts is None else np.exp(rng.standard_normal(512)).astype(np.float32)
    data = encode(weights, FORMATS["BF16"])
    tensor = QTensor("w", FORMATS["BF16"], (41, 512), data)
    blocks = tensor.dequantize().reshape(-1, codebook.form.block_size)
    want = encode_blocks(codebook, blocks, importance).reshape(41, -1)
    np.testing.assert_array_equal(encode_tensor(tensor, codebook.form, importance, threads=1), want)
    monkeypatch.setattr(encode_module, "CHUNK_WEIGHTS", 3000)
    np.testing.assert_array_equal(encode_tensor(tensor, codebook.form, importance, threads=3), want)


@pytest.mark.parametrize("name", ["Q8_0", "Q4_K", "IQ4_XS"])
def test_what_is_not_finite_is_refused_or_made_zero(name: str) -> None:
    weights = np.random.default_rng(0).standard_normal((6, 256)).astype(np.float32)
    importance = np.ones(256, np.float32)
    weights[2, 13] = np.nan
    weights[4, 77] = -np.inf
    with pytest.raises(NonFinite):
        encode(weights, FORMATS[name], importance)
    got = encode(weights, FORMATS[name], importance, zero_nonfinite=True)
    np.testing.assert_array_equal(
        got, encode(np.where(np.isfinite(weights), weights, 0), FORMATS[name], importance)
    )


@pytest.mark.parametrize(
    ("importance", "message"),
    [
        (np.ones(255), r"importance has shape \(255,\), not \(256,\)"),
        (np.full(256, -1.0), "negative or not finite"),
        (np.full(256, np.nan), "negative or not finite"),
    ],
)
def test_importance_that_makes_no_sense(importance: np.ndarray, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        encode(np.ones((2, 256), np.float32), FORMATS["Q4_K"], importance)


def test_importance_without_any_is_none() -> None:
    weights = np.random.default_rng(1).standard_normal((6, 256)).astype(np.float32)
    for value in (0.0, 1e-30, 1e30):
        np.testing.assert_array_equal(
            encode(weights, FORMATS["Q4_K"], np.full(256, value)), encode(weights, FORMATS["Q4_K"])
        )
