"""The view "tokens": how the text was cut into tokens."""

from __future__ import annotations

from typing import Any

from .page import BANDS, DIM, Page
from .subject import Subject

MOST_ROWS = 200  # of the table
LONGEST_WORD = 512  # characters of a word whose merges are worked out
MOST_WORDS = 24  # whose merges are shown


def facts(subject: Subject) -> dict[str, Any]:
    """The prompt's tokens with their bytes, and how the words of the user's text were merged."""
    tokenizer = subject.tokenizer
    tokens = [
        {"position": i, **subject.token_of(id_), "bytes": tokenizer.token_bytes(id_).hex(" ")}
        for i, id_ in enumerate(subject.ids)
    ]
    own = len(tokenizer.encode(subject.text))
    words: dict[str, list[list[str]]] = {}
    for steps in tokenizer.merge_steps(subject.text, LONGEST_WORD):
        words.setdefault("".join(steps[-1]), steps)
    return {
        "n_tokens": len(tokens),
        "n_special": sum(bool(token.get("special")) for token in tokens),
        "text_tokens": own,
        "text_characters": len(subject.text),
        "text_bytes": len(subject.text.encode()),
        "vocabulary": tokenizer.vocab_size,
        "tokens": tokens,
        "merges": list(words.values()),
    }


def draw(page: Page, found: dict[str, Any]) -> None:
    page.heading("Tokens")
    own, characters = found["text_tokens"], found["text_characters"]
    page.text(
        f"The text has {characters} characters, {found['text_bytes']} bytes and {own} tokens, "
        f"{characters / max(1, own):.1f} characters a token. The prompt has {found['n_tokens']} tokens, "
        f"{found['n_special']} of them control tokens, out of a vocabulary of {found['vocabulary']}."
    )
    page.line()
    tokens = found["tokens"]
    texts = [(page.visible(token["text"]), BANDS[i % 2]) for i, token in enumerate(tokens)]
    page.flow(texts, gap="|" if page.plain else "│")
    page.line()
    rows = [
        [str(t["position"]), str(t["id"]), page.visible(t["text"], 24), t["bytes"], _kind(t)]
        for t in tokens[:MOST_ROWS]
    ]
    columns = [0, 1, 2, 3, 4] if page.width >= 72 else [0, 1, 2]
    header = ["#", "id", "token", "bytes", ""]
    page.table([header[i] for i in columns], [[row[i] for i in columns] for row in rows], right=(0, 1))
    if len(tokens) > MOST_ROWS:
        page.text(f"and {len(tokens) - MOST_ROWS} more")
    merged = [steps for steps in found["merges"] if len(steps) > 1]
    if merged:
        page.heading("How byte-pair encoding merged each word")
        for steps in merged[:MOST_WORDS]:
            shown = [" ".join(page.visible(piece) for piece in step) for step in _some(steps)]
            page.flow(
                [
                    (text if i == 0 else f"{page.arrow()} {text}", DIM if i < len(shown) - 1 else "")
                    for i, text in enumerate(shown)
                ],
                gap=" ",
            )
        if len(merged) > MOST_WORDS:
            page.text(f"and {len(merged) - MOST_WORDS} more words")


def _kind(token: dict[str, Any]) -> str:
    return "control" if token.get("special") else ""


def _some(steps: list[list[str]]) -> list[list[str]]:
    """The steps of a word: of a long one the first and the last ones."""
    return steps if len(steps) <= 8 else [*steps[:3], ["…"], *steps[-4:]]
