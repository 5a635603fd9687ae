"""load_model and load_tokenizer: a tiny GGUF file and folders."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from kukri.quant.errors import DamagedFile
from kukri.runtime.engine.errors import ContextExceeded
from kukri.runtime.engine.sampling.params import SamplingParams
from kukri.runtime.model import placing as placing_module
from kukri.runtime.model import source as source_module
from kukri.runtime.model.loading import load_model
from kukri.runtime.model.memory_check import NotEnoughMemory
from kukri.runtime.model.options import LoadOptions
from kukri.runtime.model.source import load_tokenizer
from kukri.tokenizer import TokenizerError
from kukri.tokenizer.chat.template import TemplateError

from .scripted import END, GREEDY, HELLO, TEMPLATE, VOCAB, byte_symbols, metadata


def tiny_tensors() -> dict[str, np.ndarray]:
    random = np.random.default_rng(0)
    hidden, ffn = 32, 64
    shapes = {"token_embd": (VOCAB, hidden), "output_norm": (hidden,), "output": (VOCAB, hidden)}
    for stem, shape in {
        "attn_norm": (hidden,),
        "attn_q": (hidden, hidden),
        "attn_k": (hidden, hidden),
        "attn_v": (hidden, hidden),
        "attn_output": (hidden, hidden),
        "ffn_norm": (hidden,),
        "ffn_gate": (ffn, hidden),
        "ffn_up": (ffn, hidden),
        "ffn_down": (hidden, ffn),
    }.items():
        shapes[f"blk.0.{stem}"] = shape
    return {f"{name}.weight": random.normal(size=s).astype(np.float32) * 0.3 for name, s in shapes.items()}


@pytest.fixture(scope="module")
def gguf(tmp_path_factory):
    """write(name="tiny", context_length=128, tokenizer=True) → path of a llama of one layer."""
    import gguf as package

    folder = tmp_path_factory.mktemp("gguf")

    def write(file: str = "tiny", context_length: int = 128, tokenizer: bool = True, **more) -> Path:
        path = folder / f"{file}.gguf"
        writer = package.GGUFWriter(path, "llama")
        writer.add_context_length(context_length)
        writer.add_embedding_length(32)
        writer.add_block_count(1)
        writer.add_feed_forward_length(64)
        writer.add_head_count(2)
        writer.add_head_count_kv(2)
        writer.add_layer_norm_rms_eps(1e-5)
        writer.add_vocab_size(VOCAB)
        for key, value in (metadata(**more) if tokenizer else more).items():
            if isinstance(value, str):
                writer.add_string(key, value)
            elif isinstance(value, bool):
                writer.add_bool(key, value)
            elif isinstance(value, int):
                writer.add_uint32(key, value)
            else:
                writer.add_array(key, list(value) if isinstance(value, list) else value.tolist())
        for name, array in tiny_tensors().items():
            writer.add_tensor(name, array)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        return path

    return write


def test_what_a_notebook_shows(gguf):
    with load_model(gguf(), LoadOptions(device="reference", context=64)) as model:
        assert re.fullmatch(r"<Model '.+': llama, [\d.]+ kB, reference, context 64>", repr(model))
        assert repr(model.config).startswith("ModelConfig(arch='llama', n_layers=")
        assert repr(model.tokenizer) == "<Tokenizer: 260 tokens, ends at '<|im_end|>', a chat template>"
        for shown in (model, model.config, model.tokenizer):
            assert len(repr(shown)) < 200
    assert "closed" in repr(model)


def test_load_gguf(gguf):
    path = gguf()
    with load_model(path, LoadOptions(device="reference")) as model:
        assert (model.path, model.name, model.n_bytes) == (path, "tiny", path.stat().st_size)
        assert model.context == 128  # what it was trained for
        assert model.config.vocab_size == VOCAB
        assert model.end_ids == {END}
        assert model.chat_template == TEMPLATE
        ids = model.encode_chat(HELLO)
        logits = model.logits(ids)
        assert logits.shape == (len(ids), VOCAB)
        tokens = list(model.generate(ids, SamplingParams(temperature=0, max_tokens=5, ignore_eos=True)))
        assert tokens[0] == int(logits[-1].argmax())
        for i in range(1, 5):
            assert tokens[i] == int(model.logits(ids + tokens[:i])[-1].argmax())
        text = "".join(model.stream(ids, SamplingParams(temperature=0, max_tokens=5, ignore_eos=True)))
        assert text == model.tokenizer.decode([t for t in tokens if t < 256])


def test_the_file_may_have_any_name_and_gives_the_model_its_name(gguf, tmp_path):
    blob = tmp_path / "sha256-0123"
    shutil.copy(gguf("named", **{"general.name": "My Tiny Model"}), blob)
    with load_model(str(blob), LoadOptions(device="reference")) as model:
        assert model.name == "My Tiny Model"


def test_cpu_and_reference_agree(gguf):
    ids = [1, 5, 9, 200, 258, 3]
    with load_model(gguf(), LoadOptions(device="reference")) as reference, load_model(gguf()) as cpu:
        np.testing.assert_allclose(cpu.logits(ids), reference.logits(ids), atol=1e-3)


def test_without_tokenizer_ids_still_work(gguf):
    with load_model(gguf("ids-only", tokenizer=False), LoadOptions(device="reference")) as model:
        assert model.chat_template is None
        assert model.end_ids == frozenset()
        assert model.logits([1, 2]).shape == (2, VOCAB)
        assert len(list(model.generate([1], SamplingParams(max_tokens=3)))) == 3
        for call in (lambda: model.tokenizer, lambda: model.encode("a"), lambda: model.stream([1])):
            with pytest.raises(TokenizerError, match="ids-only has no tokenizer"):
                call()
        with pytest.raises(TemplateError):
            model.chat(HELLO)


def test_damaged_tokenizer_is_found_before_the_weights_are_read(gguf):
    path = gguf("damaged", **{"tokenizer.ggml.model": "no-such-kind"})
    with pytest.raises(TokenizerError, match="no-such-kind"):
        load_model(path, LoadOptions(device="reference"))


@pytest.mark.parametrize(("context", "n_pages"), [(1, 1), (64, 1), (65, 2), (128, 2)])
def test_context_is_what_was_asked_for(gguf, context, n_pages):
    with load_model(gguf(), LoadOptions(device="reference", context=context)) as model:
        assert model.context == context
        assert model.engine.table.n_pages == n_pages
        with pytest.raises(ContextExceeded, match=rf"{context + 1}.*{context}"):
            model.generate([1] * (context + 1))


def test_default_context_is_bounded(gguf):
    with load_model(gguf("long", context_length=100_000), LoadOptions(device="reference")) as model:
        assert model.context == 8192


def test_context_above_the_trained_one_is_a_warning(gguf, caplog):
    said = []
    with load_model(gguf(), LoadOptions(device="reference", context=129), warn=said.append) as model:
        assert model.context == 129
    assert len(said) == 1
    assert "128" in said[0]
    assert not caplog.records
    load_model(gguf(), LoadOptions(device="reference", context=128)).close()
    assert not caplog.records
    load_model(gguf(), LoadOptions(device="reference", context=129)).close()
    (record,) = caplog.records
    assert record.levelname == "WARNING"
    assert record.name.startswith("kukri.")
    assert "trained for 128 tokens" in record.getMessage()


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"device": "tpu"}, "unknown device 'tpu'"),
        ({"context": 0}, "context"),
        ({"threads": 0}, "threads"),
        ({"kv_type": "f17"}, "f17"),
    ],
)
def test_arguments_out_of_range(gguf, kwargs, message):
    with pytest.raises(ValueError, match=message) as error:
        load_model(gguf(), LoadOptions(**kwargs))
    assert "\n" not in str(error.value)


def test_missing_and_foreign_files(tmp_path):
    with pytest.raises(FileNotFoundError):
        load_model(tmp_path / "none.gguf")
    (tmp_path / "text.gguf").write_text("hello, this is no model at all")
    with pytest.raises(DamagedFile):
        load_model(tmp_path / "text.gguf")
    (tmp_path / "empty").mkdir()
    with pytest.raises(DamagedFile):
        load_model(tmp_path / "empty")


def test_memory_is_checked_before_the_machine_is_made(gguf, monkeypatch):
    monkeypatch.setattr(placing_module, "available_memory", lambda: 160_000_000)
    with pytest.raises(NotEnoughMemory, match=r"long needs about .*-c \d+"):
        load_model(gguf("long", context_length=10**9), LoadOptions(device="reference", context=10**9))
    monkeypatch.setattr(placing_module, "available_memory", lambda: 150_000_000)
    with pytest.raises(NotEnoughMemory, match="free some memory"):
        load_model(gguf(), LoadOptions(device="reference"))


def test_default_context_shrinks_where_memory_is_short(gguf, monkeypatch):
    # 256 bytes a token in float32: 8192 tokens need 2.1 MB
    monkeypatch.setattr(placing_module, "available_memory", lambda: 151_500_000)
    said = []
    with load_model(
        gguf("long", context_length=100_000), LoadOptions(device="reference"), warn=said.append
    ) as model:
        assert 1024 <= model.context < 8192
        assert model.context % 64 == 0
    assert len(said) == 1
    assert str(model.context) in said[0]


@pytest.fixture
def folder(conformance, tmp_path):
    """make(generation_config=None, **config) → a copy of the llama fixture with these settings."""

    def make(generation_config: dict | None = None, **config) -> Path:
        target = tmp_path / "my-model"
        shutil.rmtree(target, ignore_errors=True)
        shutil.copytree(conformance("llama"), target)
        settings = json.loads((target / "config.json").read_text()) | config
        (target / "config.json").write_text(json.dumps(settings))
        if generation_config is not None:
            (target / "generation_config.json").write_text(json.dumps(generation_config))
        return target

    return make


def test_load_folder(folder):
    path = folder()
    reference = np.load(path / "reference.npz")
    with load_model(path, LoadOptions(device="reference")) as model:
        assert model.name == "my-model"
        assert model.path == path
        assert model.n_bytes == (path / "model.safetensors").stat().st_size
        logits = model.logits(reference["input_ids"])[reference["rows"]]
        np.testing.assert_allclose(logits, reference["logits"], atol=3e-4)
        params = SamplingParams(temperature=0, max_tokens=24, ignore_eos=True)
        assert list(model.generate(reference["input_ids"][:16], params)) == reference["greedy_ids"].tolist()


@pytest.mark.parametrize(
    ("generation_config", "config", "ends"),
    [
        (None, {}, {2}),
        ({"eos_token_id": 5}, {}, {2, 5}),
        ({"eos_token_id": [7, 9]}, {"eos_token_id": [3, 4]}, {3, 4, 7, 9}),
        ({}, {"eos_token_id": None}, set()),
        ({"eos_token_id": "text"}, {"eos_token_id": [True, 1.5, 6]}, {6}),
        (None, {"eos_token_id": None, "text_config": {"eos_token_id": [1, 106]}}, {1, 106}),
    ],
)
def test_end_tokens_of_a_folder(folder, generation_config, config, ends, monkeypatch):
    path = folder(generation_config, **config)
    if "text_config" in config:  # only the ids count here
        monkeypatch.setattr(
            source_module, "config_from_hf", lambda *_: SimpleNamespace(vocab_size=256, no_text="")
        )
        assert source_module.open_source(path).end_ids == ends
        return
    with load_model(path, LoadOptions(device="reference")) as model:
        assert model.end_ids == ends


@pytest.mark.parametrize(
    ("settings", "end", "builtin"),
    [
        ({}, None, ""),  # the tokens are there, but nothing says that it is a chat model
        ({"_name_or_path": "org/Some-Model-Instruct"}, None, "Gemma"),
        ({"_name_or_path": "org/Some-Model-Base"}, "<end_of_turn>", ""),
        ({}, "<end_of_turn>", "Gemma"),
    ],
)
def test_built_in_template_of_a_folder(folder, settings, end, builtin):
    tokens = ["<start_of_turn>", "<end_of_turn>"]
    vocab = {symbol: id for id, symbol in enumerate(byte_symbols())}
    added = [{"id": 256 + i, "content": token, "special": True} for i, token in enumerate(tokens)]
    path = folder({"eos_token_id": [256 + tokens.index(end)]} if end else None, **settings)
    (path / "tokenizer.json").write_text(
        json.dumps(
            {
                "added_tokens": added,
                "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False},
                "decoder": {"type": "ByteLevel"},
                "model": {"type": "BPE", "vocab": vocab, "merges": []},
            }
        )
    )
    source = source_module.open_source(path)
    assert source.builtin == builtin
    assert bool(source.tokenizer.chat_template) == bool(builtin)
    (path / "chat_template.jinja").write_text("shipped")
    source = source_module.open_source(path)
    assert (source.builtin, source.tokenizer.chat_template) == ("", "shipped")


def test_generation_stops_at_an_end_token_of_generation_config(folder):
    path = folder()
    reference = np.load(path / "reference.npz")
    greedy = reference["greedy_ids"].tolist()
    end = next(t for i, t in enumerate(greedy) if i >= 3 and t not in greedy[:i])
    path = folder({"eos_token_id": [end]}, eos_token_id=None)
    with load_model(path, LoadOptions(device="reference")) as model:
        tokens = list(model.generate(reference["input_ids"][:16], GREEDY))
        assert tokens == greedy[: greedy.index(end)]
        assert model.stats.finish_reason == "stop"


def test_load_tokenizer_of_a_gguf(gguf, tmp_path):
    path = gguf()
    tokenizer = load_tokenizer(path)
    assert tokenizer.encode("hi") == [104, 105]
    blob = tmp_path / "blob"  # by its content, not by its name
    shutil.copy(path, blob)
    assert load_tokenizer(blob).decode([104, 105]) == "hi"


def test_load_tokenizer_errors(tmp_path, gguf):
    with pytest.raises(FileNotFoundError):
        load_tokenizer(tmp_path / "none")
    with pytest.raises(TokenizerError):
        load_tokenizer(gguf("ids-only", tokenizer=False))
    (tmp_path / "junk.json").write_text("not JSON")
    with pytest.raises(TokenizerError):
        load_tokenizer(tmp_path / "junk.json")


def test_a_model_with_a_table_of_positions_has_no_more_context(conformance):
    folder = conformance("gpt2-original")
    with pytest.raises(ValueError, match="64 positions"):
        load_model(folder, LoadOptions(device="reference", context=65))
    with load_model(folder, LoadOptions(device="reference")) as model:
        assert model.context == 64


def test_the_prompt_decides_how_keys_are_rotated(conformance):
    """A prompt beyond LongRoPE's threshold, in one chunk or in many."""
    folder = conformance("phi4-mini")
    reference = np.load(folder / "reference.npz")
    with load_model(folder, LoadOptions(device="reference")) as model:
        for rows in (512, 7):
            model.engine.machine.max_rows = rows
            logits = model.logits(reference["input_ids"])[reference["rows"]]
            np.testing.assert_allclose(logits, reference["logits_full"], rtol=0, atol=1e-3)
