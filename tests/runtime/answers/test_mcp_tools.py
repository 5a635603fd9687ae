"""Tools of an MCP server, a real one in a process of its own."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

import pytest

from kukri.runtime.answers.events import ToolCall
from kukri.runtime.answers.mcp_tools import McpServer
from kukri.runtime.answers.running import run_call

pytest.importorskip("mcp")

SERVER = '''
try:
    from mcp.server.mcpserver import MCPServer as Server
except ImportError:
    from mcp.server.fastmcp import FastMCP as Server

server = Server("tiny")

@server.tool()
def add(a: int, b: int = 1) -> str:
    """Add two numbers."""
    return f"it is {a + b}"

@server.tool()
def fail() -> str:
    raise ValueError("no luck")

server.run()
'''


@pytest.mark.slow
def test_tools_of_a_server_are_called(tmp_path: Path) -> None:
    (tmp_path / "server.py").write_text(SERVER)
    with McpServer(shlex.join([sys.executable, str(tmp_path / "server.py")])) as server:
        add, fail = server.tools
        assert (add.name, fail.name) == ("add", "fail")
        function = add.schema["function"]
        assert function["description"] == "Add two numbers."
        assert function["parameters"]["required"] == ["a"]
        assert run_call(ToolCall("1", "add", '{"a": 2, "b": 3}'), add) == "it is 5"
        assert run_call(ToolCall("2", "fail", "{}"), fail).startswith("error: RuntimeError")


@pytest.mark.slow
def test_servers_that_do_not_start() -> None:
    with pytest.raises(ValueError, match="does not start"):
        McpServer("no-such-command-anywhere")
    with pytest.raises(ValueError, match="does not start"):
        McpServer(shlex.join([sys.executable, "-c", "raise SystemExit(3)"]))
    with pytest.raises(ValueError, match="needs a command"):
        McpServer(" ")


def test_without_the_package_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mcp", None)
    with pytest.raises(ValueError, match=r"pip install 'kukri\[mcp\]'"):
        McpServer("server")
