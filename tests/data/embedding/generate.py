"""Makes the fixtures of this folder: tiny random models, and what sentence-transformers makes of them.

    python generate.py            # into this folder; needs torch, transformers and sentence-transformers

Each fixture is a folder as sentence-transformers or transformers saves it, with `cases.npz`: `texts`, and
`vectors` float32 [texts, dimensions], or `pairs` and `scores` of a reranker.
"""

from __future__ import annotations

import os
import shutil
import sys
import tarfile
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ["HF_HUB_OFFLINE"] = "1"

import numpy as np
import torch
import transformers
from sentence_transformers import SentenceTransformer
from sentence_transformers import models as modules
from tokenizers import Tokenizer, decoders, pre_tokenizers, processors, trainers
from tokenizers import models as token_models

HERE = Path(__file__).parent
CORPUS = [
    "The quick brown fox jumps over the lazy dog.",
    "Vectors of texts lie close together where the texts mean the same.",
    "Die Katze sitzt auf der Matte und schläft; draußen regnet es.",
    "A search query is short: where do penguins live?",
    "Penguins live in the southern hemisphere, most of them in Antarctica.",
    "Numbers such as 12, 345 and 6789 are cut into digits or words.",
    "El pingüino vive en el hemisferio sur. ¿Dónde está la biblioteca?",
]
TEXTS = [
    "Where do penguins live?",
    "Penguins live in the southern hemisphere.",
    "cats",
    "x",
    " ".join(CORPUS),
    "El pingüino vive — ¡sí! — en el sur; 12 345.",
]
FIXTURES: dict[str, Callable[[Path], None]] = {}


def fixture(make: Callable[[Path], None]) -> Callable[[Path], None]:
    FIXTURES[make.__name__] = make
    return make


def randomize(model: torch.nn.Module, seed: int) -> None:
    """Weights for which every part of the model matters, which the usual initialisation does not give."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, value in model.named_parameters():
            noise = torch.randn(value.shape, generator=generator)
            if value.ndim > 1:
                embedding = "embed" in name or "wte" in name
                value.copy_(noise if embedding else 1.3 * noise / value.shape[-1] ** 0.5)
            elif name.endswith("bias"):
                value.copy_(0.3 * noise)
            else:
                value.copy_(value + 0.3 * noise)
            value.copy_(value.bfloat16())  # which packs well


def byte_level(single: str, specials: list[str], pair: str | None = None) -> Tokenizer:
    tokenizer = Tokenizer(token_models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=320, special_tokens=specials, initial_alphabet=alphabet)
    tokenizer.train_from_iterator(CORPUS, trainer)
    around(tokenizer, single, specials, pair)
    return tokenizer


def around(tokenizer: Tokenizer, single: str, specials: list[str], pair: str | None = None) -> None:
    ids = [(name, tokenizer.token_to_id(name)) for name in specials]
    tokenizer.post_processor = processors.TemplateProcessing(single=single, pair=pair, special_tokens=ids)


def save(folder: Path, model: Any, tokenizer: Tokenizer, **named: str) -> None:
    model.save_pretrained(folder)
    transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, **named).save_pretrained(folder)


def save_vectors(
    folder: Path, stages: list[Any], length: int, prompts: dict[str, str], default: str | None = None
) -> None:
    """Save the modules of sentence-transformers beside a model, and the vectors that they make."""
    transformer = modules.Transformer(str(folder), max_seq_length=length)
    with tempfile.TemporaryDirectory() as other:
        made = SentenceTransformer(
            modules=[transformer, *stages], prompts=prompts, default_prompt_name=default, device="cpu"
        )
        made.save(other)
        shutil.copytree(other, folder, dirs_exist_ok=True)
    (folder / "README.md").unlink(missing_ok=True)
    made = SentenceTransformer(str(folder), device="cpu")
    arrays = {"vectors": made.encode(TEXTS, prompt="")}
    for name in prompts:
        arrays[f"vectors of {name}"] = made.encode(TEXTS, prompt_name=name)
    np.savez_compressed(folder / "cases.npz", texts=np.array(TEXTS), **arrays)


@fixture
def qwen3_embedding(folder: Path) -> None:
    """Qwen3-Embedding: causal, the last token, which the tokenizer appends."""
    config = transformers.Qwen3Config(
        vocab_size=320,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=16,
        max_position_embeddings=512,
        tie_word_embeddings=True,
    )
    model = transformers.Qwen3Model(config)
    randomize(model, 1)
    tokenizer = byte_level("$A <|endoftext|>", ["<|endoftext|>", "<|im_start|>", "<|im_end|>"])
    save(folder, model, tokenizer, eos_token="<|im_end|>", pad_token="<|endoftext|>", padding_side="left")
    stages = [modules.Pooling(32, pooling_mode="lasttoken"), modules.Normalize()]
    prompts = {"query": "Instruct: Find what answers the query\nQuery:", "document": ""}
    save_vectors(folder, stages, 512, prompts)


def main(names: list[str]) -> None:
    torch.set_grad_enabled(False)
    with tempfile.TemporaryDirectory() as work:
        for name in names or FIXTURES:
            folder = Path(work) / name.replace("_", "-")
            folder.mkdir()
            FIXTURES[name](folder)
            target = HERE / f"{folder.name}.tar.xz"
            with tarfile.open(target, "w:xz", preset=9) as archive:
                for path in sorted(folder.rglob("*")):
                    if path.is_file():
                        archive.add(path, f"{folder.name}/{path.relative_to(folder)}", filter=_anonymous)
            print(f"{target.name}: {target.stat().st_size} bytes")


def _anonymous(entry: tarfile.TarInfo) -> tarfile.TarInfo:
    entry.uid = entry.gid = entry.mtime = 0
    entry.uname = entry.gname = ""
    return entry


if __name__ == "__main__":
    main(sys.argv[1:])
