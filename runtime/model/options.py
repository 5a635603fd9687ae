"""What a caller chooses when a model is loaded."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..adapters.stored import NO_ADAPTERS, Adapters

DEVICES = ("auto", "cpu", "cuda", "reference")
TASKS = ("auto", "text", "embed", "rerank")
SPLIT_MODES = ("auto", "layers", "tensors")
SPECULATE = ("auto", "off", "ngram", "draft", "mtp")
MAX_THREADS = 1024
DEFAULT_PARALLEL = 4
MAX_PARALLEL = 1024
ALL_LAYERS = 1 << 20


@dataclass(frozen=True)
class LoadOptions:
    """The options of `load_model`. Values out of range raise ValueError.

    - `device`: "cpu", "cuda" (NVIDIA GPUs), "reference" (NumPy in float32: slow, for comparison), or
      "auto": the GPU if there is one that can run the model, with as many of the last layers as its memory
      holds, else the CPU.
    - `context`: the most tokens that prompt and answer may have together. Default: what the model was trained
      for, at most 8192, and less, down to 1024, where memory is short.
    - `threads`: threads of the CPU machine. Default: the physical cores that this process may use, within the
      quota of its container, service or job.
    - `kv_type`: how the KV cache stores numbers: "f32", "f16", "q8_0", "q4_0", on the CPU also keys / values
      in different types ("q8_0/q4_0", "f16/q8_0", "f16/q4_0"), or "auto". "auto" is f32 if all weights are
      floats. Else it is f16 on a GPU, and on the CPU q8_0, but f16 for models whose keys have a bias beside
      attention sinks or a soft cap. The reference machine always stores float32.
    - `parallel`: how many generations may run at the same time, each with a whole context of its own.
      Default: DEFAULT_PARALLEL, which share the memory of one context; 1 for models with recurrent states.
    - `contexts`: how many whole contexts the KV cache has room for, if not as many as `parallel` says. With
      fewer, generations wait for each other where all are long.
    - `speculate`: whether decode steps compute tokens along that are likely to follow, where that pays:
      "ngram" looks them up in prompt and answer, "draft" asks the draft model, "auto" does both, "off"
      neither; "mtp" asks the model's own layer for multi-token prediction.
    - `draft`: file or folder of a draft model, a smaller one, best with the same vocabulary.
    - `task`: what the model is loaded for: "text" to write some, "embed" for vectors of texts, "rerank"
      for scores of documents, or "auto": what its files say that it is made for.
    - `beams`: how many beams a search is going to have, for which there are as many sequences.
    - `deterministic`: compute every sequence by itself, so that what runs beside it cannot change its results
      even by rounding; nothing is shared, drafted or batched.
    - `gpu_layers`: how many layers, the last ones, run on the GPU with the logits; the others run on the
      CPU. Default: all, or with "auto" as many as fit.
    - `devices`: the numbers of the GPUs that share the model, as the driver counts them, which then run all
      of it. Default: the first one, and where it has no room for the model all there are.
    - `split_mode`: how several GPUs share a model: by "tensors", where every layer's work is divided, or by
      "layers", a part of them each; "auto" is by tensors if the model and the GPUs allow it.
    - `adapters`: LoRA adapters and control vectors; their effects add up.
    - `weight_cache`: bytes on disk for weights in the order in which the CPU machine reads them, of all
      models together; a model whose weights are there starts without repacking them. Default: 0, none.
    - `background`: whether a model on a GPU answers while kernels that its first steps do not need are still
      compiled.
    """

    device: str = "auto"
    context: int | None = None
    threads: int | None = None
    kv_type: str = "auto"
    gpu_layers: int | None = None
    parallel: int | None = None
    speculate: str = "auto"
    task: str = "text"
    adapters: Adapters = NO_ADAPTERS
    draft: str | None = None
    beams: int = 1
    deterministic: bool = False
    contexts: int | None = None
    devices: tuple[int, ...] | None = None
    split_mode: str = "auto"
    cpu_moe: int = 0
    weight_cache: int = 0
    background: bool = True

    def __post_init__(self) -> None:
        if self.device not in DEVICES:
            raise ValueError(f"unknown device {self.device!r}; there are {', '.join(DEVICES)}")
        if self.context is not None and self.context < 1:
            raise ValueError(f"the context must be at least one token, not {self.context}")
        if self.threads is not None and not 1 <= self.threads <= MAX_THREADS:
            raise ValueError(f"threads must be from 1 to {MAX_THREADS}, not {self.threads}")
        if self.speculate not in SPECULATE:
            raise ValueError(f"unknown speculation {self.speculate!r}; there are {', '.join(SPECULATE)}")
        if self.speculate == "mtp" and self.gpu_layers:
            raise ValueError(
                "multi-token prediction needs all layers on one device: without gpu_layers (--gpu-layers)"
            )
        if self.speculate == "draft" and self.draft is None:
            raise ValueError("speculation by a draft model needs one")
        if self.task not in TASKS:
            raise ValueError(f"unknown task {self.task!r}; there are {', '.join(TASKS)}")
        if self.parallel is not None and not 1 <= self.parallel <= MAX_PARALLEL:
            raise ValueError(f"parallel must be from 1 to {MAX_PARALLEL}, not {self.parallel}")
        if not 1 <= self.beams <= MAX_PARALLEL:
            raise ValueError(f"beams must be from 1 to {MAX_PARALLEL}, not {self.beams}")
        if self.contexts is not None and not 1 <= self.contexts <= MAX_PARALLEL:
            raise ValueError(f"contexts must be from 1 to {MAX_PARALLEL}, not {self.contexts}")
        if self.gpu_layers is not None and self.gpu_layers < 0:
            raise ValueError(f"there cannot be {self.gpu_layers} layers on the GPU")
        if self.weight_cache < 0:
            raise ValueError(f"the weight cache cannot have {self.weight_cache} bytes")
        if self.cpu_moe < 0:
            raise ValueError(f"there cannot be {self.cpu_moe} layers whose experts are on the CPU")
        if self.cpu_moe and (self.gpu_layers or len(self.devices or ()) > 1):
            raise ValueError(
                "experts stay on the CPU beside one card with all layers: cpu_moe (--cpu-moe) goes with "
                "neither gpu_layers (--gpu-layers) nor several devices"
            )
        self._check_devices()

    def _check_devices(self) -> None:
        devices = self.devices
        if self.split_mode not in SPLIT_MODES:
            raise ValueError(f"unknown split {self.split_mode!r}; there are {', '.join(SPLIT_MODES)}")
        if devices is None:
            return
        if self.device not in ("auto", "cuda"):
            raise ValueError(f"there are no cards to choose for device {self.device!r}")
        if not devices or len(set(devices)) < len(devices) or min(devices) < 0:
            raise ValueError("devices are numbers of cards, each once, such as 0,1")
        if len(devices) > 1 and self.gpu_layers is not None:
            raise ValueError("the CPU shares layers with one card only: devices or gpu_layers, not both")
        if len(devices) > 1 and self.speculate == "mtp":
            raise ValueError("multi-token prediction runs on one card only")


def device_numbers(devices: str | Sequence[int] | None) -> tuple[int, ...] | None:
    """The numbers of GPUs, written "0,1" or listed; None for None. Raises ValueError."""
    if not isinstance(devices, str):
        return None if devices is None else tuple(int(number) for number in devices)
    try:
        return tuple(int(number) for number in devices.split(","))
    except ValueError:
        raise ValueError(f"devices are numbers of cards, such as 0,1, not {devices!r}") from None
