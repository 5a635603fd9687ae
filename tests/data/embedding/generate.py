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
from sentence_transformers import CrossEncoder, SentenceTransformer
from sentence_transformers import models as modules
from tokenizers import Regex, Tokenizer, decoders, normalizers, pre_tokenizers, processors, trainers
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


def byte_level(
    single: str, specials: list[str], pair: str | None = None, corpus: list[str] = CORPUS
) -> Tokenizer:
    tokenizer = Tokenizer(token_models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=320, special_tokens=specials, initial_alphabet=alphabet)
    tokenizer.train_from_iterator(corpus, trainer)
    around(tokenizer, single, specials, pair)
    return tokenizer


def around(tokenizer: Tokenizer, single: str, specials: list[str], pair: str | None = None) -> None:
    ids = [(name, tokenizer.token_to_id(name)) for name in specials]
    tokenizer.post_processor = processors.TemplateProcessing(single=single, pair=pair, special_tokens=ids)


def save(folder: Path, model: Any, tokenizer: Tokenizer, **named: Any) -> None:
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


def word_piece(specials: list[str]) -> Tokenizer:
    """The tokenizer of BERT: [CLS] A [SEP], and [CLS] A [SEP] B [SEP] with types 0 and 1."""
    tokenizer = Tokenizer(token_models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    tokenizer.train_from_iterator(CORPUS, trainers.WordPieceTrainer(vocab_size=260, special_tokens=specials))
    around(tokenizer, "[CLS] $A [SEP]", ["[CLS]", "[SEP]"], "[CLS] $A [SEP] $B:1 [SEP]:1")
    return tokenizer


def unigram(folder: Path) -> Tokenizer:
    """The tokenizer of XLM-RoBERTa: SentencePiece's unigram model behind its own normaliser, NMT's NFKC."""
    import sentencepiece

    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(CORPUS),
        model_prefix=str(folder / "spm"),
        vocab_size=105,
        model_type="unigram",
        minloglevel=2,
    )
    processor = sentencepiece.SentencePieceProcessor(model_file=str(folder / "spm.model"))
    pieces = [(processor.id_to_piece(i), processor.get_score(i)) for i in range(3, len(processor))]
    vocabulary = [("<s>", 0.0), ("<pad>", 0.0), ("</s>", 0.0), ("<unk>", 0.0), *pieces, ("<mask>", 0.0)]
    tokenizer = Tokenizer(token_models.Unigram(vocabulary, unk_id=3, byte_fallback=False))
    from sentencepiece import sentencepiece_model_pb2

    proto = sentencepiece_model_pb2.ModelProto.FromString((folder / "spm.model").read_bytes())
    charsmap = normalizers.Precompiled(proto.normalizer_spec.precompiled_charsmap)
    tokenizer.normalizer = normalizers.Sequence([charsmap, normalizers.Replace(Regex(" {2,}"), " ")])
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(replacement="▁", prepend_scheme="always")
    tokenizer.decoder = decoders.Metaspace(replacement="▁", prepend_scheme="always")
    around(tokenizer, "<s> $A </s>", ["<s>", "</s>"], "<s> $A </s> </s> $B </s>")
    for name in ("spm.model", "spm.vocab"):
        (folder / name).unlink()
    return tokenizer


BERT_SPECIALS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
BERT_INPUTS = ["input_ids", "token_type_ids", "attention_mask"]
BERT_NAMES = {
    "unk_token": "[UNK]",
    "cls_token": "[CLS]",
    "sep_token": "[SEP]",
    "pad_token": "[PAD]",
    "mask_token": "[MASK]",
}
XLM_NAMES = {
    "bos_token": "<s>",
    "eos_token": "</s>",
    "unk_token": "<unk>",
    "cls_token": "<s>",
    "sep_token": "</s>",
    "pad_token": "<pad>",
    "mask_token": "<mask>",
}
BERT_SIZES = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "pad_token_id": 0,
}


@fixture
def bert(folder: Path) -> None:
    """all-MiniLM: BERT, the mean of all tokens."""
    tokenizer = word_piece(BERT_SPECIALS)
    config = transformers.BertConfig(
        vocab_size=tokenizer.get_vocab_size(), max_position_embeddings=128, **BERT_SIZES
    )
    model = transformers.BertModel(config)
    randomize(model, 2)
    save(folder, model, tokenizer, **BERT_NAMES)
    save_vectors(folder, [modules.Pooling(32, pooling_mode="mean"), modules.Normalize()], 128, {})


@fixture
def xlm_roberta(folder: Path) -> None:
    """bge-m3: XLM-RoBERTa, the first token."""
    tokenizer = unigram(folder)
    config = transformers.XLMRobertaConfig(
        vocab_size=tokenizer.get_vocab_size(),
        max_position_embeddings=514,
        type_vocab_size=1,
        **{**BERT_SIZES, "pad_token_id": 1},
    )
    model = transformers.XLMRobertaModel(config)
    randomize(model, 3)
    save(folder, model, tokenizer, **XLM_NAMES)
    save_vectors(folder, [modules.Pooling(32, pooling_mode="cls"), modules.Normalize()], 512, {})


@fixture
def nomic_bert(folder: Path) -> None:
    """nomic-embed-text: BERT with rotary positions and a gated FFN; a prompt by default."""
    tokenizer = word_piece(BERT_SPECIALS)
    config = transformers.NomicBertConfig(
        vocab_size=tokenizer.get_vocab_size(), max_position_embeddings=256, **BERT_SIZES
    )
    model = transformers.NomicBertModel(config)
    randomize(model, 4)
    save(folder, model, tokenizer, **BERT_NAMES)
    prompts = {"query": "search query: ", "document": "search document: "}
    save_vectors(folder, [modules.Pooling(32, pooling_mode="mean")], 256, prompts)


@fixture
def modernbert(folder: Path) -> None:
    """ModernBERT: alternating windows."""
    specials = ["[UNK]", "[CLS]", "[SEP]", "[PAD]", "[MASK]"]
    tokenizer = byte_level("[CLS] $A [SEP]", specials, "[CLS] $A [SEP] $B [SEP]")
    config = transformers.ModernBertConfig(
        vocab_size=320,
        max_position_embeddings=512,
        local_attention=16,
        cls_token_id=1,
        sep_token_id=2,
        bos_token_id=1,
        eos_token_id=2,
        **{**BERT_SIZES, "num_hidden_layers": 4, "pad_token_id": 3},
    )
    model = transformers.ModernBertModel(config)
    randomize(model, 5)
    save(folder, model, tokenizer, **BERT_NAMES)
    save_vectors(folder, [modules.Pooling(32, pooling_mode="mean"), modules.Normalize()], 512, {})


@fixture
def embedding_gemma(folder: Path) -> None:
    """EmbeddingGemma: Gemma 3 in both directions, and two dense layers."""
    specials = ["<pad>", "<eos>", "<bos>", "<unk>"]
    tokenizer = byte_level("<bos> $A <eos>", specials)
    config = transformers.Gemma3TextConfig(
        vocab_size=320,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=7,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=16,
        max_position_embeddings=512,
        sliding_window=24,
        query_pre_attn_scalar=16,
        use_bidirectional_attention=True,
    )
    model = transformers.Gemma3TextModel(config)
    randomize(model, 6)
    save(folder, model, tokenizer, bos_token="<bos>", eos_token="<eos>", pad_token="<pad>")
    plain = {"bias": False, "activation_function": torch.nn.Identity()}
    dense = [modules.Dense(32, 64, **plain), modules.Dense(64, 32, **plain)]
    prompts = {"query": "task: search result | query: ", "document": "title: none | text: "}
    stages = [modules.Pooling(32, pooling_mode="mean"), *dense, modules.Normalize()]
    save_vectors(folder, stages, 512, prompts)


PAIRS = [(TEXTS[0], document) for document in (*TEXTS[1:], *CORPUS[3:5])] + [("x", "y")]


def save_scores(folder: Path, length: int) -> None:
    """Save what CrossEncoder makes of PAIRS, in numbers from 0 to 1 and as logits."""
    made = CrossEncoder(str(folder), max_length=length, device="cpu")
    logits = made.predict(PAIRS, activation_fn=torch.nn.Identity())
    arrays = {"scores": made.predict(PAIRS), "logits": logits}
    np.savez_compressed(folder / "cases.npz", pairs=np.array(PAIRS), **arrays)


@fixture
def bert_reranker(folder: Path) -> None:
    """ms-marco-MiniLM: a cross-encoder with a pooler, token types, and logits as scores."""
    tokenizer = word_piece(BERT_SPECIALS)
    config = transformers.BertConfig(
        vocab_size=tokenizer.get_vocab_size(), max_position_embeddings=256, num_labels=1, **BERT_SIZES
    )
    model = transformers.BertForSequenceClassification(config)
    randomize(model, 7)
    model.config.sentence_transformers = {"activation_fn": "torch.nn.modules.linear.Identity"}
    save(folder, model, tokenizer, model_input_names=BERT_INPUTS, **BERT_NAMES)
    save_scores(folder, 256)


@fixture
def bge_reranker(folder: Path) -> None:
    """bge-reranker: XLM-RoBERTa with a head of two dense layers."""
    tokenizer = unigram(folder)
    config = transformers.XLMRobertaConfig(
        vocab_size=tokenizer.get_vocab_size(),
        max_position_embeddings=514,
        type_vocab_size=1,
        num_labels=1,
        **{**BERT_SIZES, "pad_token_id": 1},
    )
    model = transformers.XLMRobertaForSequenceClassification(config)
    randomize(model, 8)
    save(folder, model, tokenizer, **XLM_NAMES)
    save_scores(folder, 512)


@fixture
def modernbert_reranker(folder: Path) -> None:
    """gte-reranker-modernbert: a head with a norm over the mean of all tokens."""
    specials = ["[UNK]", "[CLS]", "[SEP]", "[PAD]", "[MASK]"]
    tokenizer = byte_level("[CLS] $A [SEP]", specials, "[CLS] $A [SEP] $B [SEP]")
    config = transformers.ModernBertConfig(
        vocab_size=320,
        max_position_embeddings=512,
        local_attention=16,
        cls_token_id=1,
        sep_token_id=2,
        bos_token_id=1,
        eos_token_id=2,
        num_labels=1,
        classifier_pooling="mean",
        **{**BERT_SIZES, "num_hidden_layers": 3, "pad_token_id": 3},
    )
    model = transformers.ModernBertForSequenceClassification(config)
    randomize(model, 9)
    save(folder, model, tokenizer, **BERT_NAMES)
    save_scores(folder, 512)


@fixture
def qwen3_reranker(folder: Path) -> None:
    """Qwen3-Reranker: a model that answers yes or no."""
    specials = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    tokenizer = byte_level("$A", specials, corpus=[*CORPUS, "yes no yes no yes no"])
    config = transformers.Qwen3Config(
        vocab_size=320,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=16,
        max_position_embeddings=1024,
        tie_word_embeddings=True,
    )
    model = transformers.Qwen3ForCausalLM(config)
    randomize(model, 10)
    save(folder, model, tokenizer, eos_token="<|im_end|>", pad_token="<|endoftext|>")
    prefix = (
        "<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and the "
        'Instruct provided. Note that the answer can only be "yes" or "no".<|im_end|>\n<|im_start|>user\n'
    )
    suffix = "<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"
    instruction = "Given a web search query, retrieve relevant passages that answer the query"
    scores = []
    for query, document in PAIRS:
        body = f"<Instruct>: {instruction}\n<Query>: {query}\n<Document>: {document}"
        ids = [id for part in (prefix, body, suffix) for id in tokenizer.encode(part).ids]
        logits = model(torch.tensor([ids])).logits[0, -1].float()
        yes, no = (logits[tokenizer.token_to_id(word)] for word in ("yes", "no"))
        scores.append(torch.softmax(torch.stack([no, yes]), 0)[1].item())
    np.savez_compressed(folder / "cases.npz", pairs=np.array(PAIRS), scores=np.array(scores, np.float32))


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
