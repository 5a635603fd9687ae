"""Session files: what is written comes back, and what is not that is said, whatever is wrong."""

from __future__ import annotations

import json
import os
import random
import stat
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kukri.quant.errors import DamagedFile
from kukri.runtime.engine.scheduling.placement import Kept
from kukri.runtime.engine.state import SavedState
from kukri.runtime.sessions import kept_file
from kukri.runtime.sessions.kept_file import read_kept_file, write_kept_file
from kukri.runtime.sessions.session_file import (
    SavedConversation,
    SavedSession,
    read_session,
    write_session,
)


def session() -> SavedSession:
    rng = np.random.default_rng(0)
    pages = [rng.integers(0, 256, 300).astype(np.uint8) for _ in range(3)]
    arrays = (rng.random((2, 3)).astype(np.float32), np.zeros((4,), np.float32))
    states = (SavedState(100, arrays), SavedState(150, arrays[::-1]))
    messages = [
        {"role": "system", "content": "sÿs"},
        {"role": "user", "content": "hello\n"},
        {"role": "assistant", "content": "☃"},
    ]
    talk = SavedConversation(messages, "smollm2", cut="length", begun=[5, 6])
    return SavedSession(
        talk, {"model": "abc", "layout": "x" * 60}, Kept(list(range(150)), pages, states, True)
    )


def same(one: SavedSession, other: SavedSession) -> bool:
    return (
        (one.conversation, one.cache) == (other.conversation, other.cache)
        and (one.kept.ids, one.kept.long) == (other.kept.ids, other.kept.long)
        and [bytes(page) for page in one.kept.pages] == [bytes(page) for page in other.kept.pages]
        and [state.length for state in one.kept.states] == [state.length for state in other.kept.states]
        and all(
            np.array_equal(a, b)
            for x, y in zip(one.kept.states, other.kept.states, strict=True)
            for a, b in zip(x.arrays, y.arrays, strict=True)
        )
    )


def test_what_is_written_comes_back(tmp_path: Path) -> None:
    file = tmp_path / "a.session"
    size = write_session(file, session())
    assert size == file.stat().st_size
    assert same(read_session(file), session())
    assert read_session(file).conversation.system == "sÿs"
    if os.name != "nt":
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
    write_session(file, SavedSession(SavedConversation()))  # without a cache, and without messages
    assert same(read_session(file), SavedSession(SavedConversation(), {"model": None, "layout": None}))


def test_every_byte_counts(tmp_path: Path) -> None:
    file = tmp_path / "a.session"
    write_session(file, session())
    good, draw = file.read_bytes(), random.Random(1)
    for n in range(800):
        bad = bytearray(good)
        if n % 4 == 0:
            del bad[draw.randrange(len(bad)) :]
        elif n % 4 == 1:
            bad += b"\0" * draw.randrange(1, 9)
        else:
            bad[draw.randrange(len(bad))] ^= 1 << draw.randrange(8)
        file.write_bytes(bad)
        with pytest.raises(DamagedFile, match=r"^a\.session") as refused:
            read_session(file)
        assert "\n" not in str(refused.value)


def forged(path: Path, change: Any) -> None:
    """Rewrite the header of a file with valid checksums."""
    raw = path.read_bytes()
    size = int.from_bytes(raw[8:12], "little")
    header = json.loads(raw[16 : 16 + size])
    change(header)
    text = json.dumps(header).encode()
    text += b" " * (size - len(text))
    assert len(text) == size
    path.write_bytes(raw[:12] + zlib.crc32(text).to_bytes(4, "little") + text + raw[16 + size :])


WRONG: list[Any] = [
    lambda header: header.update(kind="song"),
    lambda header: header.update(about=[]),
    lambda header: header.update(parts={}),
    lambda header: header.pop("parts"),
    lambda header: header["parts"].pop(),
    lambda header: header["parts"][0].pop(),
    lambda header: header["parts"][1].__setitem__(1, "u8"),
    lambda header: header["parts"][1].__setitem__(1, "f6"),
    lambda header: header["parts"][1].__setitem__(1, []),
    lambda header: header["parts"][1].__setitem__(2, [1 << 60, 1 << 60]),
    lambda header: header["parts"][1].__setitem__(2, [-150]),
    lambda header: header["parts"][1].__setitem__(2, [0, 1 << 70]),
    lambda header: header["parts"][1].__setitem__(2, 150),
    lambda header: header["parts"][2].__setitem__(2, [900]),
    lambda header: header["parts"][3].__setitem__(0, "x"),
    lambda header: header["about"].update(version=3),
    lambda header: header["about"].update(version=[2]),
    lambda header: header["about"].update(states=[0, 1]),
    lambda header: header["about"].update(states=[100, 1 << 40]),
    lambda header: header["about"].update(long=3),
]


@pytest.mark.parametrize("n", range(len(WRONG)))
def test_headers_that_lie(tmp_path: Path, n: int) -> None:
    file = tmp_path / "a.session"
    write_session(file, session())
    forged(file, lambda header: header["about"].pop("layout"))  # room for what is longer
    forged(file, WRONG[n])
    with pytest.raises(DamagedFile) as refused:
        read_session(file)
    assert "\n" not in str(refused.value)
    assert len(str(refused.value)) < 200


@pytest.mark.parametrize(
    "text",
    ["", "[]", "{}", "[" * 5000,
     '{"messages": {}}', '{"messages": [3]}', '{"messages": [{"role": "user"}]}',
     '{"messages": [{"role": 1, "content": ""}], "model": "", "raw": false, "cut": "", "dropped": 0,'
     ' "begun": []}',
     '{"messages": [], "model": "", "raw": 1, "cut": "", "dropped": 0, "begun": []}',
     '{"messages": [], "model": null, "raw": false}',
     '{"messages": [], "model": "", "raw": false, "cut": "", "dropped": 0, "begun": ["x"]}',
     "[" + "1," * (1 << 20) + "1]"],
    ids=range(12),
)  # fmt: skip
def test_conversations_that_are_none(tmp_path: Path, text: str) -> None:
    file = tmp_path / "a.session"
    parts = {
        "conversation": np.frombuffer(text.encode(), np.uint8),
        "ids": np.empty(0, np.int32),
        "pages": np.empty((0, 0), np.uint8),
    }
    write_kept_file(file, "session", {"version": 2, "states": [], "long": False}, parts)
    with pytest.raises(DamagedFile, match=r"^a\.session"):
        read_session(file)


def test_a_header_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "a"
    file.write_bytes(kept_file.MAGIC + (1 << 31).to_bytes(4, "little") + bytes(100))
    with pytest.raises(DamagedFile, match="claims 2147483648 bytes"):
        read_kept_file(file, "session")
    write_kept_file(file, "song", {}, {str(i): np.zeros(0, np.uint8) for i in range(10)})
    assert len(read_kept_file(file, "song").parts) == 10
    with pytest.raises(DamagedFile, match="is no session"):
        read_kept_file(file, "session")
    monkeypatch.setattr(kept_file, "MOST_PARTS", 9)
    with pytest.raises(DamagedFile):
        read_kept_file(file, "song")


def test_what_is_no_file(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        read_session(tmp_path / "none")
    if os.name != "nt":
        os.mkfifo(tmp_path / "pipe")
        (tmp_path / "zero").symlink_to("/dev/zero")
        for name in ("pipe", "zero"):
            with pytest.raises(DamagedFile, match="not an ordinary file"):
                read_session(tmp_path / name)
    too_long = SavedConversation([{"role": "user", "content": "x" * (33 << 20)}])
    with pytest.raises(ValueError, match="a session holds"):
        write_session(tmp_path / "long", SavedSession(too_long))
    assert not (tmp_path / "long").exists()
