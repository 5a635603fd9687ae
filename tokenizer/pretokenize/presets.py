"""The values of `tokenizer.ggml.pre` in GGUF files, each the normaliser and pre-tokeniser of a model family.

The patterns are those of the models' own tokenizer.json.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..errors import TokenizerError
from .patterns import (
    ASCII_3_DIGITS,
    CJK,
    DEEPSEEK_V3,
    DIGIT,
    DIGITS,
    GPT2,
    KIMI_K2,
    LLAMA3,
    NEWLINES,
    O200K,
    PUNCTUATION,
    QWEN2,
    QWEN35,
    SYMBOLS,
    TEKKEN,
    UP_TO_3_DIGITS,
)
from .pretokenize import Split, Step, spell_bytes

_DEEPSEEK_CODER = (r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", r"[一-龥\u0800-一가-\ud7ff]+", DIGIT)
# llama.cpp's pattern for a file that names none; such files are older than the key.
_DEFAULT = (SYMBOLS, GPT2, DIGITS, ASCII_3_DIGITS)


@dataclass(frozen=True)
class Preset:
    """Split patterns, applied in order. A None among them marks where bytes become GPT-2's symbols; without
    it they do after the last pattern.

    `nfc`: texts are normalised to NFC first. `ignore_merges`: a word that is an entry is not merged.
    `add_bos`: the default for files without `add_bos_token`.
    """

    patterns: tuple[str | None, ...]
    nfc: bool = False
    ignore_merges: bool = False
    add_bos: bool = False

    @property
    def byte_level_words(self) -> bool:
        """Whether words still are text, to be spelled in byte symbols by the model."""
        return None not in self.patterns

    def steps(self) -> list[Step]:
        return [Split(pattern) if pattern else spell_bytes for pattern in self.patterns]


_GPT2 = Preset((GPT2,))
_DIGITS_GPT2 = Preset((DIGIT, GPT2))
_LLAMA3_BPE = Preset((LLAMA3,), ignore_merges=True, add_bos=True)
_LLAMA3_MERGED = Preset((LLAMA3,))
_QWEN2 = Preset((QWEN2,))
_QWEN2_NFC = Preset((QWEN2,), nfc=True)
_O200K = Preset((O200K,))
_DEEPSEEK = Preset((UP_TO_3_DIGITS, CJK, DEEPSEEK_V3))
_BLOOM = " ?[^(\\s|.,!?\u2026\u3002\uff0c\u3001\u0964\u06d4\u060c)]+"
_BAILING = (
    r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]++[\r\n]*"
    r"|\s*[\r\n]|\s+(?!\S)|\s+"
)
_DIGITS_FROM_THE_RIGHT = r"\p{N}{1,3}(?=(?:\p{N}{3})*+(?!\p{N}))"
_CASCADE = "|".join(
    [*(rf"\s{{{n}}}(?!\S)" for n in (512, 256, 128, 64, 32, 16, 8, 4)), r"\s{1,2}(?!\S)", r"\s"]
)
_LATIN_GREEK_CYRILLIC = (  # what DeepSeek LLM's pattern counts as letters
    r"A-Za-z\u00b5\u00c0-\u00d6\u00d8-\u00f6\u00f8-\u01ba\u01bc-\u01bf\u01c4-\u0293\u0295-\u02af"
    r"\u0370-\u0373\u0376\u0377\u037b-\u037d\u037f\u0386\u0388-\u038a\u038c\u038e-\u03a1\u03a3-\u03f5"
    r"\u03f7-\u0481\u048a-\u052f\u0531-\u0556\u10a0-\u10c5\u13a0-\u13f5\u13f8-\u13fd\u1c90-\u1cba"
    r"\u1cbd-\u1cbf\u1d00-\u1d2b\u1d6b-\u1d77\u1d79-\u1d9a\u1e00-\u1f15\u1f18-\u1f1d\u1f20-\u1f45"
    r"\u1f48-\u1f4d\u1f50-\u1f57\u1f59\u1f5b\u1f5d\u1f5f-\u1f7d\u1f80-\u1fb4\u1fb6-\u1fbc\u1fbe"
    r"\u1fc2-\u1fc4\u1fc6-\u1fcc\u1fd0-\u1fd3\u1fd6-\u1fdb\u1fe0-\u1fec\u1ff2-\u1ff4\u1ff6-\u1ffc\u2102"
    r"\u2107\u210a-\u2113\u2115\u2119-\u211d\u2124\u2126\u2128\u212a-\u212d\u212f-\u2134\u2139"
    r"\u213c-\u213f\u2145-\u2149\u214e\u2183\u2184\u2c00-\u2c7b\u2c7e-\u2ce4\u2ceb-\u2cee\u2cf2\u2cf3"
    r"\ua640-\ua66d\ua680-\ua69b\ua722-\ua76f\ua771-\ua787\ua78b-\ua78e\uab70-\uabbf\ufb00-\ufb06"
    r"\ufb13-\ufb17\uff21-\uff3a\uff41-\uff5a\U00010400-\U0001044f\U000104b0-\U000104d3"
    r"\U000104d8-\U000104fb\U00010c80-\U00010cb2\U00010cc0-\U00010cf2\U000118a0-\U000118df"
    r"\U0001e900-\U0001e943"
)
_ASIAN = (  # scripts that AFMoE's pattern sets apart
    "[一-\u9fff\u3400-\u4dbf\uf900-\ufaff\u3040-\u309f\u30a0-\u30ff\uff65-\uff9f\u2f00-\u2fdf\u0e40-\u0e7f\u0e80-\u0eff"
    "\u1780-\u17ff\u1000-\u109f\uaa60-\uaa7f\ua9e0-\ua9ff\uac00-\ud7af\u1100-\u11ff]+"
)
_YOUTU_SCRIPTS = (
    "[\uac00-\ud7a3\u3131-\u318e]+|[\uff01\u2026\u201c\u201d\u2018\u2019\u2014\uff1a\uff1b\uff0c\u3001-\u303f\ufe30-\ufe4f]+"
    "|[\u3105-\u312f]+|[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+"
)

PRESETS = {
    "default": Preset(_DEFAULT),
    **dict.fromkeys(
        (
            *(
                "gpt-2",
                "phi-2",
                "jais",
                "exaone4",
                "mellum",
                "modern-bert",
                "gigachat",
                "a.x-4.0",
                "trillion",
            ),
            *(
                "granite-docling",
                "jina-es",
                "jina-de",
                "jina-v2-es",
                "jina-v2-de",
                "jina-v1-en",
                "jina-v2-code",
            ),
            "roberta-bpe",
        ),
        _GPT2,
    ),
    **dict.fromkeys(
        ("smollm", "starcoder", "refact", "codeshell", "exaone", "minerva-7b", "mellum2"), _DIGITS_GPT2
    ),
    **dict.fromkeys(
        (
            *("llama-bpe", "llama3", "llama-v3", "falcon3", "falcon-h1", "pixtral", "lfm2", "midm-2.0"),
            "jina-v5-nano",
        ),
        _LLAMA3_BPE,
    ),
    **dict.fromkeys(("dbrx", "smaug-bpe", "chatglm-bpe"), _LLAMA3_MERGED),
    **dict.fromkeys(("glm4", "glm5"), Preset((LLAMA3,), ignore_merges=True)),
    **dict.fromkeys(("qwen2", "deepseek-r1-qwen", "megrez", "kormo", "f2llmv2"), _QWEN2_NFC),
    **dict.fromkeys(("stablelm2", "hunyuan", "solar-open", "grok-2"), _QWEN2),
    **dict.fromkeys(("olmo", "mpt"), Preset((GPT2,), nfc=True)),
    **dict.fromkeys(("gpt-4o", "llama4", "kanana2", "talkie", "minimax-m2"), _O200K),
    "granite-embed-multi-97m": Preset((O200K,), ignore_merges=True),
    "command-r": Preset((DIGIT, GPT2), nfc=True),
    "qwen35": Preset((QWEN35,), nfc=True),
    "tekken": Preset((TEKKEN,), ignore_merges=True, add_bos=True),
    "falcon": Preset((PUNCTUATION + "+", GPT2, None, DIGITS, ASCII_3_DIGITS)),
    "deepseek-coder": Preset(_DEEPSEEK_CODER),
    "deepseek-llm": Preset(
        (
            r"[\r\n]",
            rf"\s?[{_LATIN_GREEK_CYRILLIC}]+",
            "\\s?[!-/:-~\uff01-\uff0f\uff1a-\uff5e\u2018-\u201f\u3000-\u3002]+",
            r"\s+$",
            "[一-龥\u0800-一가-\ud7ff]+",
            DIGITS,
        )
    ),
    **dict.fromkeys(("deepseek-v3", "hunyuan-dense", "joyai-llm", "hy_v4"), _DEEPSEEK),
    "spark2_5": Preset(
        (
            UP_TO_3_DIGITS,
            CJK,
            DEEPSEEK_V3.replace("[\\p{P}\\p{S}]+[\r\n]*|\\s*[\r\n]+", "[\\p{P}\\p{S}]+|[\r\n]"),
            DIGIT,
        )
    ),
    "youtu": Preset((_YOUTU_SCRIPTS, O200K.replace(r"\p{N}{1,3}", r"\p{N}")), ignore_merges=True),
    "afmoe": Preset((_DIGITS_FROM_THE_RIGHT, _ASIAN, DEEPSEEK_V3)),
    **dict.fromkeys(("tiny_aya", "cohere2moe"), Preset((_DIGITS_FROM_THE_RIGHT, O200K))),
    "kimi-k2": Preset((KIMI_K2,)),
    "superbpe": Preset((DIGITS, r"(?=(\d{3})+(?!\d))")),
    **dict.fromkeys(("bailingmoe", "bailingmoe2", "llada-moe"), Preset((_BAILING,))),
    "seed-coder": Preset(
        (LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}{1}").replace(r"\p{N}]+[\r\n]*", r"\p{N}\r\n]+"),)
    ),
    "ufakzeka": Preset((QWEN2[QWEN2.index("|[^") + 1 :],)),
    "laguna": Preset((NEWLINES, QWEN2)),
    "exaone-moe": Preset(
        (
            r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?(?:\p{L}\p{M}*(?: \p{L}\p{M}*)*)+|\p{N}"
            r"| ?[^\s\p{L}\p{N}]+[\r\n/]?|\s*[\r\n]|\s+(?!\S)|\s+",
        )
    ),
    "minicpm5": Preset((UP_TO_3_DIGITS, LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}+")), ignore_merges=True),
    "jais-2": Preset((LLAMA3.replace(r"\s+(?!\S)|\s+", _CASCADE),)),
    **dict.fromkeys(("poro-chat", "bloom", "gpt3-finnish"), Preset((_BLOOM,))),
    "viking": Preset((_BLOOM, DIGIT)),
    "chameleon": Preset(
        (
            *("<sentinel:[0-9]+>", "IMGIMG[A-I]{1,4}Z", r"[\t\n]|    |  ", DIGIT, r"[\p{P}!-/:-@\[-`{-~]"),
            GPT2,
        ),
        add_bos=True,
    ),
}


# These spell spaces as U+2581 and bytes as SentencePiece does, and merge over the whole text.
SPACED = frozenset(("gemma4", "granite-embed-multi-311m", "sarvam-moe"))


def preset(name: str) -> Preset:
    """The preset of a `tokenizer.ggml.pre`; TokenizerError for a name that is not known."""
    found = PRESETS.get(name)
    if found is None:
        known = ", ".join(sorted([*PRESETS, *SPACED]))
        raise TokenizerError(f"unsupported tokenizer.ggml.pre {name[:80]!a}; known are {known}")
    return found
