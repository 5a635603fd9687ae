"""What methods and operators that a chat template uses make at most, and what reading costs them.

Each rule runs before the work: it counts what is read (`Budget.spend`) and compares the largest possible
result with what is left (`Budget.reserve`). A method of a type of Python's that has no rule is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any

from jinja2.sandbox import SecurityError
from markupsafe import Markup

from .budget import CONTAINERS, ITEM, LIST_ITEM, MAX_NUMBER, OBJECT, Budget, check_bits, check_numbers
from .formats import ESCAPED_HTML, printf_length

CASES = 3  # characters that a character becomes in another case, at most
PIECE = OBJECT + LIST_ITEM
CALLED = 4 * LIST_ITEM  # an argument
MAX_ALIKE = 100  # numbers of one hash among the keys of a dict, each of which is compared with all before it
_SPACES = tuple(filter(str.isspace, map(chr, range(0x3001))))
LINE_ENDS = ("\n", "\r", "\v", "\f", "\x1c", "\x1d", "\x1e", "\x85", "\u2028", "\u2029")
_ASCII = 128

Arguments = tuple[Any, ...]
Keywords = dict[str, Any]


def count_of(characters: tuple[str, ...], text: str) -> int:
    """How often any of the characters occurs in a text."""
    known = (
        [character for character in characters if ord(character) < _ASCII] if text.isascii() else characters
    )
    return sum(map(text.count, known))


def replaced(budget: Budget, text: str, old: str, new: str, count: Any) -> int:
    """The length of a text with `old` replaced by `new`, `count` times at most."""
    budget.spend(len(text) >> 1)
    found = text.count(old)
    times = min(found, count) if isinstance(count, int) and count >= 0 else found
    return len(text) + times * len(new) * (ESCAPED_HTML if isinstance(text, Markup) else 1)


def padded(text: str, width: Any) -> int:
    return max(len(text), width) if isinstance(width, int) else len(text)


def joined(budget: Budget, separator: str, items: Iterable[Any]) -> Iterator[Any]:
    """The items, each counted with the separator behind it before it is read."""
    escaped = ESCAPED_HTML if isinstance(separator, Markup) else 1
    return budget.each(items, lambda item: LIST_ITEM + (budget.text_length(item) + len(separator)) * escaped)


class _Call:
    """A call of a method of a text, with its arguments by place or name."""

    def __init__(self, budget: Budget, text: str, args: Arguments, kwargs: Keywords) -> None:
        self.budget, self.text, self.args, self.kwargs = budget, text, args, kwargs

    def argument(self, place: int, name: str = "", default: Any = None) -> Any:
        return self.args[place] if len(self.args) > place else self.kwargs.get(name, default)


def _same(call: _Call) -> int:
    return len(call.text)


def _cased(call: _Call) -> int:
    if not call.text.isascii():
        call.budget.spend(2 * len(call.text))  # each character is looked up
    return CASES * len(call.text)


def _looked_at(call: _Call) -> int:
    call.budget.spend(len(call.text) >> 1)
    return 0


def _nothing(call: _Call) -> int:
    return 0


def _compared(call: _Call) -> int:
    call.budget.look_at(call.argument(0))  # a tuple of many, maybe
    return 0


def _searched_from_the_right(call: _Call) -> int:
    """Its time is the product of both lengths."""
    sought = call.argument(0, "sep")
    call.budget.spend(len(call.text) * (1 + (len(sought) if isinstance(sought, str) else 0)) >> 4)
    return len(call.text)


def _split(call: _Call) -> int:
    sought, most = call.argument(0, "sep"), call.argument(1, "maxsplit", -1)
    call.budget.spend(len(call.text) >> 1)
    if isinstance(sought, str):
        pieces = call.text.count(sought) if sought else 0
    else:
        pieces = count_of(_SPACES, call.text)
    if isinstance(most, int) and most >= 0:
        pieces = min(pieces, most)
    call.budget.spend(pieces * PIECE + len(call.text))
    return 0


def _split_from_the_right(call: _Call) -> int:
    _searched_from_the_right(call)
    return _split(call)


def _split_lines(call: _Call) -> int:
    call.budget.spend(count_of(LINE_ENDS, call.text) * PIECE + 2 * len(call.text))
    return 0


def _parted(call: _Call) -> int:
    _looked_at(call)
    call.budget.spend(len(call.text))
    return 0


def _parted_from_the_right(call: _Call) -> int:
    _searched_from_the_right(call)
    return _parted(call)


def _join(call: _Call) -> int:
    if call.args:
        call.args = (joined(call.budget, call.text, call.args[0]), *call.args[1:])
    return 0


def _replace(call: _Call) -> int:
    old, new, count = (call.argument(i, name) for i, name in enumerate(("old", "new", "count")))
    if not isinstance(old, str) or not isinstance(new, str):
        return 0  # which Python refuses
    return replaced(call.budget, call.text, old, new, count)


def _pad(call: _Call) -> int:
    return padded(call.text, call.argument(0, "width"))


def _expand_tabs(call: _Call) -> int:
    width = call.argument(0, "tabsize", 8)
    return len(call.text) + call.text.count("\t") * (max(width, 0) if isinstance(width, int) else 0)


def _strip(call: _Call) -> int:
    """Each character is looked for among those to strip."""
    sought = call.argument(0, "chars")
    call.budget.spend(len(call.text) * (len(sought) if isinstance(sought, str) else 1) >> 4)
    return len(call.text)


# Not here, and so refused: encode, since bytes have methods of their own; maketrans and translate; and those
# of Markup that look through HTML in Python. format and format_map are left to
# ChatEnvironment.wrap_str_format.
_OF_TEXT: dict[str, Callable[[_Call], int]] = {
    **dict.fromkeys(("capitalize", "casefold", "lower", "swapcase", "title", "upper"), _cased),
    **dict.fromkeys(("center", "ljust", "rjust", "zfill"), _pad),
    **dict.fromkeys(("count", "find", "index"), _looked_at),
    **dict.fromkeys(("rfind", "rindex"), _searched_from_the_right),
    **dict.fromkeys(("startswith", "endswith"), _compared),
    **dict.fromkeys(("removeprefix", "removesuffix"), _same),
    **dict.fromkeys(("strip", "lstrip", "rstrip"), _strip),
    **dict.fromkeys(
        (
            *("isalnum", "isalpha", "isdecimal", "isdigit", "isidentifier", "islower", "isnumeric"),
            *("isprintable", "isspace", "istitle", "isupper"),
        ),
        _looked_at,
    ),
    "expandtabs": _expand_tabs,
    "join": _join,
    "replace": _replace,
    "partition": _parted,
    "rpartition": _parted_from_the_right,
    "split": _split,
    "rsplit": _split_from_the_right,
    "splitlines": _split_lines,
    "isascii": _nothing,
}
_OF_OTHERS: tuple[tuple[type | tuple[type, ...], frozenset[str]], ...] = (
    (dict, frozenset(("copy", "get", "items", "keys", "values"))),
    ((list, tuple), frozenset(("copy", "count", "index"))),
    (range, frozenset(("count", "index"))),
    (
        (int, float, complex),
        frozenset(("as_integer_ratio", "bit_count", "bit_length", "conjugate", "hex", "is_integer")),
    ),
)


def check_method(budget: Budget, owner: Any, name: str, args: Arguments, kwargs: Keywords) -> Arguments:
    """Count what a method of one of Python's own types is about to read or make; the arguments come back,
    with those counted as they are read that it goes through."""
    if isinstance(owner, str):
        rule = _OF_TEXT.get(name)
        if rule is None:
            raise SecurityError(f"the method {name}")
        check_numbers((*args, *kwargs.values()))
        call = _Call(budget, owner, args, kwargs)
        budget.reserve(rule(call))
        return call.args
    if not any(isinstance(owner, types) and name in names for types, names in _OF_OTHERS):
        raise SecurityError(f"the method {name}")
    if name in ("count", "index") and args:
        search(budget, args[0], owner)
        if name == "index" and not isinstance(owner, tuple):
            budget.reserve(budget.size(args[0]).written)  # the error shows what is not there
    return args


def search(budget: Budget, sought: Any, place: Any) -> None:
    """Count what `sought in place` reads."""
    if isinstance(place, str):
        if len(place) > ITEM:
            budget.spend(len(place) >> 1)
    elif isinstance(place, range):
        if not isinstance(sought, int):
            budget.spend(4 * len(place))
    elif isinstance(place, Mapping):
        budget.look_at(sought)
    elif isinstance(place, CONTAINERS):
        budget.look_at(place)
        budget.look_at(sought)


def spread(budget: Budget, items: Any) -> Any:
    """What becomes arguments of a call, `f(*items)`, of which Python makes several tuples."""
    if isinstance(items, Collection):
        budget.spend(len(items) * CALLED)
        return items
    return budget.each(items, lambda item: CALLED)


def pairs(budget: Budget, given: Any) -> dict[Any, Any]:
    """dict(given). A dict is slow, and its copies are, where many of its keys have the same hash, as the
    multiples of 2**61 - 1 have."""
    made: dict[Any, Any] = {}
    alike: dict[int, int] = {}
    for item in given.items() if isinstance(given, Mapping) else given:
        budget.spend(ITEM)
        budget.look_at(item)
        key, value = item
        made[key] = value
        number = hash(key)
        alike[number] = alike.get(number, 0) + 1
        if alike[number] > MAX_ALIKE:
            raise SecurityError(f"a dict with over {MAX_ALIKE} keys of the same hash")
    return made


def operate(budget: Budget, operator: str, left: Any, right: Any) -> None:
    """Count what `left operator right` is about to make."""
    if isinstance(left, int) and isinstance(right, int):
        if operator in ("*", "**"):
            bits = left.bit_length()
            check_bits(bits * abs(right) if operator == "**" else bits + right.bit_length())
    elif operator == "%" and isinstance(left, str):
        budget.reserve(printf_length(budget, left, right))
    elif operator == "*":
        for sized, times in ((left, right), (right, left)):
            if isinstance(sized, str | list | tuple) and isinstance(times, int):
                _repeat(budget, sized, max(times, 0))
    elif operator == "+":
        if isinstance(left, str) and isinstance(right, str):
            both = len(left) + len(right)
            escaped = isinstance(left, Markup) or isinstance(right, Markup)
            budget.reserve(both * ESCAPED_HTML if escaped else both)
        elif isinstance(left, list | tuple) and isinstance(right, list | tuple):
            budget.reserve((len(left) + len(right)) * LIST_ITEM)
    elif operator == "-" and isinstance(left, CONTAINERS):
        raise SecurityError("a difference of anything but numbers")  # of the keys of dicts, which is a set


def _repeat(budget: Budget, sized: Any, times: int) -> None:
    if isinstance(sized, str):
        budget.reserve(len(sized) * times)
    else:
        if (budget.size(sized).parts - 1) * times >= MAX_NUMBER:
            raise SecurityError(f"a value of over {MAX_NUMBER} parts")
        budget.reserve(len(sized) * times * LIST_ITEM)
