"""Kill commands at random moments, a hundred times each, and look whether anything is corrupt afterwards.

    python scripts/kill_test.py pull quantize compile session --kills 100

`pull` is against a slow stand-in for the Hub on the loopback interface, `quantize` of a small model,
`compile` the first start of one with an empty cache, and `session` writes a session of 8 MB again and again,
each time with other pages. After each SIGKILL every file under a final name must
be whole; what the kill left is where the next attempt begins, so that all stages are met. Every tenth time
the command is left alone: it must recover and give what it always gives, and then all starts anew.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import random
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import numpy as np
import save_sessions

from kukri.quant.gguf.reader import GGUFFile
from kukri.tests.runtime.hub.hub_server import HubServer
from kukri.tests.tiny_model import write_tiny_model

LLM = (sys.executable, "-m", "kukri.cli.start")
REPO = "org/model-GGUF"
RECOVER_EVERY = 10


class Case:
    """A command, what must hold after a kill, and what must hold when it was left alone."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.environment = os.environ | {"KUKRI_HOME": str(folder / "home"), "HF_HOME": str(folder / "hf")}
        self.longest = 1.0  # seconds until a kill at most
        self.works = True  # these are of processor time, so that a busy machine is no different
        self.program: tuple[str, ...] = LLM
        self.command: list[str] = []
        self.whole: Callable[[], int] = lambda: 0  # raises for what is not; how many files there are
        self.right: Callable[[bytes], None] = lambda written: None
        self.clear: Callable[[], None] = lambda: None


def pull(folder: Path) -> Case:
    case = Case(folder)
    content = b"GGUF" + np.random.default_rng(0).bytes(4_000_000)
    hub = HubServer({REPO: {"model-Q4_K_M.gguf": content}}, pace=0.02)
    hub.start()
    case.environment |= {"HF_ENDPOINT": hub.url}
    case.command, case.longest, case.works = ["pull", REPO], 2.2, False

    def whole() -> int:
        files = [p for p in (folder / "hf").rglob("snapshots/*/*") if p.exists()]
        files += [
            p for p in (folder / "hf").rglob("blobs/*") if not p.name.endswith((".incomplete", ".lock"))
        ]
        for path in files:
            assert path.read_bytes() == content, f"{path} is not whole"
        return len(files)

    def right(written: bytes) -> None:
        assert Path(written.decode().strip()).read_bytes() == content

    case.whole, case.right = whole, right
    case.clear = lambda: shutil.rmtree(folder / "hf", ignore_errors=True)
    return case


def quantize(folder: Path) -> Case:
    case = Case(folder)
    source, target = write_tiny_model(folder / "tiny.gguf"), folder / "out" / "tiny-q8_0.gguf"
    target.parent.mkdir()
    case.command = ["quantize", str(source), str(target), "--type", "q8_0", "--force"]
    del case.environment["KUKRI_HOME"]  # the usual cache of kernels
    subprocess.run([*LLM, *case.command], env=case.environment, check=True, capture_output=True)
    expected = hashlib.sha256(target.read_bytes()).hexdigest()
    start = _children_seconds()
    subprocess.run([*LLM, *case.command], env=case.environment, check=True, capture_output=True)
    case.longest = 1.1 * (_children_seconds() - start)

    def whole() -> int:
        if not target.exists():
            return 0
        assert hashlib.sha256(target.read_bytes()).hexdigest() == expected, "the file is not whole"
        return len(GGUFFile.open(target).tensors)

    def right(written: bytes) -> None:
        assert [path.name for path in target.parent.iterdir()] == [target.name]
        assert whole()

    case.whole, case.right = whole, right
    case.clear = lambda: target.unlink(missing_ok=True)
    return case


def compile_(folder: Path) -> Case:
    case = Case(folder)
    model = write_tiny_model(folder / "tiny.gguf")
    case.command = ["run", "-m", str(model), "-t", "0", "-n", "8", "hello"]
    case.longest = 6.0
    usual = {name: value for name, value in case.environment.items() if name != "KUKRI_HOME"}
    expected = subprocess.run(
        [*LLM, *case.command], env=usual, check=True, capture_output=True, stdin=subprocess.DEVNULL
    ).stdout

    def whole() -> int:
        kernels = list((folder / "home").rglob("*.kernel"))
        for path in kernels:
            raw = path.read_bytes()
            assert hashlib.sha256(raw[32:]).digest() == raw[:32], f"{path} is not whole"
        return len(kernels)

    def right(written: bytes) -> None:
        assert written == expected
        assert not list((folder / "home").rglob("unfinished-*")), "what kills left was not removed"

    case.whole, case.right = whole, right
    case.clear = lambda: shutil.rmtree(folder / "home", ignore_errors=True)
    return case


def session(folder: Path) -> Case:
    case = Case(folder)
    path = folder / "a.session"
    case.program = (sys.executable, save_sessions.__file__)
    case.command = [str(path)]
    start = _children_seconds()
    subprocess.run([*case.program, *case.command], env=case.environment, check=True, capture_output=True)
    case.longest = 1.1 * (_children_seconds() - start)
    seen = save_sessions.number_of(path)

    def whole() -> int:
        nonlocal seen
        number = save_sessions.number_of(path)
        assert number >= seen, "an older session than before"
        seen = number
        return number

    def right(written: bytes) -> None:
        assert [each.name for each in folder.iterdir()] == [path.name], "what kills left was not removed"

    case.whole, case.right = whole, right
    return case


def _children_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def ended_within(process: subprocess.Popen[bytes], seconds: float, works: bool) -> bool:
    """Wait until the process ends or has taken so many seconds, of processor time if it `works`."""
    start = time.monotonic()
    while process.poll() is None:
        taken = time.monotonic() - start
        if works:
            with suppress(OSError):  # it has just ended
                words = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
                taken = (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")
        if taken > seconds:
            return False
        time.sleep(0.005)
    return True


CASES = {"pull": pull, "quantize": quantize, "compile": compile_, "session": session}


def run(name: str, kills: int, seed: int) -> None:
    rng = random.Random(seed)
    start = time.monotonic()
    done = before = recovered = 0
    with tempfile.TemporaryDirectory(prefix="kill-") as root:
        case = CASES[name](Path(root))
        while done < kills:
            process = subprocess.Popen(
                [*case.program, *case.command],
                env=case.environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
            )
            if ended_within(process, rng.uniform(0.05, case.longest), case.works):
                before += 1  # it was quicker than the kill
                case.clear()
            else:
                process.kill()
                done += 1
            process.communicate()
            case.whole()
            if done and done % RECOVER_EVERY == 0 and recovered < done // RECOVER_EVERY:
                left = subprocess.run(
                    [*case.program, *case.command],
                    env=case.environment,
                    stdin=subprocess.DEVNULL,
                    capture_output=True,
                    timeout=1800,
                    check=False,
                )
                assert left.returncode == 0, left.stderr.decode()
                case.right(left.stdout)
                case.whole()
                case.clear()
                recovered += 1
                print(f"{name}: {done} kills, {time.monotonic() - start:.0f} s", flush=True)
    seconds = time.monotonic() - start
    late = f"{before} more came too late"
    print(
        f"{name}: {done} kills ({late}), {recovered} recoveries, nothing corrupt, {seconds:.0f} s", flush=True
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("commands", nargs="*", default=[*CASES], help=", ".join(CASES))
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    for name in arguments.commands:
        run(name, arguments.kills, arguments.seed)


if __name__ == "__main__":
    main()
