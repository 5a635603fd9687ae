"""Encoding without importance: the bytes of the `gguf` package where it has any, from every source."""

from __future__ import annotations

import gguf
import numpy as np
import pytest
from gguf import quants

from kukri.quant.block import QTensor
from kukri.quant.errors import NonFinite
from kukri.quant.formats import FORMATS
from kukri.quant.rounding import encode as encode_module
from kukri.quant.rounding.encode import encode, encode_tensor, holds
from kukri.quant.rounding.round_to_nearest import NEAREST_KERNELS

EXACT = ("F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "MXFP4")


def reference(name: str, weights: np.ndarray) -> np.ndarray:
    with np.errstate(all="ignore"):
        out = quants.quantize(weights, gguf.GGMLQuantizationType[name])
    return np.ascontiguousarray(out).view(np.uint8)


def adversarial(n: int, seed: int) -> np.ndarray:
    """Blocks of 32 of all magnitudes that float32 has, with ties, zeros of both signs and huge values."""
    rng = np.random.default_rng(seed)
    blocks = rng.standard_normal((n, 32)) * 10.0 ** rng.integers(-7, 5, (n, 1))
    tenth = n // 10
    blocks[:tenth] = rng.integers(-20, 20, (tenth, 32)) / 4  # ties
    blocks[tenth : 2 * tenth] *= 10.0 ** rng.uniform(-38, -30, (tenth, 1))  # subnormals and their scales
    huge = rng.standard_normal((tenth, 32)) * 10.0 ** rng.uniform(3, 38.5, (tenth, 1))
    blocks[2 * tenth : 3 * tenth] = huge.clip(-3.4e38, 3.4e38)
    blocks[3 * tenth : 4 * tenth] = rng.choice([0.0, -0.0, 1.0], (tenth, 32), p=[0.5, 0.45, 0.05])
    blocks[4 * tenth : 5 * tenth, rng.integers(0, 32)] = rng.standard_normal(tenth) * 1e5  # one stands out
    special = [
        np.zeros(32),
        np.full(32, -0.0),
        np.full(32, 3.25),
        np.full(32, -0.5),
        np.tile([1.5, -1.5], 16),
        np.tile([0.0, -0.0], 16),
        np.arange(32) - 16.0,
        np.arange(32) / 2 - 8,
        np.linspace(-127, 127, 32).round() + 0.5,
        np.full(32, 1e-40),
        np.full(32, 1.4e-45),
        np.where(np.arange(32) == 7, 3e38, 0),
        np.tile([3e38, -3e38], 16),
        2.0 ** np.arange(-16, 16) * (1 - 2.0**-24),
    ]
    blocks[-len(special) :] = special
    return blocks.astype(np.float32)


@pytest.mark.parametrize("name", EXACT)
@pytest.mark.parametrize("rows", [1, 37, 500])
def test_bytes_are_those_of_gguf(name: str, rows: int) -> None:
    weights = adversarial(4000, rows)[-8 * rows :].reshape(rows, 256)
    got = encode(weights, FORMATS[name])
    assert got.dtype == np.uint8
    np.testing.assert_array_equal(got, reference(name, weights))


@pytest.mark.parametrize("name", NEAREST_KERNELS)
def test_the_kernel_equals_its_twin(name: str) -> None:
    weights = adversarial(3000, 5)
    twin = FORMATS[name].quantize
    assert twin is not None
    np.testing.assert_array_equal(encode(weights, FORMATS[name]), twin(weights))


@pytest.mark.parametrize("source", ["F16", "BF16", "Q8_0", "Q4_K", "IQ4_NL"])
@pytest.mark.parametrize("name", EXACT)
def test_sources(source: str, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(3)
    form = FORMATS[source]
    weights = (rng.standard_normal((45, 512)) / 20).astype(np.float32)
    if form.is_float or source == "Q8_0":
        data = encode(weights, form)
    else:
        data = rng.integers(0, 256, (45, form.row_bytes(512)), dtype=np.uint8)
        scale = data.reshape(-1, form.type_size)[:, :4].view(np.float16)
        scale[:] = rng.random(scale.shape) / 100
    tensor = QTensor("w", form, (3, 15, 512), data)
    want = data if source == name else reference(name, tensor.dequantize().reshape(45, 512))
    np.testing.assert_array_equal(encode_tensor(tensor, FORMATS[name], threads=1), want)
    monkeypatch.setattr(encode_module, "CHUNK_WEIGHTS", 2000)
    wide = np.zeros((45, 2 * want.shape[1]), np.uint8)
    assert encode_tensor(tensor, FORMATS[name], threads=3, out=wide[:, ::2]).base is wide
    np.testing.assert_array_equal(wide[:, ::2], want)
    assert not wide[:, 1::2].any()


@pytest.mark.parametrize("name", EXACT)
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_is_refused_or_made_zero(name: str, bad: float) -> None:
    weights = np.random.default_rng(0).standard_normal((6, 256)).astype(np.float32)
    weights[4, 77] = bad
    with pytest.raises(NonFinite):
        encode(weights, FORMATS[name])
    zeroed = weights.copy()
    zeroed[4, 77] = 0
    np.testing.assert_array_equal(
        encode(weights, FORMATS[name], zero_nonfinite=True), encode(zeroed, FORMATS[name])
    )


@pytest.mark.parametrize("name", EXACT)
@pytest.mark.parametrize("largest", [65504.0, 65536.0, 127 * 65504.0, 127 * 65536.0, 3e38])
def test_what_a_format_holds(name: str, largest: float) -> None:
    """What `holds` says comes back finite does; the rest does not, but for negative minimums' sake."""
    weights = np.zeros((1, 32), np.float32)
    weights[0, 3] = largest
    with np.errstate(all="ignore"):
        back = quants.dequantize(encode(weights, FORMATS[name]), gguf.GGMLQuantizationType[name])
    finite = bool(np.isfinite(back).all())
    assert finite == holds(FORMATS[name], largest) or (finite and name in ("Q4_1", "Q5_1"))


def test_widths_that_do_not_divide() -> None:
    with pytest.raises(ValueError, match="Q8_0 needs a width divisible by 32, not 40"):
        encode(np.zeros((2, 40), np.float32), FORMATS["Q8_0"])


def test_no_rows() -> None:
    assert encode(np.zeros((0, 64), np.float32), FORMATS["Q4_0"]).shape == (0, 36)
