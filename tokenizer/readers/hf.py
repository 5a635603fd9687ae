"""Tokenizers in Hugging Face's files: a folder, or one of its files by itself."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..core import Tokenizer
from ..errors import TokenizerError
from .components import value
from .declared import read_settings
from .files import read_file, read_object
from .tokenizer_json import tokenizer_from_json
from .tokenizer_model import tokenizer_from_model


def load_tokenizer(source: str | Path) -> Tokenizer:
    """The tokenizer of a tokenizer.json, tokenizer.model or tekken.json, or a folder with one of them.

    In a folder, tokenizer_config.json, special_tokens_map.json and added_tokens.json name begin, end and
    other added tokens; the chat template comes from the first or from chat_template.jinja or .json. A
    tokenizer.model on its own behaves as in SentencePiece: control tokens are never found in a text.
    TokenizerError if a file is damaged or not supported.
    """
    path = Path(source)
    if path.is_dir():
        config = read_settings(path)
        if (path / "tokenizer.json").is_file():
            return tokenizer_from_json(path / "tokenizer.json", config, _chat_templates(path, config))
        if (path / "tokenizer.model").is_file():
            return tokenizer_from_model(path / "tokenizer.model", config, _chat_templates(path, config))
        if (path / "tekken.json").is_file():
            return tokenizer_from_json(path / "tekken.json", config, _chat_templates(path, config))
        raise TokenizerError(
            f"{path}: neither tokenizer.json nor tokenizer.model nor tekken.json in this folder"
        )
    if path.suffix == ".model":
        return tokenizer_from_model(path, {}, {})
    return tokenizer_from_json(path, {}, {})


def _chat_templates(folder: Path, config: Mapping[str, Any]) -> dict[str, str]:
    """Templates by name: of tokenizer_config.json, chat_template.json, chat_template.jinja the last wins.

    Beside the last there may be others, named as their files in additional_chat_templates.
    """
    key = "chat_template"
    templates: dict[str, str] = {}
    for found in (config.get(key), read_object(folder / "chat_template.json").get(key)):
        if isinstance(found, str):
            templates["default"] = found
        elif isinstance(found, list):
            for item in found:
                if not isinstance(item, dict):
                    raise TokenizerError(f"{folder}: {key} is neither a text nor a list of named texts")
                templates[value(item, "name", str)] = value(item, "template", str)
    files = [(path.stem, path) for path in sorted((folder / "additional_chat_templates").glob("*.jinja"))]
    for name, path in [*files, ("default", folder / "chat_template.jinja")]:
        try:
            templates[name] = read_file(path).decode("utf-8")
        except FileNotFoundError:
            pass
        except (OSError, UnicodeDecodeError) as error:
            raise TokenizerError(f"{path}: {error}") from None
    return templates
