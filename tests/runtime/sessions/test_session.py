"""Sessions: a conversation and its cache in a file, whole or not there."""

from __future__ import annotations

import os
import random
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from kukri.quant.errors import DamagedFile
from kukri.runtime.answers.events import Finished, TextDelta
from kukri.runtime.model.loading import load_model
from kukri.runtime.model.options import LoadOptions
from kukri.runtime.sessions.session import Session
from kukri.runtime.sessions.session_file import read_session

from ...tiny_model import write_tiny_model

GREEDY = {"temperature": 0, "max_tokens": 12, "ignore_eos": True}


@pytest.fixture
def tiny(tmp_path: Path) -> Path:
    return write_tiny_model(tmp_path / "tiny.gguf", context=1024)


def opened(path: Path, device: str = "reference", **more):
    return load_model(path, LoadOptions(device=device, context=1024, **more))


@pytest.mark.parametrize("device", ["reference", "cpu"])
def test_a_conversation_goes_on_where_it_stopped(tiny: Path, tmp_path: Path, device: str) -> None:
    file = tmp_path / "talk.session"
    with opened(tiny, device) as model:
        session = Session(model, file, system="be brief")
        first = "".join(session.chat("hello there, how are you?", **GREEDY))
        size = session.save()
        assert size == file.stat().st_size
        expected = "".join(session.chat("and now?", **GREEDY))
        cached = model.stats.cached_tokens
        assert cached > 0
    with opened(tiny, device) as model:
        session = Session(model, file)
        assert [message["role"] for message in session.messages] == ["system", "user", "assistant"]
        assert session.messages[2]["content"] == first
        assert "".join(session.chat("and now?", **GREEDY)) == expected
        assert model.stats.cached_tokens == cached  # as if it had never been away
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


def test_another_model_or_cache_keeps_the_messages_and_says_so(tiny: Path, tmp_path: Path) -> None:
    file, other = tmp_path / "talk.session", write_tiny_model(tmp_path / "other.gguf", seed=3, context=1024)
    with opened(tiny) as model:
        session = Session(model, file)
        list(session.chat("hello there", **GREEDY))
        session.save()
    for path, options in ((other, {}), (tiny, {"device": "cpu", "kv_type": "q8_0"})):
        said: list[str] = []
        with opened(path, **options) as model:
            session = Session(model, file, warn=said.append)
            assert len(session.messages) == 2
            list(session.chat("again", **GREEDY))
            assert model.stats.cached_tokens == 0
        assert len(said) == 1
        assert "another model or machine" in said[0]


def test_an_answer_that_is_closed_early_is_kept_as_far_as_it_came(tiny: Path, tmp_path: Path) -> None:
    with opened(tiny) as model:
        session = Session(model, tmp_path / "talk.session")
        pieces = session.chat("hello", temperature=0, ignore_eos=True)
        got = next(pieces)
        pieces.close()
        assert session.messages[-1] == {"role": "assistant", "content": got}
        session.save()
        assert Session(model, tmp_path / "talk.session").messages == session.messages


def test_tools_and_their_results_are_kept(tiny: Path, tmp_path: Path) -> None:
    file = tmp_path / "talk.session"
    call = {"id": "1", "type": "function", "function": {"name": "add", "arguments": "{}"}}
    with opened(tiny) as model:
        session = Session(model, file)
        session.messages = [{"role": "assistant", "content": "", "tool_calls": [call]}]
        result = {"role": "tool", "content": "3", "tool_call_id": "1"}
        events = list(session.answer([result, {"role": "user", "content": "and?"}], **GREEDY))
        assert isinstance(events[-1], Finished)
        text = "".join(event.text for event in events if isinstance(event, TextDelta))
        assert session.messages[1:] == [
            result,
            {"role": "user", "content": "and?"},
            {"role": "assistant", "content": text},
        ]
        session.save()
        assert Session(model, file).messages == session.messages
        with pytest.raises(TypeError, match="temprature"):
            session.answer("x", temprature=1)  # type: ignore[call-arg]


def test_another_system_prompt_is_refused(tiny: Path, tmp_path: Path) -> None:
    with opened(tiny) as model:
        session = Session(model, tmp_path / "a", system="one")
        list(session.chat("hello", **GREEDY))
        session.save()
        Session(model, tmp_path / "a", system="one")
        with pytest.raises(ValueError, match="another system prompt"):
            Session(model, tmp_path / "a", system="two")


def test_what_is_no_session_is_said(tiny: Path, tmp_path: Path) -> None:
    file = tmp_path / "talk.session"
    with opened(tiny) as model:
        session = Session(model, file)
        list(session.chat("hello", **GREEDY))
        session.save()
        for content in (b"", b"x" * 100, b"{}", (8).to_bytes(8, "little") + b"{}      ", b"kukri/1\n"):
            file.write_bytes(content)
            with pytest.raises(DamagedFile):
                Session(model, file)
        with pytest.raises(IsADirectoryError):
            Session(model, tmp_path)


SAVE = """
import sys
import kukri
model = kukri.load(sys.argv[1], device="reference", context=1024)
session = kukri.Session(model, sys.argv[2])
list(session.chat("another message", temperature=0, max_tokens=8, ignore_eos=True))
print("ready", flush=True)
while True:
    session.save()
"""


@pytest.mark.slow
@pytest.mark.skipif(os.name == "nt", reason="a process is killed by a signal")
def test_a_kill_while_saving_leaves_the_old_or_the_new_file(tiny: Path, tmp_path: Path) -> None:
    file = tmp_path / "talk.session"
    with opened(tiny) as model:
        session = Session(model, file)
        list(session.chat("hello there, how are you today?", **GREEDY))
        session.save()
    draw = random.Random(0)
    for _ in range(5):  # scripts/kill_test.py has 100
        process = subprocess.Popen(
            [sys.executable, "-c", SAVE, str(tiny), str(file)], stdout=subprocess.PIPE, text=True
        )
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        time.sleep(draw.random() * 0.05)
        process.send_signal(signal.SIGKILL)
        process.wait()
        saved = read_session(file)
        assert len(saved.conversation.messages) in (2, 4, 6, 8, *range(10, 60, 2))
        assert len(saved.kept.ids) > 10
    assert len([name for name in os.listdir(tmp_path) if "partial" in name]) <= 1


@pytest.mark.slow
@pytest.mark.network
def test_four_thousand_tokens_come_back_at_once(real_model, tmp_path: Path) -> None:
    """The ids are those of a prefill, and what is read back is quick: seconds are printed, not tested."""
    with load_model(real_model("smollm2"), LoadOptions(device="cpu", context=8192)) as model:
        ids = model.encode("The quick brown fox jumps over the lazy dog. " * 420)[:4000]
        expected = list(model.generate(ids, temperature=0, max_tokens=16))
        kept = model.engine.take_out(ids)
        assert len(kept.ids) == 4000
        model.engine.reset()
        start = time.perf_counter()
        assert model.engine.put_in(kept)
        print(f"{len(kept.ids)} tokens in {time.perf_counter() - start:.3f} s")
        assert list(model.generate(ids, temperature=0, max_tokens=16)) == expected
        assert model.stats.cached_tokens == 3999
        assert np.isfinite(model.stats.decode_seconds)
