"""What `tokenizer.ggml.pre` of a GGUF stands for: the normaliser and pre-tokeniser of the models it names.

The patterns are those of the models' own tokenizer.json.
"""

from __future__ import annotations

from dataclasses import dataclass

from .errors import TokenizerError
from .pretokenize import GPT2, PUNCTUATION, Step, chain_steps, compile_pattern, spell_bytes, split

_CONTRACTION = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"


def _words(digits: str, letters: str = r"\p{L}", other: str = r"[^\s\p{L}\p{N}]") -> str:
    """The pattern that llama-3, qwen2 and others share; they differ in how many digits make a word."""
    return rf"{_CONTRACTION}|[^\r\n\p{{L}}\p{{N}}]?{letters}+|{digits}| ?{other}+[\r\n]*|{_SPACES}"


def _cased_words(digits: str, ending: str) -> str:
    """The pattern of o200k and tekken: capitals begin a word."""
    upper, lower = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
    start = r"[^\r\n\p{L}\p{N}]?"
    return (
        rf"{start}{upper}*{lower}+{ending}|{start}{upper}+{lower}*{ending}"
        rf"|{digits}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{_SPACES}"
    )


_DEEPSEEK_V3 = (
    r"\p{N}{1,3}",
    "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+",
    r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+"""
    "|[^\r\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+| ?[\\p{P}\\p{S}]+[\r\n]*|\\s*[\r\n]+|\\s+(?!\\S)|\\s+",
)
_DEEPSEEK_CODER = (r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", r"[一-龥\u0800-一가-\ud7ff]+", r"\p{N}")


# llama.cpp's pattern for a file that names none; such files are older than the key.
_DEFAULT = (r"[\p{P}$+<=>^~|]+", GPT2, r"\p{N}+", r"[0-9][0-9][0-9]")


@dataclass(frozen=True)
class Preset:
    """Patterns applied one after the other; None among them is where bytes become symbols, if not after all.

    `nfc`: the text is normalised to NFC first. `ignore_merges`: words that are entries are not merged.
    `add_bos`: where the file does not say.
    """

    patterns: tuple[str | None, ...]
    nfc: bool = False
    ignore_merges: bool = False
    add_bos: bool = False

    @property
    def byte_level_words(self) -> bool:
        """Whether words still are text, to be spelled in byte symbols by the model."""
        return None not in self.patterns

    def step(self) -> Step:
        return chain_steps([split(compile_pattern(p)) if p else spell_bytes for p in self.patterns])


_GPT2 = Preset((GPT2,))
_DIGITS_GPT2 = Preset((r"\p{N}", GPT2))
_LLAMA3_BPE = Preset((_words(r"\p{N}{1,3}"),), ignore_merges=True, add_bos=True)
_LLAMA3_MERGED = Preset((_words(r"\p{N}{1,3}"),))
_QWEN2 = Preset((_words(r"\p{N}"),), nfc=True)
_O200K = Preset((_cased_words(r"\p{N}{1,3}", f"{_CONTRACTION}?"),))
_FALCON = Preset((PUNCTUATION + "+", GPT2, None, r"\p{N}+", r"[0-9][0-9][0-9]"))

PRESETS = {
    "default": Preset(_DEFAULT),
    **dict.fromkeys(("gpt-2", "phi-2", "jais", "exaone4", "mellum", "modern-bert"), _GPT2),
    **dict.fromkeys(("smollm", "starcoder", "refact", "codeshell", "exaone", "minerva-7b"), _DIGITS_GPT2),
    **dict.fromkeys(
        ("llama-bpe", "llama3", "llama-v3", "falcon3", "falcon-h1", "pixtral", "lfm2"), _LLAMA3_BPE
    ),
    **dict.fromkeys(("dbrx", "smaug-bpe", "glm4", "chatglm-bpe"), _LLAMA3_MERGED),
    **dict.fromkeys(("qwen2", "deepseek-r1-qwen", "megrez"), _QWEN2),
    **dict.fromkeys(("olmo", "mpt"), Preset((GPT2,), nfc=True)),
    **dict.fromkeys(("gpt-4o", "llama4"), _O200K),
    "command-r": Preset((r"\p{N}", GPT2), nfc=True),
    "qwen35": Preset((_words(r"\p{N}", r"[\p{L}\p{M}]", r"[^\s\p{L}\p{M}\p{N}]"),), nfc=True),
    "stablelm2": Preset((_words(r"\p{N}"),)),
    "tekken": Preset((_cased_words(r"\p{N}", ""),), ignore_merges=True, add_bos=True),
    "falcon": _FALCON,
    "deepseek-coder": Preset(_DEEPSEEK_CODER),
    "deepseek-v3": Preset(_DEEPSEEK_V3),
    "hunyuan-dense": Preset(_DEEPSEEK_V3),
}


def preset(name: str) -> Preset:
    """The preset of a `tokenizer.ggml.pre`; TokenizerError for a name that is not known."""
    found = PRESETS.get(name)
    if found is None:
        known = ", ".join(sorted(PRESETS))
        raise TokenizerError(f"unsupported tokenizer.ggml.pre {name[:80]!a}; known are {known}")
    return found


# Patterns that take linear time, whichever file they come from.
KNOWN_PATTERNS = frozenset(pattern for row in PRESETS.values() for pattern in row.patterns if pattern)
