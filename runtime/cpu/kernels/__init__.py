"""The compiled part of the CPU machine: what there is of kernels, by name.

This file costs nothing to import. The modules beside it bring Numba, which takes its time, and are imported
when one of their kernels must be compiled.
"""

from __future__ import annotations

from collections.abc import Iterable

from ....quant.jit.kernel import Kernel
from ..simd.panels import PLANES
from ..sizes import CACHE_TYPES, FLOAT_BYTES


def _one(module: str, name: str) -> Kernel:
    return Kernel(f"{__name__}.{module}", name)


def _each(module: str, name: str, items: Iterable[str]) -> dict[str, Kernel]:
    """The kernels of a table by its items."""
    return {item: Kernel(f"{__name__}.{module}", name, item) for item in items}


_BLOCKS = [name for name in PLANES if name not in FLOAT_BYTES]

# By weight format.
EMBEDS = _each("embed", "EMBEDS", PLANES)
MATVECS = _each("matvec", "MATVECS", PLANES)
TILED_MATMULS = _each("tiled", "TILED_MATMULS", _BLOCKS)
FLOAT_MATMULS = _each("matmul", "FLOAT_MATMULS", FLOAT_BYTES)

# By cache type.
STORES = _each("kv", "STORES", CACHE_TYPES)
ATTENDS = _each("attention", "ATTENDS", CACHE_TYPES)
ATTEND_ONES = _each("attention", "ATTEND_ONES", CACHE_TYPES)
MERGE_SPANS = _one("attention", "merge_spans")

QUANTIZE_ROW = _one("activations", "quantize_row")
QUANTIZE_TILES = _one("activations", "quantize_tiles")
LIST_SECONDS = _one("activations", "list_seconds")

RMS_NORM = _one("pointwise", "rms_norm")
LAYER_NORM = _one("pointwise", "layer_norm")
ANGLES = _one("pointwise", "angles")
ROPE = _one("pointwise", "rope")
GATE = _one("pointwise", "gate")
GELU_GATE = _one("pointwise", "gelu_gate")
ADD = _one("pointwise", "add")
ADD_POSITIONS = _one("pointwise", "add_positions")
GROW = _one("pointwise", "grow")
JOIN_HEADS = _one("pointwise", "join_heads")
SPARSIFY = _one("pointwise", "sparsify")
MATCH_MAGNITUDE = _one("pointwise", "match_magnitude")
SIGMOID_GATE = _one("pointwise", "sigmoid_gate")
SELECT_ROWS = _one("pointwise", "select_rows")
SOFT_CAP = _one("pointwise", "soft_cap")

ROUTE_ROWS = _one("experts", "route")
DEAL_ROWS = _one("experts", "deal")
COPY_DEALT = _one("experts", "copy_dealt")
GATHER_DEALT = _one("experts", "gather_dealt")

PREDICT_STREAMS = _one("streams", "predict_streams")
CORRECT_STREAMS = _one("streams", "correct_streams")

CAUSAL_CONV = _one("recurrent", "causal_conv")
DELTA_RULE = _one("recurrent", "delta_rule")
STATE_SCAN = _one("recurrent", "state_scan")

POST, LEAD, FOLLOW = TEAM_KERNELS = tuple(_one("team", name) for name in ("post", "lead", "follow"))
READ_ALL = _one("read", "read_all")

LOG_SUMS = _one("scores", "log_sums")
DIVERGENCES = _one("scores", "divergences")
