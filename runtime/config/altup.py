"""AltUp and LAuReL: the sizes of several residual streams, and of a low-rank path around attention.

Baykal et al. 2023, "Alternating Updates for Efficient Transformers"; Menghani et al. 2024, "LAuReL: Learned
Augmented Residual Layer". As in Gemma 3n.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ...quant.block import QTensor
from ...quant.errors import DamagedFile
from ..archs import Arch
from .metadata import Metadata

MAX_STREAMS = 64


@dataclass(frozen=True)
class AltUpConfig:
    """The number of residual streams, and the rank of LAuReL. Raises DamagedFile for an impossible stream."""

    streams: int
    active: int  # the stream that layers work on
    laurel_rank: int
    scaled: bool = True  # per-layer inputs read the active stream times a learned scale

    def __post_init__(self) -> None:
        if not self.active < self.streams or not 2 <= self.streams <= MAX_STREAMS:
            raise DamagedFile(f"stream {self.active} of {self.streams} cannot be the active one")


def altup_from_hf(keys: Metadata, arch: Arch) -> AltUpConfig | None:
    """The sizes in config.json; None for a model of one residual stream. Raises DamagedFile."""
    if "altup_router" not in arch.layer:
        return None
    return AltUpConfig(
        streams=keys.integer("altup_num_inputs"),
        active=keys.integer("altup_active_idx", low=0),
        laurel_rank=keys.integer("laurel_rank"),
        scaled=keys.flag("altup_correct_scale", True),
    )


def altup_from_gguf(keys: Metadata, arch: Arch, tensors: Mapping[str, QTensor]) -> AltUpConfig | None:
    """The sizes in GGUF metadata and tensors; None for a model of one residual stream. Raises DamagedFile."""
    if "altup_router" not in arch.layer:
        return None
    laurel = tensors.get("blk.0.laurel_l.weight")
    if laurel is None:
        raise DamagedFile("tensor blk.0.laurel_l.weight is missing")
    return AltUpConfig(
        streams=keys.integer("altup.num_inputs"),
        active=keys.integer("altup.active_idx", low=0),
        laurel_rank=laurel.shape[0],
    )
