"""Long prompts on disk: the same ids as without, for every kind of model, and never those of another."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from kukri.quant.cache_folder import CONVERSATIONS, PROMPTS, CacheFolder
from kukri.runtime.model.loading import load_model
from kukri.runtime.model.options import LoadOptions
from kukri.runtime.sessions import prompt_cache as module
from kukri.runtime.sessions.prompt_cache import PIECE, PromptCache

from ...tiny_model import write_tiny_model

GREEDY = {"temperature": 0, "max_tokens": 6, "ignore_eos": True}
RECURRENT = {"lfm2", "qwen3.5"}


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("KUKRI_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


def opened(path: Path, **more):
    return load_model(path, LoadOptions(context=2048, threads=1, **more), text=path.is_file())


def answered(path: Path, prompt: list[int], **more) -> tuple[list[int], int, int]:
    """The answer of a new process, as it were; how many of the prompt's tokens it did not compute, and how
    many bytes it kept."""
    with opened(path, **more) as model:
        cache = PromptCache(model, warn=pytest.fail)
        found = list(model.generate(prompt, **GREEDY))
        return found, model.stats.cached_tokens, cache.keep()


def prompts(vocab: int) -> tuple[list[int], list[int], list[int]]:
    """Two that begin with the same 1,100 tokens, and one that only has one piece in common with them."""
    rng = np.random.default_rng(0)
    one = rng.integers(3, vocab, 1150).tolist()
    return one, [*one[:1100], *rng.integers(3, vocab, 60).tolist()], [*one[:600], *one[:500]]


@pytest.mark.parametrize("device", ["reference", "cpu"])
@pytest.mark.parametrize("name", ["llama-gqa", "mixtral", "deepseek-v3", "lfm2", "qwen3.5"])
def test_prompts_that_begin_alike(conformance: Callable[[str], Path], name: str, device: str) -> None:
    folder = conformance(name)
    one, two, three = prompts(60)
    with opened(folder, device=device) as model:
        expected = []
        for prompt in (one, two, three):
            expected.append(list(model.generate(prompt, **GREEDY)))
            model.engine.reset()
    first = answered(folder, one, device=device)
    # a recurrent model computes the pieces one by one, ahead of the answer
    assert first[:2] == (expected[0], 2 * PIECE if name in RECURRENT else 0)
    assert first[2] == sum(file.n_bytes for file in PROMPTS.files())
    assert len(PROMPTS.files()) == 2
    assert answered(folder, one, device=device) == (expected[0], 2 * PIECE, 0)
    assert answered(folder, two, device=device) == (expected[1], 2 * PIECE, 0)
    third = answered(folder, three, device=device)
    assert third[:2] == (expected[2], (2 if name in RECURRENT else 1) * PIECE)
    assert third[2]
    assert len(PROMPTS.files()) == 3
    assert answered(folder, three[: PIECE + 1], device=device)[1] == PIECE
    assert answered(folder, three[:PIECE], device=device)[1:] == (0, 0)  # the last token is always computed


def test_of_another_model_nothing_is_used(tmp_path: Path) -> None:
    tiny, other = (write_tiny_model(tmp_path / f"{i}.gguf", seed=i, context=2048) for i in range(2))
    prompt, _, _ = prompts(250)
    for kv_type in ("q8_0", "f16"):
        for path in (tiny, other):
            for cached in (0, 2 * PIECE):
                assert answered(path, prompt, device="cpu", kv_type=kv_type)[1] == cached
    assert answered(tiny, prompt, device="reference")[1] == 0
    assert len(PROMPTS.files()) == 10
    # a file of another model under the right name
    files = [file.path for file in PROMPTS.files()]
    answered(tiny, prompt, device="cpu", kv_type="f16")
    mine = [file.path for file in PROMPTS.files()][:2]
    theirs = next(
        each for each in files if each not in mine and each.stat().st_size == mine[0].stat().st_size
    )
    mine[0].write_bytes(theirs.read_bytes())
    assert answered(tiny, prompt, device="cpu", kv_type="f16")[1] == 0
    copy = tmp_path / "copy.gguf"  # a name does not make another model
    copy.write_bytes(other.read_bytes())
    assert answered(copy, prompt, device="cpu", kv_type="f16")[1] == 2 * PIECE


def test_damaged_files_count_as_none(tmp_path: Path) -> None:
    tiny = write_tiny_model(tmp_path / "tiny.gguf", context=2048)
    prompt, _, _ = prompts(250)
    expected = answered(tiny, prompt, device="reference")
    for i, cached in ((0, 0), (1, PIECE)):  # the first piece, the second
        path = PROMPTS.files()[i].path
        raw = bytearray(path.read_bytes())
        raw[len(raw) // 2] ^= 1
        path.write_bytes(raw)
        os.utime(path, ns=(PROMPTS.files()[0].used + 1 - i,) * 2)
        found, n, kept = answered(tiny, prompt, device="reference")
        assert (found, n) == (expected[0], cached)
        assert kept  # it is made anew
        assert answered(tiny, prompt, device="reference") == (expected[0], 2 * PIECE, 0)


def test_a_running_model_keeps_what_it_knows(tmp_path: Path) -> None:
    tiny = write_tiny_model(tmp_path / "tiny.gguf", context=2048)
    one, two, _ = prompts(250)
    answered(tiny, one, device="reference")
    with opened(tiny, device="reference") as model:
        cache = PromptCache(model)
        list(model.generate(two, **GREEDY))
        assert model.stats.cached_tokens == 2 * PIECE
        list(model.generate([*two, 7], **GREEDY))
        assert model.stats.cached_tokens == len(two)
        assert cache.keep() == 0
    with opened(tiny, device="reference", deterministic=True) as model:
        cache = PromptCache(model, warn=pytest.fail)
        list(model.generate(two, **GREEDY))
        assert model.stats.cached_tokens == cache.keep() == 0


def test_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tiny = write_tiny_model(tmp_path / "tiny.gguf", context=2048)
    one, _, three = prompts(250)
    answered(tiny, one, device="reference")
    size = PROMPTS.files()[0].n_bytes
    with opened(tiny, device="reference") as model:
        cache = PromptCache(model, 2 * size + 100)
        list(model.generate(three, **GREEDY))
        cache.keep()
    assert len(PROMPTS.files()) == 2
    assert answered(tiny, three, device="reference")[1] == 2 * PIECE  # the piece that was not used went
    with opened(tiny, device="reference") as model:
        cache = PromptCache(model, 100)
        list(model.generate(one[100:], **GREEDY))
        assert cache.keep() == 0
    said: list[str] = []
    monkeypatch.setattr(module, "write_kept_file", lambda *_: (_ for _ in ()).throw(OSError(28, "no room")))
    with opened(tiny, device="reference") as model:
        cache = PromptCache(model, warn=said.append)
        list(model.generate(one[50:], **GREEDY))
        assert cache.keep() == 0
    assert said == ["the prompt is not kept: no room"]


def test_folders(tmp_path: Path, home: Path) -> None:
    assert PROMPTS.files() == []
    assert PROMPTS.clear() == (0, 0)
    folder = CacheFolder("things", ".thing", "things", most_files=16)
    made = [folder.make() / f"{n}.thing" for n in range(20)]
    for n, path in enumerate(made):
        path.write_bytes(b"x" * 100)
        os.utime(path, ns=(n, n))
    (home / "things" / f".0.thing.{16 * '0'}.partial").write_bytes(b"x")
    (home / "things" / "else").write_bytes(b"x")
    assert [file.path for file in folder.files()] == made[::-1]
    folder.make_room(100_000)
    assert [file.path for file in folder.files()] == made[:-17:-1]
    folder.make_room(350)
    assert [file.path for file in folder.files()] == made[:-4:-1]
    folder.make_room(0, [made[-2]])
    assert [file.path for file in folder.files()] == [made[-2]]
    assert folder.clear() == (1, 100)
    assert os.listdir(home / "things") == ["else"]
    assert not CONVERSATIONS.disposable


TWO = """
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[3])
from kukri.runtime.model.loading import load_model
from kukri.runtime.model.options import LoadOptions
from kukri.runtime.sessions.prompt_cache import PromptCache
ids = [3 + i * i % 250 for i in range(1200)]
with load_model(sys.argv[1], LoadOptions(context=2048, threads=1, device="reference")) as model:
    for i in range(int(sys.argv[2])):
        model.engine.reset()
        cache = PromptCache(model, 400_000 + 600_000 * (i % 3))
        prompt = ids[: 1100 if i % 2 else 600] + [i % 250 + 3]
        print(list(model.generate(prompt, temperature=0, max_tokens=2, ignore_eos=True)), flush=True)
        cache.keep()
"""


@pytest.mark.slow
def test_two_processes_at_once(tmp_path: Path, home: Path) -> None:
    """They write, use and delete the same files."""
    tiny = write_tiny_model(tmp_path / "tiny.gguf", context=2048)
    root = str(Path(module.__file__).parents[3])
    command = [sys.executable, "-c", TWO, str(tiny), "12", root]
    alone = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    PROMPTS.clear()
    both = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    assert [process.communicate(timeout=300)[0] for process in both] == [alone, alone]
    assert all(process.returncode == 0 for process in both)
    assert all(file.path.name.endswith(PROMPTS.ending) for file in PROMPTS.files())
