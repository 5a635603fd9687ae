"""What kernels are told: one record of int64 fields an instruction, one for the step.

Every kernel is called as `kernel(arguments, step, thread)` with the addresses of its record and of the
step's. Matrices are given by the address of their first element and the bytes from row to row.
"""

from __future__ import annotations

import numpy as np


def record(*fields: str, floats: tuple[str, ...] = ()) -> np.dtype:
    """A record type of int64 `fields`, then float64 `floats`."""
    return np.dtype([*((f, np.int64) for f in fields), *((f, np.float64) for f in floats)])


STEP = record(
    "instructions",  # address of INSTRUCTION[n_instructions]
    "n_instructions",
    "n_threads",
    "n_rows",
    "n_logits",
    "tokens",  # int32 [n_rows], as the next two
    "sequences",
    "positions",
    "logits_indices",  # int32 [n_logits]
    "blocks",  # int32 [sequences, pages], the block table
    "blocks_stride",
    "page_size",
)
INSTRUCTION = record("kernel", "arguments", "barrier")  # barrier: all threads wait for each other after it

SILU, GELU_TANH, CLIPPED, RELU2, IDENTITY, TANH = range(1, 7)  # values of `gate`

MATMUL = record(
    "weights",  # panels
    "n_panels",
    "panel_bytes",
    "pair_bytes",  # from a pair of panels to the next
    "other_bytes",  # from a pair's first panel to its second
    "n_blocks",  # blocks a row
    "width",  # weights a row
    "x",  # floats, a quantised row or the records of tiles
    "x_stride",  # from row to row (floats)
    "x_private",  # between the threads' copies of a single row, 0 if they share it
    "seconds",  # of tiles
    "lists",
    "list_stride",
    "out",
    "out_stride",
    "bias",  # float32 [n_panels · LANES], or 0
    "other_bias",  # that of a pair's second panel, where it is of another matrix
    "accumulate",
    "gate",  # 0, or out = f(first panel's product) · second's, a pair being a panel of each of two matrices
    "on_logits_rows",  # only the rows whose logits are asked for
    "rows_at",  # address of the int32 number of rows; 0: the step's
    "scratch",
    "scratch_stride",
    # Matrices of several experts, one behind the other:
    "expert_bytes",
    "bias_stride",
    "n_experts",  # of many rows: expert e has tiles[e] … tiles[e + 1] - 1 to itself; 0: one matrix for all
    "tiles",  # int32 [n_experts + 1]
    "choice",  # of a single row: address of the expert's number, a whole float32; 0: there is one matrix
    "share",  # of a single row: address of the float32 that products count by
    "choice_private",  # bytes between the threads' copies of these two
    floats=("limit", "alpha"),  # of CLIPPED
)

EMBED = record(
    "panels",
    "panel_bytes",
    "n_blocks",
    "width",
    "out",
    "out_stride",
    "out_private",
    "scratch",  # a group's unpacked weights for each thread
    "scratch_stride",
    "tokens",  # rows of the table; other tokens read row 0
    "every",  # each thread looks the one row up for itself
    floats=("scale",),
)

# One record for every pointwise kernel; each uses the fields it needs.
POINTWISE = record(
    "x",
    "x_stride",
    "x_private",
    "y",
    "y_stride",
    "y_private",
    "out",
    "out_stride",
    "out_private",
    "width",
    "groups",
    "weight",
    "weight_stride",  # bytes from row to row, or part to part; 0 if all have the same
    "bias",
    "length",
    "start",  # the first dimension of a head that turns
    "on_logits_rows",
    "rows_at",  # as in MATMUL
    "every",
    "gate",
    "interleaved",
    "cos",
    "sin",
    "angle_stride",
    "n_angles",
    floats=(
        "number",
        "other_number",
        "limit",
        "alpha",
    ),  # epsilon, attention factor, scale, growth or cap; those of CLIPPED
)

QUANTIZE = record(
    "x",
    "x_stride",
    "x_private",  # bytes between the threads' copies of x, 0 if they share it
    "width",
    "out",  # a row for each thread, or the records
    "out_private",
    "seconds",
    "lists",
    "list_stride",
    "on_logits_rows",
    "rows_at",  # as in MATMUL
)

ROUTE = record(
    "scores",  # float32 rows [n]
    "scores_stride",
    "scores_private",  # bytes between the threads' copies of a row, 0 if they share it
    "experts",  # float32 rows [top]: whole numbers
    "experts_stride",
    "routing_weights",  # float32 rows [top]
    "routing_weights_stride",
    "private",  # the same of experts and of routing_weights
    "n",
    "top",
    "bias",  # float32 [n], or 0
    "sigmoid",  # instead of softmax
    "normalised",
    "groups",
    "top_groups",
    "group_best",  # how many of a group's members add up to its merit
    "expert_scales",  # float32 [n], or 0
    "scratch",  # see `sizes`, a thread
    "scratch_stride",
    "on_logits_rows",
    "rows_at",  # as in MATMUL
    "every",
    floats=("scale",),
)

# Rows dealt out to experts: copies of rows, those of an expert side by side in tiles of their own.
DEAL = record(
    "experts",  # float32 rows [top]
    "experts_stride",
    "routing_weights",
    "routing_weights_stride",
    "top",
    "n_experts",
    "x",  # float32 rows [width]: those that are dealt, or what came of them
    "x_stride",
    "out",
    "out_stride",
    "width",
    "sources",  # int32 [dealt rows]: of which row each is a copy, -1 if it fills a tile
    "places",  # int32 [rows, top]: which dealt row is its
    "tiles",  # int32 [n_experts + 1]: each expert's first tile; behind them int32 [n_experts] to count with
    "rows_at",  # int32: how many dealt rows there are
    "on_logits_rows",
)

ATTENTION = record(
    "q",  # float32 rows [heads · head_dim]
    "q_stride",
    "k",  # float32 rows [kv_heads · head_dim]
    "k_stride",
    "v",  # float32 rows [kv_heads · value_step], of which the first value_dim of each head count
    "v_stride",
    "value_step",
    "value_dim",  # head_dim at most
    "out",  # float32 rows [heads · value_dim]; not used by ATTEND_ONES
    "out_stride",
    "keys",  # the layer's pool: [page, kv head] pieces, see `sizes`
    "values",
    "heads",
    "kv_heads",
    "head_dim",
    "window",  # positions that a query sees, its own among them; 0: all
    "scratch",  # see `sizes`, a thread
    "scratch_stride",
    # For ATTEND_ONES only:
    "append",  # write the key and the value first
    "q_private",  # bytes between the threads' copies, 0 if they share one
    "k_private",
    "v_private",
    "partials",  # see `sizes`
    "q_norm",  # float32 [head_dim] weights, padded to 16; 0: no norm
    "k_norm",
    "cos",  # float32 [n_angles] of the one row; 0: no rotation
    "sin",
    "n_angles",
    "interleaved",
    "sinks",  # float32 [heads], in units of ln 2; 0: none
    floats=("scale", "softcap", "norm_eps"),
)

# Several residual streams at once.
STREAMS = record(
    "streams",  # int64 [n, 6]: address, stride and private bytes of each, and of where it is written
    "n",
    "active",
    "coefficients",  # float32 rows
    "coefficients_stride",
    "coefficients_private",
    "x",
    "x_stride",
    "x_private",
    "out",
    "out_stride",
    "out_private",
    "weight",  # float32 [width]
    "width",
    "scratch",  # a vector of each stream, a thread
    "scratch_stride",
    "on_logits_rows",
    "rows_at",  # as in MATMUL
    "every",
)

RECUR = record(
    "x",  # float32 rows: what is convolved; queries, keys and values; x, B and C
    "x_stride",
    "x_private",  # bytes between the threads' copies of a row, 0 if they share it
    "step",  # float32 rows [heads]
    "step_stride",
    "step_private",
    "beta",  # float32 rows [heads]
    "beta_stride",
    "beta_private",
    "out",
    "out_stride",
    "state",  # float32, a sequence's behind another's
    "state_bytes",
    "channels",
    "taps",
    "weight",  # float32 [taps, channels]
    "weight_stride",
    "bias",  # float32 [channels], or 0
    "silu",
    "groups",
    "heads",
    "head_dim",
    "size",  # of a key; of B and C
    "tiled",
    "a",  # float32 [heads], as the next two
    "step_bias",
    "skip",
    "scratch",  # see `sizes`, a thread
    "scratch_stride",
    floats=("step_scale", "eps"),
)

# Rows of logits; a thread gets the addresses of its own.
ROW_SCORES = record(
    "logits",  # float32 rows [width]
    "stride",
    "other",  # as many
    "other_stride",
    "n_rows",
    "width",
    "sums",  # float64 rows [3]: largest, log of the sum of exponentials, column of the largest
    "other_sums",
    "out",  # float64, one a row
)

# Each counter has a cache line of its own.
TEAM = record(
    *("posted", *(f"_{i}" for i in range(7))),
    *("arrived", *(f"_{i}" for i in range(7, 14))),
    "led",  # steps that thread 0 has run
    "n_threads",
    "step",
    "give_way",
)

# `n_bytes` is a multiple of READ_BLOCK; `sum` is what was read, so that the reading is not optimised away.
READ = record("address", "n_bytes", "ahead", "sum")
READ_BLOCK = 512  # bytes, eight cache lines
