"""The compiled kernels of the CPU machine, by name.

This table costs nothing to import: a `CpuKernel` names a module and an entry point in it, and the module,
which brings in Numba, is imported only when the kernel must be compiled.
"""

from __future__ import annotations

from collections.abc import Iterable

from ....quant.jit.kernel import CpuKernel
from ..abi.sizes import CACHE_TYPES, FLOAT_BYTES
from ..simd.panels import PLANES


def _kernel(module: str, name: str) -> CpuKernel:
    """The entry point `name` of a module of this package."""
    return CpuKernel(f"{__name__}.{module}", name)


def _kernels(module: str, name: str, items: Iterable[str]) -> dict[str, CpuKernel]:
    """The entry points in the dictionary `name` of a module, by their keys."""
    return {item: CpuKernel(f"{__name__}.{module}", name, item) for item in items}


_BLOCKS = [name for name in PLANES if name not in FLOAT_BYTES]

# By weight format.
EMBEDS = _kernels("matmul.embed", "EMBEDS", PLANES)
GEMVS = _kernels("matmul.gemv", "GEMVS", PLANES)
GEMMS = _kernels("matmul.gemm", "GEMMS", _BLOCKS)
SKINNY_GEMMS = _kernels("matmul.skinny_gemm", "SKINNY_GEMMS", _BLOCKS)
FLOAT_GEMMS = _kernels("matmul.float_gemm", "FLOAT_GEMMS", FLOAT_BYTES)
TILE_GEMMS = _kernels("matmul.tile_gemm", "TILE_GEMMS", [*_BLOCKS, "F16", "BF16"])

# By cache type.
KV_STORES = _kernels("attention.kv_store", "KV_STORES", CACHE_TYPES)
PREFILL_ATTENTIONS = _kernels("attention.prefill", "PREFILL_ATTENTIONS", CACHE_TYPES)
TILE_ATTENTIONS = _kernels("attention.tile_prefill", "TILE_ATTENTIONS", CACHE_TYPES)
DECODE_ATTENTIONS = _kernels("attention.decode", "DECODE_ATTENTIONS", CACHE_TYPES)
MERGE_ROWS = _kernel("attention.prefill", "merge_rows")
MERGE_SPLITS = _kernel("attention.decode", "merge_splits")

QUANTIZE_ROW = _kernel("matmul.quantize", "quantize_row")
QUANTIZE_ROWS = _kernel("matmul.quantize", "quantize_rows")
QUANTIZE_TILES = _kernel("matmul.quantize", "quantize_tiles")
LIST_RESIDUALS = _kernel("matmul.quantize", "list_residuals")
TILE_ROWS = _kernel("matmul.tile_gemm", "tile_rows")

RMS_NORM = _kernel("common.pointwise", "rms_norm")
LAYER_NORM = _kernel("common.pointwise", "layer_norm")
ROPE_ANGLES = _kernel("common.pointwise", "rope_angles")
ROPE = _kernel("common.pointwise", "rope")
GATED_ACTIVATION = _kernel("common.pointwise", "gated_activation")
GATED_GELU = _kernel("common.pointwise", "gated_gelu")
ADD = _kernel("common.pointwise", "add")
ADD_POSITIONS = _kernel("common.pointwise", "add_positions")
GROW_QUERIES = _kernel("common.pointwise", "grow_queries")
JOIN_HEADS = _kernel("common.pointwise", "join_heads")
SPARSIFY = _kernel("common.pointwise", "sparsify")
MATCH_MAGNITUDE = _kernel("common.pointwise", "match_magnitude")
SIGMOID_GATE = _kernel("common.pointwise", "sigmoid_gate")
SELECT_ROWS = _kernel("common.pointwise", "select_rows")
SOFT_CAP = _kernel("common.pointwise", "soft_cap")

ROUTE_ROWS = _kernel("matmul.moe_routing", "route")
SORT_BY_EXPERT = _kernel("matmul.moe_routing", "sort_by_expert")
PERMUTE_ROWS = _kernel("matmul.moe_routing", "permute_rows")
ADD_CHOICES = _kernel("matmul.moe_routing", "add_choices")
UNPERMUTE_ROWS = _kernel("matmul.moe_routing", "unpermute_rows")

ALTUP_PREDICT = _kernel("common.altup", "altup_predict")
ALTUP_CORRECT = _kernel("common.altup", "altup_correct")

CAUSAL_CONV = _kernel("common.recurrent", "causal_conv")
DELTA_RULE = _kernel("common.recurrent", "delta_rule")
STATE_SCAN = _kernel("common.recurrent", "state_scan")

AWAIT_ROWS = _kernel("common.exchange", "await_rows")
ANSWER_ROWS = _kernel("common.exchange", "answer_rows")
POST, LEAD, FOLLOW = TEAM_KERNELS = tuple(_kernel("common.team", name) for name in ("post", "lead", "follow"))
GROUP_MAXIMA = _kernel("common.group_maxima", "group_maxima")
FIRST_LOGITS = _kernel("common.group_maxima", "first_logits")
SUM_BUFFER = _kernel("common.bandwidth", "sum_buffer")

LOG_SUMS = _kernel("common.row_scores", "log_sums")
DIVERGENCES = _kernel("common.row_scores", "divergences")
