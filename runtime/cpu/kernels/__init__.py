"""The compiled part of the CPU machine: what there is of kernels, by name.

This file costs nothing to import. The modules beside it bring Numba, which takes its time, and are imported
when one of their kernels must be compiled.
"""

from __future__ import annotations

from collections.abc import Iterable

from ....quant.jit.kernel import CpuKernel
from ..abi.sizes import CACHE_TYPES, FLOAT_BYTES
from ..simd.panels import PLANES


def _one(module: str, name: str) -> CpuKernel:
    return CpuKernel(f"{__name__}.{module}", name)


def _each(module: str, name: str, items: Iterable[str]) -> dict[str, CpuKernel]:
    """The kernels of a table by its items."""
    return {item: CpuKernel(f"{__name__}.{module}", name, item) for item in items}


_BLOCKS = [name for name in PLANES if name not in FLOAT_BYTES]

# By weight format.
EMBEDS = _each("matmul.embed", "EMBEDS", PLANES)
MATVECS = _each("matmul.gemv", "MATVECS", PLANES)
TILED_MATMULS = _each("matmul.gemm", "TILED_MATMULS", _BLOCKS)
FLOAT_MATMULS = _each("matmul.epilogue", "FLOAT_MATMULS", FLOAT_BYTES)

# By cache type.
STORES = _each("attention.kv_cache", "STORES", CACHE_TYPES)
ATTENDS = _each("attention.decode", "ATTENDS", CACHE_TYPES)
ATTEND_ONES = _each("attention.decode", "ATTEND_ONES", CACHE_TYPES)
MERGE_SPANS = _one("attention.decode", "merge_spans")

QUANTIZE_ROW = _one("matmul.quantize", "quantize_row")
QUANTIZE_TILES = _one("matmul.quantize", "quantize_tiles")
LIST_SECONDS = _one("matmul.quantize", "list_seconds")

RMS_NORM = _one("common.pointwise", "rms_norm")
LAYER_NORM = _one("common.pointwise", "layer_norm")
ANGLES = _one("common.pointwise", "angles")
ROPE = _one("common.pointwise", "rope")
GATE = _one("common.pointwise", "gate")
GELU_GATE = _one("common.pointwise", "gelu_gate")
ADD = _one("common.pointwise", "add")
ADD_POSITIONS = _one("common.pointwise", "add_positions")
GROW = _one("common.pointwise", "grow")
JOIN_HEADS = _one("common.pointwise", "join_heads")
SPARSIFY = _one("common.pointwise", "sparsify")
MATCH_MAGNITUDE = _one("common.pointwise", "match_magnitude")
SIGMOID_GATE = _one("common.pointwise", "sigmoid_gate")
SELECT_ROWS = _one("common.pointwise", "select_rows")
SOFT_CAP = _one("common.pointwise", "soft_cap")

ROUTE_ROWS = _one("matmul.moe_routing", "route")
DEAL_ROWS = _one("matmul.moe_routing", "deal")
COPY_DEALT = _one("matmul.moe_routing", "copy_dealt")
GATHER_DEALT = _one("matmul.moe_routing", "gather_dealt")

PREDICT_STREAMS = _one("common.altup", "predict_streams")
CORRECT_STREAMS = _one("common.altup", "correct_streams")

CAUSAL_CONV = _one("common.recurrent", "causal_conv")
DELTA_RULE = _one("common.recurrent", "delta_rule")
STATE_SCAN = _one("common.recurrent", "state_scan")

POST, LEAD, FOLLOW = TEAM_KERNELS = tuple(_one("common.team", name) for name in ("post", "lead", "follow"))
READ_ALL = _one("common.bandwidth", "read_all")

LOG_SUMS = _one("common.row_scores", "log_sums")
DIVERGENCES = _one("common.row_scores", "divergences")
