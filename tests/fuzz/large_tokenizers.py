"""tokenizer.json files made to cost as much as they can; see large.py."""

from __future__ import annotations

import json
from pathlib import Path

from kukri.tokenizer.readers import files, settings

from .large import Cases, json_cases, json_object, registrar

CASES: Cases = {}
case = registrar(CASES)


def tokenizer_of(folder: Path, raw: bytes) -> Path:
    (folder / "tokenizer.json").write_bytes(raw)
    return folder


CASES.update(json_cases("tokenizer", files.VOCABULARY_LIMITS, tokenizer_of))


def bpe(vocab: bytes, merges: bytes = b"[]", more: str = "") -> bytes:
    return b'{"model":{"type":"BPE","vocab":' + vocab + b',"merges":' + merges + b"}" + more.encode() + b"}"


def numbered(n: int, form: bytes = b'"%x":%d') -> bytes:
    return b"{" + b",".join(form % (i, i) for i in range(n)) + b"}"


@case
def tokenizer_of_a_large_vocabulary(folder: Path) -> Path:
    """Laid out as usual, so that no object is made for each piece."""
    n = settings.MAX_VOCAB
    merges = b",".join(b'"%x %x"' % (i >> 4, i & 15) for i in range(16, n))
    return tokenizer_of(folder, bpe(numbered(n), b"[" + merges + b"]"))


@case
def tokenizer_of_too_large_a_vocabulary(folder: Path) -> Path:
    return tokenizer_of(folder, bpe(numbered(2_500_000)))


@case
def tokenizer_of_empty_pieces(folder: Path) -> Path:
    n = files.VOCABULARY_LIMITS.n_bytes // 12
    return tokenizer_of(folder, bpe(b"{" + b",".join(b'"":%d' % i for i in range(n)) + b"}"))


@case
def tokenizer_in_another_order(folder: Path) -> Path:
    n = settings.MAX_VOCAB
    vocab = b"{" + b",".join(b'"%x":%d' % (i, n - 1 - i) for i in range(n)) + b"}"
    return tokenizer_of(folder, bpe(vocab))


@case
def tokenizer_of_objects_and_pairs(folder: Path) -> Path:
    """A vocabulary of another order with as many merges as are read."""
    n = 1 << 19
    vocab = b"{" + b",".join(b'"%x":%d' % (i, n - 1 - i) for i in range(n)) + b"}"
    left = (files.VOCABULARY_LIMITS.n_marks - 2 * n - 100) // 4
    merges = b",".join(b'["%x","%x"]' % (i >> 4, i & 15) for i in range(16, min(n, left)))
    return tokenizer_of(folder, bpe(vocab, b"[" + merges + b"]"))


@case
def tokenizer_of_many_merges(folder: Path) -> Path:
    merges = b",".join([b'"a b"'] * 7_000_000)
    return tokenizer_of(folder, bpe(b'{"a":0,"b":1,"ab":2}', b"[" + merges + b"]"))


@case
def tokenizer_of_merges_out_of_order(folder: Path) -> Path:
    """Merges that cannot be worked out from the pieces."""
    n = settings.MAX_VOCAB
    merges = b",".join([b'"1 %x"' % i for i in range(settings.MAX_MERGES)])
    return tokenizer_of(folder, bpe(numbered(n), b"[" + merges + b"]"))


@case
def tokenizer_of_escapes(folder: Path) -> Path:
    return tokenizer_of(folder, bpe(b'{"' + b"\\\\" * 20_000_000 + b'":0}'))


@case
def tokenizer_of_surrogates(folder: Path) -> Path:
    return tokenizer_of(folder, json_object(b'"' + b"\\ud83d\\ude00\\\\" * 3_500_000 + b'"'))


@case
def tokenizer_of_one_text(folder: Path) -> Path:
    long = "\U0001f600".encode() + b"x" * (files.VOCABULARY_LIMITS.n_bytes - 64)
    return tokenizer_of(folder, json_object(b'{"type":"' + long + b'"}', "model"))


@case
def tokenizer_of_one_piece(folder: Path) -> Path:
    long = "\U0001f600".encode() + b"x" * (files.VOCABULARY_LIMITS.n_bytes - 200)
    return tokenizer_of(folder, bpe(b'{"' + long + b'":0}'))


@case
def tokenizer_of_spaces(folder: Path) -> Path:
    pieces = b",".join(b'"%x%b":%d' % (i, "\u2581a".encode() * 20, i) for i in range(500_000))
    return tokenizer_of(folder, bpe(b"{" + pieces + b"}"))


@case
def tokenizer_of_added_tokens(folder: Path) -> Path:
    n = files.VOCABULARY_LIMITS.n_marks // 6 - 100
    added = b",".join(b'{"id":%d,"content":"%x"}' % (i, i) for i in range(n))
    return tokenizer_of(folder, bpe(b'{"a":0}', more=',"added_tokens":[' + added.decode() + "]"))


@case
def tokenizer_of_added_tokens_at_the_limit(folder: Path) -> Path:
    n = settings.MAX_ADDED
    added = b",".join(
        b'{"id":%d,"content":"%b%x","special":true}' % (i, chr(0x10000 + i).encode(), i % 4096)
        for i in range(n)
    )
    return tokenizer_of(folder, bpe(b'{"a":0}', more=',"added_tokens":[' + added.decode() + "]"))


@case
def tokenizer_of_tokens_declared_elsewhere(folder: Path) -> Path:
    added = (
        b"{" + b",".join(b'"%x":%d' % (i, i) for i in range(files.CONFIG_LIMITS.n_marks // 2 - 100)) + b"}"
    )
    (folder / "added_tokens.json").write_bytes(added)
    return tokenizer_of(folder, bpe(b'{"a":0}'))


@case
def tokenizer_of_special_tokens(folder: Path) -> Path:
    special = b",".join(b'"%x"' % i for i in range(files.CONFIG_LIMITS.n_marks - 100))
    (folder / "special_tokens_map.json").write_bytes(b'{"additional_special_tokens":[' + special + b"]}")
    return tokenizer_of(folder, bpe(b'{"a":0}'))


@case
def tokenizer_of_tokens_declared_elsewhere_at_the_limit(folder: Path) -> Path:
    n = settings.MAX_ADDED
    (folder / "added_tokens.json").write_bytes(b"{" + b",".join(b'"%x":%d' % (i, i) for i in range(n)) + b"}")
    special = b",".join(b'"%x"' % i for i in range(n - 10))
    (folder / "special_tokens_map.json").write_bytes(b'{"additional_special_tokens":[' + special + b"]}")
    return tokenizer_of(folder, bpe(b'{"a":0}'))


def nested(kind: str, key: str, inner: str, n: int) -> str:
    return f'{{"type":"Sequence","{key}":[' * n + inner + "]}" * n


COMPONENTS = {
    "normalizer": ("normalizers", '{"type":"Lowercase"}'),
    "pre_tokenizer": (
        "pretokenizers",
        '{"type":"Split","pattern":{"Regex":"a%d(b|c)*"},"behavior":"Isolated"}',
    ),
    "decoder": ("decoders", '{"type":"Replace","pattern":{"String":"a"},"content":"' + "b" * 64 + '"}'),
}


def component_case(part: str, key: str, one: str) -> None:
    def deep(folder: Path) -> Path:
        more = f',"{part}":' + nested("Sequence", key, one.replace("%d", ""), 20_000)
        return tokenizer_of(folder, bpe(b'{"a":0}', more=more))

    def wide(folder: Path) -> Path:
        items = ",".join(one.replace("%d", str(i)) for i in range(200_000))
        more = f',"{part}":{{"type":"Sequence","{key}":[{items}]}}'
        return tokenizer_of(folder, bpe(b'{"a":0}', more=more))

    def at_the_limit(folder: Path) -> Path:
        items = ",".join(one.replace("%d", str(i)) for i in range(60))
        more = f',"{part}":{{"type":"Sequence","{key}":[{items}]}}'
        return tokenizer_of(folder, bpe(b'{"a":0}', more=more))

    CASES.update(
        {
            f"tokenizer-{part}-{name}": make
            for name, make in (("deep", deep), ("wide", wide), ("at-the-limit", at_the_limit))
        }
    )


for part, (key, one) in COMPONENTS.items():
    component_case(part, key, one)

PATTERNS = {
    "long": "(a|b)" * 2_000_000,
    "deep": "(" * 4000 + "a" + ")" * 4000,
    "repeats": "(?:" * 300 + "a" + "{1,1000})" * 300,
    "sets": "[" * 900 + "a" + "]" * 900,
    "branches": "|".join(f"{i:x}" for i in range(1600)),
    "folded": "(?i)" + "|".join(chr(0x400 + i % 200) * 3 for i in range(1900)),
    "fuzzy": "(?:abcdefgh){e<=8}" * 400,
}


def pattern_case(name: str, source: str) -> None:
    def make(folder: Path) -> Path:
        split = {"type": "Split", "pattern": {"Regex": source}, "behavior": "Isolated"}
        return tokenizer_of(folder, bpe(b'{"a":0}', more=f',"pre_tokenizer":{json.dumps(split)}'))

    CASES[f"tokenizer-pattern-{name}"] = make


for name, source in PATTERNS.items():
    pattern_case(name, source)


@case
def tokenizer_charsmap(folder: Path) -> Path:
    spec = '{"type":"Precompiled","precompiled_charsmap":"' + "A" * 40_000_000 + '"}'
    return tokenizer_of(folder, bpe(b'{"a":0}', more=f',"normalizer":{spec}'))


@case
def tokenizer_config_of_templates(folder: Path) -> Path:
    items = b",".join(b'{"name":"%d","template":"x"}' % i for i in range(170_000))
    (folder / "tokenizer_config.json").write_bytes(json_object(b"[" + items + b"]", "chat_template"))
    return tokenizer_of(folder, bpe(b'{"a":0}'))


@case
def endless_template(folder: Path) -> Path:
    with (folder / "chat_template.jinja").open("wb") as file:
        file.truncate(1 << 36)
    return tokenizer_of(folder, bpe(b'{"a":0}'))


@case
def tokenizer_sound_speech_tokens(folder: Path) -> Path:
    """Models of speech have an added token for each of their 65536 sounds."""
    n = 1 << 16
    form = '{"id":%d,"content":"<|s_%d|>","single_word":false,"lstrip":false,"rstrip":false,"special":true}'
    added = ",".join(form % (1000 + i, i) for i in range(n))
    return tokenizer_of(folder, bpe(numbered(1000), more=f',"added_tokens":[{added}]'))


@case
def tokenizer_sound_merges_as_pairs(folder: Path) -> Path:
    """As large as Gemma's, and laid out so that an object is made of everything."""
    n = 1 << 18
    vocab = b"{" + b",".join(b'"%x":%d' % (i, n - 1 - i) for i in range(n)) + b"}"
    merges = b",".join(b'["%x","%x"]' % (i >> 4, i & 15) for i in range(16, n))
    return tokenizer_of(folder, bpe(vocab, b"[" + merges + b"," + merges + b"]"))
