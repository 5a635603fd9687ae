"""The flags that say what form an answer must have."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..console.options import flag
from .input_files import read_text_file
from .prompt import check_utf8

if TYPE_CHECKING:
    from ...runtime.answers.structured.response_format import ResponseFormat

MOST_MARKS = 1 << 18  # brackets, commas and colons of a schema


@dataclass(frozen=True)
class StructuredOptions:
    """One field for each flag about the form of answers."""

    json: Annotated[bool, flag("--json", help="Answer with JSON.")] = False
    json_schema: Annotated[
        str | None,
        flag("--json-schema", metavar="FILE|JSON", help="Answer with JSON that fits this schema."),
    ] = None
    regex: Annotated[
        str | None,
        flag("--regex", metavar="PATTERN", help="Answer with text that matches this as a whole."),
    ] = None
    grammar: Annotated[
        str | None,
        flag("--grammar", metavar="FILE", help="Answer with text of this grammar, in Lark or GBNF."),
    ] = None
    choice: Annotated[
        str | None, flag("--choice", metavar="A,B,C", help="Answer with one of these texts.")
    ] = None
    no_schema_prompt: Annotated[
        bool, flag("--no-schema-prompt", help="Do not tell the model what form its answer must have.")
    ] = False

    @cached_property
    def response_format(self) -> ResponseFormat | None:
        """The form that the flags ask for; None for none. A usage error for two of them, and for one that is
        not supported or that nothing has."""
        names = ("json", "json_schema", "regex", "grammar", "choice")
        given = [name for name in names if getattr(self, name) not in (None, False)]
        if not given:
            return None
        flags = [f"--{name.replace('_', '-')}" for name in given]
        if len(given) > 1:
            raise typer.BadParameter(f"{' and '.join(flags)} exclude each other: an answer has one form")
        check_utf8(f"the value of {flags[0]}", str(getattr(self, given[0])))
        from ...runtime.answers.structured.response_format import ResponseFormat

        told = not self.no_schema_prompt
        try:
            return ResponseFormat.json(told) if self.json else ResponseFormat.of(self.given_form, told)
        except ValueError as problem:
            raise typer.BadParameter(f"{flags[0]}: {problem}") from None

    @cached_property
    def given_form(self) -> dict[str, Any] | None:
        """What the flags ask for, as the `response_format` of an API; None for nothing. Files are read here.

        Raises ConstraintError for a schema that is neither a file nor JSON; `response_format` says whether
        the form is supported.
        """
        if self.json:
            return {"type": "json_schema", "json_schema": {"schema": {"type": ["object", "array"]}}}
        if self.json_schema is not None:
            return {"type": "json_schema", "json_schema": {"schema": _schema(self.json_schema)}}
        if self.regex is not None:
            return {"type": "regex", "regex": self.regex}
        if self.grammar is not None:
            return {"type": "grammar", "grammar": read_text_file(self.grammar)}
        if self.choice is not None:
            texts = [text.strip() for text in self.choice.split(",")]
            return {"type": "choice", "choice": [text for text in texts if text]}
        return None


def _schema(given: str) -> Any:
    """The schema that is given, as JSON or as the name of a file. Raises ConstraintError."""
    from ...runtime.engine.errors import ConstraintError
    from ...untrusted import parse_json

    text = given.strip()
    inline = text[:1] == "{" or text in ("true", "false")
    if not inline:
        if not Path(text).expanduser().exists():
            raise ConstraintError(f"{given:.60} is neither a file nor JSON")
        text = read_text_file(text)
    where = "the schema" if inline else given
    schema = parse_json(text.encode(), where, MOST_MARKS, ConstraintError)
    # A schema for the `response_format` of an API is taken as well.
    if isinstance(schema, dict) and schema.get("type") == "json_schema":
        schema = schema.get("json_schema", schema).get("schema", schema)
    return schema
