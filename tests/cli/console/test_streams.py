"""Streams, locales and signals: what commands do that people and shells count on."""

from __future__ import annotations

import json
import os
import re
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ...running import LLM, Run, failed

posix = pytest.mark.skipif(os.name == "nt", reason="signals and shells of POSIX")


@posix
def test_a_full_disk_behind_stdout_is_1(llm: Run, tiny: Path) -> None:
    if not os.path.exists("/dev/full"):
        pytest.skip("no /dev/full")
    with open("/dev/full", "wb") as full:
        done = subprocess.run([*LLM, "--help"], stdout=full, stderr=subprocess.PIPE, check=False)
    assert done.returncode == 1
    assert len(done.stderr.splitlines()) == 1
    assert b"No space left" in done.stderr


@posix
def test_a_full_disk_behind_stderr_changes_no_exit_code(environment: dict[str, str], tiny: Path) -> None:
    if not os.path.exists("/dev/full"):
        pytest.skip("no /dev/full")
    for arguments, code in (
        (["show", "no-such-model"], 3),
        (["--debug", "show", "no-such-model"], 3),
        (["run", "--no-such-flag"], 2),
        (["run", "-m", str(tiny), "-n", "2", "--stats", "hello"], 0),
    ):
        with open("/dev/full", "wb") as full:
            done = subprocess.run(
                [*LLM, *arguments],
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=full,
                timeout=120,
                check=False,
            )
        assert done.returncode == code, arguments


@posix
def test_a_closed_pipe_ends_quietly(environment: dict[str, str], endless: Path) -> None:
    llm = f"'{sys.executable}' -m kukri.cli.main"
    command = f"{llm} run -m '{endless}' -t 0 hello | head -c 20; echo ${{PIPESTATUS[0]}}"
    done = subprocess.run(
        ["bash", "-c", command],
        env=environment,
        capture_output=True,
        timeout=120,
        stdin=subprocess.DEVNULL,
        check=False,
    )
    assert done.stdout[20:] == b"0\n"
    assert done.stderr == b""


@posix
@pytest.mark.parametrize("redirect", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_closed_streams_do_no_harm(environment: dict[str, str], tiny: Path, redirect: str) -> None:
    command = f"'{sys.executable}' -m kukri.cli.main run -m '{tiny}' -n 4 hello {redirect}"
    done = subprocess.run(
        ["bash", "-c", command], env=environment, capture_output=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr.decode()
    assert b"Traceback" not in done.stderr
    assert b"Exception ignored" not in done.stderr


@posix
@pytest.mark.parametrize("output", ["text", "json"])
def test_ctrl_c_keeps_what_was_written_and_ends_with_130(
    environment: dict[str, str], endless: Path, output: str
) -> None:
    process = subprocess.Popen(
        [*LLM, "run", "-m", str(endless), "-c", "100000", "-t", "1.5", "-o", output, "hello"],
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdout is not None
    if output == "text":
        assert select.select([process.stdout], [], [], 60)[0]
    else:
        time.sleep(2)
    process.send_signal(signal.SIGINT)
    stopped = time.monotonic()
    stdout, stderr = process.communicate(timeout=60)
    assert time.monotonic() - stopped < 5
    assert process.returncode == 130
    assert b"Traceback" not in stderr
    if output == "text":
        assert re.fullmatch(rb"[ -~]+\n", stdout)
        assert b"interrupted" in stderr
    elif stdout:  # it may still have been loading
        assert json.loads(stdout)["finish_reason"] == "interrupted"


@posix
def test_names_of_files_may_be_any_bytes(llm: Run, tiny: Path, tmp_path: Path) -> None:
    path = os.fsencode(tmp_path) + b"/caf\xe9.gguf"
    try:
        os.link(tiny, path)
    except OSError:
        pytest.skip("this file system wants UTF-8")
    assert llm("show", os.fsdecode(path)).returncode == 0
    failed(llm("run", "-m", tiny, os.fsdecode(b"caf\xe9")), 2)
    ascii_locale = {"LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"}
    os.link(tiny, tmp_path / "é.gguf")
    assert llm("show", tmp_path / "é.gguf", env=ascii_locale).returncode == 0


def test_text_is_utf_8_whatever_the_locale(llm: Run, tiny: Path) -> None:
    for locale in ({"LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"}, {"LC_ALL": "C.UTF-8"}):
        for told in (
            json.loads(llm("tokenize", "-m", tiny, "-o", "json", "é☃", env=locale).stdout.decode("utf-8")),
            json.loads(
                llm("tokenize", "-m", tiny, "-o", "json", input="é☃\n".encode(), env=locale).stdout.decode(
                    "utf-8"
                )
            ),
        ):
            assert told["ids"] == list("é☃".encode())
    missing = llm("show", "é.gguf", env={"LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"})
    assert missing.stderr.decode("utf-8") == "error: no such file or folder: é.gguf\n"


def test_help_is_quick_and_imports_no_compiler(environment: dict[str, str]) -> None:
    code = (
        "import sys\nfrom kukri.cli.main import main\nassert main(['run', '--help']) == 0\n"
        "heavy = {'numba', 'numpy', 'huggingface_hub', 'prompt_toolkit', 'gguf', 'jinja2'}\n"
        "assert not heavy & set(sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr.decode()
    assert done.stdout.startswith(b"Usage: ")
