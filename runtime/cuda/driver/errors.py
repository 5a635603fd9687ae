"""The exceptions of the CUDA machine, apart from the driver so that importing them takes no time."""

from __future__ import annotations

from .... import KukriError


class CudaError(KukriError, RuntimeError):
    """A call of the CUDA driver failed."""


class CudaUnavailable(CudaError):
    """No GPU can be used: there is none, it or its driver is too old, or kernels cannot be compiled."""


class NoCudaDevice(CudaUnavailable):
    """The machine has no NVIDIA GPU, or no driver for one."""


class CudaOutOfMemory(CudaError):
    """The GPU has too little free memory for an allocation."""
