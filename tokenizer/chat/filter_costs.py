"""What Jinja's filters make at most, and what each item costs those that go through items."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from jinja2.sandbox import SecurityError

from .budget import ITEM, LIST_ITEM, MAX_BITS, OBJECT, Budget
from .formats import ESCAPED_HTML, printf_length
from .methods import CASES, LINE_ENDS, count_of, padded, replaced

MAX_SEPARATOR = 64  # characters between the parts of JSON
MAX_PLACES = 400  # that a number is rounded to, before or behind its point; floats have no more
_URL_ESCAPED = 12  # characters of %F0%9F%98%80


class Use:
    """One use of a filter: its budget, value and arguments."""

    def __init__(self, budget: Budget, value: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.budget, self.value, self.args, self.kwargs = budget, value, args, kwargs

    def argument(self, place: int, name: str, default: Any = None) -> Any:
        return self.args[place] if len(self.args) > place else self.kwargs.get(name, default)

    def text_length(self) -> int:
        return self.budget.text_length(self.value)

    def text(self) -> str:
        """The value as text, which is what most filters make of it first."""
        if not isinstance(self.value, str):
            self.budget.reserve(self.text_length())
            self.value = str(self.value)
        text: str = self.value
        return text

    def text_argument(self, place: int, name: str) -> str:
        value = self.argument(place, name, "")
        self.budget.reserve(self.budget.text_length(value))
        return str(value)


# Filters of texts and numbers: each rule gives the length of the result at most.


def _as_it_is(use: Use) -> int:
    return use.text_length()


def _cased(use: Use) -> int:
    length = use.text_length()
    use.budget.spend(2 * length if not (isinstance(use.value, str) and use.value.isascii()) else 0)
    return CASES * length


def _by_words(use: Use) -> int:
    use.budget.spend(ITEM * use.text_length())
    return CASES * use.text_length()


def _escaped(use: Use) -> int:
    return ESCAPED_HTML * use.text_length()


def _url_escaped(use: Use) -> int:
    use.budget.spend(ITEM * use.text_length())
    return _URL_ESCAPED * use.text_length()


def _number(use: Use) -> int:
    """Python's time for long decimal numbers grows with the square of their length."""
    if isinstance(use.value, str) and len(use.value) > MAX_BITS:
        raise SecurityError(f"a number of over {MAX_BITS} characters")
    return OBJECT


def _rounded(use: Use) -> int:
    places = use.argument(0, "precision", 0)
    if isinstance(places, int) and abs(places) > MAX_PLACES:
        raise SecurityError(f"a number rounded to over {MAX_PLACES} places")
    return OBJECT


def _centered(use: Use) -> int:
    return padded(use.text(), use.argument(0, "width", 80))


def _formatted(use: Use) -> int:
    return printf_length(use.budget, use.text(), use.kwargs or use.args)


def _indented(use: Use) -> int:
    width = use.argument(0, "width", 4)
    lines = count_of(LINE_ENDS, use.text()) + 1
    use.budget.spend(lines * ITEM + len(use.text()))
    return len(use.text()) + lines * (max(width, 0) if isinstance(width, int) else len(str(width)))


def _replaced(use: Use) -> int:
    old, new = use.text_argument(0, "old"), use.text_argument(1, "new")
    return replaced(use.budget, use.text(), old, new, use.argument(2, "count"))


def _stripped(use: Use) -> int:
    """Each character is looked for among those to strip."""
    sought = use.argument(0, "chars")
    use.budget.spend(len(use.text()) * (len(sought) if isinstance(sought, str) else 1) >> 4)
    return len(use.text())


def _cut(use: Use) -> int:
    return len(use.text()) + len(use.text_argument(2, "end")) * ESCAPED_HTML


def _as_json(use: Use) -> int:
    indent, separators = use.argument(1, "indent"), use.argument(2, "separators")
    width = indent if isinstance(indent, int) else len(indent or "")
    size = use.budget.size(use.value)
    length = size.written
    if indent is not None or use.argument(3, "sort_keys"):  # part by part in Python
        use.budget.spend(size.parts * ITEM)
        length += size.parts * (1 + max(width, 0) * (size.depth + 1))
    if separators is not None:
        use.budget.reserve(use.budget.text_length(separators))
        if sum(len(str(text)) for text in separators) > MAX_SEPARATOR:
            raise SecurityError(f"separators of over {MAX_SEPARATOR} characters")
        length += size.parts * MAX_SEPARATOR
    return length


OF_TEXT: dict[str, Callable[[Use], int]] = {
    "capitalize": _cased,
    "lower": _cased,
    "upper": _cased,
    "title": _by_words,
    "wordcount": _by_words,
    "e": _escaped,
    "escape": _escaped,
    "forceescape": _escaped,
    "urlencode": _url_escaped,
    "safe": _as_it_is,
    "string": _as_it_is,
    "trim": _stripped,
    "truncate": _cut,
    "center": _centered,
    "int": _number,
    "float": _number,
    "filesizeformat": _number,
    "round": _rounded,
    "abs": _rounded,
    "format": _formatted,
    "indent": _indented,
    "replace": _replaced,
    "tojson": _as_json,
}

# Filters of items: each rule gives what an item costs.


def _item(use: Use) -> Callable[[Any], int]:
    """What is done with each item depends on the arguments."""
    size = use.budget.size([*use.args, *use.kwargs.values()])
    return lambda item: ITEM + size.parts + size.characters


def _sorted(use: Use) -> Callable[[Any], int]:
    """Compared about as often as their number has bits, and texts are copied in lower case."""
    each, size_of = _item(use), use.budget.size

    def cost(item: Any) -> int:
        size = size_of(item)
        return 2 * each(item) + ITEM * size.parts + 4 * size.characters

    return cost


def _listed(use: Use) -> Callable[[Any], int]:
    each = LIST_ITEM if not isinstance(use.value, str) or use.value.isascii() else ITEM
    return lambda item: each


def _joined(use: Use) -> Callable[[Any], int]:
    each, length_of = _item(use), use.budget.text_length
    return lambda item: each(item) + length_of(item)


OF_ITEMS: dict[str, Callable[[Use], Callable[[Any], int]]] = {
    **dict.fromkeys(("batch", "map", "reject", "rejectattr", "select", "selectattr", "slice", "sum"), _item),
    **dict.fromkeys(("dictsort", "groupby", "max", "min", "sort", "unique"), _sorted),
    "join": _joined,
    "list": _listed,
}
