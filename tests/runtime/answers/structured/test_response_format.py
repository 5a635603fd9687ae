"""What a form is made of, what is refused, and what the model is told."""

from __future__ import annotations

import dataclasses
import datetime
import enum
import json
from typing import Annotated, Literal, TypedDict

import pytest

from kukri import ConstraintError, GenerationRequest, ResponseFormat
from kukri.runtime.answers.structured.schemas import closed, schema_of_type

OBJECT = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}


class Colour(enum.Enum):
    red = "red"
    blue = "blue"


@dataclasses.dataclass
class Leaf:
    name: str
    colour: Colour
    when: datetime.date | None = None


@dataclasses.dataclass
class Tree:
    """Contains itself."""

    leaf: Leaf
    size: Literal["S", "M"]
    children: list[Tree] = dataclasses.field(default_factory=list)
    notes: dict[str, int] = dataclasses.field(default_factory=dict)
    pair: tuple[int, str] = (1, "")
    weight: Annotated[float, "in kilograms"] = 0.0


class Point(TypedDict):
    x: int
    y: float


@pytest.mark.parametrize(
    ("given", "kind"),
    [
        (OBJECT, "json_schema"),
        ({"anyOf": [OBJECT, {"type": "null"}]}, "json_schema"),
        ({"type": "json_object"}, "json"),
        (
            {"type": "json_schema", "json_schema": {"name": "x", "strict": True, "schema": OBJECT}},
            "json_schema",
        ),
        ({"type": "json_schema", "name": "x", "schema": OBJECT}, "json_schema"),
        ({"type": "regex", "regex": "a+"}, "regex"),
        ({"type": "grammar", "grammar": 'start: "a"'}, "grammar"),
        ({"type": "grammar", "grammar": 'root ::= "a"'}, "grammar"),
        ({"type": "choice", "choice": ["a", "b"]}, "choice"),
        (Tree, "json_schema"),
        (Point, "json_schema"),
        (list[int], "json_schema"),
        (ResponseFormat.regex("a"), "regex"),
    ],
)
def test_whatever_states_a_form_becomes_one(given, kind):
    form = ResponseFormat.of(given)
    assert form.kind == kind
    assert GenerationRequest("hi", response_format=given).response_format == form
    assert ResponseFormat.of(form) is form


def test_no_form():
    assert ResponseFormat.of(None) is None
    assert GenerationRequest("hi", response_format={"type": "text"}).response_format is None


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"type": "object", "properties": {"b": {"not": {"type": "string"}}}}, r"not.*#/properties/b/not"),
        ({"type": "array", "uniqueItems": True}, "uniqueItems"),
        ({"if": {"type": "string"}, "then": {"minLength": 3}}, "if.*then"),
        ({"type": "string", "pattern": "(?=a)b"}, "look-around"),
        ({"type": "integer", "minimum": 5, "maximum": 3}, "minimum .5. is greater than maximum .3."),
        ({"type": "object", "properties": {"a": False}, "required": ["a"]}, "property .a. is unsat"),
        ({"enum": []}, "nsatisfiable"),
        ({"$ref": "#/nowhere"}, "/nowhere"),
        ({"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/a"}}}, "schema .* no text fits it"),
        ({"oneOf": [{"type": "integer"}, {"type": "number"}]}, "anyOf lets several fit$"),
        ({"type": "string", "format": "colour"}, "colour"),
        ({"type": "object", "properties": {"a": {"default": {1, 2}}}}, "no JSON"),
        ({"type": "regex", "regex": "a(?!b)"}, "look-around"),
        ({"type": "regex", "regex": "["}, "unclosed"),
        ({"type": "regex", "regex": r"[^\x00-\x{10FFFF}]"}, "expression .* no text fits it"),
        ({"type": "grammar", "grammar": "start: start /a/"}, "grammar .* no text fits it"),
        ({"type": "regex"}, "no .regex."),
        ({"type": "regex", "regex": 3}, "a text"),
        ({"type": "grammar", "grammar": "start: foo"}, "foo"),
        ({"type": "grammar", "grammar": 'root ::= "a" foo'}, "foo"),
        ({"type": "choice", "choice": []}, "choices"),
        ({"type": "choice", "choice": "abc"}, "choices"),
        ({"type": "json_schema"}, "no schema"),
        ({"type": "json_schema", "schema": [1]}, "is an object"),
        ({"type": "xml"}, "'xml'"),
        (3, "no JSON schema"),
        (complex, "no JSON schema"),
        (dataclasses.make_dataclass("D", [("x", complex)]), "D.x"),
    ],
)
def test_what_is_not_supported_or_cannot_be_is_refused_by_its_part(given, message):
    with pytest.raises(ConstraintError, match=message) as caught:
        ResponseFormat.of(given)
    assert "\n" not in str(caught.value)


def test_schemas_of_types():
    schema = schema_of_type(Tree)
    tree, leaf = schema["$defs"]["Tree"], schema["$defs"]["Leaf"]
    assert schema["$ref"] == "#/$defs/Tree"
    assert tree["required"] == ["leaf", "size"]
    assert tree["properties"]["children"] == {"type": "array", "items": {"$ref": "#/$defs/Tree"}}
    assert tree["properties"]["notes"] == {"type": "object", "additionalProperties": {"type": "integer"}}
    assert tree["properties"]["weight"] == {"type": "number", "description": "in kilograms"}
    assert leaf["properties"]["colour"] == {"enum": ["red", "blue"]}
    assert leaf["properties"]["when"]["anyOf"][1] == {"type": "null"}
    assert schema_of_type(Point)["$defs"]["Point"]["required"] == ["x", "y"]


def test_pydantic_models():
    pydantic = pytest.importorskip("pydantic")

    class Inner(pydantic.BaseModel):
        n: int = pydantic.Field(ge=0, le=5)

    class Outer(pydantic.BaseModel):
        inner: Inner
        names: list[str]

    form = ResponseFormat.of(Outer)
    assert form.kind == "json_schema"
    assert '"additionalProperties": false' in form.grammar.replace('\\"', '"').replace('":f', '": f')
    schema = schema_of_type(dataclasses.make_dataclass("Holder", [("outer", Outer)]))
    assert schema["$defs"]["Inner"]["properties"]["n"]["maximum"] == 5


def test_objects_are_closed_where_nothing_else_is_said():
    inner = {"type": "object", "properties": {"required": {"type": "string"}}}
    schema = {"type": "object", "properties": {"x": inner, "y": {"enum": [{"properties": {}}]}}}
    found = closed(schema)
    assert found["additionalProperties"] is False
    assert found["properties"]["x"]["additionalProperties"] is False
    assert found["properties"]["y"] == schema["properties"]["y"]
    for open_ in (
        {**OBJECT, "additionalProperties": {"type": "string"}},
        {**OBJECT, "patternProperties": {"^x": {}}},
        {**OBJECT, "minProperties": 2},
        {**OBJECT, "required": ["a", "b"]},
        {"allOf": [OBJECT, {"properties": {"b": {}}}]},
        {"oneOf": [OBJECT, {"properties": {"b": {}}}]},
        {"type": "object"},
        True,
    ):
        assert closed(open_) == open_


def test_the_model_is_told():
    form = ResponseFormat.of(OBJECT)
    messages = [{"role": "system", "content": "s"}, {"role": "user", "content": "u"}]
    told = form.told([*messages, {"role": "assistant", "content": "x"}])
    assert told[1]["content"].startswith("u\n\n")
    assert json.dumps(OBJECT) in told[1]["content"]
    assert told[0] == messages[0]
    assert messages[1] == {"role": "user", "content": "u"}
    parts = form.told([{"role": "user", "content": [{"type": "text", "text": "u"}]}])[0]["content"]
    assert [part["text"][:1] for part in parts] == ["u", "A"]
    assert ResponseFormat.of(OBJECT, in_prompt=False).told(messages) is messages
    assert form.told([]) == []
