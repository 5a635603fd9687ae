"""What a token costs: the bytes that a decode step reads, and the multiplications of its forward pass."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

from ..engine.engine import Engine
from ..engine.stats import GenerationStats
from ..model.memory_check import cache_bytes_per_token
from ..ops import Attend, Embed, HeadMatMul, LayerNorm, MatMul, MoE, Program, RMSNorm


def bytes_per_token(program: Program, kv_type: str, first: int, n_new: int, n_parallel: int = 1) -> float:
    """Bytes that a decode step reads on average, at least: what the memory limit is about. `n_new` tokens are
    written, the first of which sees `first` tokens, itself among them.

    Every weight once, as large as in the file; of experts, those that are chosen; of the embedding table one
    row (if it is the output matrix as well, it counts as that); of the cache the keys and values that the
    token sees. `n_parallel` sequences that run together share a step's weights.
    """
    weights: float = 0
    for op in program.ops:
        match op:
            case Embed():
                weights += op.table.data.shape[1]
            case MatMul():
                weights += op.weight.n_bytes + (0 if op.bias is None else op.bias.nbytes)
            case HeadMatMul():
                weights += sum(weight.n_bytes for weight in op.weights)
            case RMSNorm() | LayerNorm():
                weights += op.weight.nbytes
            case MoE():
                every = sum(tensor.n_bytes for tensor in (*op.gate, *op.up, *op.down))
                weights += every * op.experts.width / len(op.up)
    weights /= n_parallel  # a step reads them once for all sequences, but not experts
    cached = sum(
        cache_bytes_per_token([program.cache_layers[op.layer]], kv_type)
        * mean_seen(first, first + n_new, op.window)
        for op in program.ops
        if isinstance(op, Attend)
    )
    return weights + cached


def mean_seen(first: int, end: int, window: int) -> float:
    """The mean of first … end - 1, each at most `window` if there is one."""
    lengths: Sequence[int] = [min(n, window or n) for n in range(first, end)]
    return sum(lengths) / len(lengths)


def multiply_adds(program: Program) -> int:
    """Multiplications with weights in the forward pass of one token; of experts, with those chosen for it."""
    found = 0
    for op in program.ops:
        if isinstance(op, MatMul):
            found += prod(op.weight.shape)
        elif isinstance(op, HeadMatMul):
            found += sum(prod(weight.shape) for weight in op.weights)
        elif isinstance(op, MoE):
            found += op.experts.width * sum(prod(m[0].shape) for m in (op.gate, op.up, op.down) if m)
    return found


def timing_data(engine: Engine, stats: GenerationStats) -> dict[str, Any]:
    """The phases of an answer that has ended, as plain data; docs/inspection.md has its form."""
    program, kv_type = engine.machine.program, engine.machine.kv_type.split(" ")[0]
    read = bytes_per_token(program, kv_type, stats.prompt_tokens + 1, max(1, stats.new_tokens))
    return {
        "prompt_tokens": stats.prompt_tokens,
        "cached_tokens": stats.cached_tokens,
        "prefilled_tokens": stats.prefilled_tokens,
        "prefill_steps": -(-stats.prefilled_tokens // engine.prefill_chunk),
        "prefill_seconds": round(stats.prompt_seconds, 5),
        "new_tokens": stats.new_tokens,
        "decode_tokens": stats.decode_tokens,
        "decode_steps": stats.decode_steps,
        "decode_seconds": round(stats.decode_seconds, 5),
        "bytes_per_step": round(read),
        "multiply_adds": multiply_adds(program),
    }
