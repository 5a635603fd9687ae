"""What a file keeps of a cache is what a prefill computes: all kinds of caches and states, two machines."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from kukri.runtime.model.loading import load_model
from kukri.runtime.model.options import LoadOptions
from kukri.runtime.sessions.kept_pages import about_cache, take_out
from kukri.runtime.sessions.session import restore
from kukri.runtime.sessions.session_file import (
    SavedConversation,
    SavedSession,
    read_session,
    write_session,
)

# grouped queries, sliding windows, experts, latent attention; convolutions, gated deltas, scans
NAMES = ["llama-gqa", "gemma3", "mixtral", "deepseek-v3", "lfm2", "qwen3.5", "falcon-h1", "granite4-h"]
RECURRENT = {"lfm2", "qwen3.5", "falcon-h1", "granite4-h"}
GREEDY = {"temperature": 0, "max_tokens": 8, "ignore_eos": True}


def opened(folder: Path, **more):
    return load_model(folder, LoadOptions(context=256, threads=1, **more), text=False)


@pytest.mark.parametrize("device", ["reference", "cpu"])
@pytest.mark.parametrize("name", NAMES)
def test_of_every_kind(conformance: Callable[[str], Path], tmp_path: Path, name: str, device: str) -> None:
    back_and_on(conformance(name), tmp_path / "a.session", name in RECURRENT, device=device)


@pytest.mark.parametrize("kv_type", ["f16", "q8_0", "q8_0/q4_0", "q4_0"])
@pytest.mark.parametrize("name", ["llama-gqa", "deepseek-v3", "qwen3.5"])
def test_of_every_number_format(
    conformance: Callable[[str], Path], tmp_path: Path, name: str, kv_type: str
) -> None:
    back_and_on(conformance(name), tmp_path / "a.session", name in RECURRENT, device="cpu", kv_type=kv_type)
    with opened(conformance(name), device="cpu", kv_type="f32") as model:
        assert not restore(model, read_session(tmp_path / "a.session"), "a.session")


def back_and_on(folder: Path, file: Path, recurrent: bool, **more: str) -> None:
    prompt = (np.load(folder / "reference.npz")["input_ids"].tolist() * 8)[:150]
    with opened(folder, **more) as model:
        answer = list(model.generate(prompt, **GREEDY))
        turn = [*prompt, *answer, *prompt[:3]]
        kept = take_out(model, turn)
        assert kept.ids == turn[:157]  # all but the last token of the answer has been computed
        assert [state.length for state in kept.states] == ([134, 157] if recurrent else [])
        write_session(file, SavedSession(SavedConversation(), about_cache(model), kept))
        expected = list(model.generate(turn, **GREEDY))
        assert model.stats.cached_tokens == 157
        model.engine.reset()
        assert list(model.generate(turn, **GREEDY)) == expected  # those of a prefill
        assert model.stats.cached_tokens == 0
    with opened(folder, **more) as model:
        assert restore(model, read_session(file), "a.session")
        assert list(model.generate(turn, **GREEDY)) == expected
        assert model.stats.cached_tokens == 157
        assert restore(model, read_session(file), "a.session")
        other = [*prompt[:140], *prompt[:9]]  # an answer that is written anew, or a prompt that differs
        list(model.generate(other, **GREEDY))
        assert model.stats.cached_tokens == (134 if recurrent else 140)
