"""Text to token ids and back: byte-level BPE and SentencePiece vocabularies, chat templates.

Reads tokenizer.json, tokenizer.model, Hugging Face folders and the metadata of GGUF files.
"""

from .chat.chat import encode_chat
from .chat.template import TemplateError, render_chat
from .core import Tokenizer
from .errors import TokenizerError
from .incremental import IncrementalDecoder
from .readers.gguf import tokenizer_from_gguf
from .readers.hf import load_tokenizer

__all__ = [
    "IncrementalDecoder",
    "TemplateError",
    "Tokenizer",
    "TokenizerError",
    "encode_chat",
    "load_tokenizer",
    "render_chat",
    "tokenizer_from_gguf",
]
