"""Argument records: the structs through which Python passes addresses, sizes and scalars to compiled kernels.

Every kernel is called as `kernel(arguments, step, thread)`: the address of the instruction's argument record,
the address of the step's STEP record, and the number of the calling thread. A record consists of 8-byte
fields, int64 unless listed under `floats` (float64). These conventions hold for all records:

* A field described with a dtype and a shape is the *address* of that array. 0 stands for an optional array
  that is absent.
* `NAME_stride` is the distance in bytes from one row of matrix `NAME` to the next.
* `NAME_thread_stride` is the distance in bytes between the copies that the threads have of `NAME` in a decode
  step; 0 if all threads share one copy.
* Sizes count elements unless the name ends in `_bytes`. Booleans are 0 or 1.
"""

from __future__ import annotations

import numpy as np


def record(*fields: str, floats: tuple[str, ...] = ()) -> np.dtype:
    """A struct dtype: the int64 `fields`, then the float64 fields `floats`."""
    return np.dtype([*((f, np.int64) for f in fields), *((f, np.float64) for f in floats)])


# One step of the machine: the instructions to run and the batch to run them on.
STEP = record(
    "instructions",  # INSTRUCTION [n_instructions]
    "n_instructions",
    "n_threads",  # threads that run the step
    "n_rows",  # rows of the batch, one a token
    "n_logits",  # rows whose logits are computed
    "tokens",  # int32 [n_rows], token ids
    "sequences",  # int32 [n_rows], the sequence of each row
    "positions",  # int32 [n_rows], the position of each row in its sequence
    "logits_indices",  # int32 [n_logits], rows whose logits are computed
    "blocks",  # int32 [sequences, pages]: the block table of the paged KV cache
    "blocks_stride",
    "page_size",  # tokens a page
    "row_tile",  # rows are partitioned in tiles of so many: TOKENS, or 1
    "expert_tile",  # rows of an expert are padded to tiles of so many: TOKENS, ROWS of matrix tiles, or 1
)

# One call of a kernel.
INSTRUCTION = record(
    "kernel",  # address of the kernel's machine code
    "arguments",  # address of its argument record
    "barrier",  # boolean: all threads meet at a barrier after this instruction
    # int64 [n_threads, 4]: bounds of two runs of memory that each thread reads soon, to be prefetched while
    # it waits at the barrier; 0: none.
    "ahead",
)

# Values of the field `gate`: the activation f of out = f(x) · y. 0: not gated, or GELU by erf.
SILU, GELU_TANH, CLIPPED, RELU2, IDENTITY, TANH = range(1, 7)

# GEMMS, SKINNY_GEMMS, GEMVS, FLOAT_GEMMS: out = x · Wᵀ with W stored as panels of LANES rows
# (simd/panels.py). The kernels work on pairs of panels; with `gate`, the first panel of a pair belongs to the
# gate matrix and the second to the up matrix.
MATMUL = record(
    "weights",  # uint8 panels
    "n_panels",  # panels of W; with `gate`, of one of the two matrices
    "panel_bytes",  # bytes of a panel
    "pair_stride",  # bytes from the first panel of a pair to the first panel of the next pair
    "second_offset",  # bytes from the first panel of a pair to its second
    "n_blocks",  # quantisation blocks a row of W
    "width",  # columns of W
    # float32 rows; GEMVS: a quantised row, SKINNY_GEMMS: quantised rows, GEMMS: tiles of quantised rows
    # (kernels/matmul/quantize.py)
    "x",
    "x_stride",  # float32 rows and SKINNY_GEMMS only
    "x_thread_stride",
    "tickets",  # TILE_GEMMS: int64 [1], how many tasks threads have drawn; 0 before and after the instruction
    "x_rest",  # TILE_GEMMS of float weights: bytes from x in bfloat16 to what that lacks
    "residuals",  # GEMMS: int8 residual codes of the tiles
    "residual_lists",  # GEMMS: int32 [groups, 1 + rows], which rows have residual codes
    "residual_list_stride",  # bytes from the list of one group to the next
    "out",  # float32 [rows, n_panels · LANES]
    "out_stride",
    "bias",  # float32 [n_panels · LANES]
    "second_bias",  # with `gate`: float32 [n_panels · LANES], the bias of the up matrix
    "accumulate",  # boolean: add to `out` instead of overwriting it
    "gate",  # activation f of out = f(x · gateᵀ) · (x · upᵀ); 0: out = x · Wᵀ
    "on_logits_rows",  # boolean: only the rows whose logits are computed
    "n_rows_address",  # int32 [1]: number of rows, known only during the step; 0: as many as the step has
    # SKINNY_, FLOAT_ and TILE_GEMMS: fewer or more rows than these are left to another kernel; 0: no limit.
    "min_rows",
    "max_rows",
    "scratch",  # uint8 [n_threads, gemm_scratch_bytes], SKINNY_GEMMS: [n_threads, skinny_scratch_bytes]
    "scratch_stride",
    # Mixtures of experts: the matrices of all experts lie one behind the other.
    "expert_stride",  # bytes from the matrix of one expert to the next
    "bias_stride",  # bytes from the bias of one expert to the next
    "n_experts",  # several rows: experts whose rows are grouped in x; 0: one matrix for all rows
    # Several rows: int32 [n_experts + 1]; expert e has tiles expert_tiles[e] … [e+1] - 1 of expert_tile rows.
    "expert_tiles",
    "expert",  # decode: float32 [1], the expert's number; 0: there is one matrix
    "routing_weight",  # decode: float32 [1], the factor of the product
    "expert_thread_stride",  # decode: the same distance for `expert` and `routing_weight`
    # Decode: threads partition the panels of several products together, of which this one's begin with number
    # `pool_start` of `pool` (kernels/common/partition.py); 0: the panels of this product.
    "pool",
    "pool_start",
    floats=("limit", "alpha"),  # parameters of CLIPPED
)

# EMBEDS: out = scale · table[token], from a table that is stored as panels.
EMBED = record(
    "panels",  # uint8 panels of the embedding table
    "panel_bytes",  # bytes of a panel
    "n_blocks",  # quantisation blocks a row of the table
    "width",  # columns of the table
    "out",  # float32 [rows, width]
    "out_stride",
    "out_thread_stride",
    "scratch",  # uint8 [n_threads, embed_scratch_bytes]
    "scratch_stride",
    "tokens",  # rows of the table; a token id beyond them reads row 0
    "replicated",  # boolean: every thread computes the only row into its own copy
    floats=("scale",),
)

# All kernels of kernels/common/pointwise.py; each kernel reads the fields that its docstring names.
POINTWISE = record(
    "x",  # float32 [rows, width]
    "x_stride",
    "x_thread_stride",
    "y",  # float32 rows, the second operand
    "y_stride",
    "y_thread_stride",
    "out",  # float32 rows
    "out_stride",
    "out_thread_stride",
    "width",  # columns of x
    "groups",  # equal parts of a row: heads, or groups of a norm
    "weight",  # float32: norm weights, inverse frequencies, or a position table
    "weight_stride",  # bytes from row to row of `weight`, or from group to group; 0: all share the same
    "bias",  # float32 [width]
    "length",  # columns, or tokens: see the kernel
    "start",  # first dimension of a head that RoPE rotates, or that JOIN_HEADS copies
    "on_logits_rows",  # boolean: only the rows whose logits are computed
    "n_rows_address",  # int32 [1]: see MATMUL
    "replicated",  # boolean: every thread computes the only row into its own copy
    "gate",  # activation
    "interleaved",  # boolean: RoPE pairs neighbouring dimensions instead of the two halves
    "cos",  # float32 [rows, n_angles]
    "sin",  # float32 [rows, n_angles]
    "angle_stride",  # bytes from row to row of cos and sin
    "n_angles",  # pairs of dimensions that RoPE rotates
    floats=(
        "scalar",  # epsilon, attention factor, scale, growth or cap: see the kernel
        "other_scalar",
        "limit",  # parameters of CLIPPED
        "alpha",
    ),
)

# QUANTIZE_ROW, QUANTIZE_ROWS, QUANTIZE_TILES, LIST_RESIDUALS: activations in 8 bits
# (kernels/matmul/quantize.py); TILE_ROWS: in bfloat16 (kernels/matmul/tile_gemm.py).
QUANTIZE = record(
    "x",  # float32 [rows, width]
    "x_stride",
    "x_thread_stride",
    "width",  # columns of x, a multiple of 32
    "out",  # uint8: the quantised row of each thread, quantised rows, or the tiles of all rows
    "out_thread_stride",
    "residuals",  # tiles only: int8 residual codes and their scales
    "residual_lists",  # tiles only: int32 [groups, 1 + rows]
    "residual_list_stride",  # bytes from the list of one group to the next
    "on_logits_rows",  # boolean: only the rows whose logits are computed
    "n_rows_address",  # int32 [1]: see MATMUL
    "out_stride",  # QUANTIZE_ROWS only
    "min_rows",  # QUANTIZE_ROWS and TILE_ROWS: see MATMUL
    "max_rows",
    "rest",  # TILE_ROWS: bytes from x in bfloat16 to what that lacks; 0: x is rounded
    # QUANTIZE_ROW: the same fields of the only product that reads the row; a thread without panels skips it.
    "n_panels",
    "pool",
    "pool_start",
)

# ROUTE_ROWS: the top-k experts of each row and their routing weights.
ROUTE = record(
    "scores",  # float32 [rows, n], the router's logits
    "scores_stride",
    "scores_thread_stride",
    "experts",  # float32 [rows, top], whole numbers
    "experts_stride",
    "routing_weights",  # float32 [rows, top]
    "routing_weights_stride",
    "experts_thread_stride",  # the same distance for `experts` and `routing_weights`
    "n",  # experts
    "top",  # experts chosen a row
    "bias",  # float32 [n], added for the choice but not for the weights
    "sigmoid",  # boolean: probabilities by sigmoid instead of softmax
    "normalised",  # boolean: the weights of a row sum to 1 before scaling
    "groups",  # equal groups of experts
    "top_groups",  # groups from which experts are chosen
    "group_best",  # the score of a group is the sum of its `group_best` best members
    "expert_scales",  # float32 [n], a factor for the weight of each expert
    "scratch",  # float32 [n_threads, route_scratch_bytes / 4]
    "scratch_stride",
    "on_logits_rows",  # boolean: only the rows whose logits are computed
    "n_rows_address",  # int32 [1]: see MATMUL
    "replicated",  # boolean: every thread computes the only row into its own copy
    floats=("scale",),  # factor of all routing weights
)

# SORT_BY_EXPERT, PERMUTE_ROWS, UNPERMUTE_ROWS: copies of rows grouped by expert. The rows of each expert fill
# whole tiles of expert_tile rows, padded with rows of zeros.
PERMUTE = record(
    "experts",  # float32 [rows, top], whole numbers
    "experts_stride",
    "routing_weights",  # float32 [rows, top]
    "routing_weights_stride",
    "top",  # experts a row
    "n_experts",
    "x",  # float32 [rows, width], the input: rows to permute, or permuted rows
    "x_stride",
    "out",  # float32 [rows, width], the output
    "out_stride",
    "width",
    "source_rows",  # int32 [permuted rows]: the row that each permuted row copies; -1 for padding
    "permuted_rows",  # int32 [rows, top]: the permuted row of each row and chosen expert
    "expert_tiles",  # int32 [n_experts + 1]: first tile of each expert; then int32 [n_experts] of scratch
    "n_rows_address",  # int32 [1]: number of permuted rows, written by SORT_BY_EXPERT
    "on_logits_rows",  # boolean: only the rows whose logits are computed
)

# ADD_CHOICES: the sum of what the experts of the only row have computed, each times its weight already.
CHOICES = record(
    "x",  # float32 [n, width]
    "x_stride",
    "n",
    "out",  # float32 [width]
    "width",  # a multiple of LANES
    "on_logits_rows",  # boolean: nothing to do if no row's logits are computed
)

# KV_STORES, PREFILL_ATTENTIONS, DECODE_ATTENTIONS, MERGE_SPLITS, MERGE_ROWS.
ATTENTION = record(
    "q",  # float32 [rows, heads · head_dim]
    "q_stride",
    "k",  # float32 [rows, kv_heads · head_dim]
    "k_stride",
    "v",  # float32 [rows, kv_heads · value_step]; the first value_dim columns of each head are used
    "v_stride",
    "value_step",
    "value_dim",  # at most head_dim
    "out",  # float32 [rows, heads · value_dim]; kernels that split the context write `partials` instead
    "out_stride",
    "keys",  # the layer's pool of keys, as kernels/attention/kv_cache.py has it
    "values",  # the layer's pool of values
    "heads",
    "kv_heads",
    "head_dim",
    "window",  # sliding window: positions that a query attends to, its own included; 0: all
    # Keys, without their offset and times their factors, and values are rotated in blocks of so many
    # dimensions (kernels/attention/rotation.py); 0: the cache has them as they are.
    "key_rotation",
    "value_rotation",
    "key_offsets",  # float32 [kv_heads, padded head_dim]: what the cache's keys lack; 0: nothing
    "key_factors",  # float32 [kv_heads, padded head_dim]: what they are multiplied by then; 0: 1
    "query_factors",  # float32 [kv_heads, padded head_dim], 1 / key_factors
    "scratch",  # uint8 [n_threads, attention_scratch_bytes], laid out by `sizes.scratch_at`
    "scratch_stride",
    # DECODE_ATTENTIONS only:
    "append",  # boolean: write the row's key and value to the cache first
    "q_thread_stride",
    "k_thread_stride",
    "v_thread_stride",
    # Kernels that split the context, DECODE_ATTENTIONS always:
    "partials",  # float32 [rows, splits, heads, padded head_dim + 16]: `sizes.partials_bytes`; 0: no splits
    # DECODE_ATTENTIONS only:
    "q_norm",  # float32 [head_dim] RMS norm weights, padded to a multiple of 16
    "k_norm",  # float32 [head_dim], as q_norm
    "cos",  # float32 [n_angles] of the only row; 0: no RoPE
    "sin",  # float32 [n_angles]
    "n_angles",
    "interleaved",  # boolean: RoPE pairs neighbouring dimensions instead of the two halves
    "sinks",  # float32 [heads], attention sink logits in units of ln 2
    "partials_stride",  # bytes from row to row of `partials`
    # Rows of a sequence in a step from which on it is TILE_ATTENTIONS' work and not PREFILL_ATTENTIONS'; 0:
    # each of them computes all rows.
    "tile_rows",
    # PREFILL_ATTENTIONS, TILE_ATTENTIONS, MERGE_ROWS:
    "ends",  # int32 [rows], length of each row's sequence if attention reads both ways; 0: it is causal
    floats=(
        "scale",
        "softcap",
        "norm_eps",
    ),  # factor of scores; soft cap of scores, 0: none; RMS norm epsilon
)

# ALTUP_PREDICT, ALTUP_CORRECT: several residual streams (kernels/common/altup.py).
ALTUP = record(
    "streams",  # int64 [n, 6]: address, stride, thread stride of each stream's input, then of its output
    "n",  # streams
    "active",  # number of the stream that the layer computes on
    "coefficients",  # float32 [rows, n · n] (predict) or [rows, n] (correct)
    "coefficients_stride",
    "coefficients_thread_stride",
    "x",  # correct: float32 [rows, width], the layer's output
    "x_stride",
    "x_thread_stride",
    "out",  # float32 [rows, width]
    "out_stride",
    "out_thread_stride",
    "weight",  # correct: float32 [width]
    "width",
    "scratch",  # predict: float32 [n_threads, n, LANES]
    "scratch_stride",
    "on_logits_rows",  # boolean: only the rows whose logits are computed
    "n_rows_address",  # int32 [1]: see MATMUL
    "replicated",  # boolean: every thread computes the only row into its own copy
)

# CAUSAL_CONV, DELTA_RULE, STATE_SCAN (kernels/common/recurrent.py).
RECURRENT = record(
    "x",  # float32 rows: the convolution's input; queries, keys and values; or x, B and C
    "x_stride",
    "x_thread_stride",
    "step",  # float32 [rows, heads]: step sizes before softplus
    "step_stride",
    "step_thread_stride",
    "beta",  # float32 [rows, heads]: write strengths before sigmoid
    "beta_stride",
    "beta_thread_stride",
    "out",  # float32 rows
    "out_stride",
    "state",  # float32 [sequences, …]
    "state_bytes",  # bytes of the state of one sequence
    "channels",  # channels of the convolution
    "taps",  # taps of the convolution
    "weight",  # float32 [taps, channels]
    "weight_stride",
    "bias",  # float32 [channels]
    "silu",  # boolean: SiLU after the convolution
    "groups",  # groups of heads that share queries and keys, or B and C
    "heads",
    "head_dim",
    "size",  # dimension of a key, or of B and C
    "tiled",  # boolean: head h uses group h % groups instead of h // (heads / groups)
    "a",  # float32 [heads]: decay rates, below 0
    "step_bias",  # float32 [heads]
    "skip",  # float32 [heads]: factors of x in the output
    "scratch",  # DELTA_RULE: float32 [n_threads, delta_scratch_bytes / 4]
    "scratch_stride",
    floats=("step_scale", "eps"),  # factor of `step`; epsilon of the norm of queries and keys
)

# LOG_SUMS, DIVERGENCES: statistics of rows of logits. Each thread gets a record with its own rows.
ROW_SCORES = record(
    "logits",  # float32 [n_rows, width]
    "stride",  # bytes from row to row of `logits`
    "other",  # float32 [n_rows, width], the logits to compare with
    "other_stride",
    "n_rows",
    "width",
    "sums",  # float64 [n_rows, 3]: largest logit, log of the sum of exponentials, column of the largest
    "other_sums",  # float64 [n_rows, 3] of `other`
    "out",  # float64 [n_rows]
)

# GROUP_MAXIMA: the largest of each LOGITS_GROUP logits of the rows whose logits are computed.
GROUP_MAXIMA = record(
    "logits",  # float32 [n_logits, columns]
    "logits_stride",
    "n_groups",  # whole groups of a row
    "maxima",  # output, float32 [n_logits, n_groups]
    "maxima_stride",
)

# FIRST_LOGITS: the largest logit of each row, by the maxima of its groups.
FIRST_LOGITS = record(
    "logits",  # float32 [n_logits, columns]
    "logits_stride",
    "maxima",  # float32 [n_logits, n_groups or more]
    "maxima_stride",
    "n_groups",  # whole groups of tokens
    "n_tokens",  # columns to look at: the groups', and some behind them
    "ids",  # output, int64 [n_logits]; -1: a logit is not finite
    "values",  # output, float32 [n_logits]
)

# State that the threads of a team share. The two counters are alone in their cache lines, as each arrival is:
# a write to one does not disturb threads that spin on another.
TEAM = record(
    *("posted", *(f"_{i}" for i in range(7))),  # steps that thread 0 has posted
    *("released", *(f"_{i}" for i in range(7, 14))),  # barriers passed, over all steps
    "arrivals",  # int64 [n_threads, 8]: the number of the last barrier that each worker has arrived at
    "led",  # steps that thread 0 has finished
    "n_threads",
    "step",  # address of the STEP record that was posted last
    "give_way",  # address of the C function that yields the processor; 0: none
    "idle_spins",  # reads of `posted` before a worker goes to sleep
)

# AWAIT_ROWS, ANSWER_ROWS: a mixture of experts whose rows another processor writes and whose output it reads
# (kernels/common/exchange.py). Each exchange has a number, one more than that of the exchange before it.
EXCHANGE = record(
    "asked",  # int64 [1]: the number of the last exchange whose rows have been written
    "answered",  # int64 [1]: the number of the last exchange whose output is complete
    "first",  # int64 [1]: the number of the step's first exchange
    "index",  # what this one has on top of it
    "on_logits_rows",  # boolean: if no row's logits are computed, there is no exchange
    "failed",  # int64 [1]: 1 once a thread has waited in vain, after which none waits
    "patience",  # reads of `asked` before a thread gives up
    "give_way",  # address of the C function that yields the processor; 0: none
)

# SUM_BUFFER: reads memory at full speed. `n_bytes` is a multiple of READ_BLOCK.
READ = record(
    "address",  # uint8 [n_bytes]
    "n_bytes",
    "ahead",  # bytes between a read and the prefetch issued with it
    "sum",  # output, int32: the sum of all words, so that LLVM cannot remove the reads
)
READ_BLOCK = 512  # bytes, eight cache lines
