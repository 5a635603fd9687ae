"""Foreign text: what is made of each character, and that nobody in `cli` writes to a stream past it."""

from __future__ import annotations

import ast
import json
import re
import sys
import unicodedata
from pathlib import Path

import pytest

import kukri
from kukri.cli.console.safe_text import as_json, characters, lines, one_line

CLI = Path(kukri.__file__).parent / "cli"
PRINTER = "console/terminal.py"
# Format characters that are no danger: joiners, and signs that are visible.
SHOWN = {0x200C, 0x200D, *range(0x600, 0x606), 0x6DD, 0x70F, 0x890, 0x891, 0x8E2, 0x110BD, 0x110CD,
         *range(0x13430, 0x13440)}  # fmt: skip
PRINTS = ("echo", "secho", "print_exc", "print_exception", "print_stack", "StreamHandler", "Console")
MARKS = "\u200e\u200f\u061c\u200b\xad\ufeff"  # stay in texts of several lines


def dangerous() -> str:
    """Every character of Unicode that is a control, a format character, a separator or a surrogate."""
    kinds = {"Cc", "Cf", "Cs", "Zl", "Zp"}
    return "".join(
        chr(c) for c in range(sys.maxunicode + 1) if unicodedata.category(chr(c)) in kinds and c not in SHOWN
    )


def test_no_dangerous_character_of_unicode_is_left_in_a_name() -> None:
    left = set(one_line(f"a{dangerous()}b")) & set(dangerous())
    assert not left, [hex(ord(c)) for c in left]


def test_nor_in_json_which_still_says_what_it_was() -> None:
    text = dangerous()
    shown = as_json({text: [text]})
    assert not set(shown) & set(dangerous())
    kept = re.sub("[\ud800-\udfff]", "\ufffd", text)
    assert json.loads(shown) == {kept: [kept]}
    shown.encode("utf-8")


def test_texts_of_several_lines_keep_what_scripts_need() -> None:
    left = set(lines(dangerous())) & set(dangerous())
    assert not left & set(
        "\x1b\x9b\r\x00\x7f\u202a\u202e\u2066\u2069\u206a\u2028\u2029\ufff9\U000e0041\udce9"
    )
    assert left >= {*MARKS, "\n", "\t"}
    assert lines("a\r\nb\u2028c\u2029d\re") == "a\nb\nc\nd\ufffde"
    assert lines(f"a{MARKS}b") == f"a{MARKS}b"
    assert one_line(f"a{MARKS}b") == "a" + "\ufffd" * len(MARKS) + "b"


@pytest.mark.parametrize(
    "text",
    [
        "\U0001f468\u200d\U0001f469\u200d\U0001f467 \u2764\ufe0f",  # emoji of several code points
        "क्‍ष नमस्ते",  # Devanagari with a joiner
        "می‌خواهم",  # Persian with a non-joiner
        "שלום, עולם! مرحبا بالعالم",
        "日本語　テキスト",
        "e\u0301 \u05d1\u05bc",
    ],
)
def test_scripts_and_emoji_stay_as_they_are(text: str) -> None:
    assert one_line(text) == lines(text) == characters(text) == text
    assert json.loads(as_json(text)) == text
    assert as_json(text) == f'"{text}"'


def test_one_line() -> None:
    assert one_line("a\n  b\t\r\n c\n") == "a b c"
    assert one_line("two  blanks ") == "two  blanks "  # a file's name may have them
    assert characters("a\r\n\u2028b\t") == "a\ufffd\n\ufffdb\t"


def printing(tree: ast.AST) -> list[str]:
    """What in a module's code writes to a stream, or names one, other than to ask the terminal about it."""
    found = []
    asked = {
        id(argument)
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr in ("is_terminal", "takes_escapes", "takes_colour")
        for argument in node.args
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and node.id in ("print", "input", "Console", "StreamHandler"):
            found.append(node.id)
        elif isinstance(node, ast.Attribute):
            name = ast.unparse(node)
            if name in ("sys.stdout", "sys.stderr", "sys.__stdout__", "sys.__stderr__"):
                found += [name] if id(node) not in asked else []
            elif node.attr in PRINTS or name in ("os.write", "sys.displayhook"):
                found.append(name)
        elif isinstance(node, ast.ImportFrom) and node.module in ("rich", "rich.console", "sys", "click"):
            found.append(f"from {node.module}")
    return found


@pytest.mark.parametrize(
    "code",
    [
        "print(x)", "sys.stdout.write(x)", "sys.stderr.writelines(x)", "typer.echo(x)", "click.secho(x)",
        "os.write(1, x)", "from rich import print", "from rich.console import Console", "out = sys.stdout",
        "traceback.print_exc()", "logging.StreamHandler()", "say = print", "input(name)",
    ],
)  # fmt: skip
def test_the_search_below_finds_all_ways_to_print(code: str) -> None:
    assert printing(ast.parse(code))
    assert not printing(ast.parse("terminal.takes_escapes(sys.stderr); terminal.write(x)"))


def test_only_the_terminal_module_prints() -> None:
    allowed = {
        "chat/line_editor.py": ["sys.stderr", "sys.stdout"],  # prompt_toolkit draws on one of them
        "generation/tool_output.py": [
            "sys.stderr",
            *["sys.stdout"] * 4,
        ],  # of functions that print by themselves
    }
    for path in sorted(CLI.rglob("*.py")):
        name = path.relative_to(CLI).as_posix()
        if name != PRINTER:
            found = sorted(printing(ast.parse(path.read_text(encoding="utf-8"))))
            assert found == allowed.get(name, []), f"{name} prints around cli/{PRINTER}"
