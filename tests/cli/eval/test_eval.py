"""`llm eval`: what it says, what it refuses, and what it leaves behind."""

from __future__ import annotations

import gzip
import importlib.util
import json
import math
import re
import signal
import subprocess
import sys
import time
import xml.etree.ElementTree as ET
from pathlib import Path

import numpy as np
import pytest

import kukri
from kukri.cli.console import terminal
from kukri.cli.eval import measure as eval_measure
from kukri.cli.eval import plot as eval_plot
from kukri.cli.eval import progress as eval_progress
from kukri.cli.eval import report as eval_report
from kukri.cli.eval import text as eval_text
from kukri.quant.extras import how_to_install
from kukri.runtime.evaluation.scores import cut_into_windows
from kukri.runtime.evaluation.scores import evaluate as score

from ...running import LLM, Run, failed
from ...tiny_model import write_tiny_model

KEYS = {
    "name", "path", "architecture", "quant", "size", "file_size", "n_params", "bits_per_weight",
    "device", "n_threads", "seconds", "windows", "scored", "scored_all",
    "perplexity", "perplexity_stderr", "perplexity_all", "perplexity_all_stderr",
    "kld", "kld_stderr", "kld_median", "kld_99", "kld_max", "mean_dp", "mean_dp_stderr",
    "rms_dp", "rms_dp_stderr", "same_top", "same_top_stderr", "perplexity_ratio", "perplexity_ratio_stderr",
}  # fmt: skip
TEXT = "In the beginning there was a tiny model, and it knew nothing of the world. " * 4


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "text.txt"
    path.write_text(TEXT, encoding="utf-8")
    return path


@pytest.fixture(scope="session")
def other(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("other") / "other.gguf", seed=1)


def told(done: subprocess.CompletedProcess[bytes]) -> dict:
    assert done.returncode == 0, done.stderr.decode()
    return json.loads(done.stdout)


def test_json(llm_inside: Run, tiny: Path, text: Path) -> None:
    report = told(llm_inside("eval", "-m", tiny, "--file", text, "-c", 32, "-o", "json"))
    assert set(report) == {"file", "text_sha256", "context", "baseline", "models"}
    assert (report["file"], report["context"], report["baseline"]) == (str(text), 32, None)
    (result,) = report["models"]
    assert set(result) == KEYS
    assert (result["name"], result["path"], result["device"]) == ("tiny.gguf", str(tiny), "cpu")
    assert (result["n_params"], result["size"], result["bits_per_weight"]) == (107968, 431872, 32)
    assert result["file_size"] == tiny.stat().st_size
    assert result["kld"] is result["same_top"] is result["perplexity_ratio"] is None
    with kukri.load(tiny) as model:
        windows = cut_into_windows(model.tokenizer.encode(TEXT), 32)
        expected = score(model.logits, windows)
    assert (result["windows"], result["scored"]) == (len(windows), len(windows) * 15)
    assert result["scored_all"] == len(windows) * 31
    assert result["perplexity"] == pytest.approx(expected.perplexity().value, rel=1e-6)
    assert result["perplexity_stderr"] == pytest.approx(expected.perplexity().error, rel=1e-6)
    assert result["perplexity_all"] == pytest.approx(expected.perplexity(True).value, rel=1e-6)


def test_several_models_against_a_baseline(llm_inside: Run, tiny: Path, other: Path, text: Path) -> None:
    flags = ("--file", text, "-c", 32, "--limit", 100, "-o", "json")
    report = told(llm_inside("eval", "-m", tiny, "-m", other, tiny, *flags, "--baseline", tiny))
    same, different, again = report["models"]
    assert [r["name"] for r in report["models"]] == ["tiny.gguf", "other.gguf", "tiny.gguf"]
    assert {r["windows"] for r in (report["baseline"], *report["models"])} == {3}
    assert set(report["baseline"]) == set(different) == KEYS
    assert report["baseline"]["perplexity"] == same["perplexity"]
    assert report["baseline"]["kld"] is None
    assert (same["kld"], same["kld_max"], same["same_top"], same["rms_dp"]) == (0, 0, 1, 0)
    assert {k: v for k, v in again.items() if k != "seconds"} == {
        k: v for k, v in same.items() if k != "seconds"
    }
    assert different["kld"] > 0.1
    assert 0 <= different["kld_median"] <= different["kld_99"] <= different["kld_max"]
    assert different["same_top"] < 1
    ratio = different["perplexity"] / report["baseline"]["perplexity"]
    assert different["perplexity_ratio"] == pytest.approx(ratio)


def test_a_baseline_on_another_device(llm_inside: Run, tiny: Path, text: Path) -> None:
    flags = ("--file", text, "-c", 32, "-o", "json", "--baseline", tiny, "--baseline-device", "reference")
    report = told(llm_inside("eval", "-m", tiny, *flags))
    assert (report["baseline"]["device"], report["models"][0]["device"]) == ("reference", "cpu")
    assert abs(report["models"][0]["kld"]) < 1e-6
    assert report["models"][0]["same_top"] == 1
    reference = told(llm_inside("eval", "-m", tiny, "--device", "reference", *flags[:6]))["models"][0]
    assert reference["perplexity"] == pytest.approx(report["baseline"]["perplexity"], rel=1e-6)


def test_saved_logits(llm_inside: Run, tiny: Path, other: Path, text: Path, tmp_path: Path) -> None:
    saved = tmp_path / "base.logits"
    flags = ("--file", text, "-c", 32, "-o", "json")
    base = told(llm_inside("eval", tiny, *flags, "--save-logits", saved))["models"][0]
    live = told(llm_inside("eval", other, *flags, "--baseline", tiny))
    report = told(llm_inside("eval", other, *flags, "--baseline", saved))
    for key in ("name", "size", "n_params", "bits_per_weight", "perplexity", "perplexity_all", "quant"):
        assert report["baseline"][key] == base[key], key
    assert (report["baseline"]["device"], report["baseline"]["path"]) == ("saved", str(saved))
    for key in ("kld", "kld_median", "rms_dp", "perplexity_ratio"):
        assert report["models"][0][key] == pytest.approx(live["models"][0][key], rel=1e-3), key
    few = llm_inside("eval", other, *flags, "--limit", 64, "--baseline", saved)
    assert told(few)["models"][0]["windows"] == 2
    llm_inside("eval", tiny, *flags, "--limit", 64, "--save-logits", saved)  # takes the place of the first
    done = llm_inside("eval", other, *flags, "--baseline", saved)
    assert told(done)["models"][0]["windows"] == 2
    assert b"holds 2 windows" in done.stderr


def test_saved_logits_that_do_not_fit(llm_inside: Run, tiny: Path, text: Path, tmp_path: Path) -> None:
    saved = tmp_path / "base.logits"
    flags = ("--file", text, "--baseline", saved)
    told(llm_inside("eval", tiny, "--file", text, "-c", 32, "--save-logits", saved, "-o", "json"))
    assert "windows of 32 tokens, not of 16" in failed(llm_inside("eval", tiny, *flags, "-c", 16), 1)
    (tmp_path / "more.txt").write_text(TEXT + "more")
    more = ("--file", tmp_path / "more.txt", *flags[2:])
    assert "another text" in failed(llm_inside("eval", tiny, *more, "-c", 32), 1)
    saved.write_bytes(saved.read_bytes()[:-1])
    failed(llm_inside("eval", tiny, *flags, "-c", 32), 5)
    assert "holds something else" in failed(
        llm_inside("eval", tiny, "--file", text, "-c", 32, "--save-logits", text), 2
    )
    assert text.read_text() == TEXT


def test_models_of_other_tokens_cannot_be_compared(
    llm_inside: Run, tiny: Path, text: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = iter(range(2))
    monkeypatch.setattr(
        eval_measure, "_windows", lambda plan, subject: np.full((1, 32), next(made), np.int32)
    )
    done = llm_inside("eval", tiny, "--file", text, "-c", 32, "--baseline", tiny)
    assert "other tokens" in failed(done, 1)


def test_texts_of_all_kinds(llm_inside: Run, tiny: Path, text: Path, tmp_path: Path) -> None:
    flags = ("-m", tiny, "-c", 32, "-o", "json")
    plain = told(llm_inside("eval", *flags, "--file", text))
    half = len(TEXT) // 2
    members = gzip.compress(TEXT[:half].encode()) + gzip.compress(TEXT[half:].encode()) + bytes(3)
    (tmp_path / "packed").write_bytes(members)
    packed = told(llm_inside("eval", *flags, "--file", tmp_path / "packed"))
    piped = told(llm_inside("eval", *flags, "--file", "-", input=TEXT.encode()))
    for report in (packed, piped):
        assert report["text_sha256"] == plain["text_sha256"]
        assert report["models"][0]["perplexity"] == plain["models"][0]["perplexity"]


@pytest.mark.parametrize(
    ("content", "word"),
    [
        (b"too short", "do not fill a window of 64"),
        (b"", "0 tokens"),
        (b"\xff\xfe" * 200, "not UTF-8"),
        (gzip.compress(b"a" * 2000, mtime=0)[:-12], "damaged"),
        (b"\x1f\x8bnothing", "damaged"),
        (gzip.compress(b"a" * 2000, mtime=0) + b"more", "damaged"),
        (gzip.compress(bytes(9_000_000)), "holds more than 8 MiB"),
        (b"a" * 9_000_000, "holds more than 8 MiB"),
        (None, "cannot be read"),
    ],
)
def test_texts_that_cannot_be_scored(
    llm_inside: Run,
    tiny: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    content: bytes | None,
    word: str,
) -> None:
    monkeypatch.setattr(eval_text, "LONGEST_TEXT", 8 << 20)
    path = tmp_path / "bad.txt"
    if content is not None:
        path.write_bytes(content)
    assert word in failed(llm_inside("eval", "-m", tiny, "--file", path, "-c", 64), 2)


def test_wrong_flags_are_one_line(llm_inside: Run, tiny: Path, text: Path, tmp_path: Path) -> None:
    eval_ = ("eval", "-m", tiny, "--file", text, "-c", 32)
    assert "--file" in failed(llm_inside("eval", "-m", tiny), 2)
    assert "do not fill" in failed(llm_inside(*eval_, "--limit", 31), 2)
    assert "-c" in failed(llm_inside("eval", "-m", tiny, "--file", text, "-c", 3), 2)
    assert "no --baseline" in failed(llm_inside(*eval_, "--baseline-device", "cpu"), 2)
    assert "one model" in failed(llm_inside(*eval_, tiny, "--save-logits", tmp_path / "x"), 2)
    assert "no folder" in failed(llm_inside(*eval_, "--save-logits", tmp_path / "no" / "x"), 2)
    assert ".svg" in failed(llm_inside(*eval_, "--plot", tmp_path / "x.jpg"), 2)
    assert "no folder" in failed(llm_inside(*eval_, "--plot", tmp_path / "no" / "x.png"), 2)
    assert "xml" in failed(llm_inside(*eval_, "-o", "xml"), 2)
    failed(llm_inside(*eval_, "-m", tmp_path / "none.gguf"), 3)
    failed(llm_inside(*eval_, "--baseline", tmp_path / "none.gguf"), 3)
    (tmp_path / "broken.gguf").write_bytes(b"GGUF")
    failed(llm_inside(*eval_, "--baseline", tmp_path / "broken.gguf"), 5)


def test_what_does_not_fit_together_is_refused(
    llm_inside: Run, tiny: Path, text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flags = ("eval", "-m", tiny, "--file", text, "-c", 32)
    monkeypatch.setattr(eval_measure, "available_memory", lambda: 150_700_000)
    assert llm_inside(*flags).returncode == 0
    assert "together" in failed(llm_inside(*flags, "--baseline", tiny), 1)
    monkeypatch.setattr(eval_measure.shutil, "disk_usage", lambda path: (0, 0, 1000))
    assert "free" in failed(llm_inside(*flags, "--save-logits", tmp_path / "x"), 1)
    assert not (tmp_path / "x").exists()


def test_markdown(llm_inside: Run, tiny: Path, other: Path, text: Path) -> None:
    flags = ("eval", "-m", tiny, "-m", other, "--file", text, "-c", 32)
    alone = llm_inside(*flags).stdout.decode()
    header, _, first, second, empty, *notes = alone.splitlines()
    assert cells(header) == ["model", "weights", "bits/weight", "perplexity", "all tokens"]
    assert cells(first)[:3] == ["tiny.gguf", "431.9 kB", "32.000"]
    assert "±" in cells(second)[3]
    assert (empty, len(notes)) == ("", 3)
    compared = llm_inside(*flags, "--baseline", tiny, "-o", "md").stdout.decode().splitlines()
    assert cells(compared[0])[5:] == ["KLD", "KLD 99 %", "RMS Δp", "same top"]
    assert cells(compared[2])[5:] == ["", "", "", ""]
    assert cells(compared[3])[5:] == ["0.000000 ± 0.000000", "0.0000", "0.000 ± 0.000 %", "100.00 ± 0.00 %"]
    assert cells(compared[4])[0] == "other.gguf"


def cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip("|").split("|")]


def test_a_terminal_gets_a_table_or_where_it_is_narrow_records() -> None:
    result = dict.fromkeys(KEYS) | {
        "name": "a\x1b[2J[red]b", "size": 10**6, "bits_per_weight": 4.5, "perplexity": 12.0,
        "perplexity_stderr": 1.0, "perplexity_all": 14.0, "perplexity_all_stderr": None,
        "windows": 1, "scored": 1, "scored_all": 3, "device": "cpu",
    }  # fmt: skip
    report = eval_report.Report("text", "00", 4, None, [result])
    wide = eval_report.as_table(report, 160)
    assert re.search(r"(?m)^a�\[2J\[red\]b +1\.0 MB +4\.500 +12\.0000 ± 1\.0000 +14\.0000$", wide)
    assert wide == eval_report.as_table(report)
    narrow = eval_report.as_table(report, 60)
    assert narrow.startswith("model        a�[2J[red]b\nweights      1.0 MB\n")
    assert "\nperplexity   12.0000 ± 1.0000\n" in narrow
    assert "KLD" not in narrow


def test_progress_on_a_terminal_leaves_no_trace_and_elsewhere_is_rare(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    windows = np.zeros((4, 8), np.int32)
    uniform = lambda ids: np.zeros((len(ids), 50), np.float32)  # noqa: E731
    with eval_progress.Scoring("m", 4) as scoring:
        score(uniform, windows, progress=scoring.at)
    assert capfd.readouterr().err == ""
    monkeypatch.setattr(eval_progress, "LINE_SECONDS", 0.0)
    with eval_progress.Scoring("m", 4) as scoring:
        score(uniform, windows, uniform, progress=scoring.at)
    lines = capfd.readouterr().err.splitlines()
    assert len(lines) == 3
    assert lines[1].startswith("m: window 2 of 4, perplexity 50.0000, KLD 0.000000, ")
    monkeypatch.setattr(terminal, "takes_escapes", lambda stream: True)
    with eval_progress.Scoring("m", 4) as scoring:
        score(uniform, windows, progress=scoring.at)
    shown = capfd.readouterr().err
    assert "window 4 of 4" in shown
    assert shown.endswith("\r\x1b[2K")
    assert "\n" not in shown


@pytest.mark.slow
@pytest.mark.parametrize("baseline", [False, True])
def test_pictures(
    llm_inside: Run, tiny: Path, other: Path, text: Path, tmp_path: Path, baseline: bool
) -> None:
    png, svg = tmp_path / "p.png", tmp_path / "p.svg"
    flags = ("eval", "-m", tiny, "-m", other, "--file", text, "-c", 32, "--limit", 32, "-o", "json")
    flags += ("--baseline", tiny) if baseline else ()
    told(llm_inside(*flags, "--plot", png))
    told(llm_inside(*flags, "--plot", svg))
    import matplotlib.image

    pixels = matplotlib.image.imread(png)
    assert min(pixels.shape[:2]) > 300
    assert len(np.unique(pixels.reshape(-1, pixels.shape[2]), axis=0)) > 10
    assert ET.parse(svg).getroot().tag == "{http://www.w3.org/2000/svg}svg"  # noqa: S314 - our own
    drawn = svg.read_text()
    assert "other.gguf" in drawn  # matplotlib names each text in a comment
    assert ("KL divergence" in drawn) == baseline
    assert not list(tmp_path.glob("*.partial"))


def test_a_picture_without_matplotlib_names_the_extra(
    llm_inside: Run, tiny: Path, text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(
        eval_plot.importlib.util, "find_spec", lambda name: None if name == "matplotlib" else find(name)
    )
    done = llm_inside("eval", "-m", tiny, "--file", text, "-c", 32, "--plot", tmp_path / "p.png")
    assert how_to_install("plot") in failed(done, 1)


def test_uniform_logits_have_the_perplexity_of_the_vocabulary(
    llm_inside: Run, text: Path, tmp_path: Path
) -> None:
    """A model whose output matrix is zero."""
    path = write_tiny_model(tmp_path / "uniform.gguf")
    content = bytearray(path.read_bytes())
    from kukri.quant.gguf.reader import GGUFFile

    output = GGUFFile.open(path).tensors["output.weight"].data
    start = bytes(content).index(output[0].tobytes())
    content[start : start + output.nbytes] = bytes(output.nbytes)
    path.write_bytes(content)
    result = told(llm_inside("eval", "-m", path, "--file", text, "-c", 32, "-o", "json"))["models"][0]
    assert result["perplexity"] == pytest.approx(265, rel=1e-6)
    assert result["perplexity_all"] == pytest.approx(265, rel=1e-6)
    assert math.isclose(result["perplexity_stderr"], 0, abs_tol=1e-6)


def test_nothing_but_the_result_is_on_stdout_and_a_closed_pipe_ends_quietly(
    tiny: Path, text: Path, environment: dict[str, str]
) -> None:
    command = [*LLM, "eval", "-m", str(tiny), "--file", str(text), "-c", "32", "-o", "json"]
    running = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL, env=environment
    )
    assert running.stdout is not None
    assert running.stderr is not None
    running.stdout.close()
    errors = running.stderr.read()
    running.stderr.close()
    assert (running.wait(60), errors) == (0, b"")


@pytest.mark.skipif(sys.platform == "win32", reason="no SIGINT to send")
@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
def test_interrupted(endless: Path, tmp_path: Path, environment: dict[str, str], how: signal.Signals) -> None:
    """Ctrl-C is 130 and leaves nothing; a kill leaves nothing under the file's own name."""
    text, saved = tmp_path / "long.txt", tmp_path / "out" / "saved"
    saved.parent.mkdir()
    text.write_text(TEXT * 4000)
    command = [*LLM, "eval", "-m", endless, "--file", text, "-c", 64, "--save-logits", saved]
    running = subprocess.Popen(
        [str(word) for word in command],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        stdin=subprocess.DEVNULL,
        env=environment,
    )
    until = time.monotonic() + 60
    while not list(saved.parent.iterdir()) and running.poll() is None and time.monotonic() < until:
        time.sleep(0.02)
    assert [path.suffix for path in saved.parent.iterdir()] == [".partial"]
    running.send_signal(how)
    out, errors = running.communicate(timeout=60)
    assert out == b""
    assert not saved.exists()
    if how is signal.SIGINT:
        assert (running.returncode, b"Traceback" in errors) == (130, False)
        assert not list(saved.parent.iterdir())
