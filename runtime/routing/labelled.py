"""Questions with known answers: reading them, and whether an answer is right."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from ... import KukriError

Match = Literal["contains", "exact"]
_ARTICLES = frozenset(("a", "an", "the"))
_WORD = re.compile(r"-?\d[\d.,]*\d|-?\d|\w+|[^\w\s]")


class BadQuestion(KukriError):
    """A line is no question with its answer, and why."""


@dataclass(frozen=True)
class Question:
    """`asked`: the messages or the text of a question; `answers`: those that are right."""

    asked: Sequence[Mapping[str, Any]] | str
    answers: tuple[str, ...]

    @classmethod
    def of(cls, fields: Mapping[str, Any]) -> Question:
        """A question of a row with `prompt` or `messages`, and `answer`: a text, a number or a list of them.
        Raises BadQuestion."""
        asked, answer = fields.get("messages", fields.get("prompt")), fields.get("answer")
        if isinstance(asked, str):
            sound = bool(asked.strip())
        else:
            sound = (
                isinstance(asked, list) and all(isinstance(each, Mapping) for each in asked) and bool(asked)
            )
        if not sound:
            raise BadQuestion("has no question: a text in `prompt`, or a list of `messages`")
        answers = answer if isinstance(answer, list) else [answer]
        if not answers or not all(_is_answer(each) for each in answers):
            raise BadQuestion("has no `answer`: a text, a number, or a list of these")
        assert asked is not None
        return cls(asked, tuple(map(str, answers)))

    def is_right(self, text: str, match: Match = "contains") -> bool:
        """Whether a text is one of the right answers, or with "contains" has one in it as whole words.

        Case, accents' spelling, articles and punctuation do not count; 1,000.0 is 1000.
        """
        given = words(text)
        for answer in self.answers:
            wanted = words(answer)
            if given == wanted or (match == "contains" and _has(given, wanted)):
                return True
        return False


def _is_answer(given: Any) -> bool:
    if isinstance(given, str):
        return bool(words(given))
    return isinstance(given, int | float) and not isinstance(given, bool)


def words(text: str) -> list[str]:
    """The words of a text without what does not count."""
    found = []
    for word in _WORD.findall(unicodedata.normalize("NFKC", text).casefold()):
        if word[-1].isdigit():
            found.append(_number(word))
        elif (word[0].isalnum() or word[0] == "_") and word not in _ARTICLES:
            found.append(word)
    return found


def _number(word: str) -> str:
    try:
        return f"{float(word.replace(',', '')):.15g}"
    except ValueError:  # 1.2.3
        return word


def _has(given: Sequence[str], wanted: Sequence[str]) -> bool:
    n = len(wanted)
    return n > 0 and any(given[i : i + n] == wanted for i in range(len(given) - n + 1))


def share_right(questions: Iterable[Question], texts: Iterable[str], match: Match) -> float:
    """The share of texts that are right answers, each to its question."""
    marks = [question.is_right(text, match) for question, text in zip(questions, texts, strict=True)]
    return sum(marks) / len(marks) if marks else 0.0
