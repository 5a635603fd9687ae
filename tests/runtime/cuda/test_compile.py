"""Every kernel compiles to PTX for the architectures that cards have, with a stand-in for the card."""

from __future__ import annotations

import importlib.util
import re

import pytest

from kukri.runtime.cuda.compile.kernel import ENTRY, kernel
from kukri.runtime.cuda.kernels.attention import (
    decode,
    mla,
    mla_merge,
    prefill,
    prepare_qk,
    simt,
    split_plan,
)
from kukri.runtime.cuda.kernels.attention import (
    prefill_sm90 as wide_prefill,
)
from kukri.runtime.cuda.kernels.common import all_reduce, altup, gather, mapped, pointwise, top_k
from kukri.runtime.cuda.kernels.experts import exchange, moe_matmul, moe_permute, moe_routing
from kukri.runtime.cuda.kernels.matmul import (
    batch_sm90,
    decode_matmul,
    floats,
    prefill_sm80,
    prefill_sm90,
    quantize,
)
from kukri.runtime.cuda.kernels.recurrent import conv, delta, delta_prefill, scan, scan_prefill

DECODE = {"KS": 2, "WARPS": 4, "GATED": 1, "NORMED": 1, "BIAS": 0, "ACCUMULATE": 0, "EMIT": 0}
DECODE |= {"STORE": 1, "KIND": 1}
SENDS = DECODE | {"CARDS": 2, "ROWS": 16, "STORE": 0}
TWO_FORMATS = {"FORMAT": "Q4_K", "FORMAT_SECOND": "Q6_K"}
ATTEND = {"G": 1, "HD": 64, "DP": 64, "LANES": 8, "LANE_BITS": 3, "VEC": 1, "U": 1, "KV": 16, "WARPS": 2}
ATTEND |= {"CHUNKS": 1, "PAGE": 6, "MIN_SPLIT": 64, "SOFTCAP": 0, "SINKS": 0, "WINDOW": 0, "EMIT": 1}
ATTEND |= {"VD": 64, "VP": 64, "LATENT": 0, "TOKENS": 1}
TOP_K = {"K": 64, "R": 2, "LOG_K": 6, "WARPS": 8, "LOG_WARPS": 3}
PREPARE = {"HD": 64, "DP": 64, "KV": 16, "PAGE": 6, "WARPS": 4, "Q_NORM": 1, "K_NORM": 1, "ROPE": 1}
PREPARE |= {"LATENT": 0}
PREPARED = {
    "SINGLE_ROW": 1,
    "PREPARE": 1,
    "Q_NORM": 1,
    "K_NORM": 2,
    "ROPE": 1,
    "INTERLEAVED": 1,
    "INVERSE_HD": 1 / 64,
}
PLANNED = PREPARED | {"SINGLE_ROW": 0, "PREPARE": 0, "PLANNED": 1, "EMIT": 2}
ROUTE = {"SIGMOID": 1, "BIAS": 1, "SCALES": 1, "NORMALISED": 1, "GROUPS": 8, "TOP_GROUPS": 4, "GROUP_BEST": 2}
EXPERT = {
    "CHOSEN": 1,
    "M": 4,
    "KS": 4,
    "WARPS": 8,
    "GATED": 1,
    "BIAS": 1,
    "EMIT": 1,
    "STORE": 0,
    "KIND": 8,
}
EXPERT |= {"TOKENS": 1}
PROMPT = {
    "SWIZZLE": 7,
    "Q_IN_REGISTERS": 0,
    "KV": 4,
    "DP": 64,
    "PAGE": 6,
    "WINDOW": 1,
    "SOFTCAP": 1,
    "SINKS": 1,
}
WIDE_PROMPT = {"HD": 128, "DP": 128, "KV": 16, "PAGE": 6, "GROUP": 4, "HEADS": 2, "STAGES": 5, "TURNS": 1}
WIDE_PROMPT |= {"WINDOW": 1, "SOFTCAP": 1, "SINKS": 1}
PREFILL = {"FORMAT": "Q4_K", "BIAS": 1, "ACCUMULATE": 1, "EXPERTS": 2}
NVFP4 = {"FORMAT": "NVFP4"}
BATCH = {"FORMAT": "Q6_K", "BIAS": 1, "ACCUMULATE": 1, "GATED": 1, "KIND": 1, "VECTORS": 0, "SHARED": 1}
MLA = {"G": 20, "HD": 96, "DP": 96, "VP": 80, "KV": 16, "PAGE": 6, "SWIZZLE": 3, "M_TILES": 2, "TILE": 64}
MLA |= {"WARPS": 8, "HEAD_WARPS": 4, "Q_KEPT": 5, "V_TILES": 5, "WARP_V_TILES": 1, "N_TILES": 2}
MLA |= {"SOFTCAP": 0, "SINKS": 1, "WINDOW": 0}
# Kernels for compute capability 9.0 only, and what the driver's assembler calls a subroutine for: where a
# kernel has a call, it makes each wgmma wait for the one before.
WARPGROUPS = ("attention.prefill_sm90", "matmul.batch_sm90", "matmul.prefill_sm90")
CALLS = re.compile(r"\b(div|rcp|sqrt)\.rn\.f32|\b(div|rem)\.[su]64|\bcall\b")
KERNELS = [
    kernel(gather.embed, 128, FORMAT="Q6_K", PDL=0),
    kernel(gather.embed_floats, 128, FLOAT=0, PDL=0),
    kernel(gather.select_rows, 128, PDL=0),
    kernel(quantize.quantize, 128, NORMED=1, TOKENS=1, PDL=0),
    kernel(quantize.convert_to_f16, 256, WARPGROUPS=1, PARTS=4, NORMED=1, PDL=0),
    kernel(decode_matmul.decode_matmul, 128, PDL=0, FORMAT="Q4_0", M=2, TOKENS=1, **DECODE),
    kernel(decode_matmul.decode_matmul, 128, PDL=0, FORMAT="Q6_K", M=2, TOKENS=8, **DECODE),
    kernel(decode_matmul.two_matmuls, 128, PDL=0, M=2, TOKENS=1, **(DECODE | TWO_FORMATS)),
    kernel(prefill_sm80.prefill_matmul_sm80, 256, PDL=0, **PREFILL),
    kernel(prefill_sm90.prefill_matmul_sm90, 256, PDL=1, M=1, ROWS=128, **PREFILL),
    kernel(prefill_sm90.prefill_matmul_sm90, 256, PDL=1, M=2, ROWS=64, GATED=1, KIND=3, **PREFILL),
    kernel(batch_sm90.batch_matmul_sm90, 256, PDL=1, ROWS=32, GROUPS=2, STAGES=4, **BATCH),
    kernel(decode_matmul.decode_matmul, 128, PDL=0, FORMAT="NVFP4", M=2, TOKENS=1, **DECODE),
    kernel(batch_sm90.batch_matmul_sm90, 256, PDL=1, ROWS=32, GROUPS=2, STAGES=4, **(BATCH | NVFP4)),
    kernel(floats.float_matmul, 256, FLOAT=16, N=2, BIAS=1, ACCUMULATE=1, PDL=0),
    kernel(simt.simt_attention, 64, PDL=0, **ATTEND),
    kernel(simt.simt_attention, 64, PDL=0, **(ATTEND | {"BOTH_WAYS": 1, "WINDOW": 1})),
    kernel(decode.decode_attention, 128, PDL=0, SWIZZLE=7, STAGES=3, **(ATTEND | PREPARED)),
    kernel(decode.decode_attention, 64, PDL=0, SWIZZLE=7, STAGES=4, **(ATTEND | PLANNED)),
    kernel(split_plan.plan_splits, 256, WARPS=2, WINDOW=1, PDL=0),
    kernel(mla.mla_attention, 256, ONE_SPLIT=0, PREFILL=0, SINGLE_ROW=1, PDL=0, **MLA),
    kernel(mla.mla_attention, 256, ONE_SPLIT=1, PREFILL=1, SINGLE_ROW=0, PDL=0, **MLA),
    kernel(mla_merge.mla_merge_splits, 64, VP=80, TILE=64, SINKS=1, WINDOW=0, THREADS=64, PDL=0),
    kernel(prefill.prefill_attention, 128, HD=64, GROUP=2, PDL=0, **PROMPT),
    kernel(wide_prefill.prefill_attention_sm90, 256, HALVES=0, PDL=1, **WIDE_PROMPT),
    kernel(wide_prefill.prefill_attention_sm90, 256, HALVES=1, PDL=1, **(WIDE_PROMPT | {"KV": 8})),
    kernel(prepare_qk.rope_angles, 128, PDL=0),
    kernel(prepare_qk.rope, 128, HD=64, WARPS=4, INTERLEAVED=1, PDL=0),
    kernel(prepare_qk.prepare_qk, 128, INTERLEAVED=0, INVERSE_HD=1 / 64, PDL=0, **PREPARE),
    kernel(prepare_qk.grow_queries, 256, PDL=0),
    kernel(pointwise.norm, 256, MEAN=1, BIAS=1, EACH=0, GROUPS=1, PDL=0),
    kernel(pointwise.gated_activation, 256, KIND=3, PDL=0),
    kernel(pointwise.activation, 256, KIND=4, PDL=0),
    kernel(pointwise.sigmoid_gate, 256, NARROW=0, PDL=0),
    kernel(pointwise.add, 256, PDL=0),
    kernel(pointwise.soft_cap, 256, PDL=0),
    kernel(top_k.top_k, 256, FROM_LOGITS=1, FINAL=0, PDL=0, **TOP_K),
    kernel(top_k.top_1, 256, FROM_LOGITS=0, FINAL=1, K=1, WARPS=8, PDL=0),
    kernel(pointwise.copy_rest, 256, PDL=0),
    kernel(mapped.copy_words, 256, PDL=0),
    kernel(all_reduce.all_reduce_few, 128, CARDS=2, ROWS=16, SENT=1, EMIT=2, TOKENS=1, SHARED=0, PDL=0),
    kernel(decode_matmul.decode_matmul, 128, PDL=0, FORMAT="Q4_0", M=2, TOKENS=1, **SENDS),
    kernel(all_reduce.all_reduce_many, 512, CARDS=4, SHARED=0, PDL=0),
    kernel(exchange.exchange, 1024, THREADS=1024, PDL=0),
    kernel(moe_routing.route, 32, PDL=0, **ROUTE),
    kernel(moe_matmul.moe_decode_matmul, 256, FORMAT="MXFP4", LIMIT=7.0, ALPHA=1.702, PDL=0, **EXPERT),
    kernel(moe_matmul.moe_float_matmul, 256, FLOAT=0, CHOSEN=1, BIAS=1, PDL=0),
    kernel(moe_matmul.quantize_pairs, 128, TOKENS=1, PDL=0),
    kernel(moe_permute.combine_experts, 256, PERMUTED=1, PDL=0),
    kernel(moe_permute.permute_by_expert, 256, ROWS=64, PDL=0),
    kernel(conv.causal_conv, 128, TAPS=4, BIAS=1, SILU=1, PDL=0),
    kernel(scan.state_scan, 64, WARPS=2, R=4, PARTS=4, PDL=0),
    kernel(delta.delta_rule, 64, WARPS=2, R=4, PARTS=4, TILED=0, PDL=0),
    kernel(conv.conv_prefill_edges, 128, TAPS=4, PDL=0),
    kernel(conv.conv_prefill, 128, TAPS=4, BIAS=1, SILU=1, PDL=0),
    kernel(delta_prefill.delta_chunks, 128, WARPS=4, PARTS=4, TILED=1, PDL=0),
    kernel(delta_prefill.delta_prefill, 128, WARPS=4, PARTS=2, TILED=0, FULL=1, PDL=0),
    kernel(scan_prefill.scan_chunks, 128, WARPS=4, PARTS=4, PDL=0),
    kernel(scan_prefill.scan_prefill, 128, WARPS=4, PARTS=1, FULL=0, PDL=0),
    kernel(altup.sparsify, 256, PDL=0),
    kernel(altup.match_magnitude, 256, PDL=0),
    kernel(altup.predict_streams, 256, N=4, ACTIVE=0, PDL=0),
    kernel(altup.correct_streams, 256, N=4, ACTIVE=0, PDL=0),
]


@pytest.mark.slow
@pytest.mark.skipif(not importlib.util.find_spec("numba_cuda"), reason="numba-cuda is not installed")
@pytest.mark.parametrize("what", KERNELS, ids=lambda k: k.name)
def test_compiles(what):
    # One architecture each, in turn: all of them for all kernels would take minutes.
    capability = [(8, 0), (9, 0)][KERNELS.index(what) % 2]
    if what.name in ("select_rows", "embed", "add"):
        capability = (7, 5)
    if what.module in WARPGROUPS:
        capability = (9, 0)
    text = what.ptx(capability)
    assert f".entry {ENTRY}(" in text
    target = f"sm_{capability[0]}{capability[1]}{'a' if what.module in WARPGROUPS else ''}"
    assert f".target {target}\n" in text
    assert ".local" not in text, "registers that are indexed at run time"
    assert what.module not in WARPGROUPS or not CALLS.search(text)


@pytest.mark.skipif(not importlib.util.find_spec("numba_cuda"), reason="numba-cuda is not installed")
def test_early_launches_need_sm_90():
    assert "griddepcontrol" in kernel(pointwise.add, 256, PDL=1).ptx((9, 0))
