"""Scores of attention and their softmax: the argument record, and the online softmax of a warp's tile.

Softmax is computed with powers of two: exp(x) = 2^(x · log2 e), and log2 e is a factor of `scale`.

Milakov and Gimelshein 2018, "Online normalizer calculation for softmax"; Dao et al. 2022, "FlashAttention".
"""

from __future__ import annotations

from ...abi.arguments import KernelArguments
from ...compile.stage import device, registers, static
from ...ptx import exp2, maximum, shuffle_xor

NO_MAXIMUM = -1e30  # the running maximum before there are scores
MASKED = -2e30  # the score of a masked token: below NO_MAXIMUM, so that its probability is 0 even then


WINDOW = 0  # a constant, see `ScoreArguments`


class ScoreArguments(KernelArguments):
    """How scores are made: softmax(cap · tanh(scale · q·k / cap)) with a window and a sink.

    Whether there is a window, a cap, and sinks is said by the constants WINDOW, SOFTCAP and SINKS.
    """

    scale: float  # of q·k, times log2 e; with a soft cap the scale divided by the cap instead
    softcap: float  # the cap, times log2 e
    window: int  # tokens that a row sees, itself among them
    sinks: int  # float32 [heads], times log2 e: the score of a token without a value


@device
def window_start(position, window):
    """The first position that a row at `position` sees."""
    low = 0
    if WINDOW:
        low = position - window + 1
        if low < 0:
            low = 0
    return low


@device
def quad_maximum(x):
    """The maximum over the 4 lanes that hold a row of an mma accumulator."""
    x = maximum(x, shuffle_xor(x, 1))
    return maximum(x, shuffle_xor(x, 2))


@device
def quad_sum(x):
    """The sum over the 4 lanes that hold a row of an mma accumulator."""
    x = x + shuffle_xor(x, 1)
    return x + shuffle_xor(x, 2)


def online_softmax(tiles: int):
    """A device function that takes the scores of 16 rows and 8 · `tiles` tokens into a running softmax."""

    @device
    def update(score: registers((tiles, 4)), best: registers(2), total: registers(2)):
        """Turn scores into probabilities relative to the new maximum.

        `score[n]` is an mma accumulator of 16 rows and 8 tokens, of which a lane holds two rows. For each of
        these `best` is the maximum of all scores so far and `total` this lane's part of the sum of
        probabilities. Returns the probabilities, the new `best` and `total`, and the factor by which earlier
        probabilities, and results that were made of them, shrink.
        """
        shrink = registers(2)
        for r in static(2):
            highest = best[r]
            for n in static(tiles):
                highest = maximum(highest, maximum(score[n, 2 * r], score[n, 2 * r + 1]))
            highest = quad_maximum(highest)
            shrink[r] = exp2(best[r] - highest)
            best[r] = highest
            total[r] = total[r] * shrink[r]
            for n in static(tiles):
                for i in static(2):
                    score[n, 2 * r + i] = exp2(score[n, 2 * r + i] - highest)
                    total[r] = total[r] + score[n, 2 * r + i]
        return score[()], best[()], total[()], shrink[()]

    return update


softmax_16_tokens = online_softmax(2)
softmax_64_tokens = online_softmax(8)
