"""Trap 15, and interruption in general: signals in every phase, full disks, homes that cannot be written."""

from __future__ import annotations

import errno
import hashlib
import os
import resource
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pytest

from kukri.quant.jit.kernel_cache import cache_folder

from ...running import LLM, Run, failed
from ...runtime.hub.hub_server import HubServer

pytestmark = pytest.mark.skipif(os.name == "nt", reason="signals of POSIX")
MODEL = b"GGUF" + bytes(range(256)) * 3000
REPO = "org/model-GGUF"


def start(environment: dict[str, str], *arguments: object) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [*LLM, *map(str, arguments)],
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


def kernels_are_whole(folder: Path) -> int:
    """How many kernels are in a cache, each of which must be as it was written."""
    paths = list(folder.rglob("*.kernel"))
    for path in paths:
        content = path.read_bytes()
        assert hashlib.sha256(content[32:]).digest() == content[:32], path
    return len(paths)


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_trap_15_signals_in_any_phase(
    environment: dict[str, str], endless: Path, how: signal.Signals
) -> None:
    """From the first import on to the middle of an answer."""
    for delay in (0.15, 0.3, 0.6, None):  # None: once it writes
        process = start(
            environment, "run", "-m", endless, "-t", 3, "--seed", 1, "hello"
        )  # never the same again
        assert process.stdout is not None
        if delay is None:
            assert process.stdout.read(1)
        else:
            time.sleep(delay)
        process.send_signal(how)
        sent = time.monotonic()
        _, errors = process.communicate(timeout=30)
        assert time.monotonic() - sent < 10
        assert b"Exception ignored" not in errors
        if (
            b"Fatal Python error: init_import_site" not in errors and delay != 0.15
        ):  # Python itself still starts
            assert process.returncode in (128 + how, -how), (delay, errors)
            assert b"Traceback" not in errors, (delay, errors)
    assert process.returncode == 128 + how


def test_trap_15_a_killed_compile_and_two_cold_starts_at_once(
    environment: dict[str, str], tiny: Path, tmp_path: Path
) -> None:
    """All but three kernels are there; those are compiled by two processes at once, and one is killed."""
    home = tmp_path / "cold"
    folder = home / "kernels" / cache_folder().name
    folder.mkdir(parents=True)
    kept = sorted(cache_folder().glob("*.kernel"))
    for path in kept:
        (folder / path.name).write_bytes(path.read_bytes())
    cold = environment | {"KUKRI_HOME": str(home)}
    flags = ("run", "-m", tiny, "-t", 0, "-n", 6, "hello")
    expected = start(environment, *flags).communicate(timeout=60)[0]
    used = [path for path in folder.iterdir() if path.stat().st_atime_ns]
    start(cold, *flags).communicate(timeout=60)
    missing = sorted(used, key=lambda path: path.stat().st_size)[:3]
    for path in missing:
        path.unlink()
    killed = start(cold, *flags)
    time.sleep(1.0)
    killed.kill()
    killed.communicate()
    kernels_are_whole(folder)
    both = [start(cold, *flags) for _ in range(2)]
    for process in both:
        written, errors = process.communicate(timeout=120)
        assert process.returncode == 0, errors
        assert written == expected
    assert kernels_are_whole(folder) >= len(kept) - len(missing)


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL, signal.SIGINT])
def test_trap_15_a_quantisation_that_is_cut_short(
    environment: dict[str, str], llm: Run, tiny: Path, tmp_path: Path, how: signal.Signals
) -> None:
    target = tmp_path / "out" / "b.gguf"
    target.parent.mkdir()
    for delay in (0.35, 0.5, 0.65):
        process = start(environment, "quantize", tiny, target, "--type", "q8_0")
        time.sleep(delay)
        process.send_signal(how)
        _, errors = process.communicate(timeout=60)
        assert b"Traceback" not in errors
        if target.exists():
            assert llm("show", target).returncode == 0
            target.unlink()
        if how is not signal.SIGKILL:
            assert list(target.parent.iterdir()) == []
    assert llm("quantize", tiny, target, "--type", "q8_0").returncode == 0
    assert [path.name for path in target.parent.iterdir()] == ["b.gguf"]
    assert llm("run", "-m", target, "-n", 2, "hi").returncode == 0


def small_files() -> None:
    """No file may grow beyond 40 kB: what a full disk looks like to those who write."""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (40_000, 40_000))


def test_trap_15_a_full_disk(llm: Run, environment: dict[str, str], tiny: Path, tmp_path: Path) -> None:
    line = failed(llm("quantize", tiny, tmp_path / "b.gguf", "--type", "q8_0", preexec_fn=small_files), 1)
    assert os.strerror(errno.EFBIG) in line or "room" in line
    assert not list(tmp_path.glob("*b.gguf*"))
    hub = HubServer({REPO: {"model-Q4_K_M.gguf": MODEL}})
    hub.start()
    try:
        line = failed(llm("pull", REPO, env={"HF_ENDPOINT": hub.url}, preexec_fn=small_files), 1)
        assert "HF_HOME" in line
        done = llm("pull", REPO, env={"HF_ENDPOINT": hub.url})
        assert Path(done.stdout.decode().strip()).read_bytes() == MODEL
    finally:
        hub.stop()


def test_trap_15_kernels_without_room_are_used_all_the_same(
    llm: Run, environment: dict[str, str], tiny: Path, tmp_path: Path
) -> None:
    home = tmp_path / "cold"
    folder = home / "kernels" / cache_folder().name
    folder.mkdir(parents=True)
    for path in cache_folder().glob("*.kernel"):
        shutil.copy(path, folder)
    gone = max(folder.iterdir(), key=lambda path: path.stat().st_size)
    gone.unlink()

    def no_room() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (1, 1))

    done = llm("run", "-m", tiny, "-n", 2, "hi", env={"KUKRI_HOME": str(home)}, preexec_fn=no_room)
    assert done.returncode == 0, done.stderr.decode()
    assert not list(folder.glob("unfinished-*"))


@pytest.mark.parametrize("home", ["unset", "a file", "read-only"])
def test_trap_15_homes_that_cannot_be_written(
    environment: dict[str, str], llm: Run, tiny: Path, tmp_path: Path, home: str
) -> None:
    """Answers come, tokenizers work and the kernels, at worst, go to a temporary folder."""
    where = tmp_path / "home"
    env = {
        name: value for name, value in environment.items() if name not in ("HOME", "HF_HOME", "HF_TOKEN_PATH")
    }
    if home == "a file":
        where.write_bytes(b"")
        env["HOME"] = str(where)
    elif home == "read-only":
        where.mkdir(mode=0o555)
        env["HOME"] = str(where)
    done = subprocess.run([*LLM, "run", "-m", str(tiny), "-n", "2", "hi"], env=env, stdin=subprocess.DEVNULL,
                          capture_output=True, timeout=120, check=False)  # fmt: skip
    assert done.returncode == 0, done.stderr.decode()
    assert b"Traceback" not in done.stderr
    env.pop("KUKRI_HOME")
    for command, code in ((["list"], 0), (["tokenize", "-m", str(tiny), "hi"], 0), (["show", "smollm2"], 0)):
        done = subprocess.run([*LLM, *command], env=env, stdin=subprocess.DEVNULL, capture_output=True,
                              timeout=120, check=False)  # fmt: skip
        assert done.returncode == code, done.stderr.decode()
        assert b"Traceback" not in done.stderr
