"""StopFilter: no part of a stop string gets out, and the cut into pieces does not matter."""

from itertools import combinations, pairwise

import pytest

from kukri.runtime.answers.stop_strings import StopFilter


def run(stops, *pieces) -> tuple[str, str | None]:
    """What came out. After every piece: no more than what may begin a stop string is held back."""
    stop_filter = StopFilter(stops)
    out = whole = ""
    for piece in pieces:
        out += stop_filter.push(piece)
        whole += piece
        if stop_filter.stopped is None:
            starts = [stop[:n] for stop in stops for n in range(1, len(stop))]
            held = max((len(start) for start in starts if whole.endswith(start)), default=0)
            assert out == whole[: len(whole) - held]
    return out + stop_filter.flush(), stop_filter.stopped


def cuts(text: str):
    """Every way to cut `text` into pieces."""
    for n in range(len(text)):
        for places in combinations(range(1, len(text)), n):
            edges = [0, *places, len(text)]
            yield [text[a:b] for a, b in pairwise(edges)]


@pytest.mark.parametrize(
    ("stops", "text", "out", "stopped"),
    [
        (["END"], "abENDcd", "ab", "END"),
        (["END"], "abEN", "abEN", None),  # a beginning only: let out at the end
        (["END"], "ENENDx", "EN", "END"),
        (["END"], "END", "", "END"),
        (["aab"], "xaaab", "xa", "aab"),
        (["abab"], "xabaabab", "xaba", "abab"),
        (["\n\nUser:"], "hi\n\n\nUser", "hi\n\n\nUser", None),
        (["stop", "top"], "a stop", "a ", "stop"),  # both end here: the longer one
        (["bc", "abcd"], "xabcd", "xa", "bc"),  # complete first
        (["abcd", "bc"], "xabcd", "xa", "bc"),
        (["abx", "bc"], "zabcz", "za", "bc"),  # one candidate fails while the other goes on
        (["é", "日本"], "x日日本é", "x日", "日本"),
        (["a"], "bbabb", "bb", "a"),
        (["x", "x"], "aax", "aa", "x"),
        ([], "anything", "anything", None),
    ],
)
def test_every_cut_gives_the_same(stops, text, out, stopped):
    for pieces in cuts(text):
        assert run(stops, *pieces) == (out, stopped)


def test_text_is_held_no_longer_than_needed():
    stop_filter = StopFilter(["###", "<end>"])
    assert stop_filter.push("one #") == "one "
    assert stop_filter.push("two <") == "#two "
    assert stop_filter.push("en") == ""
    assert stop_filter.push("t##") == "<ent"
    assert stop_filter.push("#more") == ""
    assert stop_filter.stopped == "###"
    assert stop_filter.push("more") == ""
    assert stop_filter.flush() == ""


def test_empty_pieces_are_fine():
    assert run(["END"], "", "aE", "", "ND", "") == ("a", "END")


def test_long_stop_strings_take_linear_time():
    stop = "a" * 200_000 + "b"
    assert run_quietly(stop, "a" * 300_000) == ("a" * 300_000, None)
    assert run_quietly(stop, "a" * 300_000 + "b") == ("a" * 100_000, stop)


def run_quietly(stop: str, text: str) -> tuple[str, str | None]:
    stop_filter = StopFilter([stop])
    out = "".join([stop_filter.push(text[i : i + 1000]) for i in range(0, len(text), 1000)])
    return out + stop_filter.flush(), stop_filter.stopped


def spelled(stops, *pieces) -> tuple[str, str | None]:
    """What came out of pieces of text, and of special tokens, which are in tuples."""
    stop_filter = StopFilter(stops)
    out = ""
    for piece in pieces:
        out += stop_filter.push(*piece, shown=False) if isinstance(piece, tuple) else stop_filter.push(piece)
    return out + stop_filter.flush(), stop_filter.stopped


@pytest.mark.parametrize(
    ("stops", "pieces", "out", "stopped"),
    [
        (["<|x|>"], ["ab", ("<|x|>",), "c"], "ab", "<|x|>"),
        (["<|x|>"], [("<|x|>",)], "", "<|x|>"),
        (["<|x|>"], ["a", ("<|y|>",), "b"], "ab", None),  # gives no text
        (["a<|x|>b"], ["za", ("<|x|>",), "bc"], "z", "a<|x|>b"),
        (["a<|x|>b"], ["za", ("<|x|>",), "c"], "zac", None),
        (["|x|"], ["a", ("<|x|>",)], "a", "|x|"),
        (["x|>\n"], ["a", ("<|x|>",), "\nb"], "a", "x|>\n"),
        (["ab"], ["za", ("<|x|>",), "bc"], "z", "ab"),  # as a reader sees it
        (["abc"], ["zab", ("<|x|>",), ("<|x|>",), "d"], "zabd", None),
        (["<|x|><|x|>"], [("<|x|>",), "a", ("<|x|>",), ("<|x|>",)], "a", "<|x|><|x|>"),
        ([], ["a", ("<|x|>",), "b"], "ab", None),
    ],
)
def test_stop_strings_that_spell_special_tokens(stops, pieces, out, stopped):
    assert spelled(stops, *pieces) == (out, stopped)


def test_text_behind_a_special_token_is_held_no_longer_than_needed():
    stop_filter = StopFilter(["b<|x|>c"])
    assert stop_filter.push("ab") == "a"
    assert stop_filter.push("<|x|>", shown=False) == ""
    assert stop_filter.push("d") == "bd"
    assert stop_filter.push("<|y|>", shown=False) == ""
