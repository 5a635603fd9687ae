"""Python functions as tools: their schemas."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import pytest

from kukri import Tool


def get_weather(
    city: str,
    days: int = 1,
    exact: bool = False,
    units: Literal["C", "F"] = "C",
    tags: list[str] | None = None,
    more: dict[str, Any] | None = None,
    where: Annotated[float, "Degrees north."] = 0.0,
    *rest: Any,
    anything=None,
    **others: Any,
) -> str:
    """The weather of a city,
    for some days.

    It is a forecast.

    Args:
        city: Its name,
            in English.
        days (int): How many.

    Returns:
        days: nothing of this.
    """
    return city


def test_a_schema_is_made_of_signature_and_docstring():
    schema = Tool.of(get_weather).schema
    assert schema == {
        "type": "function",
        "function": {
            "name": "get_weather",
            "description": "The weather of a city, for some days.",
            "parameters": {
                "type": "object",
                "properties": {
                    "city": {"type": "string", "description": "Its name, in English."},
                    "days": {"type": "integer", "description": "How many.", "default": 1},
                    "exact": {"type": "boolean", "default": False},
                    "units": {"type": "string", "enum": ["C", "F"], "default": "C"},
                    "tags": {"type": "array", "items": {"type": "string"}},
                    "more": {"type": "object"},
                    "where": {"type": "number", "description": "Degrees north.", "default": 0.0},
                    "anything": {},
                },
                "required": ["city"],
            },
        },
    }


def test_sphinx_docstrings_and_none():
    def add(a: int, b: int | float) -> float:
        """Add.

        :param a: one
        :param int b: other
        :returns: the sum
        """
        return a + b

    function = Tool.of(add).schema["function"]
    assert function["description"] == "Add."
    assert function["parameters"]["properties"] == {
        "a": {"type": "integer", "description": "one"},
        "b": {"anyOf": [{"type": "integer"}, {"type": "number"}], "description": "other"},
    }
    assert Tool.of(lambda_free).schema["function"]["description"] == ""


def lambda_free(x):
    return x


def test_schemas_in_other_shapes():
    parameters = {"type": "object", "properties": {"a": {"type": "string"}}}
    for given in (
        {"name": "f", "parameters": parameters},
        {"name": "f", "input_schema": parameters},
        {"type": "function", "name": "f", "parameters": parameters},
        {"type": "function", "function": {"name": "f", "parameters": parameters}},
    ):
        tool = Tool.of(given)
        assert tool.name == "f"
        assert tool.function is None
        assert tool.schema["function"]["parameters"] == parameters
    assert Tool.of(tool) is tool


@pytest.mark.parametrize("wrong", [lambda x: x, {"name": ""}, {}, {"name": "f", "parameters": 3}])
def test_what_is_no_tool(wrong):
    with pytest.raises(ValueError, match=r"tool|parameters"):
        Tool.of(wrong)


def test_functions_that_take_no_names():
    def positional(a, /):
        return a

    with pytest.raises(ValueError, match="takes a by position only"):
        Tool.of(positional)
