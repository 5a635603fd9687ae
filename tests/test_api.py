"""The public Python API: exactly these names, cheap to import, and the whole way through."""

from __future__ import annotations

import ast
import builtins
import inspect
import logging
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import kukri

from . import tiny_model
from .runtime.hub.hub_server import HubServer
from .tiny_model import write_tiny_model

INTERNAL = {"UntrackedSource"}  # mistakes in this package, which nobody is to handle
ERRORS = {
    "BadLogits", "CacheFull", "ConstraintError", "ContextExceeded", "CudaError", "CudaOutOfMemory",
    "CudaUnavailable", "DamagedFile", "KukriError", "ModelClosed", "ModelNotFound", "NoHome",
    "NotEnoughMemory", "QueueFull",
    "StaleGeneration", "StoreError", "TemplateError", "TokenizerError", "Unreachable", "UnsupportedModel",
}  # fmt: skip
OTHERS = {
    "Answer", "Finished", "GenerationRequest", "Model", "PromptCache", "ResponseCache", "ResponseFormat",
    "SamplingParams", "Session",
    "TextDelta", "ThinkingDelta", "TokenEvent", "Tokenizer", "Tool", "ToolCall", "ToolCallDelta",
    "ToolCallDropped", "ToolCallEnd", "ToolCallStart",
    "load", "load_tokenizer", "render_chat",
}  # fmt: skip


def test_public_names():
    assert set(kukri.__all__) == ERRORS | OTHERS
    assert kukri.__all__ == sorted(kukri.__all__)
    assert dir(kukri) == kukri.__all__  # and nothing else, for whoever completes names in a notebook
    for name in kukri.__all__:
        assert inspect.getdoc(getattr(kukri, name))
    from kukri.runtime.engine.sampling.params import SamplingParams
    from kukri.runtime.model.model import Model

    assert kukri.Model is Model
    assert kukri.SamplingParams is SamplingParams
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        _ = kukri.nonsense


def test_public_errors_are_kukri_errors_and_documented():
    assert kukri.__doc__
    for name in ERRORS - {"KukriError"}:
        error = getattr(kukri, name)
        assert issubclass(error, kukri.KukriError)
        base = next(kind for kind in error.__mro__ if kind.__module__ == "builtins")
        line = re.search(rf"^- {name} \(an? (\w+)\): .+", kukri.__doc__, re.MULTILINE)
        assert line, f"the docstring of kukri has no line about {name}"
        assert line[1] in {kind.__name__ for kind in error.__mro__[1:]}
        assert base is not Exception, f"{name} should also be of a built-in kind"
        assert base is not BaseException


def test_every_error_of_the_library_is_a_kukri_error():
    root = Path(kukri.__file__).parent
    bases: dict[str, set[str]] = {}
    for part in ("runtime", "quant", "tokenizer"):
        for path in (root / part).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text("utf-8"))):
                if isinstance(node, ast.ClassDef):
                    bases[node.name] = {base.id for base in node.bases if isinstance(base, ast.Name)}
    known = {name for name, kind in vars(builtins).items() if isinstance(kind, type)}
    kinds = {name for name in known if issubclass(getattr(builtins, name), BaseException)}

    def derived(name: str, roots: set[str]) -> bool:
        return name in roots or any(derived(base, roots) for base in bases.get(name, ()))

    errors = {name for name in bases if derived(name, kinds | {"KukriError"})}
    assert len(errors) >= len(ERRORS)
    others = {name for name in errors if not derived(name, {"KukriError"})} - INTERNAL
    assert not others, f"give {', '.join(sorted(others))} the base KukriError, or list them in INTERNAL"


def test_signatures():
    def names(function) -> list[str]:
        return list(inspect.signature(function).parameters)

    assert names(kukri.load) == [
        "model", "device", "context", "threads", "kv_type", "gpu_layers", "parallel", "speculate", "task",
        "draft", "lora", "control_vectors", "control_layers", "deterministic", "devices", "split_mode",
        "cpu_moe", "weight_cache", "progress", "warn"
    ]  # fmt: skip
    assert names(kukri.load_tokenizer) == ["source"]
    assert names(kukri.render_chat) == [
        "template", "messages", "tools", "add_generation_prompt", "now", "variables"
    ]  # fmt: skip
    assert names(kukri.Model.logits) == ["self", "ids"]
    assert names(kukri.Model.generate) == ["self", "ids", "params", "response_format", "sampling"]
    assert names(kukri.Model.chat) == [
        "self", "messages", "params", "tools", "variables", "response_format", "sampling"
    ]  # fmt: skip


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


# ---- nothing is printed unless asked for


def prints(code: str, *arguments: object, env: dict[str, str] | None = None) -> tuple[str, str]:
    """What Python code writes to stdout and stderr in a process of its own."""
    command = [sys.executable, "-c", code, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False, env=env)
    assert done.returncode == 0, done.stderr
    return done.stdout, done.stderr


USE = """
import sys, kukri
path, device, context = sys.argv[1], sys.argv[2], int(sys.argv[3]) or None
with kukri.load(path, device, context) as model:
    try:
        list(model.generate([1, 2, 3], kukri.SamplingParams(max_tokens=3)))
        model.logits([1, 2, 3])
    except kukri.BadLogits:
        pass
"""
SHORT_OF_MEMORY = """
import kukri.runtime.model.placing as placing
placing.available_memory = lambda: 153_500_000
"""


@pytest.mark.parametrize("device", ["cpu", "reference"])
def test_loading_and_running_print_nothing(tmp_path, device):
    """A model without a chat template, and a context beyond the trained one."""
    path = write_tiny_model(tmp_path / "tiny-instruct.gguf", template=None, name="tiny instruct")
    assert prints(USE, path, device, 600) == ("", "")


def test_a_model_with_skipped_parts_prints_nothing(conformance):
    assert prints(USE, conformance("gemma3-multimodal"), "reference", 0) == ("", "")


def test_a_context_that_has_to_shrink_prints_nothing(tmp_path):
    path = write_tiny_model(tmp_path / "tiny.gguf", context=1 << 17)
    code = SHORT_OF_MEMORY + USE + "assert model.context < 8192"
    assert prints(code, path, "reference", 0) == ("", "")


@pytest.mark.parametrize("device", ["cpu", "reference"])
@pytest.mark.parametrize("factor", [1e38, np.inf])
def test_weights_that_overflow_print_nothing(tmp_path, monkeypatch, device, factor):
    def huge(*arguments):
        return {name: values * np.float32(factor) for name, values in weights(*arguments).items()}

    weights = tiny_model._weights
    monkeypatch.setattr(tiny_model, "_weights", huge)
    with np.errstate(all="ignore"):
        path = write_tiny_model(tmp_path / "huge.gguf")
    assert prints(USE, path, device, 0) == ("", "")


def test_a_download_prints_nothing_but_reports_progress(tmp_path, environment):
    content = write_tiny_model(tmp_path / "tiny.gguf").read_bytes()
    server = HubServer({"org/tiny": {"tiny-Q4_0.gguf": content}})
    server.start()
    env = environment | {"HF_ENDPOINT": server.url}
    try:
        assert prints(USE, "org/tiny", "reference", 0, env=env) == ("", "")
        code = """
import sys, kukri
with kukri.load("org/other", "reference", progress=lambda *state: print(*state)):
    pass
"""
        server.repos["org/other"] = {"other-Q4_0.gguf": content}
        shown, errors = prints(code, env=env)
    finally:
        server.stop()
    lines = shown.splitlines()
    assert lines[0] == f"downloading org/other 0 {len(content)}"
    assert f"downloading org/other {len(content)} {len(content)}" in lines
    assert errors == ""


def test_what_a_configured_log_shows(tmp_path):
    path = write_tiny_model(tmp_path / "tiny.gguf")
    code = "import logging; logging.basicConfig(format='%(levelname)s %(name)s')" + USE
    assert prints(code, path, "reference", 600) == ("", "WARNING kukri.runtime.model.loading\n")


def test_warnings_go_to_the_callback_instead_of_the_log(tmp_path, caplog):
    path, said = write_tiny_model(tmp_path / "tiny.gguf"), []
    kukri.load(path, "reference", 600, warn=said.append).close()
    assert len(said) == 1
    assert "trained for 512 tokens" in said[0]
    assert not caplog.records
    assert any(isinstance(handler, logging.NullHandler) for handler in logging.getLogger("kukri").handlers)


# ---- errors


def test_a_closed_model(tmp_path):
    model = kukri.load(write_tiny_model(tmp_path / "tiny.gguf"), "reference")
    tokens = model.generate([1, 2, 3])
    model.close()
    model.close()
    messages = [{"role": "user", "content": "hi"}]
    for call in (
        lambda: model.logits([1]),
        lambda: model.generate([1]),
        lambda: model.stream([1]),
        lambda: model.chat(messages),
    ):
        with pytest.raises(kukri.ModelClosed, match="tiny is closed"):
            call()
    tokens.close()


def test_an_earlier_generation_goes_on(tmp_path):
    params = kukri.SamplingParams(temperature=0, max_tokens=4, ignore_eos=True)
    with kukri.load(write_tiny_model(tmp_path / "tiny.gguf"), "reference") as model:
        expected = list(model.generate([1, 2, 3], params))
        first = model.generate([1, 2, 3], params)
        got = [next(first)]
        list(model.generate([3, 2, 1], params))
        assert [*got, *first] == expected


def test_arguments_are_checked_before_anything_is_downloaded():
    with pytest.raises(ValueError, match="unknown device 'tpu'"):
        kukri.load("org/no-such-model", "tpu")


def test_python_m_kukri():
    run = subprocess.run(
        [sys.executable, "-m", "kukri", "--version"], capture_output=True, text=True, check=True
    )
    assert run.stdout == f"kukri {kukri.__version__}\n"
