"""Models that write no text, by the names that their files have: for errors that say what such a file is."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType

ENCODER = "an encoder: it makes vectors or labels of a text, and writes none"
ENCODER_DECODER = "an encoder-decoder model, which is not supported: only decoder-only models are"
SPEECH = "a model for speech, which is not supported: only language models are"
PICTURES = "a model for pictures, which is not supported: only language models are"
PROJECTOR = (
    "the vision or audio part of a larger model (mmproj): give the file of that model's text part, which "
    "runs without it"
)
ADAPTER = "an adapter (LoRA), not a model: give the model that it is for, and this file with --lora"
IMATRIX = "an importance matrix, which helps to quantise a model and is none"
CONTROL_VECTOR = (
    "a control vector, not a model: give the model that it is for, and this file with --control-vector"
)

_NAMES = {  # kind → `general.architecture` of GGUF files and `model_type` of config.json
    ENCODER: "albert deberta deberta-v2 distilbert electra ernie eurobert "
    "jina-bert-v2 jina-bert-v3 longformer mpnet neo-bert new nomic-bert-moe t5encoder xlm-roberta-xl xlnet",
    ENCODER_DECODER: "bart blenderbot encoder-decoder fsmt led longt5 m2m_100 marian mbart mt5 nllb-moe "
    "pegasus prophetnet t5 t5gemma t5gemma2 umt5",
    SPEECH: "hubert moonshine seamless_m4t speech_to_text speecht5 wav2vec2 wav2vec2-bert wavtokenizer-dec "
    "whisper",
    PICTURES: "beit blip chinese_clip clip_vision_model clip_text_model convnext deit detr dinov2 layoutlmv3 "
    "sam segformer siglip siglip2 siglip_vision_model swin vit yolos",
    PROJECTOR: "clip",
    CONTROL_VECTOR: "controlvector",
}
OTHER_ARCHITECTURES: Mapping[str, str] = MappingProxyType(
    {name: kind for kind, names in _NAMES.items() for name in names.split()}
)
OTHER_TYPES: Mapping[str, str] = MappingProxyType(  # `general.type` of GGUF files
    {"adapter": ADAPTER, "mmproj": PROJECTOR, "imatrix": IMATRIX, "controlvector": CONTROL_VECTOR}
)

# What the classes of transformers are for that have no output matrix, by the ends of their names
_TASKS = (
    ("ForSequenceClassification", "a classifier or reward model: it gives scores to a text, and writes none"),
    ("RewardModel", "a reward model: it gives scores to a text, and writes none"),
    ("Classification", "a classifier: it gives labels to a text, and writes none"),
    ("ForQuestionAnswering", "a model that marks answers in a text, and writes none"),
    ("ForMultipleChoice", "a classifier: it chooses among texts, and writes none"),
    ("ForMaskedLM", ENCODER),
    ("Model", "a model without an output matrix: it makes vectors of a text, and writes none"),
)


def task_of(classes: Iterable[object]) -> str:
    """What the first of the `classes` (`architectures` of config.json) that writes no text is for; or ""."""
    for name in classes:
        for end, kind in _TASKS:
            if isinstance(name, str) and name.endswith(end):
                return f"{name[:80]} is {kind}"
    return ""
