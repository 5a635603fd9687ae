"""The flags of tools: functions that the model may call."""

from __future__ import annotations

import atexit
import importlib.util
import inspect
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..console.bounded_io import read_file
from ..console.options import flag
from .tool_output import aside, printing_aside

if TYPE_CHECKING:
    from types import ModuleType

    from ...runtime.answers.functions import Tool

LONGEST_SCHEMA = 4 << 20  # bytes
MOST_MARKS = 1 << 18  # brackets, commas and colons


@dataclass(frozen=True)
class ToolOptions:
    """One field for each flag."""

    tool: Annotated[
        list[str] | None,
        flag(
            "--tool",
            metavar="FILE.py:NAME",
            help="A Python function that the model may call; may be given several times.",
        ),
    ] = None
    tools: Annotated[
        list[str] | None,
        flag(
            "--tools",
            metavar="FILE",
            help="JSON schemas of functions; calls are printed; may be given several times.",
        ),
    ] = None
    mcp: Annotated[
        list[str] | None,
        flag(
            "--mcp",
            metavar="COMMAND",
            help="A server of tools (MCP) to start; may be given several times; needs kukri[mcp].",
        ),
    ] = None
    tool_choice: Annotated[
        str | None,
        flag("--tool-choice", metavar="X", help="auto, none, required, or the function it must call."),
    ] = None
    tool_timeout: Annotated[
        float,
        flag("--tool-timeout", metavar="SECONDS", min=0.01, help="What a function may take."),
    ] = 60.0
    yes: Annotated[bool, flag("--yes", help="Run the functions that the model calls without asking.")] = False

    @cached_property
    def offered_tools(self) -> tuple[Tool, ...]:
        """The tools that the flags name. A usage error for one that cannot be had."""
        given = [*(self.tool or ()), *(self.tools or ()), *(self.mcp or ())]
        if not given and self.tool_choice in (None, "auto", "none"):
            return ()
        from ...runtime.answers.functions import tools_of

        found: list[object] = [each for text in self.tool or () for each in _functions(text)]
        found += [each for name in self.tools or () for each in _schemas(name)]
        try:
            found += [each for command in self.mcp or () for each in _served(command)]
            return tuple(tools_of(found))
        except (TypeError, ValueError) as problem:
            raise typer.BadParameter(str(problem)) from None

    @property
    def asked_of_tools(self) -> dict[str, Any]:
        """The fields of a GenerationRequest. A usage error for a choice that is none."""
        tools = self.offered_tools
        choice = self.tool_choice or "auto"
        if choice not in ("auto", "none") and choice not in ("required", *(tool.name for tool in tools)):
            raise typer.BadParameter(f"--tool-choice: {choice} is none of auto, none, required and the tools")
        if choice == "required" and not tools:
            raise typer.BadParameter("--tool-choice required needs --tool, --tools or --mcp")
        return {"tools": tools, "tool_choice": choice} if tools else {}


def _served(command: str) -> Sequence[Tool]:
    """The tools of an MCP server, which ends with this process. ValueError if it does not start."""
    from ...runtime.answers.mcp_tools import McpServer

    server = McpServer(command)
    atexit.register(server.close)
    return server.tools


def _functions(text: str) -> list[Any]:
    """The function that FILE.py:NAME names, or all public ones of FILE.py."""
    file, colon, name = text.rpartition(":")
    if not colon or text.endswith(".py"):
        file, name = text, ""
    module = _module(Path(file).expanduser())
    if name:
        found = getattr(module, name, None)
        if not callable(found):
            raise typer.BadParameter(f"--tool: there is no function {name} in {file}")
        return [printing_aside(found)]
    functions = [
        printing_aside(each)
        for key, each in vars(module).items()
        if inspect.isfunction(each) and each.__module__ == module.__name__ and not key.startswith("_")
    ]
    if not functions:
        raise typer.BadParameter(f"--tool: there are no functions in {file}")
    return functions


def _module(path: Path) -> ModuleType:
    """The module that a file is, run now."""
    if not path.is_file():
        raise typer.BadParameter(f"--tool: there is no file {str(path)!r}; FILE.py:NAME names a function")
    name = f"kukri_tool_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise typer.BadParameter(f"--tool: {path} is no Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    sys.path.insert(0, str(path.resolve().parent))  # for what it imports from beside it
    try:
        with aside():
            spec.loader.exec_module(module)
    except (Exception, SystemExit) as problem:  # noqa: BLE001 - it may fail in any way
        raise typer.BadParameter(f"--tool: {path} fails: {type(problem).__name__}: {problem}") from None
    finally:
        sys.path.pop(0)
    return module


def _schemas(name: str) -> Sequence[Any]:
    """The schemas in a JSON file: one, a list of them, or {"tools": [...]}."""
    from ...quant.errors import DamagedFile
    from ...untrusted import parse_json

    path = Path(name).expanduser()
    try:
        found: Any = parse_json(read_file(path, LONGEST_SCHEMA), path.name, MOST_MARKS, DamagedFile)
    except OSError as problem:
        raise typer.BadParameter(f"--tools: {name}: {problem.strerror or problem}") from None
    except ValueError as problem:
        raise typer.BadParameter(f"--tools: {problem}") from None
    if isinstance(found, dict):
        found = found.get("tools", [found])
    if not isinstance(found, list) or not found:
        raise typer.BadParameter(f"--tools: {name} has no schemas of functions")
    return found
