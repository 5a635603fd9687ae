"""Block formats against the gguf package, bit for bit."""

import gguf
import numpy as np
import pytest
from gguf import quants

from kukri.quant.block import BlockFormat, QTensor
from kukri.quant.formats import BY_TYPE, FORMATS, packing

ALL = list(FORMATS.values())
HALF_SCALES = {  # where in a block float16 scales lie
    "Q8_0": [0],
    "Q4_0": [0],
    "Q4_1": [0, 2],
    "Q5_0": [0],
    "Q5_1": [0, 2],
    "Q2_K": [80, 82],
    "Q3_K": [108],
    "Q4_K": [0, 2],
    "Q5_K": [0, 2],
    "Q6_K": [208],
    "IQ4_NL": [0],
    "IQ4_XS": [0],
}
SPECIAL_HALVES = np.array(
    [0x0000, 0x8000, 0x0001, 0x8001, 0x03FF, 0x7BFF, 0xFBFF, 0x7C00, 0xFC00, 0x7E00, 0xFE00, 0x7C01],
    np.uint16,
)


def gguf_type(form: BlockFormat) -> gguf.GGMLQuantizationType:
    return gguf.GGMLQuantizationType[form.name]


def random_blocks(form: BlockFormat, n: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (n, form.type_size), dtype=np.uint8)


def reference(form: BlockFormat, blocks: np.ndarray) -> np.ndarray:
    with np.errstate(all="ignore"):
        return quants.dequantize(blocks, gguf_type(form))


def assert_same_bits(got: np.ndarray, want: np.ndarray) -> None:
    assert got.dtype == want.dtype == np.float32
    assert got.shape == want.shape
    np.testing.assert_array_equal(got.view(np.uint32), want.view(np.uint32))


def test_the_registry_knows_every_format_of_the_issue() -> None:
    names = "F32 F16 BF16 Q8_0 Q4_0 Q4_1 Q5_0 Q5_1 Q2_K Q3_K Q4_K Q5_K Q6_K IQ4_NL IQ4_XS MXFP4 NVFP4"
    assert set(FORMATS) == set(names.split())
    assert all(BY_TYPE[form.ggml_type] is form and FORMATS[form.name] is form for form in ALL)
    assert len(BY_TYPE) == len(FORMATS)


@pytest.mark.parametrize("form", ALL, ids=lambda f: f.name)
def test_ids_and_sizes_are_those_of_ggml(form: BlockFormat) -> None:
    assert form.ggml_type == gguf_type(form).value
    assert (form.block_size, form.type_size) == gguf.GGML_QUANT_SIZES[gguf_type(form)]
    assert form.is_float == (form.name in ("F32", "F16", "BF16"))


@pytest.mark.parametrize("form", ALL, ids=lambda f: f.name)
@pytest.mark.parametrize("n", [0, 1, 3, 1000])
def test_random_bytes_dequantise_to_the_same_bits(form: BlockFormat, n: int) -> None:
    blocks = random_blocks(form, n, seed=n)
    if n == 0:
        assert form.dequantize(blocks).shape == (0, form.block_size)
        return
    assert_same_bits(form.dequantize(blocks), reference(form, blocks))


@pytest.mark.parametrize("name", HALF_SCALES)
def test_special_scales_dequantise_to_the_same_bits(name: str) -> None:
    form = FORMATS[name]
    pairs = np.array(np.meshgrid(SPECIAL_HALVES, SPECIAL_HALVES)).reshape(2, -1)
    blocks = random_blocks(form, pairs.shape[1], seed=5)
    for at, halves in zip(HALF_SCALES[name], pairs, strict=False):
        blocks[:, at : at + 2] = halves.astype("<u2").view(np.uint8).reshape(-1, 2)
    assert_same_bits(form.dequantize(blocks), reference(form, blocks))


def test_every_mxfp4_exponent_dequantises_to_the_same_bits() -> None:
    form = FORMATS["MXFP4"]
    blocks = random_blocks(form, 256, seed=6)
    blocks[:, 0] = np.arange(256)
    assert_same_bits(form.dequantize(blocks), reference(form, blocks))


def test_every_nvfp4_scale_dequantises_to_the_same_bits() -> None:
    form = FORMATS["NVFP4"]
    blocks = random_blocks(form, 256, seed=6)
    for r in range(4):
        blocks[:, r] = np.roll(np.arange(256), 64 * r)
    assert_same_bits(form.dequantize(blocks), reference(form, blocks))


def test_factors() -> None:
    """A tensor's own factor, and those of stacked matrices."""
    form = FORMATS["NVFP4"]
    data = random_blocks(form, 12, seed=9).reshape(6, -1)
    plain = form.dequantize(data.reshape(-1, 36)).reshape(3, 2, 128)
    one = QTensor("t", form, (6, 128), data, (0.3,))
    np.testing.assert_array_equal(one.dequantize(), plain.reshape(6, 128) * np.float32(0.3))
    np.testing.assert_array_equal(one.rows(np.array([4, 1])), one.dequantize()[[4, 1]])
    np.testing.assert_array_equal(one.part_of_columns(64, 128).dequantize(), one.dequantize()[:, 64:])
    stack = QTensor("t", form, (3, 2, 128), data, (0.1, 2.0, 0.3))
    expected = plain * np.array([0.1, 2, 0.3], np.float32)[:, None, None]
    np.testing.assert_array_equal(stack.dequantize(), expected)
    np.testing.assert_array_equal(stack.rows(np.array([5, 2])), expected.reshape(6, 128)[[5, 2]])
    np.testing.assert_array_equal(stack.row_factors(), np.float32([0.1, 0.1, 2, 2, 0.3, 0.3]))


@pytest.mark.parametrize("name", ["F16", "BF16"])
def test_every_16_bit_float_dequantises_to_the_same_bits(name: str) -> None:
    blocks = np.arange(1 << 16, dtype="<u2").view(np.uint8).reshape(-1, 2)
    assert_same_bits(FORMATS[name].dequantize(blocks), reference(FORMATS[name], blocks))


@pytest.mark.parametrize("form", ALL, ids=lambda f: f.name)
def test_chunks_join_without_a_seam(form: BlockFormat, monkeypatch: pytest.MonkeyPatch) -> None:
    blocks = random_blocks(form, 23, seed=7)
    whole = form.dequantize(blocks)
    monkeypatch.setattr(packing, "CHUNK_WEIGHTS", 5 * form.block_size)
    assert_same_bits(form.dequantize(blocks), whole)


@pytest.mark.parametrize("form", ALL, ids=lambda f: f.name)
def test_read_only_unaligned_and_strided_blocks(form: BlockFormat) -> None:
    blocks = random_blocks(form, 40, seed=8)
    want = form.dequantize(blocks)
    raw = np.frombuffer(b"x" + blocks.tobytes(), np.uint8)[1:].reshape(blocks.shape)
    assert not raw.flags.writeable
    got = form.dequantize(raw)
    assert_same_bits(got, want)
    assert got.flags.writeable
    assert got.flags.aligned
    assert_same_bits(form.dequantize(blocks[::-3]), want[::-3])


@pytest.mark.parametrize("form", ALL, ids=lambda f: f.name)
def test_rows_of_a_tensor(form: BlockFormat) -> None:
    data = random_blocks(form, 7 * 2, seed=9).reshape(7, -1)
    tensor = QTensor("t", form, (7, 2 * form.block_size), data)
    assert_same_bits(tensor.rows(np.array([6, 0, 6])), tensor.dequantize()[[6, 0, 6]])


def weights(n: int, seed: int) -> np.ndarray:
    """Blocks of all magnitudes, and the awkward ones: zeros, equal values, ties, one sign, subnormals."""
    rng = np.random.default_rng(seed)
    blocks = rng.standard_normal((n, 32)) * 10.0 ** rng.integers(-7, 5, (n, 1))
    blocks[0] = 0
    blocks[1] = 3.25
    blocks[2] = -0.5
    blocks[3] = np.arange(32) - 16
    blocks[4] = np.arange(32) / 2 - 8
    blocks[5] = np.abs(blocks[5])
    blocks[6] = -np.abs(blocks[6])
    blocks[7] = 1e-40
    blocks[8, ::2] = -blocks[8, 1::2]
    blocks[9] = np.linspace(-127, 127, 32).round() + 0.5
    blocks[10] = -0.0
    return blocks.astype(np.float32)


@pytest.mark.parametrize("name", ["Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1"])
@pytest.mark.parametrize("n", [11, 3000])
def test_quantising_gives_the_same_bytes(name: str, n: int) -> None:
    form = FORMATS[name]
    assert form.quantize is not None
    blocks = weights(n, seed=n)
    with np.errstate(all="ignore"):
        want = quants.quantize(blocks, gguf_type(form))
    got = form.quantize(blocks)
    assert got.dtype == np.uint8
    np.testing.assert_array_equal(got, want)


def test_row_bytes_refuses_a_width_that_is_no_multiple() -> None:
    assert FORMATS["Q4_K"].row_bytes(512) == 288
    with pytest.raises(ValueError, match="Q4_K needs a width divisible by 256, not 576"):
        FORMATS["Q4_K"].row_bytes(576)
