"""Tokenizers in Hugging Face's files: a folder, or one of its files by itself."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import islice
from pathlib import Path
from typing import Any

from ..core import Tokenizer
from ..errors import TokenizerError
from .components import value
from .declared import read_settings
from .files import CONFIG_LIMITS, TEMPLATE_BYTES, read_file, read_object
from .tokenizer_json import tokenizer_from_json
from .tokenizer_model import tokenizer_from_model

MAX_TEMPLATES = 64  # files in additional_chat_templates; models have up to three


def load_tokenizer(source: str | Path) -> Tokenizer:
    """The tokenizer of a tokenizer.json, tokenizer.model or tekken.json, or a folder with one of them.

    In a folder, tokenizer_config.json, special_tokens_map.json and added_tokens.json name begin, end and
    other added tokens; the chat template comes from the first or from chat_template.jinja or .json. A
    tokenizer.model on its own behaves as in SentencePiece: control tokens are never found in a text.
    TokenizerError if a file is damaged or not supported, or leads out of the folder.
    """
    path = Path(source)
    if path.is_dir():
        config = read_settings(path)
        for name in ("tokenizer.json", "tokenizer.model", "tekken.json"):
            if (path / name).exists():
                read = tokenizer_from_model if name.endswith(".model") else tokenizer_from_json
                return read(path / name, config, _chat_templates(path, config), path)
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
    file = read_object(folder / "chat_template.json", CONFIG_LIMITS, folder)
    for found in (config.get(key), file.get(key)):
        if isinstance(found, str):
            templates["default"] = found
        elif isinstance(found, list):
            for item in found:
                if not isinstance(item, dict):
                    raise TokenizerError(f"{folder}: {key} is neither a text nor a list of named texts")
                templates[value(item, "name", str)] = value(item, "template", str)
    files = sorted(islice((folder / "additional_chat_templates").glob("*.jinja"), MAX_TEMPLATES + 1))
    if len(files) > MAX_TEMPLATES:
        raise TokenizerError(f"{folder}: over {MAX_TEMPLATES} files in additional_chat_templates")
    for name, path in [*((path.stem, path) for path in files), ("default", folder / "chat_template.jinja")]:
        try:
            templates[name] = read_file(path, TEMPLATE_BYTES, folder).decode("utf-8")
        except FileNotFoundError:
            pass
        except UnicodeDecodeError as error:
            raise TokenizerError(f"{path}: {error}") from None
    return templates
