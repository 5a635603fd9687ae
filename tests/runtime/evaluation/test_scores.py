"""Scores of predictions against NumPy in float64, whatever the parts the logits come in."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest

from kukri.quant.errors import DamagedFile
from kukri.runtime.cpu.kernels.common import row_scores as kernels
from kukri.runtime.cpu.row_scores import RowScorer
from kukri.runtime.engine.errors import BadLogits
from kukri.runtime.evaluation import scores as evaluation
from kukri.runtime.evaluation.saved_logits import (
    FORMAT,
    LogitsWriter,
    SavedLogits,
    is_saved_logits,
    saved_bytes,
)
from kukri.runtime.evaluation.scores import Evaluation, cut_into_windows, estimate, evaluate

from ...conftest import DATA
from ..engine.test_engine import new_engine

VOCAB = 37
CONTEXT = 12
SCORED = slice(6, 11)  # rows of the second half
RNG = np.random.default_rng(5)
WINDOWS = RNG.integers(0, VOCAB, (3, CONTEXT)).astype(np.int32)
METADATA = {"model": "some model", "text_sha256": "00"}


def log_softmax(logits: np.ndarray) -> np.ndarray:
    """The twin of `log_sums`."""
    logits = logits.astype(np.float64)
    return logits - np.logaddexp.reduce(logits, axis=-1, keepdims=True)


def kl_divergence(base: np.ndarray, logits: np.ndarray) -> np.ndarray:
    """The twin of `divergences`."""
    p, q = log_softmax(base), log_softmax(logits)
    return (np.exp(p) * (p - q)).sum(axis=-1)


def model(seed: int, noise: float = 0.0):
    """logits(ids): random ones that depend on each token before and on `seed`, a little on `noise`."""

    def logits(ids: np.ndarray) -> np.ndarray:
        assert ids.dtype == np.int32
        rng = np.random.default_rng([seed, *ids])
        rows = rng.normal(size=(len(ids), VOCAB)) * 2
        return (rows + noise * rng.normal(size=rows.shape)).astype(np.float32)

    return logits


def in_parts(logits, *sizes: int):
    """The same in parts of these sizes, over and over; a part is gone when the next one comes."""

    def parts(ids: np.ndarray):
        rows, at, turn = logits(ids), 0, 0
        while at < len(rows):
            part = rows[at : at + sizes[turn % len(sizes)]].copy()
            yield part
            part[:] = np.nan
            at, turn = at + len(part), turn + 1

    return parts


# ---- kernels


@pytest.mark.parametrize("width", [1, 2, 3, 7, 8, 15, 16, 17, 33, 100, 1023, 1024, 1025, 2049, 5003])
@pytest.mark.parametrize("threads", [1, 3])
def test_kernels_equal_numpy(width: int, threads: int) -> None:
    wide = (RNG.normal(size=(5, width + 3)) * 5).astype(np.float32)
    base = wide[:, :width]  # rows that do not touch
    logits = base + (RNG.normal(size=base.shape) * 0.3).astype(np.float32)
    with RowScorer(threads) as scorer:
        base_sums, sums = scorer.log_sums(base), scorer.log_sums(logits)
        kld = scorer.divergences(base, base_sums, logits, sums)
        same = scorer.divergences(base, base_sums, base, base_sums)
    np.testing.assert_allclose(base - base_sums.log_sum[:, None], log_softmax(base), rtol=0, atol=3e-6)
    np.testing.assert_array_equal(base_sums.top, base.argmax(axis=1))
    np.testing.assert_array_equal(sums.top, logits.argmax(axis=1))
    np.testing.assert_allclose(kld, kl_divergence(base, logits), rtol=1e-5, atol=2e-6)
    np.testing.assert_array_equal(same, 0)


def test_the_largest_may_be_anywhere_and_the_first_of_equals_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    width = 3 * kernels.BLOCK // 4 + 5
    logits = np.zeros((width, width), np.float32)
    np.fill_diagonal(logits, 1)
    with RowScorer(2) as scorer:
        np.testing.assert_array_equal(scorer.log_sums(logits).top, np.arange(width))
        logits[:] = -3
        assert not scorer.log_sums(logits).top.any()
        logits[:, width // 2 :] = 7
        assert set(scorer.log_sums(logits).top) == {width // 2}


def test_extreme_logits() -> None:
    """Large offsets, rows all but certain, and tokens that cannot be."""
    base = (RNG.normal(size=(4, 100)) * 3).astype(np.float32)
    logits = base + (RNG.normal(size=base.shape) * 0.1).astype(np.float32)
    base[0] += 500
    logits[0] -= 500
    base[1, 3] = logits[1, 3] = 400
    base[2, 90:] = logits[2, 90:] = -np.inf
    logits[3, 99], base[3, 99] = -np.inf, -50
    with RowScorer(1) as scorer:
        sums, base_sums = scorer.log_sums(logits), scorer.log_sums(base)
        kld = scorer.divergences(base, base_sums, logits, sums)
        expected = [
            kl_divergence(base[0] - 500, logits[0] + 500),
            0,
            kl_divergence(base[2, :90], logits[2, :90]),
        ]
        np.testing.assert_allclose(kld[:3], expected, rtol=1e-3, atol=1e-6)
        assert kld[3] == pytest.approx(kl_divergence(base[3, :99], logits[3, :99]), rel=1e-3)
        for bad in (np.nan, np.inf):
            for column in (0, 20, 99):
                row = np.zeros((1, 100), np.float32)
                row[0, column] = bad
                assert not np.isfinite(scorer.log_sums(row).log_sum)
        assert not np.isfinite(scorer.log_sums(np.full((1, 20), -np.inf, np.float32)).log_sum)


def test_wrong_shapes_are_refused() -> None:
    rows = np.zeros((2, 6), np.float32)
    with RowScorer(1) as scorer:
        sums = scorer.log_sums(rows)
        assert len(scorer.log_sums(rows[:0]).top) == 0
        with pytest.raises(ValueError, match="compared"):
            scorer.divergences(rows, sums, rows[:, :5], sums)
        for wrong in (rows.astype(np.float64), rows[:, ::2], rows[0]):
            with pytest.raises(ValueError, match="contiguous rows"):
                scorer.log_sums(wrong)


# ---- windows


def test_windows() -> None:
    ids = list(range(10, 33))
    np.testing.assert_array_equal(cut_into_windows(ids, 8), [range(10, 18), range(18, 26)])
    with_bos = cut_into_windows(ids, 8, bos=1)
    assert with_bos.dtype == np.int32
    np.testing.assert_array_equal(with_bos[0], [1, *range(10, 17)])
    np.testing.assert_array_equal(with_bos[1], [1, *range(18, 25)])  # BOS takes the place of token 17
    np.testing.assert_array_equal(with_bos[2], [1, *range(26, 33)])
    assert len(cut_into_windows(ids, 8, limit=15)) == 1
    assert len(cut_into_windows(ids, 8, limit=16)) == 2
    assert len(cut_into_windows(ids, 8, limit=10**9)) == 2
    assert len(cut_into_windows(ids[:7], 8)) == 0
    assert len(cut_into_windows(ids[:7], 8, bos=1)) == 1
    assert cut_into_windows([], 8).shape == (0, 8)
    with pytest.raises(ValueError, match="4 is the least"):
        cut_into_windows(ids, 3)


# ---- scores


@pytest.mark.parametrize("sizes", [(CONTEXT,), (1,), (5,), (4, 1, 7)])
@pytest.mark.parametrize("base_sizes", [(CONTEXT,), (3, 2)])
def test_scores_do_not_depend_on_parts(sizes, base_sizes) -> None:
    ours, theirs = model(1, noise=0.3), model(1)
    got = evaluate(in_parts(ours, *sizes), WINDOWS, in_parts(theirs, *base_sizes))
    q = log_softmax(np.stack([ours(ids) for ids in WINDOWS]))[:, :-1]
    p = log_softmax(np.stack([theirs(ids) for ids in WINDOWS]))[:, :-1]
    targets = WINDOWS[:, 1:, None]
    nll, baseline_nll = (-np.take_along_axis(x, targets, axis=2)[..., 0] for x in (q, p))
    np.testing.assert_allclose(got.nll, nll, atol=3e-6)
    np.testing.assert_allclose(got.baseline_nll, baseline_nll, atol=3e-6)
    kld = (np.exp(p) * (p - q)).sum(axis=2)[:, SCORED]
    same = (p.argmax(axis=2) == q.argmax(axis=2))[:, SCORED]
    np.testing.assert_allclose(got.kld, kld, rtol=1e-4, atol=1e-6)
    np.testing.assert_array_equal(got.same_top, same)
    assert 0 < same.mean() < 1

    assert got.perplexity(every=True).value == pytest.approx(math.exp(nll.mean()), rel=1e-5)
    assert got.perplexity().value == pytest.approx(math.exp(nll[:, SCORED].mean()), rel=1e-5)
    assert got.baseline_perplexity().value == pytest.approx(
        math.exp(baseline_nll[:, SCORED].mean()), rel=1e-5
    )
    n = kld.size
    told = got.divergence()
    assert told.kld.value == pytest.approx(kld.mean(), rel=1e-4)
    assert told.kld.error == pytest.approx(kld.std(ddof=1) / math.sqrt(n), rel=1e-4)
    assert told.kld_median == pytest.approx(np.median(kld), rel=1e-4)
    assert told.kld_max == pytest.approx(kld.max(), rel=1e-4)
    assert kld.max() * 0.8 < told.kld_99 < told.kld_max
    dp = (np.exp(-nll) - np.exp(-baseline_nll))[:, SCORED]
    assert told.dp.value == pytest.approx(dp.mean(), rel=1e-3)
    assert told.dp_rms.value == pytest.approx(math.sqrt((dp**2).mean()), rel=1e-4)
    assert told.same_top.value == same.mean()
    assert told.ratio.value == pytest.approx(math.exp((nll - baseline_nll)[:, SCORED].mean()), rel=1e-4)


def test_without_a_baseline() -> None:
    got = evaluate(model(2), WINDOWS)
    assert got.baseline_nll is got.kld is got.same_top is None
    both = evaluate(model(2), WINDOWS, model(3))
    np.testing.assert_array_equal(got.nll, both.nll)
    np.testing.assert_array_equal(evaluate(model(3), WINDOWS).nll, both.baseline_nll)


@pytest.mark.parametrize("vocab", [2, 1000, 32_003])
def test_uniform_logits_have_the_perplexity_of_the_vocabulary(vocab: int) -> None:
    windows = RNG.integers(0, vocab, (2, 16)).astype(np.int32)
    for value in (0.0, -7.5):
        got = evaluate(lambda ids, value=value: np.full((len(ids), vocab), value, np.float32), windows)
        for every in (False, True):
            assert got.perplexity(every).value == pytest.approx(vocab, rel=1e-6)
            assert got.perplexity(every).error == pytest.approx(0, abs=1e-6)


def test_a_model_is_itself() -> None:
    told = evaluate(model(4), WINDOWS, in_parts(model(4), 5)).divergence()
    assert (told.kld.value, told.kld_max, told.dp_rms.value, told.dp_rms.error) == (0, 0, 0, 0)
    assert (told.same_top.value, told.ratio.value) == (1, 1)


def test_estimates() -> None:
    values = np.array([[1.0, 2.0], [3.0, 6.0]])
    assert estimate(values).value == 3
    assert estimate(values).error == pytest.approx(math.sqrt(14 / 3 / 4))
    assert math.isnan(estimate(np.array([1.0])).error)
    ppl = evaluation.perplexity(np.log(np.array([2.0, 8.0])))
    assert ppl.value == pytest.approx(4)
    assert ppl.error == pytest.approx(4 * math.log(2))


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_logits_that_are_no_numbers_are_told_by_place(bad: float) -> None:
    def broken(ids: np.ndarray) -> np.ndarray:
        rows = model(1)(ids)
        if (ids == WINDOWS[1]).all():
            rows[8, 3] = bad
        return rows

    with pytest.raises(BadLogits, match="window 2: the logits of the model after tokens 9 … 9 "):
        evaluate(in_parts(broken, 1), WINDOWS)
    with pytest.raises(BadLogits, match="window 2: the logits of the baseline"):
        evaluate(model(1), WINDOWS, broken)


def test_progress_tells_what_there_is_so_far() -> None:
    seen: list[tuple[int, float]] = []

    def progress(done: int, so_far: Evaluation) -> None:
        assert so_far.nll.shape == (done, CONTEXT - 1)
        seen.append((done, so_far.perplexity().value))

    got = evaluate(model(1), WINDOWS, progress=progress)
    assert [done for done, _ in seen] == [1, 2, 3]
    assert seen[-1][1] == got.perplexity().value
    assert seen[0][1] == pytest.approx(math.exp(got.nll[0, SCORED].mean()))


def test_another_vocabulary_is_refused() -> None:
    with pytest.raises(ValueError, match="compared"):
        evaluate(model(1), WINDOWS, lambda ids: np.zeros((len(ids), VOCAB + 1), np.float32))


def test_an_engine_gives_its_logits_in_parts() -> None:
    engine = new_engine(max_rows=5, max_logits=4)
    ids = WINDOWS[0]
    parts = [part.copy() for part in engine.logits_in_parts(ids)]
    assert [len(part) for part in parts] == [4, 4, 4]
    np.testing.assert_array_equal(np.concatenate(parts), engine.logits(ids))
    again = [part.copy() for part in engine.logits_in_parts(ids)]  # independent of the calls before
    np.testing.assert_array_equal(np.concatenate(again), np.concatenate(parts))
    with pytest.raises(ValueError, match="vocabulary"):
        engine.logits_in_parts([VOCAB * 1000])


# ---- saved logits


def save(path: Path, logits, windows: np.ndarray = WINDOWS) -> Evaluation:
    with LogitsWriter(path, windows, VOCAB, METADATA) as writer:
        return evaluate(logits, windows, save=writer)


def test_saved_logits_compare_as_the_model_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kukri.runtime.evaluation.saved_logits.BLOCK", 2 * VOCAB)
    path = tmp_path / "base.safetensors"
    base = save(path, in_parts(model(1), 4, 1))
    assert [file.name for file in tmp_path.iterdir()] == [path.name]
    size = saved_bytes(*WINDOWS.shape, VOCAB)
    assert size < path.stat().st_size < size + 1000
    saved = SavedLogits(path)
    assert (saved.metadata, saved.vocab_size) == (METADATA | {"format": FORMAT}, VOCAB)
    np.testing.assert_array_equal(saved.windows, WINDOWS)
    np.testing.assert_array_equal(saved.nll, base.nll)
    for i, ids in enumerate(WINDOWS):
        rows = np.concatenate([part.copy() for part in saved.rows(i)])
        np.testing.assert_allclose(rows, log_softmax(model(1)(ids))[SCORED], rtol=0, atol=3e-4)
    ours = model(1, noise=0.2)
    live, got = evaluate(ours, WINDOWS, model(1)), evaluate(in_parts(ours, 3), WINDOWS, saved)
    np.testing.assert_array_equal(got.baseline_nll, live.baseline_nll)
    np.testing.assert_array_equal(got.nll, live.nll)
    np.testing.assert_allclose(got.kld, live.kld, rtol=2e-3, atol=1e-4)
    assert got.divergence().kld.value == pytest.approx(live.divergence().kld.value, rel=1e-3)
    part = evaluate(ours, WINDOWS[:2], saved)
    np.testing.assert_array_equal(part.kld, got.kld[:2])


def test_saved_rows_that_are_flat_or_steep(tmp_path: Path) -> None:
    rows = np.zeros((CONTEXT, VOCAB), np.float32)
    rows[7, 0] = 100
    rows[8, 1:] = -np.inf
    rows[8, 0] = 0
    rows[9] = np.linspace(-40, 0, VOCAB)
    windows = np.zeros((1, CONTEXT), np.int32)
    save(tmp_path / "x", lambda ids: rows, windows)
    saved = np.concatenate([part.copy() for part in SavedLogits(tmp_path / "x").rows(0)])
    expected = log_softmax(np.maximum(rows, rows.max(axis=1, keepdims=True) - 32))[SCORED]
    np.testing.assert_allclose(saved, expected, rtol=0, atol=4e-4)


def test_saved_logits_of_other_windows_are_refused(tmp_path: Path) -> None:
    save(tmp_path / "x", model(1))
    saved = SavedLogits(tmp_path / "x")
    for windows in (WINDOWS[::-1], WINDOWS[:, :-1], np.concatenate([WINDOWS, WINDOWS])):
        with pytest.raises(ValueError, match="other windows"):
            evaluate(model(1), np.ascontiguousarray(windows), saved)


def test_nothing_is_left_of_a_save_that_broke_off(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"before")

    def interrupted(ids: np.ndarray):
        yield model(1)(ids)[:9]
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        save(tmp_path / "x", interrupted)
    assert [(file.name, file.read_bytes()) for file in tmp_path.iterdir()] == [("x", b"before")]


def test_damaged_files_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "x"
    save(path, model(1))
    whole = path.read_bytes()
    assert is_saved_logits(path)
    assert not is_saved_logits(tmp_path / "none")
    header = int.from_bytes(whole[:8], "little")
    damaged = {
        "empty": b"",
        "cut": whole[:-1],
        "header cut": whole[:100],
        "other format": whole.replace(b"kukri-logits-1", b"kukri-logits-9"),
        "no scales": whole.replace(b'"scales"', b'"sca1es"'),
        "other type": whole.replace(b'"U16"', b'"F16"'),
        "other shape": whole.replace(b'"shape": [3, 12]', b'"shape": [12, 3]'),
        "no tensors": (2).to_bytes(8, "little") + b"{}",
        "huge header": (1 << 60).to_bytes(8, "little") + whole[8:],
        "binary": bytes(range(256)) * 4,
    }
    for name, content in damaged.items():
        assert content != whole, name
        path.write_bytes(content)
        with pytest.raises(DamagedFile):
            SavedLogits(path)
    assert header < 1000


# ---- against llama.cpp


@pytest.mark.parametrize("name", ["smollm2", "gemma3:270m", "qwen2.5-coder:0.5b"])
def test_perplexity_is_that_of_llama_cpp(name: str, real_model) -> None:
    """The beginning of WikiText-2 in windows of 512, on the CPU machine."""
    from kukri.runtime.model.loading import load_model
    from kukri.runtime.model.options import LoadOptions

    recorded = json.loads((DATA / "reference" / "llama_perplexity.json").read_text())["models"][name]
    with load_model(real_model(name), LoadOptions(context=512)) as loaded:
        bos = loaded.tokenizer.bos_id if loaded.tokenizer.add_bos else None
        windows = cut_into_windows(recorded["ids"], 512, bos)
        got = evaluate(loaded.engine.logits_in_parts, windows)
    assert len(windows) == 2
    assert got.perplexity().value == pytest.approx(recorded["running_ppl"][-1], rel=0.005)
