"""Added tokens, pre-tokenisers and normalisers on their own."""

from __future__ import annotations

import random
import time
import unicodedata
from typing import Any

import pytest

from kukri.tokenizer import TokenizerError
from kukri.tokenizer.added import AddedToken, AddedTokens
from kukri.tokenizer.normalize import chain, unicode_form
from kukri.tokenizer.pretokenize.metaspace import parts_at_metaspace
from kukri.tokenizer.pretokenize.presets import PRESETS, preset
from kukri.tokenizer.pretokenize.pretokenize import (
    Split,
    chain_steps,
    compile_pattern,
    metaspace,
    parts_at_spaces,
)
from kukri.tokenizer.readers import components
from kukri.tokenizer.readers.components import decoder, normalizers, steps
from kukri.tokenizer.strings import Strings

from ...usual_machine import within


def parts(text: str, *tokens: AddedToken, special: bool = True) -> list[str | int]:
    return list(AddedTokens(tokens).split(text, special))


def test_added_tokens_leftmost_then_longest() -> None:
    tokens = [AddedToken(1, "ab"), AddedToken(2, "abc"), AddedToken(3, "bcd"), AddedToken(4, "x")]
    assert parts("abcd", *tokens) == [2, "d"]
    assert parts("abxbcd", *tokens) == [1, 4, 3]
    assert parts("zz", *tokens) == ["zz"]
    assert parts("", *tokens) == []
    assert parts("ab") == ["ab"]
    assert parts("aab", *tokens) == ["a", 1]


def test_special_tokens_are_stepped_over_as_a_whole() -> None:
    tokens = [AddedToken(1, "<|end|>", special=True), AddedToken(2, "end")]
    assert parts("end<|end|>end", *tokens, special=False) == [2, "<|end|>", 2]
    assert parts("end<|end|>end", *tokens) == [2, 1, 2]
    found = AddedTokens(tokens)
    assert list(found.starts("end<|end|>")) == [0, 3, 5]


def test_flags_of_added_tokens() -> None:
    assert parts("a \t<x> \n b", AddedToken(1, "<x>", lstrip=True)) == ["a", 1, " \n b"]
    assert parts("a <x> \n b", AddedToken(1, "<x>", rstrip=True)) == ["a ", 1, "b"]
    both = AddedToken(1, "<x>", lstrip=True, rstrip=True)
    assert parts(" <x>  <x> ", both) == [1, 1]
    assert parts("\x1c<x>", both) == ["\x1c", 1]  # not white space in Unicode
    word = AddedToken(1, "ab", single_word=True)
    assert parts("ab cab ab, abé", word) == [1, " cab ", 1, ", abé"]


@pytest.mark.parametrize(
    ("behavior", "invert", "expected"),
    [
        ("Removed", False, ["a", "b", "c"]),
        ("Isolated", False, ["a", "-", "-", "b", "-", "c"]),
        ("MergedWithPrevious", False, ["a-", "-", "b-", "c"]),
        ("MergedWithNext", False, ["a", "-", "-b", "-c"]),
        ("Contiguous", False, ["a", "--", "b", "-", "c"]),
        ("Removed", True, ["-", "-", "-"]),
    ],
)
def test_split_behaviors(behavior: str, invert: bool, expected: list[str]) -> None:
    assert Split("-", behavior, invert)("a--b-c", True) == expected


def test_split_of_nothing_and_with_groups() -> None:
    for behavior in ("Isolated", "Contiguous", "Removed"):
        assert Split("-", behavior)("", True) == []
    assert Split("(a)(b)?")("cabca", True) == ["c", "ab", "c", "a"]
    with pytest.raises(TokenizerError, match="behavior"):
        Split("-", "Sideways")


def test_patterns_of_oniguruma() -> None:
    words = Split(r"[\p{L}&&[^\p{Han}]]+|\p{Han}+|(?i:'s)")
    assert words("abc漢字d'S", True) == ["abc", "漢字", "d", "'S"]
    with pytest.raises(TokenizerError, match="pattern"):
        compile_pattern("(")


def test_a_pattern_that_backtracks_is_given_up() -> None:
    slow = Split(r"(?:a|a)+$", seconds=0.2)
    start = time.process_time()
    with pytest.raises(TokenizerError, match="takes over"):
        slow("a" * 40 + "b", True)
    assert within(time.process_time() - start, 5)


@pytest.mark.parametrize(
    ("scheme", "start", "expected"),
    [
        ("always", False, ["▁a", "▁b"]),
        ("first", True, ["▁a", "▁b"]),
        ("first", False, ["a", "▁b"]),
        ("never", True, ["a", "▁b"]),
    ],
)
def test_metaspace(scheme: str, start: bool, expected: list[str]) -> None:
    assert metaspace("▁", scheme, True)("a b", start) == expected


def test_cuts_in_front_of_spaces_never_part_a_piece() -> None:
    def cut(pieces: list[str], text: str) -> list[str]:
        packed = Strings.pack(pieces)
        assert packed is not None
        parts = parts_at_metaspace(packed)
        assert parts is not None
        return parts(text)

    assert cut(["▁a", "▁▁", "b"], "a▁▁b▁c▁") == ["a", "▁▁b", "▁c", "▁"]
    assert cut([">▁</", "▁a"], "a>▁</b▁c>▁▁d") == ["a>▁</b", "▁c>▁▁d"]
    assert cut(["é▁", "字▁▁", "▁"], "é▁x字▁▁y▁z") == ["é▁x字▁▁y", "▁z"]
    many = Strings.pack([chr(0x4E00 + i) + "▁" for i in range(100)])
    assert many is not None
    assert parts_at_metaspace(many) is None


@pytest.mark.parametrize("name", sorted(PRESETS))
def test_every_preset_keeps_every_character(name: str) -> None:
    row = preset(name)
    if row.byte_level_words:
        text = "Hello  World's 12345 ²½ \r\n\n x_y(z);\t日本語 नमस्ते 'LL ... $=<|>\u3000 é\0 "
        assert "".join(chain_steps(row.steps())(text, True)) == text


ALPHABETS = (
    "ab AB'sStTlL0129 \t\n\r.,/!$+_-\x1c\x00<|>()",
    "aB' \u0301é字ǅʰ一ກ٣½\u200b\xa0\u3000\x85\u2028\U0001f600\ue000\x1f\u0378.+\n ",
)


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(PRESETS))
def test_what_is_known_of_patterns_changes_nothing(name: str) -> None:
    """`re` finds in ASCII what `regex` finds, and parts cut only where the steps do."""
    rng = random.Random(name)
    written = preset(name).steps()
    parts = parts_at_spaces(written)
    plain = [
        Split(step.source + "(?:)") if isinstance(step, Split) else step for step in written
    ]  # which is a pattern that nothing is known of
    for alphabet in ALPHABETS:
        for _ in range(150):
            text = "".join(rng.choices(alphabet, k=rng.randint(0, 30)))
            expected = chain_steps(plain)(text, True)
            assert chain_steps(written)(text, True) == expected, ascii(text)
            if parts is not None:
                pieces = parts(text)
                assert "".join(pieces) == text
                assert [w for piece in pieces for w in chain_steps(written)(piece, False)] == expected, ascii(
                    text
                )


def test_unknown_preset() -> None:
    with pytest.raises(TokenizerError, match="no-such-model"):
        preset("no-such-model")


def test_default_preset_is_that_of_old_files() -> None:
    words = chain_steps(preset("default").steps())("Hi there's $1234, ok", True)
    assert words == ["Hi", " there", "'", "s", " ", "$", "123", "4", ",", " ok"]


@pytest.mark.parametrize("form", ["NFC", "NFKC", "NFD"])
def test_normal_forms_of_long_runs_of_marks(form: str) -> None:
    run = unicode_form(form)  # type: ignore[arg-type]
    for marks in ("\u0301\u0327", "\u0f71\u0f74", "\u0344\u0316", "\u0323\u0302\u0301"):
        for base in ("", "e", "ǖ"):
            text = base + marks * 200 + "x"
            assert run(text) == unicodedata.normalize(form, text)
    start = time.process_time()
    run("\u0301\u0327" * 50_000)
    assert within(time.process_time() - start, 2)


def test_normalizers_in_order() -> None:
    spec = {
        "type": "Sequence",
        "normalizers": [
            {"type": "NFKC"},
            {"type": "Lowercase"},
            {"type": "Strip", "strip_left": True, "strip_right": False},
            {"type": "Replace", "pattern": {"Regex": "[0-9]+"}, "content": r"\1"},
            {"type": "Prepend", "prepend": "_"},
        ],
    }
    text = "  Ａb12ΑΣ "
    for step in normalizers(spec):
        text = step(text)
    assert text == r"_ab\1ασ "


@pytest.mark.parametrize(
    "spec",
    [
        {"type": "Replace", "pattern": {"String": ""}, "content": "b" * 5000},
        {"type": "Replace", "pattern": {"String": "e"}, "content": "b" * 5000},
        {"type": "Replace", "pattern": {"Regex": "e"}, "content": "b" * 5000},
        {"type": "Prepend", "prepend": "b" * 5000},
        {
            "type": "Sequence",
            "normalizers": [{"type": "Replace", "pattern": {"String": "e"}, "content": "ee"}] * 60,
        },
    ],
)
def test_a_normalizer_that_makes_a_text_far_longer_is_given_up(spec: dict[str, Any]) -> None:
    with pytest.raises(TokenizerError, match="a normalizer"):
        chain(normalizers(spec))("e" * 100)  # type: ignore[misc]


def test_a_normalizer_may_make_a_text_longer() -> None:
    replaced = {"type": "Replace", "pattern": {"String": "e"}, "content": "b" * 60}
    assert chain(normalizers(replaced))("e" * 1000) == "b" * 60_000  # type: ignore[misc]
    assert len(unicode_form("NFKD")("\ufdfa" * 1000)) == 18_000


def test_a_normalizer_that_backtracks_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(components, "PATTERN_SECONDS", 0.2)
    (slow,) = normalizers({"type": "Replace", "pattern": {"Regex": "(?:a|a)+$"}, "content": ""})
    start = time.process_time()
    with pytest.raises(TokenizerError, match="normalizer pattern takes over"):
        slow("a" * 28 + "b")
    assert within(time.process_time() - start, 5)


def test_pre_tokenizers_in_order() -> None:
    spec = {
        "type": "Sequence",
        "pretokenizers": [
            {"type": "WhitespaceSplit"},
            {"type": "Punctuation"},
            {"type": "Digits", "individual_digits": True},
        ],
    }
    assert chain_steps(steps(spec))("it's 42!!", True) == ["it", "'", "s", "4", "2", "!", "!"]
    assert chain_steps(steps({"type": "Whitespace"}))("it's ok", True) == ["it", "'", "s", "ok"]


@pytest.mark.parametrize(
    "spec",
    [
        {"type": "WordPieces"},
        {"type": "Strip", "content": "x", "start": 1, "stop": 0},
        {"type": "Sequence", "decoders": 3},
        {"type": 4},
        [],
        "ByteLevel",
    ],
)
def test_unsupported_decoders(spec: object) -> None:
    with pytest.raises(TokenizerError):
        decoder(spec)
