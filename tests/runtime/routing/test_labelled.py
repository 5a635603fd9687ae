"""Questions with known answers."""

from __future__ import annotations

from typing import Any

import pytest

from kukri.runtime.routing.labelled import BadQuestion, Question, share_right


@pytest.mark.parametrize(
    ("answer", "text", "contains", "exact"),
    [
        ("Paris", "It is PARIS.", True, False),
        ("Paris", "the Paris", True, True),
        ("Paris", "Parisian", False, False),
        (12, "The sum is 12.", True, False),
        (12, "The sum is 112", False, False),
        (12, "12.0", True, True),
        (1000, "1,000", True, True),
        (-3, "x = -3!", True, False),
        (3, "x = -3", False, False),
        (["yes", "true"], "True", True, True),
        ("New York", "in New  York City", True, False),
        ("New York", "York New", False, False),
        ("x", "", False, False),
    ],
)
def test_right(answer: Any, text: str, contains: bool, exact: bool) -> None:
    question = Question.of({"prompt": "?", "answer": answer})
    assert question.is_right(text) is contains
    assert question.is_right(text, "exact") is exact
    assert share_right([question, question], [text, str(question.answers[0])], "exact") == (0.5 + 0.5 * exact)


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"answer": "x"}, "has no question"),
        ({"prompt": " ", "answer": "x"}, "has no question"),
        ({"messages": ["x"], "answer": "x"}, "has no question"),
        ({"prompt": "x"}, "has no `answer`"),
        ({"prompt": "x", "answer": "."}, "has no `answer`"),
        ({"prompt": "x", "answer": []}, "has no `answer`"),
        ({"prompt": "x", "answer": True}, "has no `answer`"),
    ],
)
def test_wrong_lines(fields: dict[str, Any], reason: str) -> None:
    with pytest.raises(BadQuestion, match=reason):
        Question.of(fields)
