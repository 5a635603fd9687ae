"""Hostile names and texts in every command: none of their characters gets into any stream or format."""

from __future__ import annotations

import io
import json
import logging
import os
import re
import shutil
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gguf
import numpy as np
import pytest

from kukri.cli.chat import slash
from kukri.cli.chat.conversation import Conversation, Turn
from kukri.cli.console import terminal
from kukri.cli.console.log import log_on_stderr
from kukri.cli.console.progress import Loading, Progress
from kukri.runtime.cpu import bandwidth
from kukri.runtime.engine.sampler import SamplingParams

from ..running import Run
from ..tiny_model import write_tiny_model
from .chat.test_chat import Terminal, open_chat, terminals
from .traps.models import write_script

__all__ = ["terminals"]

# A title, a cleared screen, letters turned around, hidden letters, a second line, a byte that is not UTF-8.
TEXT = (
    "x\x1b]0;t\x07\x9b2Jy\u202ez\u2066\u200f\u061c\u200b\ufeff\ufff9\nv\r\u2028\u2029\x7f[/bold]"
    "\U000e0041\U000e007f"
)
NAME = TEXT.replace("/", "") + "\udce9"
FORBIDDEN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb"
    "\U000e0000-\U000e0fff]"
)
LINE_OF_OTHERS = re.compile(r"(?m)^v")  # what comes behind a line break in a name

posix = pytest.mark.skipif(os.name == "nt", reason="such names of files are POSIX")


def check(*streams: bytes) -> str:
    """The streams' text; they must be UTF-8 without any forbidden character."""
    text = b"\n".join(streams).decode("utf-8")
    assert not (found := FORBIDDEN.findall(text)), (found, text)
    assert not LINE_OF_OTHERS.search(text), text
    return text


def checked(done: subprocess.CompletedProcess[bytes], code: int = 0) -> str:
    assert done.returncode == code, done.stderr.decode("utf-8", "replace")
    return check(done.stdout, done.stderr)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / NAME
    try:
        path.mkdir()
    except OSError:
        pytest.skip("this file system wants UTF-8")
    return path


@pytest.fixture
def model(folder: Path) -> Path:
    """A model that runs, in a file of a hostile name and with hostile metadata."""
    return write_tiny_model(folder / f"{NAME}.gguf", name=TEXT)


pytestmark = posix


def test_show(llm_inside: Run, model: Path, folder: Path) -> None:
    assert "x\ufffd]0;t\ufffd\ufffd2Jy" in checked(llm_inside("show", model))
    done = llm_inside("show", model, "-o", "json")
    checked(done)
    assert json.loads(done.stdout)["name"] == TEXT
    strange = folder / "strange.gguf"
    writer = gguf.GGUFWriter(strange, TEXT)
    writer.add_name(TEXT)
    writer.add_license(TEXT)
    writer.add_tokenizer_model(TEXT)
    writer.add_tensor(TEXT[:40], np.zeros((4, 32), np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    for flags in ((), ("-o", "json")):
        checked(llm_inside("show", strange, *flags))
    checked(llm_inside("run", "-m", strange, "hi"), 5)
    checked(llm_inside("--debug", "run", "-m", strange, "hi"), 5)


def test_list(llm: Run, environment: dict[str, str]) -> None:
    repo = Path(environment["HF_HOME"]) / "hub" / f"models--org--{NAME}"
    snapshot = repo / "snapshots" / ("0" * 40)
    snapshot.mkdir(parents=True)
    (repo / "refs").mkdir()
    (repo / "refs" / "main").write_text("0" * 40)
    (snapshot / f"{NAME}-Q4_0.gguf").write_bytes(b"GGUF")
    (repo / "blobs").mkdir()
    (repo / "blobs" / "x.incomplete").write_bytes(b"G")
    assert "partial" in checked(llm("list"))
    done = llm("list", "-o", "json")
    checked(done)
    rows = json.loads(done.stdout)
    partial, whole = sorted(rows, key=lambda row: not row["partial"])
    assert (partial["partial"], whole["partial"]) == (True, False)
    assert "\x1b]0;t\x07\x9b2Jy\u202e" in whole["name"]
    assert whole["path"].endswith("\ufffd-Q4_0.gguf")


def test_run(llm_inside: Run, model: Path) -> None:
    checked(llm_inside("run", "-m", model, "-n", 3, "-t", 0, "--stats", "hi"))
    done = llm_inside("run", "-m", model, "-n", 3, "-t", 0, "-o", "json", TEXT)
    checked(done)
    assert json.loads(done.stdout)["model"] == os.fsencode(str(model)).decode("utf-8", "replace")
    checked(llm_inside("run", "-m", model, NAME), 2)
    checked(llm_inside("run", "-m", model, "-n", 1, "-s", NAME, "hi"), 2)


def test_tokenize(llm_inside: Run, model: Path) -> None:
    for form in ("rich", "json"):
        checked(llm_inside("tokenize", "-m", model, "-o", form, TEXT))


@pytest.mark.slow
def test_bench(llm_inside: Run, model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("MIN_BYTES", "MAX_BYTES"):
        monkeypatch.setattr(bandwidth, name, 1 << 20)
    monkeypatch.setattr(bandwidth, "RUNS", 1)
    monkeypatch.setattr("kukri.cli.console.description._text", lambda data, key: TEXT)  # the architecture
    flags = ("-p", 4, "-n", 2, "-r", 1, "--no-cold")
    for form in ("auto", "md", "json", "jsonl", "csv"):
        checked(llm_inside("bench", "-m", model, *flags, "-o", form))


@pytest.mark.slow
def test_eval(llm_inside: Run, model: Path, folder: Path) -> None:
    text = folder / NAME
    text.write_text("In the beginning there was a model. " * 8)
    saved = folder / f"{NAME}.logits"
    checked(llm_inside("eval", model, "--file", text, "-c", 32, "--save-logits", saved))
    for form in ("auto", "md", "json"):
        flags = ("--file", text, "-c", 32, "--baseline", saved, "-o", form)
        checked(llm_inside("eval", model, *flags))
    checked(llm_inside("eval", model, "--file", folder / f"{NAME}2"), 2)
    checked(llm_inside("eval", model, "--file", text, "--plot", folder / NAME), 2)
    checked(llm_inside("eval", model, "--file", text, "-c", 32, "--baseline", f"/{NAME}"), 3)


def test_quantize(llm_inside: Run, model: Path, folder: Path) -> None:
    done = llm_inside("quantize", model, folder / f"{NAME}2.gguf", "--type", "q4_k_m")
    checked(done)
    assert done.stdout.count(b"\n") == 1
    checked(llm_inside("quantize", model, model, "--type", "q8_0", "--force"), 2)
    checked(llm_inside("quantize", model, folder, "--type", NAME), 2)
    checked(llm_inside("quantize", model, folder, "--type", "q8_0", "--tensor-type", f"({NAME}=q8_0"), 2)


def test_a_folder_of_a_hostile_name(
    llm_inside: Run, conformance: Callable[[str], Path], folder: Path, tmp_path: Path
) -> None:
    """The name goes into the new file, where only UTF-8 can stand."""
    source = folder / NAME
    shutil.copytree(conformance("llama-gqa-sharded"), source)
    checked(llm_inside("show", source))
    checked(llm_inside("quantize", source, tmp_path / "new.gguf", "--type", "q8_0"))
    done = llm_inside("show", tmp_path / "new.gguf", "-o", "json")
    checked(done)
    assert json.loads(done.stdout)["name"].endswith("]\U000e0041\U000e007f\ufffd")


def test_names_that_lead_nowhere(llm_inside: Run) -> None:
    for command in ("show", "pull", "rm"):
        for name in (NAME, f"./{NAME}", f"{NAME}/{NAME}:{NAME}", f"org/{NAME}"):
            done = llm_inside(command, name)
            assert done.returncode in (1, 2, 3)
            assert check(done.stdout, done.stderr).startswith("\nerror: ")


def test_wrong_usage(llm_inside: Run) -> None:
    for arguments in (
        [NAME], ["run", f"--{NAME}"], ["run", "-n", NAME, "hi"], ["bench", "-p", NAME], ["show", "a", NAME],
        ["bench", "-pg", NAME], ["show", "-o", NAME, "x"], ["eval", "--file", NAME],
        ["run", "--device", NAME, "hi"],
    ):  # fmt: skip
        checked(llm_inside(*arguments), 2)
    checked(llm_inside("run", "hi", env={"LLM_TOP_K": NAME}), 2)


def test_doctor(llm: Run, environment: dict[str, str], folder: Path) -> None:
    checked(llm("doctor", env={"KUKRI_HOME": str(folder), "HF_HOME": str(folder / "hf")}))


def test_slash_commands(folder: Path, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    session: Any = SimpleNamespace(
        name=NAME,
        params=SamplingParams(stop=(TEXT,)),
        last=None,
        conversation=Conversation(TEXT, turns=[Turn(TEXT, TEXT)]),
        model=SimpleNamespace(path=folder / NAME, context=8, config=SimpleNamespace(arch=TEXT, n_layers=1)),
    )
    for line in ("/show", "/set", f"/set stop '{TEXT}'", f"/save {folder}/c", f"/load {folder}/c", "/undo"):
        slash.handle(session, line)
        check(*capfdbinary.readouterr())
    session.conversation.system = TEXT  # a text of several lines
    slash.handle(session, "/system")
    shown = capfdbinary.readouterr().err.decode()
    assert not re.search(
        "[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u206f\U000e0000-\U000e007f]", shown
    )
    for line in (f"/{TEXT}", f"/load /{NAME}", f"/set {TEXT} 1", f"/set top_k {TEXT}"):
        with pytest.raises((ValueError, OSError)) as error:
            slash.handle(session, line)
        terminal.error(str(error.value))
        check(*capfdbinary.readouterr())


def test_logs_and_warnings_of_any_library(capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    other = logging.getLogger("some.library")
    handler = logging.StreamHandler(sys.stderr)
    other.addHandler(handler)
    try:
        with log_on_stderr():
            for logger in (other, logging.getLogger("kukri.x")):
                logger.warning("%s is odd", TEXT)
            with warnings.catch_warnings():
                warnings.simplefilter("always")
                logging.captureWarnings(True)
                warnings.warn(TEXT, stacklevel=1)
    finally:
        other.removeHandler(handler)
    assert check(*capfdbinary.readouterr()).count("is odd") == 2
    assert logging.getLogRecordFactory() is logging.LogRecord


class FakeTerminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("colour", ["", "1"])
def test_progress_and_status_lines_on_a_terminal(monkeypatch: pytest.MonkeyPatch, colour: str) -> None:
    own = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\r")  # of the bar and of the line
    for show in (bar, loading, status):
        shown = FakeTerminal()
        monkeypatch.setattr(sys, "stderr", shown)
        monkeypatch.setenv("TERM", "xterm")
        monkeypatch.setenv("NO_COLOR", colour)
        show()
        text = own.sub("", shown.getvalue())
        assert "]0;t" in text
        check(text.encode("utf-8"))


def bar() -> None:
    with Progress(TEXT, 10) as progress:
        progress.at(10)


def loading() -> None:
    with Loading(TEXT) as line:
        line.at(TEXT, 1, 2)


def status() -> None:
    with terminal.status(TEXT):
        pass


# All bytes of an answer differ, so that each has one successor in such a model.
ANSWERS = {
    "a\x1b[2J\x07b": "a\ufffd[2J\ufffdb",
    "a\u202eb": "a\ufffdb",
    "a\u2066b": "a\ufffdb",
    "a\U000e0021b": "a\ufffdb",
    "a\u200db": "a\u200db",
    "a\u200fb": "a\u200fb",
}


@pytest.mark.parametrize("text", ANSWERS, ids=ascii)
def test_model_text(
    terminals: list[Terminal], environment: dict[str, str], llm_inside: Run, tmp_path: Path, text: str
) -> None:
    """A terminal gets an answer without what commands it, a pipe as it is, JSON with escapes."""
    path = write_script(tmp_path / "m.gguf", text.encode())
    chat = open_chat(terminals, environment, path, "-t", "0")
    chat.line("hi")
    shown = chat.expect("hi\\s+a[^b]*b")
    assert shown.replace("\r\n", "\n").endswith(ANSWERS[text])
    assert llm_inside("run", "-m", path, "-t", 0, "hi").stdout.decode() == f"{text}\n"
    done = llm_inside("run", "-m", path, "-t", 0, "-o", "json", "hi")
    checked(done)
    assert json.loads(done.stdout)["text"] == text


@pytest.mark.parametrize("pieces", [("a\r\nb\r", "\nc\n"), ("a\r", "\nb", "\r\nc", "\r\n")])
def test_line_ends_of_other_systems(monkeypatch: pytest.MonkeyPatch, pieces: tuple[str, ...]) -> None:
    for stream, shown in ((FakeTerminal(), "a\nb\nc\n"), (io.StringIO(), "a\r\nb\r\nc\n")):
        monkeypatch.setattr(sys, "stdout", stream)
        sink = terminal.ModelText()
        for piece in pieces:
            sink.write(piece)
        sink.finish()
        assert stream.getvalue() == shown


def test_what_is_pasted_is_shown_safely_and_kept(
    terminals: list[Terminal], environment: dict[str, str], tiny: Path, tmp_path: Path
) -> None:
    chat = open_chat(terminals, environment, tiny, "-n", "2")
    chat.send("\x1b[200~a\u202eb\u2066c\x1b[201~")
    chat.expect("a\ufffdb\ufffdc")
    chat.ask("", "cut after")
    os.write(chat.process.fd, b"caf\xe9\r")  # Latin-1
    chat.expect("cut after")
    chat.expect(">>>")
    chat.ask(f"/save {tmp_path / 'c.json'}", "saved")
    users = [turn["user"] for turn in json.loads((tmp_path / "c.json").read_text())["turns"]]
    assert users == ["a\u202eb\u2066c", "caf\ufffd"]
    chat.line("/bye")
    assert chat.end() == 0
    assert not re.search("[\u202a-\u202e\u2066-\u2069]", chat.raw.decode("utf-8"))
