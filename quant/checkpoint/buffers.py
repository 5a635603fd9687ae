"""Buffers: tensors of a checkpoint that are no weights, since they follow from its configuration.

PyTorch saves the constants of a module beside its weights unless it is told not to: causal masks and their
fill value (GPT-2, GPT-NeoX, GPT-J), frequencies, sines and cosines of rotary embeddings, position numbers.
They are computed anew, so neither their dtype nor their size matters.
"""

from __future__ import annotations

import re

_BUFFER = re.compile(
    r"(?:.*\.)?(?:"
    r"rotary\w*\.(?:\w+\.)*\w*(?:inv_freq|freqs|freqs_cis|cos_cached|sin_cached)"
    r"|rope\.(?:inv_freq|freqs|freqs_cis)"
    r"|(?:h|layers|blocks)\.\d+\.(?:attn|attention|self_attn|self_attention)(?:\.attention)?"
    r"\.(?:bias|mask|tril)"
    r"|masked_bias|causal_mask|position_ids|num_batches_tracked"
    r")"
)


def is_buffer(name: str) -> bool:
    """Whether `name`, of a tensor in a checkpoint, is that of a buffer that PyTorch models recompute."""
    return _BUFFER.fullmatch(name) is not None
