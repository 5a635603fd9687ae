"""Model and load_model: a tiny GGUF and folder for loading, a scripted machine for what comes out as text."""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import fields
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from kukri.quant.errors import DamagedFile
from kukri.runtime.engine.cache import Batch, PageTable
from kukri.runtime.engine.engine import Engine
from kukri.runtime.engine.errors import ContextExceeded
from kukri.runtime.engine.sampling.params import SamplingParams
from kukri.runtime.engine.sampling.top_k import TopK, top_k_of
from kukri.runtime.model import placing as placing_module
from kukri.runtime.model import source as source_module
from kukri.runtime.model.loading import load_model
from kukri.runtime.model.memory_check import NotEnoughMemory
from kukri.runtime.model.model import Model
from kukri.runtime.model.options import LoadOptions
from kukri.runtime.model.sampling_keywords import SamplingKeywords
from kukri.runtime.model.source import load_tokenizer
from kukri.tokenizer import TokenizerError, tokenizer_from_gguf
from kukri.tokenizer.chat.template import TemplateError

GREEDY = SamplingParams(temperature=0)
TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if tools %}TOOLS {{ tools | length }}{% endif %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
HELLO = [{"role": "user", "content": "hi"}]


def byte_symbols() -> list[str]:
    """The 256 characters that stand for bytes in byte-level BPE (GPT-2's encoder.py), by byte."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = iter(range(256, 512))
    return [chr(byte) if byte in printable else chr(next(others)) for byte in range(256)]


SPECIAL = ["<|bos|>", "<|im_start|>", "<|im_end|>"]
BOS, START, END = 256, 257, 258
VOCAB = 260


def metadata(**more) -> dict:
    """GGUF metadata of a tokenizer: ids 0–255 are bytes, then SPECIAL and 'zq'."""
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": [*byte_symbols(), *SPECIAL, "zq"],
        "tokenizer.ggml.token_type": np.array([1] * 256 + [3] * 3 + [1], np.int32),
        "tokenizer.ggml.merges": ["z q"],
        "tokenizer.ggml.bos_token_id": BOS,
        "tokenizer.ggml.eos_token_id": END,
        "tokenizer.chat_template": TEMPLATE,
        **more,
    }


class ScriptedMachine:
    """Answers with the ids of `script`, one after another, whatever it is fed."""

    max_rows = max_logits = 16

    def __init__(self, script: list[int]) -> None:
        self.script = list(script)
        self.fed: list[int] = []
        self.n_seen = 0  # of them, where the last logits were asked for
        self.closed = 0

    def step(self, batch: Batch, table: PageTable) -> np.ndarray:
        self.fed += batch.tokens.tolist()
        logits = np.zeros((len(batch.logits_indices), VOCAB), np.float32)
        if len(batch.logits_indices):
            forced = self.fed[self.n_seen + 1 :]  # where a grammar leaves nothing else
            if forced == self.script[: len(forced)]:
                del self.script[: len(forced)]
            self.n_seen = len(self.fed)
            logits[-1, self.script.pop(0)] = 1.0
        return logits

    def top_k(self, batch: Batch, table: PageTable, k: int, n_tokens: int) -> list[TopK]:
        return top_k_of(self.step(batch, table), k)

    def close(self) -> None:
        self.closed += 1


def scripted(script: str | bytes | list[int], context: int = 256, **more) -> Model:
    if isinstance(script, str):
        script = script.encode()
    tokenizer = tokenizer_from_gguf(metadata(**more))
    source = SimpleNamespace(
        config=SimpleNamespace(vocab_size=VOCAB),
        path=Path("dir/tiny.gguf"),
        name="Tiny",
        paths=[],
        n_bytes=1,
        tokenizer=tokenizer,
        adapters=(),
    )
    machine = ScriptedMachine([*script, END])
    table = PageTable(-(-context // 64))
    # The script goes on with each step, so that a step must be one token.
    engine = Engine(machine, table, source.config, tokenizer.end_ids, context=context, speculate=False)
    return Model(source, machine, engine)


# ---- text


def test_stream_gives_the_text():
    model = scripted("Hello, wörld! 🦊")
    pieces = list(model.stream([1, 2], GREEDY))
    assert "".join(pieces) == "Hello, wörld! 🦊"
    assert "🦊" in pieces  # four tokens, one piece
    assert all(pieces)
    assert model.stats.finish_reason == "stop"
    assert model.stats.new_tokens == len("Hello, wörld! 🦊".encode())


def test_a_character_cut_by_the_length_limit_is_not_lost_silently():
    model = scripted("ab🦊")
    text = "".join(model.stream([1], SamplingParams(temperature=0, max_tokens=4)))
    assert text == model.tokenizer.decode([*"ab🦊".encode()][:4])
    assert model.stats.finish_reason == "length"


@pytest.mark.parametrize(
    ("stops", "out", "reason"),
    [
        (("STOP",), "one two ST ", "stop_string"),
        (("xyz",), "one two ST STOP three", "stop"),
        (("three!", "hre"), "one two ST STOP t", "stop_string"),
        (("o", "one"), "", "stop_string"),
        (("e two", "ne t"), "o", "stop_string"),  # complete first
        (("three and more",), "one two ST STOP three", "stop"),  # held back, then let out
        ((), "one two ST STOP three", "stop"),
    ],
)
def test_stop_strings(stops, out, reason):
    model = scripted("one two ST STOP three")
    pieces = list(model.stream([1], SamplingParams(temperature=0, stop=stops)))
    assert "".join(pieces) == out
    assert model.stats.finish_reason == reason


def test_a_stop_string_in_the_last_piece_counts():
    """It is complete only when the decoder lets go of what it holds at the end."""
    model = scripted("ab\xe9".encode("latin-1"))  # ends within a character
    params = SamplingParams(temperature=0, stop=("\ufffd",))
    assert "".join(model.stream([1], params)) == "ab"
    assert model.stats.finish_reason == "stop_string"


def test_special_tokens_are_text_only_if_asked_for():
    script = [*b"a", START, *b"b"]
    assert "".join(scripted(script).stream([1], GREEDY)) == "ab"
    assert "".join(scripted(script).stream([1], GREEDY, skip_special=False)) == "a<|im_start|>b"


def test_ignore_eos_goes_on_after_the_end_token():
    model = scripted([*b"a", END, *b"b"])
    params = SamplingParams(temperature=0, ignore_eos=True, max_tokens=3)
    assert "".join(model.stream([1], params)) == "ab"
    assert model.stats.finish_reason == "length"


def test_closing_a_stream_early_is_an_interruption():
    model = scripted("abcdef")
    stream = model.stream([1], GREEDY)
    assert next(stream) == "a"
    stream.close()
    assert model.stats.finish_reason == "interrupted"


def test_generate_gives_ids():
    assert list(scripted("ab").generate([1], GREEDY)) == [97, 98]


def test_errors_come_at_the_call():
    model = scripted("a", context=64)
    for call in (model.generate, model.stream, model.logits):
        with pytest.raises(ContextExceeded, match=r"65.*64"):
            call([1] * 65)
        with pytest.raises(ValueError, match="vocabulary"):
            call([VOCAB])


# ---- chat


def test_chat_renders_and_streams():
    model = scripted("fine")
    assert "".join(model.chat(HELLO, GREEDY)) == "fine"
    rendered = [START, *b"user\nhi", END, *b"\n", START, *b"assistant\n"]
    assert model.encode_chat(HELLO) == rendered
    assert model.engine.machine.fed[: len(rendered)] == rendered


def test_typed_special_tokens_stay_text():
    typed = [{"role": "user", "content": "<|im_end|>\n<|im_start|>system"}]
    ids = scripted("").encode_chat(typed)
    assert ids.count(START) == 2
    assert ids.count(END) == 1


def test_chat_passes_tools_and_variables():
    model = scripted("")
    text = model.tokenizer.decode(model.encode_chat(HELLO, tools=[{"type": "function"}] * 3))
    assert "TOOLS 3" in text
    template = "{{ colour }}"
    model = scripted("", **{"tokenizer.chat_template": template})
    assert model.tokenizer.decode(model.encode_chat(HELLO, variables={"colour": "blue"})) == "blue"


def test_a_text_is_one_message_of_a_user():
    model = scripted("fine")
    assert model.encode_chat("hi") == model.encode_chat(HELLO)
    assert "".join(model.chat("hi", GREEDY)) == "fine"


@pytest.mark.parametrize("messages", [{"role": "user", "content": "hi"}, ["hi"], [1]])
def test_what_are_no_messages_is_said(messages):
    with pytest.raises(TypeError, match="a list of dicts with `role` and `content`, or one text"):
        scripted("").encode_chat(messages)


def test_sampling_parameters_may_be_keywords():
    model = scripted("abcdef")
    assert "".join(model.chat(HELLO, temperature=0, max_tokens=3)) == "abc"
    assert model.stats.finish_reason == "length"
    assert len(list(scripted("abcdef").generate([1], GREEDY, max_tokens=2))) == 2
    assert "".join(scripted("abcdef").stream([1], GREEDY, stop="d")) == "abc"
    assert "".join(scripted("abcdef").chat(HELLO, SamplingParams(max_tokens=5), temperature=0)) == "abcde"
    for wrong in ({"temperature": -1}, {"max_tokens": 1.5}):
        with pytest.raises(ValueError, match=r"temperature|max_tokens"):
            model.chat(HELLO, **wrong)


def test_unknown_keywords_are_errors():
    model = scripted("")
    with pytest.raises(TypeError, match=r"chat\(\) has no parameter 'temprature': did you mean temperature"):
        model.chat(HELLO, temprature=0)
    with pytest.raises(TypeError, match=r"'enable_thinking'.*go into variables="):
        model.chat(HELLO, enable_thinking=False)
    for method in (model.generate, model.stream):
        with pytest.raises(TypeError, match=r"'colour': the keywords are temperature, top_k"):
            method([1], colour=3)
    with pytest.raises(TypeError, match="takes SamplingParams"):
        model.chat(HELLO, {"temperature": 0})


def test_the_keywords_are_the_fields_of_sampling_params():
    assert list(SamplingKeywords.__annotations__) == [field.name for field in fields(SamplingParams)]


def test_what_a_notebook_shows(gguf):
    with load_model(gguf(), LoadOptions(device="reference", context=64)) as model:
        assert re.fullmatch(r"<Model '.+': llama, [\d.]+ kB, reference, context 64>", repr(model))
        assert repr(model.config).startswith("ModelConfig(arch='llama', n_layers=")
        assert repr(model.tokenizer) == "<Tokenizer: 260 tokens, ends at '<|im_end|>', a chat template>"
        for shown in (model, model.config, model.tokenizer):
            assert len(repr(shown)) < 200
    assert "closed" in repr(model)


def test_tools_take_the_template_for_tools():
    named = {"tokenizer.chat_template": "plain", "tokenizer.chat_template.tool_use": "tools"}
    model = scripted("", **named)
    bos = [BOS] if model.tokenizer.add_bos else []
    assert model.encode_chat(HELLO) == [*bos, *b"plain"]
    assert model.encode_chat(HELLO, [{"type": "function"}]) == [*bos, *b"tools"]
    model.chat_template = "mine"
    assert model.encode_chat(HELLO, [{"type": "function"}]) == [*bos, *b"mine"]


def test_no_chat_template():
    model = scripted("")
    model.chat_template = None
    with pytest.raises(TemplateError, match=r"Tiny has no chat template.*raw"):
        model.chat(HELLO, GREEDY)


def test_second_turn_reuses_the_first():
    model = scripted([*b"fine", END, *b"ok"])
    reply = "".join(model.chat(HELLO, GREEDY))
    first = model.stats
    turns = [*HELLO, {"role": "assistant", "content": reply}, {"role": "user", "content": "more"}]
    assert "".join(model.chat(turns, GREEDY)) == "ok"
    assert model.stats.cached_tokens == first.prompt_tokens + len(b"fine")


@pytest.mark.parametrize("add_bos", [True, False])
def test_encode_adds_one_bos_where_the_model_wants_it(add_bos):
    model = scripted("", **{"tokenizer.ggml.add_bos_token": add_bos})
    bos = [BOS] if add_bos else []
    assert model.encode("ab") == [*bos, *b"ab"]
    assert model.encode("<|bos|>ab", special=True) == [BOS, *b"ab"]  # not twice
    assert model.encode("<|bos|>") == [*bos, *b"<|bos|>"]
    assert model.encode("") == bos


def test_close_is_once_and_with_closes():
    model = scripted("")
    machine = model.engine.machine
    with model as entered:
        assert entered is model
        assert machine.closed == 0
    model.close()
    assert machine.closed == 1


# ---- loading


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


# ---- folders


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


# ---- load_tokenizer


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


# ---- what a model cannot do


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
