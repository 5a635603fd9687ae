"""RoPE frequencies against the formulas of the models' own code."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from kukri.quant.block import QTensor
from kukri.quant.errors import DamagedFile
from kukri.quant.formats import FORMATS
from kukri.runtime.archs import ARCHS
from kukri.runtime.config.metadata import Metadata
from kukri.runtime.config.rope import (
    DynamicNTK,
    Llama3Scaling,
    LongRope,
    Rope,
    Yarn,
    longrope_attention_factor,
    ntk_base,
    yarn_attention_factor,
    yarn_mscale,
)
from kukri.runtime.config.rope_files import rope_from_gguf, rope_from_hf

LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}


def from_hf(local_base=None, **config):
    config = {"max_position_embeddings": 256, **config}
    arch = replace(ARCHS["llama"], local_rope_base=local_base)
    return rope_from_hf(Metadata(config, "config.json"), 16, arch)


def from_gguf(local_base=None, divisors=None, **metadata):
    values = {"m.context_length": 256, **{f"m.rope.{key}": value for key, value in metadata.items()}}
    arch = replace(ARCHS["llama"], local_rope_base=local_base)
    tensors = {name: vector(values) for name, values in (divisors or {}).items()}
    return rope_from_gguf(Metadata(values, "GGUF", "m."), tensors, 16, arch)


def vector(values):
    data = np.asarray(values, np.float32)
    return QTensor("", FORMATS["F32"], data.shape, data.view(np.uint8).reshape(1, -1))


def test_plain_and_linear():
    expected = [10000.0 ** (-2 * i / 16) for i in range(8)]
    np.testing.assert_allclose(Rope(1e4, 16, False).inv_freq(), expected, rtol=2e-7)
    np.testing.assert_allclose(Rope(1e4, 16, False, factor=4.0).inv_freq(), np.array(expected) / 4, rtol=2e-7)
    assert Rope(1e4, 16, False).inv_freq().dtype == np.float32


def test_llama3():
    """Three bands: kept, divided, and blended in between, by wavelength."""
    scaled = from_hf(rope_theta=500000.0, rope_scaling=LLAMA3)[0]
    scaled = Rope(500000.0, 128, False, scaling=scaled.scaling).inv_freq()
    bands = set()
    for i, got in enumerate(scaled):
        plain = 500000.0 ** (-2 * i / 128)
        wavelength = 2 * math.pi / plain
        if wavelength < 8192 / 4:
            band, expected = "kept", plain
        elif wavelength > 8192 / 1:
            band, expected = "divided", plain / 8
        else:
            smooth = (8192 / wavelength - 1) / (4 - 1)
            band, expected = "blended", (1 - smooth) * plain / 8 + smooth * plain
        bands.add(band)
        assert got == pytest.approx(expected, rel=1e-6)
    assert bands == {"kept", "divided", "blended"}


def test_divisors_of_a_gguf_file():
    divisors = np.array([1, 1, 2, 2, 4, 4, 8, 8], np.float32)
    rope = from_gguf(divisors={"rope_freqs.weight": divisors})[0]
    np.testing.assert_allclose(rope.inv_freq(), Rope(1e4, 16, True).inv_freq() / divisors, rtol=1e-7)
    with pytest.raises(DamagedFile, match="rope_freqs"):
        from_gguf(divisors={"rope_freqs.weight": divisors[:7]})


@pytest.mark.parametrize(
    "rope",
    [
        Rope(1e-30, 16, False, divisors=(1e-30,) * 8),
        Rope(1e4, 16, False, factor=1e-45),
        Rope(1e4, 16, False, divisors=(0.0,) * 8),
        Rope(1e4, 16, False, divisors=(math.nan,) * 8),
    ],
)
def test_frequencies_must_be_finite(rope):
    with pytest.raises(DamagedFile, match="finite"):
        rope.inv_freq()


def test_llama3_bands_must_be_in_order():
    with pytest.raises(DamagedFile, match="low_freq_factor"):
        Llama3Scaling(8.0, 4.0, 1.0, 8192)


def test_spellings_of_hugging_face():
    linear = Rope(5e5, 16, False, factor=2.0)
    for config in (
        {"rope_theta": 5e5, "rope_scaling": {"type": "linear", "factor": 2.0}},
        {"rope_theta": 5e5, "rope_scaling": {"rope_type": "linear", "factor": 2}},
        {"rope_parameters": {"rope_theta": 5e5, "rope_type": "linear", "factor": 2.0}},
        {"rope_theta": 5e5, "rope_parameters": {"rope_type": "linear", "type": "linear", "factor": 2.0}},
    ):
        assert from_hf(**config) == (linear, linear)
    plain = Rope(1e4, 16, False)
    for config in (
        {},
        {"rope_scaling": None},
        {"rope_scaling": {"type": "default"}},
        {"rope_parameters": {}},
    ):
        assert from_hf(**config) == (plain, plain)


def test_sliding_layers_have_their_own():
    full, local = Rope(1e6, 16, False, factor=8.0), Rope(2e4, 16, False)
    scaling = {"rope_type": "linear", "factor": 8.0}
    published = {"rope_theta": 1e6, "rope_local_base_freq": 2e4, "rope_scaling": scaling}
    nested = {
        "full_attention": {"rope_theta": 1e6, **scaling},
        "sliding_attention": {"rope_theta": 2e4, "rope_type": "default"},
    }
    assert from_hf(local_base=1e4, **published) == (full, local)
    assert from_hf(local_base=1e4, rope_parameters=nested) == (full, local)
    assert from_hf(local_base=1e4, rope_theta=1e6) == (Rope(1e6, 16, False), Rope(1e4, 16, False))
    flat = {"rope_theta": 1e6, **scaling}
    assert from_hf(local_base=2e4, rope_parameters=flat) == (full, local)


def test_gguf_keys():
    assert from_gguf()[0] == Rope(1e4, 16, True)
    assert from_gguf(freq_base=5e5, dimension_count=8)[0] == Rope(5e5, 8, True)
    linear = Rope(1e4, 16, True, factor=4.0)
    assert from_gguf(**{"scaling.type": "linear", "scaling.factor": 4.0})[0] == linear
    assert from_gguf(**{"scaling.factor": 4.0})[0] == linear
    assert from_gguf(scale_linear=4.0)[0] == linear
    assert from_gguf(**{"scaling.type": "none", "scaling.factor": 4.0})[0] == Rope(1e4, 16, True)
    assert from_gguf(**{"scaling.factor": 0.0})[0] == Rope(1e4, 16, True)  # 0 is written for "unset"
    scaled = from_gguf(local_base=2e4, **{"freq_base": 1e6, "scaling.factor": 8.0})
    assert scaled == (Rope(1e6, 16, True, factor=8.0), Rope(2e4, 16, True))
    assert from_gguf(local_base=2e4, freq_base_swa=3e4)[1].base == 3e4


def test_yarn():
    """Fast pairs are kept, slow ones divided, with whole pairs as the ends of the ramp in between."""
    scaling = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}
    rope = from_hf(rope_scaling=scaling, rope_theta=100.0)[0]
    plain = [100.0 ** (-2 * i / 16) for i in range(8)]
    ends = [16 * math.log(64 / (turns * 2 * math.pi)) / (2 * math.log(100)) for turns in (32, 1)]
    first, last = max(math.floor(ends[0]), 0), math.ceil(ends[1])
    expected = []
    for i, speed in enumerate(plain):
        divided = min(max((i - first) / (last - first), 0), 1)
        expected.append(speed * (1 - divided) + speed / 4 * divided)
    np.testing.assert_allclose(rope.inv_freq(), expected, rtol=1e-6)
    assert rope.attention_factor == pytest.approx(0.1 * math.log(4) + 1)
    exact = from_hf(rope_scaling={**scaling, "truncate": False}, rope_theta=100.0)[0]
    assert np.abs(exact.inv_freq() - rope.inv_freq()).max() > 1e-3


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        ({}, 0.1 * math.log(4) + 1),
        ({"attention_factor": 0.5}, 0.5),
        ({"mscale": 1.0, "mscale_all_dim": 1.0}, 1.0),
        ({"mscale": 2.0, "mscale_all_dim": 1.0}, (0.2 * math.log(4) + 1) / (0.1 * math.log(4) + 1)),
        ({"mscale": 2.0}, 0.1 * math.log(4) + 1),
        ({"mscale": 2.0, "mscale_all_dim": 0}, 0.1 * math.log(4) + 1),
        ({"factor": 1.0}, 1.0),
    ],
)
def test_attention_factor_of_yarn(more, expected):
    scaling = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64, **more}
    assert from_hf(rope_scaling=scaling)[0].attention_factor == pytest.approx(expected)


def test_dynamic_ntk():
    rope = from_hf(rope_scaling={"type": "dynamic", "factor": 4.0}, max_position_embeddings=64)[0]
    assert rope.original_context == 64
    for length in (0, 1, 64):
        np.testing.assert_array_equal(rope.inv_freq(length), Rope(1e4, 16, False).inv_freq())
    base = 1e4 * (4 * 100 / 64 - 3) ** (16 / 14)
    np.testing.assert_allclose(rope.inv_freq(100), Rope(base, 16, False).inv_freq(), rtol=1e-6)
    fixed = from_hf(rope_scaling={"type": "dynamic", "alpha": 50.0, "factor": 1.0})[0]
    assert fixed == Rope(1e4 * 50 ** (16 / 14), 16, False)


LONGROPE = {"type": "longrope", "short_factor": [1.5] * 8, "long_factor": [3] * 8}


@pytest.mark.parametrize("kind", ["longrope", "su", "yarn"])  # the last two are earlier names of it
def test_longrope(kind):
    config = {"original_max_position_embeddings": 32, "rope_scaling": {**LONGROPE, "type": kind}}
    rope = from_hf(**config)[0]
    assert rope.original_context == 32
    plain = Rope(1e4, 16, False).inv_freq()
    np.testing.assert_allclose(rope.inv_freq(32), plain / 1.5, rtol=1e-6)
    np.testing.assert_allclose(rope.inv_freq(33), plain / 3, rtol=1e-6)
    assert rope.attention_factor == pytest.approx(math.sqrt(1 + math.log(8) / math.log(32)))
    names = ("rope_factors_short.weight", "rope_factors_long.weight")
    in_gguf = {"scaling.original_context_length": 32, "scaling.attn_factor": rope.attention_factor}
    same = from_gguf(divisors=dict(zip(names, ([1.5] * 8, [3] * 8), strict=True)), **in_gguf)[0]
    assert same == replace(rope, interleaved=True)


@pytest.mark.parametrize(
    "factors", [None, [1.0] * 7, [1.0] * 7 + [0], [1.0] * 7 + ["1"], [True] * 8, 3, "12345678"]
)
def test_factors_of_longrope_are_checked(factors):
    with pytest.raises(DamagedFile, match="long_factor"):
        from_hf(rope_scaling={**LONGROPE, "long_factor": factors})


@pytest.mark.parametrize("turns", [(1e-320, 1.0), (32.0, 1e-320), (1e-320, 1e-320), (1e30, 1e30)])
def test_yarn_of_absurd_turns_is_finite(turns: tuple[float, float]) -> None:
    scaled = Yarn(4.0, 4096, *turns).apply(np.ones(8, np.float32), 1e4)
    assert np.isfinite(scaled).all()


@pytest.mark.parametrize("base", [1.0, 0.5])
def test_yarn_needs_a_base_above_one(base):
    scaling = {"rope_type": "yarn", "factor": 4.0}
    with pytest.raises(DamagedFile, match="base above 1"):
        from_hf(rope_scaling=scaling, rope_theta=base)[0].inv_freq()


def test_partial_rotation():
    assert from_hf(partial_rotary_factor=0.5)[0].dims == 8
    assert from_hf(rope_parameters={"partial_rotary_factor": 0.75})[0].dims == 12


# ---- known numbers


def test_llama3_numbers():
    """10, 2.5 and 0.5 turns over the original context; low below 1, high above 4."""
    scaling = Llama3Scaling(8.0, 1.0, 4.0, 2 * math.pi * 1000)
    got = scaling.apply(np.array([0.01, 0.0025, 0.0005]))
    np.testing.assert_allclose(got, [0.01, 0.00140625, 0.0000625], rtol=1e-12)


def test_llama3_bands_need_a_width():
    with pytest.raises(DamagedFile, match="low_freq_factor"):
        Llama3Scaling(8.0, 2.0, 2.0, 8192)


def yarn_ramp(scaling):
    """How much of each of 8 pairs is divided, of a base that makes pair i turn `context / 2π / 2^i` times."""
    share = scaling.apply(np.ones(8), 256.0)  # 1 where kept, 1 / factor where divided
    return (1 - share) / (1 - 1 / scaling.factor)


def context(pair):
    """The context in which the pair with this number makes one turn."""
    return 2 * math.pi * 2**pair


@pytest.mark.parametrize(
    ("scaling", "expected"),
    [
        # By default between 32 turns (pair 2.5) and one (pair 7.5).
        (Yarn(4.0, context(7.5)), [0, 0, 0, 1 / 6, 2 / 6, 3 / 6, 4 / 6, 5 / 6]),
        (Yarn(4.0, context(7.5), truncate=False), [0, 0, 0, 0.1, 0.3, 0.5, 0.7, 0.9]),
        (Yarn(4.0, context(3.5)), [0, 1 / 4, 2 / 4, 3 / 4, 1, 1, 1, 1]),  # from -2, but not below 0
        (Yarn(4.0, context(20.5), 2.0**18), [max(i - 2, 0) / 13 for i in range(8)]),  # to 21, but at most 15
        (Yarn(4.0, context(6.5), 8.0, 8.0, truncate=False), [0, 0, 0, 0, 1, 1, 1, 1]),  # a step
        (Yarn(4.0, context(6.5), 8.0, 4.0, truncate=False), [0, 0, 0, 0, 0.5, 1, 1, 1]),
    ],
)
def test_yarn_ramp(scaling, expected):
    np.testing.assert_allclose(yarn_ramp(scaling), expected, atol=1e-9)


def test_yarn_of_a_small_base():
    """Pair i turns 2^(-i/8) times as fast as the first; from 4 turns (pair 0) to one (pair 16, cut to 15)."""
    got = Yarn(2.0, 2 * math.pi * 4, 4.0, 1.0, truncate=False).apply(np.ones(8), 2.0)
    np.testing.assert_allclose(got, [1 - i / 15 / 2 for i in range(8)], atol=1e-9)


def test_dynamic_ntk_numbers():
    scaling = DynamicNTK(2.0, 64)
    assert scaling.base(1e4, 4, 96) == pytest.approx(4e4)  # half as long again: alpha 2
    assert scaling.base(1e4, 4, 128) == pytest.approx(9e4)
    assert scaling.base(1e4, 4, 64) == scaling.base(1e4, 4, 32) == 1e4


@pytest.mark.parametrize(
    ("dims", "alpha", "expected"),
    [(4, 3.0, 9e4), (3, 2.0, 8e4), (6, 4.0, 8e4), (4, 1.0, 1e4), (2, 8.0, 1e4), (1, 8.0, 1e4)],
)
def test_ntk_base(dims, alpha, expected):
    """A single pair turns at speed 1 whatever the base, which stays."""
    assert ntk_base(1e4, dims, alpha) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ((math.e,), 1.1),
        ((math.e, 2.0), 1.2),
        ((math.e, 0.0), 1.0),
        ((2.0,), 1.0693147180559945),
        ((1.0,), 1.0),
        ((0.5,), 1.0),
    ],
)
def test_yarn_mscale(arguments, expected):
    assert yarn_mscale(*arguments) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize(
    ("scales", "expected"),
    [
        ({}, 1.1),
        ({"scale": 3.0}, 1.1),
        ({"scale_all": 2.0}, 1.1 / 1.2),
        ({"scale": 3.0, "scale_all": 2.0}, 1.3 / 1.2),
        ({"scale": 0.0, "scale_all": 2.0}, 1.1),
        ({"scale": 3.0, "scale_all": 0.0}, 1.1),
    ],
)
def test_yarn_attention_factor_numbers(scales, expected):
    assert yarn_attention_factor(math.e, **scales) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize(
    ("factor", "original_context", "expected"),
    [
        (8.0, 2, 2.0),
        (2.0, 32, math.sqrt(1.2)),
        (1.0, 32, 1.0),
        (0.5, 32, 1.0),
        (8.0, 1, 1.0),
        (8.0, 0, 1.0),
    ],
)
def test_longrope_attention_factor(factor, original_context, expected):
    """A context that is not longer, or an original one without a logarithm above 0, changes nothing."""
    assert longrope_attention_factor(factor, original_context) == pytest.approx(expected, rel=1e-12)


def test_a_plain_rope_changes_nothing():
    rope = Rope(1e4, 4, True)
    assert (rope.factor, rope.divisors, rope.scaling, rope.attention_factor) == (1.0, (), None, 1.0)
    np.testing.assert_allclose(rope.inv_freq(), [1.0, 0.01], rtol=1e-7)


@pytest.mark.parametrize(
    ("scaling", "expected"),
    [
        (None, 0),
        (Llama3Scaling(8.0, 1.0, 4.0, 64), 0),
        (Yarn(4.0, 64), 0),
        (DynamicNTK(4.0, 64), 64),
        (LongRope((1.0, 1.0), 32), 32),
    ],
)
def test_context_above_which_frequencies_change(scaling, expected):
    assert Rope(1e4, 4, False, scaling=scaling).original_context == expected


def test_factor_and_divisors_together():
    rope = Rope(1e4, 4, False, factor=2.0, divisors=(4.0, 5.0))
    np.testing.assert_allclose(rope.inv_freq(), [0.125, 0.001], rtol=1e-7)


YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}
PARAMETERS = {"rope_theta": 5e5, "rope_type": "default"}


@pytest.mark.parametrize(
    "parameters",
    [
        PARAMETERS,
        {"rope_theta": 5e5},
        {**PARAMETERS, "rope_type": None},
        {**PARAMETERS, "factor": 4},  # 4 is 4.0
        {"full_attention": PARAMETERS},
    ],
)
@pytest.mark.parametrize("scaling", [YARN, {**YARN, "rope_theta": 5e5}, {"full_attention": YARN}])
def test_a_scaling_added_beside_parameters(parameters, scaling):
    expected = from_hf(rope_theta=5e5, rope_scaling=YARN)
    assert from_hf(rope_parameters=parameters, rope_scaling=scaling) == expected
    assert from_hf(rope_scaling=scaling, rope_parameters=parameters) == expected


def test_an_older_spelling_beside_parameters():
    scaling = {"type": "linear", "factor": 2.0}
    assert from_hf(rope_parameters=PARAMETERS, rope_scaling=scaling)[0].factor == 2.0
    assert from_hf(rope_parameters={**PARAMETERS, "type": "default"}, rope_scaling=scaling)[0].factor == 2.0
    long = {**LONGROPE, "original_max_position_embeddings": 64}
    both = from_hf(rope_parameters={**long, "rope_type": "longrope"}, rope_scaling={**long, "type": "su"})
    assert both == from_hf(rope_scaling={**long, "type": "longrope"})


@pytest.mark.parametrize("nothing", [None, {}])
def test_a_scaling_that_says_nothing(nothing):
    given = {**PARAMETERS, **YARN, "rope_type": "yarn"}
    assert from_hf(rope_parameters=given, rope_scaling=nothing) == from_hf(rope_parameters=given)


@pytest.mark.parametrize(
    ("changes", "key"),
    [
        ({"factor": 8.0}, "factor"),
        ({"rope_type": "linear"}, "rope_type"),
        ({"rope_theta": 1e4}, "rope_theta"),
    ],
)
def test_a_scaling_that_contradicts_parameters(changes, key):
    with pytest.raises(
        DamagedFile, match=f"config.json: {key} is .* in rope_parameters, but .* in rope_scaling"
    ):
        from_hf(rope_parameters={**YARN, "rope_theta": 5e5}, rope_scaling={**YARN, **changes})
