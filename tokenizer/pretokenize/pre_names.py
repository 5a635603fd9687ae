"""The `tokenizer.ggml.pre` that a GGUF file gives for a tokenizer.json's normaliser and pre-tokeniser.

Presets are compared by their patterns; if no preset has the same patterns, by how they cut a probe text
that has every kind of character.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..errors import TokenizerError
from .patterns import PUNCTUATION
from .presets import PRESETS
from .pretokenize import Split, Step, chain_steps, spell_bytes

# The name that files of an architecture usually have, where several names mean the same.
USUAL = {
    **dict.fromkeys(("qwen2", "qwen3", "qwen2moe", "qwen3moe", "qwen3next"), "qwen2"),
    **dict.fromkeys(("glm4", "glm4moe"), "glm4"),
    "exaone4": "exaone4",
    "falcon-h1": "falcon-h1",
    **dict.fromkeys(("granite", "granitehybrid"), "refact"),
    "gpt-oss": "gpt-4o",
    "hunyuan-dense": "hunyuan-dense",
    **dict.fromkeys(("lfm2", "lfm2moe"), "lfm2"),
    "minimax-m2": "minimax-m2",
    "stablelm": "stablelm2",
    "starcoder2": "starcoder",
}
_NFC_OF_MODELS = frozenset(
    {"qwen2"}
)  # whose own tokenizers normalise, though copies of them may have lost that
_PROBE = (
    "I'VE we'll They're 'S's x'D HTTPServer camelCase ÀÉÎ ñandú Straße ΑΒΓδ Привет МИР 12 1234567 3.14 "
    "٣٤٥ ½x a1b22c333d4444 \t\tif x:\n\n\n   return  y;\r\n\r\n  \n漢字かな交じり文、中文字符。"
    "한국어 ไทย नमस्ते \u0301e\u0301 "
    '😀👩‍👩‍👧!! ... --- ##$%^&*()_+{}|:"<>?~` /path/to\\file a_b-c.d@e.com  \u00a0\u3000 «quoted» “x” '
    "—–  end \n "
    "'hello' don''t 999 1000000,00 <|x|> e=mc² \u200d\u200b naïve \u0915\u094d\u0937   trailing   "
)


def pre_name(steps: Sequence[Step], nfc: bool, ignore_merges: bool, architecture: str = "") -> str:
    """The name of the preset that cuts texts as `steps` do; `steps` are those of byte-level BPE.

    Of several with the same patterns the one is taken that also agrees in normalising to NFC (`nfc`), then
    the one that is usual for the `architecture`, then the one that agrees in `ignore_merges`, which only
    tells where a vocabulary has words that its merges do not make. TokenizerError if there is none.
    """
    patterns = tuple(_source(step) for step in steps)
    while patterns and patterns[-1] is None:
        patterns = patterns[:-1]
    alike = [name for name, preset in PRESETS.items() if preset.patterns == patterns]
    if not alike:
        cut = _cut(steps)
        alike = [name for name, preset in PRESETS.items() if _cut(preset.steps()) == cut]
    if not alike:
        raise TokenizerError("GGUF has no name for the pre-tokenizer of this tokenizer.json")
    usual = USUAL.get(architecture, "")

    def distance(name: str) -> tuple[bool, bool, bool]:
        preset = PRESETS[name]
        same_nfc = preset.nfc == nfc or (name == usual and name in _NFC_OF_MODELS)
        return not same_nfc, name != usual, preset.ignore_merges != ignore_merges

    best = min(alike, key=distance)
    if nfc and not PRESETS[best].nfc:
        raise TokenizerError("GGUF has no name for this tokenizer.json, which normalises texts to NFC")
    return best


def _source(step: Step) -> str | None:
    """A step as presets spell it; something that none has, if it is no cutting at matches."""
    if step is spell_bytes:
        return None
    if not isinstance(step, Split) or step.invert or step.behavior not in ("Isolated", "Contiguous"):
        return f"{step!r}"
    plus = step.behavior == "Contiguous" and (step.source == PUNCTUATION or step.source.startswith(r"\p"))
    return f"{step.source}+" if plus else step.source


def _cut(steps: Sequence[Step]) -> list[str]:
    return list(chain_steps([step for step in steps if step is not spell_bytes])(_PROBE, True))
