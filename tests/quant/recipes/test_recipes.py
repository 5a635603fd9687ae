"""Which tensor gets which format. The sizes and mixtures below were read off llama-quantize."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from kukri.quant.block import QTensor
from kukri.quant.errors import DamagedFile
from kukri.quant.formats import FORMATS
from kukri.quant.gguf.gathered import GatheredTensor, file_order_key
from kukri.quant.recipes.quantize import check_plan, peak
from kukri.quant.recipes.recipes import RECIPES, ModelShape, find_recipe, fitting_format, more_bits, plan

# (hidden, FFN, keys, layers, vocabulary, tied, biases of q, k and v, norms of q and k, norms behind)
SMOLLM2 = (576, 1536, 192, 30, 49152, True, False, False)
GEMMA3 = (640, 2048, 256, 18, 262144, True, False, True)
QWEN = (896, 4864, 128, 24, 151936, False, True, False)
# bytes of the tensors of files that llama-quantize makes
SIZES = {
    "q8_0": (143025408, 285018624, 669763072),
    "q4_0": (89941248, 234883584, 422782464),
    "q4_1": (96576768, 241150464, 453655040),
    "q5_0": (103212288, 247417344, 484527616),
    "q5_1": (109847808, 253684224, 515400192),
    "q2_k": (86416128, 230552064, 409234944),
    "q3_k_s": (86416128, 230183424, 408890880),
    "q3_k_m": (91724544, 235436544, 426094080),
    "q3_k_l": (95747328, 239860224, 439985664),
    "q4_k_s": (100253952, 243362304, 473116160),
    "q4_k_m": (103668480, 246587904, 485452288),
    "q5_k_s": (108188928, 251472384, 508862976),
    "q5_k_m": (110317824, 253499904, 516238848),
    "q6_k": (136597248, 276447744, 644431360),
    "iq4_nl": (90273024, 235764224, 424932864),
    "iq4_xs": (89526528, 234740224, 422072832),
    "mxfp4_moe": (143025408, 285018624, 669763072),
}


def outline(name, shape, form="BF16"):
    rows = int(np.prod(shape[:-1]))
    data = np.broadcast_to(np.uint8(0), (rows, FORMATS[form].row_bytes(shape[-1])))
    return GatheredTensor(name, shape, (QTensor(name, FORMATS[form], shape, data),))


def model(hidden, ffn, keys, layers, vocab, tied, biased, gemma, queries=None):
    queries = queries or (1024 if gemma else hidden)
    tensors = [outline("token_embd.weight", (vocab, hidden)), outline("output_norm.weight", (hidden,))]
    tensors += [] if tied else [outline("output.weight", (vocab, hidden))]
    norms = ["attn_norm", "ffn_norm", *(["post_attention_norm", "post_ffw_norm"] if gemma else [])]
    for i in range(layers):
        matrices = {
            "attn_q": (queries, hidden),
            "attn_k": (keys, hidden),
            "attn_v": (keys, hidden),
            "attn_output": (hidden, queries),
            "ffn_gate": (ffn, hidden),
            "ffn_up": (ffn, hidden),
            "ffn_down": (hidden, ffn),
        }
        matrices |= dict.fromkeys(norms, (hidden,))
        matrices |= {"attn_q_norm": (256,), "attn_k_norm": (256,)} if gemma else {}
        tensors += [outline(f"blk.{i}.{stem}.weight", shape) for stem, shape in matrices.items()]
        if biased:
            both = (("attn_q", queries), ("attn_k", keys), ("attn_v", keys))
            tensors += [outline(f"blk.{i}.{stem}.bias", (width,)) for stem, width in both]
    return sorted(tensors, key=lambda tensor: file_order_key(tensor.name))


MODELS = [
    (model(*SMOLLM2), ModelShape("llama", 30, 3)),
    (model(*GEMMA3), ModelShape("gemma3", 18, 4)),
    (model(*QWEN), ModelShape("qwen2", 24, 7)),
]


@pytest.mark.parametrize("recipe", SIZES)
def test_files_are_as_large_as_their_name_lets_expect(recipe):
    sizes = [
        sum(planned.record.n_bytes for planned in plan(RECIPES[recipe], tensors, model_shape))
        for tensors, model_shape in MODELS
    ]
    assert tuple(sizes) == SIZES[recipe]


def test_a_usual_mixture():
    """Q4_K_M of a 7B llama: half of the values and of the second FFN matrices are Q6_K, and the output."""
    tensors = model(4096, 11008, 4096, 32, 32000, False, False, False)
    planned = {p.name: p.format.name for p in plan(RECIPES["q4_k_m"], tensors, ModelShape("llama", 32, 1))}
    assert planned["output.weight"] == "Q6_K"
    assert planned["token_embd.weight"] == "Q4_K"
    assert planned["blk.0.attn_norm.weight"] == "F32"
    values = [i for i in range(32) if planned[f"blk.{i}.attn_v.weight"] == "Q6_K"]
    assert values == [0, 1, 2, 3, 6, 9, 12, 15, 18, 21, 24, 27, 28, 29, 30, 31]
    assert values == [i for i in range(32) if more_bits(i, 32)]
    assert Counter(planned.values()) == {"Q4_K": 193, "Q6_K": 33, "F32": 65}


def test_eight_experts_have_large_keys_and_values():
    tensors = [outline("output.weight", (512, 256)), outline("token_embd.weight", (512, 256))]
    stems = ("attn_k", "attn_output", "attn_q", "attn_v", "ffn_gate_inp")
    tensors += [outline(f"blk.0.{stem}.weight", (256, 256)) for stem in stems]
    tensors += [outline(f"blk.0.ffn_{part}_exps.weight", (8, 256, 256)) for part in ("down", "gate", "up")]
    planned = {
        p.name: p.format.name
        for p in plan(RECIPES["q4_k_m"], tensors, ModelShape("llama", 32, 4, n_experts=8))
    }
    assert planned == {
        "output.weight": "Q6_K",
        "token_embd.weight": "Q4_K",
        "blk.0.attn_k.weight": "Q8_0",
        "blk.0.attn_output.weight": "Q5_K",
        "blk.0.attn_q.weight": "Q4_K",
        "blk.0.attn_v.weight": "Q8_0",
        "blk.0.ffn_gate_inp.weight": "F32",
        "blk.0.ffn_down_exps.weight": "Q6_K",
        "blk.0.ffn_gate_exps.weight": "Q4_K",
        "blk.0.ffn_up_exps.weight": "Q4_K",
    }
    moe = {
        p.name: p.format.name
        for p in plan(RECIPES["mxfp4"], tensors, ModelShape("llama", 32, 4, n_experts=8))
    }
    assert {name for name, form in moe.items() if form == "MXFP4"} == {n for n in moe if "_exps" in n}


def test_mxfp4_of_a_dense_model():
    planned = plan(RECIPES["mxfp4"], *MODELS[0])
    assert Counter(p.format.name for p in planned) == {"MXFP4": 210, "F32": 61, "Q8_0": 1}


def test_nvfp4():
    """All matrices of layers that readers know factors of; embeddings and output are Q8_0."""
    planned = plan(RECIPES["nvfp4"], *MODELS[0])
    assert Counter(p.format.name for p in planned) == {"NVFP4": 210, "F32": 61, "Q8_0": 1}
    tensors = [
        outline(f"blk.0.{stem}.weight", (256, 256)) for stem in ("attn_kv_a_mqa", "attn_q", "attn_q_a")
    ]
    tensors += [outline("blk.0.ffn_up_exps.weight", (4, 256, 256)), outline("blk.0.ffn_up.weight", (256, 96))]
    planned = plan(RECIPES["nvfp4"], tensors, ModelShape("deepseek2", 1, 1, n_experts=4))
    assert [p.format.name for p in planned] == ["Q8_0", "NVFP4", "Q8_0", "NVFP4", "IQ4_NL"]


@pytest.mark.parametrize(
    ("form", "width", "expected"),
    [
        ("Q4_K", 256, "Q4_K"),
        ("Q4_K", 576, "Q5_0"),
        ("Q5_K", 896, "Q5_1"),
        ("Q6_K", 896, "Q8_0"),
        ("Q2_K", 32, "Q4_0"),
        ("Q3_K", 32, "Q4_0"),
        ("IQ4_XS", 96, "IQ4_NL"),
        ("Q4_0", 48, "F16"),
        ("Q4_K", 48, "F16"),
        ("F32", 7, "F32"),
    ],
)
def test_fall_backs(form, width, expected):
    assert fitting_format(FORMATS[form], width).name == expected


def test_fall_backs_are_told():
    planned = plan(RECIPES["q4_k_m"], *MODELS[0])
    notes = {p.note for p in planned if p.note}
    assert notes == {
        "rows of 576 do not divide into blocks of Q4_K",
        "rows of 576 do not divide into blocks of Q6_K",
    }


def test_names_and_aliases():
    assert find_recipe("Q4_K_M").name == "q4_k_m"
    assert find_recipe("int8").name == "q8_0"
    assert find_recipe("q4-0").name == "q4_0"
    assert find_recipe("q9") is None


def test_overrides():
    tensors, model_shape = MODELS[2]
    planned = plan(RECIPES["q8_0"], tensors, model_shape, overrides=[("ffn_down", FORMATS["Q4_K"])])
    assert {p.format.name for p in planned if "ffn_down" in p.name} == {"Q4_K"}
    assert {p.format.name for p in planned if "ffn_up" in p.name} == {"Q8_0"}


def test_what_is_kept_of_a_gguf_file():
    tensors = [
        outline("blk.0.ffn_gate_inp.weight", (8, 32), "F16"),
        outline("blk.0.attn_norm.weight", (32,), "F16"),
        outline("blk.0.ffn_up.weight", (64, 32), "F16"),
    ]
    model_shape = ModelShape("llama", 1, 1)
    assert [p.format.name for p in plan(RECIPES["q8_0"], tensors, model_shape, keep=True)] == [
        "F16",
        "F16",
        "Q8_0",
    ]
    assert [p.format.name for p in plan(RECIPES["q8_0"], tensors, model_shape)] == ["F32", "F32", "Q8_0"]


def matrix(values, form):
    values = np.asarray(values, np.float32)
    data = values if form == "F32" else (values.view(np.uint32) >> 16).astype(np.uint16)
    shape = values.shape
    return GatheredTensor(
        "m.weight", shape, (QTensor("m.weight", FORMATS[form], shape, data.view(np.uint8)),)
    )


@pytest.mark.parametrize("form", ["F32", "BF16"])
def test_weights_beyond_the_range_of_fp16(form):
    values = np.zeros((2, 32))
    values[1, 3] = -(2.0**17)
    tensor, model_shape = matrix(values, form), ModelShape("llama", 1, 1)
    assert peak(tensor) == 2.0**17
    (wide,) = check_plan(plan(RECIPES["f16"], [tensor], model_shape), False, lambda part: None)
    assert wide.format.name == form
    assert "131072 is beyond the range of F16" in wide.note
    (fine,) = check_plan(plan(RECIPES["bf16"], [tensor], model_shape), False, lambda part: None)
    assert (fine.format.name, fine.note) == ("BF16", "")


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("form", ["F32", "BF16"])
def test_weights_that_are_no_numbers(form, bad):
    values = np.ones((2, 32))
    values[1, 31] = bad
    planned = plan(RECIPES["q8_0"], [matrix(values, form)], ModelShape("llama", 1, 1))
    with pytest.raises(DamagedFile, match=r"tensor m\.weight has a weight that is NaN or infinite"):
        check_plan(planned, False, lambda part: None)
    assert check_plan(planned, True, lambda part: None) == planned
    assert peak(planned[0].tensor, finite=True) == 1.0
