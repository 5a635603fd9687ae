"""The public Python API: exactly these names, cheap to import, and the whole way through."""

from __future__ import annotations

import inspect
import subprocess
import sys

import numpy as np
import pytest

import kukri


def test_public_names():
    assert set(kukri.__all__) == {"Model", "SamplingParams", "load", "load_tokenizer", "render_chat"}
    for name in kukri.__all__:
        assert inspect.getdoc(getattr(kukri, name))
    from kukri.runtime.engine.sampler import SamplingParams
    from kukri.runtime.model.model import Model

    assert kukri.Model is Model
    assert kukri.SamplingParams is SamplingParams
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        _ = kukri.nonsense


def test_signatures():
    def names(function) -> list[str]:
        return list(inspect.signature(function).parameters)

    assert names(kukri.load)[:3] == ["model", "device", "context"]
    assert names(kukri.load_tokenizer) == ["source"]
    assert names(kukri.render_chat) == [
        "template", "messages", "tools", "add_generation_prompt", "now", "variables"
    ]  # fmt: skip
    assert names(kukri.Model.logits) == ["self", "ids"]
    assert names(kukri.Model.generate) == ["self", "ids", "params"]
    assert names(kukri.Model.chat)[:4] == ["self", "messages", "params", "tools"]


def test_importing_costs_next_to_nothing():
    code = (
        "import sys, time\n"
        "start = time.perf_counter()\n"
        "import kukri\n"
        "print(time.perf_counter() - start)\n"
        "print([m for m in ('numpy', 'numba', 'huggingface_hub', 'gguf', 'jinja2', 'rich', 'typer') "
        "if m in sys.modules])\n"
    )
    times = []
    for _ in range(3):
        run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
        seconds, modules = run.stdout.splitlines()
        times.append(float(seconds))
        assert modules == "[]"
    assert min(times) < 0.05


def test_load_generate_and_logits(conformance):
    folder = conformance("qwen2")
    reference = np.load(folder / "reference.npz")
    ids = reference["input_ids"].tolist()
    with kukri.load(str(folder / "qwen2-F32.gguf"), device="reference", context=64) as model:
        assert isinstance(model, kukri.Model)
        assert model.config.vocab_size == 256
        assert model.context == 64
        logits = model.logits(ids)
        assert logits.dtype == np.float32
        assert logits.shape == (len(ids), 256)
        np.testing.assert_allclose(logits[reference["rows"]], reference["logits"], atol=1e-4)
        params = kukri.SamplingParams(temperature=0, max_tokens=24, ignore_eos=True)
        assert list(model.generate(ids[:16], params)) == reference["greedy_ids"].tolist()
        np.testing.assert_array_equal(model.logits(ids), logits)  # independent of what came before
        assert model.tokenizer.decode(model.tokenizer.encode("abc")) == "abc"


def test_seeded_generation_is_reproducible(conformance):
    with kukri.load(conformance("llama"), device="reference", context=64) as model:
        params = kukri.SamplingParams(temperature=1.5, seed=11, max_tokens=20, ignore_eos=True)
        first = list(model.generate([5, 6, 7], params))
        model.engine.reset()
        assert list(model.generate([5, 6, 7], params)) == first


def test_load_tokenizer(conformance):
    tokenizer = kukri.load_tokenizer(conformance("qwen2") / "qwen2-Q8_0.gguf")
    assert tokenizer.decode(tokenizer.encode("Grüße 🦊")) == "Grüße 🦊"


def test_render_chat():
    template = (
        "{{ bos_token }}{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}"
        "{% if tools %}({{ tools | length }}){% endif %}{{ strftime_now('%Y-%m-%d') }}"
        "{% if add_generation_prompt %}[assistant]{% endif %}"
    )
    messages = [{"role": "user", "content": "hi"}]
    now = "2025-03-04T15:06:07"
    assert (
        kukri.render_chat(template, messages, now=now, bos_token="<s>") == "<s>[user]hi2025-03-04[assistant]"
    )
    rendered = kukri.render_chat(
        template, messages, tools=[{}], add_generation_prompt=False, now=now, bos_token=""
    )
    assert rendered == "[user]hi(1)2025-03-04"


def test_errors_are_one_line():
    with pytest.raises(LookupError) as error:
        kukri.load("no-such-model-anywhere.gguf")
    assert "\n" not in str(error.value)
    with pytest.raises(FileNotFoundError):
        kukri.load_tokenizer("no-such-file.json")
