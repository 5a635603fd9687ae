"""`llm chat --connect`: a conversation with a model that a server has."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import fields
from typing import TYPE_CHECKING, Any

import typer

from ..chat.line_editor import line_editor
from ..console import terminal
from ..console.explain import explain
from ..console.options import TextOrJson
from ..generation.prompt import read_files, read_prompt
from .client import ServerClient, ServerError

if TYPE_CHECKING:
    from ..generation.options import GenerationOptions

# Fields of SamplingParams that have another name in requests.
_NAMES = {"mirostat_lr": "mirostat_eta", "mirostat_ent": "mirostat_tau", "dynatemp_exp": "dynatemp_exponent"}
_HELP = (
    ("/clear", "begin the conversation anew"),
    ("/system", "show the system prompt, or replace it with the text behind it"),
    ("/regen", "answer the newest message again"),
    ("/bye", "leave"),
)


def chat_with_server(
    server: ServerClient, options: GenerationOptions, model: str | None, no_stdin: bool
) -> None:
    """Hold a conversation, or answer once to piped text. Raises ServerError, and usage errors for flags that
    concern a model in this process."""
    if options.raw or options.output is TextOrJson.json:
        raise typer.BadParameter("--connect goes without --raw and -o json")
    chat = ServerChat(server, model or _first_model(server), options)
    if not terminal.is_terminal(sys.stdin):
        if no_stdin:
            raise typer.BadParameter("stdin is no terminal, and --no-stdin forbids to read it")
        chat.say(read_prompt([], no_stdin, options.file or []))
        return
    chat.attached = read_files(options.file or [])
    terminal.remark(f"{chat.model} at {server.url}. /help lists commands, Ctrl-D leaves.")
    chat.converse()


def _first_model(server: ServerClient) -> str:
    models = server.get("/v1/models")
    try:
        return str(models["data"][0]["id"])
    except (KeyError, IndexError, TypeError):
        raise ServerError(f"{server.url} lists no models") from None


class ServerChat:
    """The messages so far, and what each request says beside them."""

    def __init__(self, server: ServerClient, model: str, options: GenerationOptions) -> None:
        self.server = server
        self.model = model
        self.system = options.system_text
        self.turns: list[dict[str, str]] = []
        self.attached: list[str] = []
        self._sampling = request_fields(options)
        self._wrap = not options.no_wrap
        self._show_stats = options.stats
        self._editor = line_editor({name: None for name, _ in _HELP})

    def converse(self) -> None:
        """Read, answer, repeat, until Ctrl-D or /bye."""
        with self._editor:
            while True:
                try:
                    text = self._editor.read(None)
                    if text.startswith("/"):
                        self._command(text)
                    elif text.strip():
                        self.say("\n\n".join([*self.attached, text]))
                        self.attached = []
                except EOFError:
                    return
                except (ServerError, ValueError) as problem:
                    terminal.error(explain(problem))
                except KeyboardInterrupt:
                    terminal.remark("(Ctrl-D or /bye leaves)")

    def _command(self, line: str) -> None:
        name, _, rest = line.partition(" ")
        if name in ("/bye", "/exit", "/quit"):
            raise EOFError
        if name == "/clear":
            self.turns.clear()
            terminal.remark("(the conversation starts anew)")
        elif name == "/system":
            self.system = rest.strip() or self.system
            terminal.tell(self.system or "(no system prompt)")
        elif name == "/regen" and len(self.turns) > 1:
            question = self.turns[-2]["content"]
            del self.turns[-2:]
            self.say(question)
        elif name in ("/help", "/?"):
            for command, text in _HELP:
                terminal.note(f"{command:9} {text}")
        else:
            raise ValueError(f"there is nothing for {name} to do; /help lists commands")

    def say(self, text: str) -> None:
        """Answer a message; Ctrl-C ends the answer but keeps what there is. Without any answer the message is
        forgotten."""
        system = [{"role": "system", "content": self.system}] if self.system else []
        asked = {"role": "user", "content": text}
        body = {
            "model": self.model,
            "messages": [*system, *self.turns, asked],
            "stream": True,
            "stream_options": {"include_usage": True},
            **self._sampling,
        }
        sink, usage = terminal.ModelText(self._wrap), dict[str, Any]()
        try:
            with self._editor.answering(on_resume=sink.begin_line):
                for event in self.server.events("/v1/chat/completions", body):
                    sink.write(_text(event))
                    usage = event.get("usage") or usage
        except KeyboardInterrupt:
            terminal.remark("(interrupted)")
        finally:
            if sink.text:
                sink.finish()
                self.turns += [asked, {"role": "assistant", "content": sink.text}]
        if self._show_stats and usage:
            prompt, new = usage.get("prompt_tokens"), usage.get("completion_tokens")
            terminal.note(f"prompt: {prompt} tokens, answer: {new} tokens")


def _text(event: Mapping[str, Any]) -> str:
    """The text that an event of a chat completion brings. Raises ServerError for what is none."""
    try:
        return "".join(choice["delta"].get("content") or "" for choice in event["choices"])
    except (KeyError, TypeError, AttributeError):
        raise ServerError("the server's answer is no chat completion") from None


def request_fields(options: GenerationOptions) -> dict[str, Any]:
    """The sampling flags that were given, as a request has them."""
    from ...runtime.engine.sampling.params import SamplingParams

    params, plain = options.sampling(), SamplingParams()
    given = {
        field.name: getattr(params, field.name)
        for field in fields(SamplingParams)
        if getattr(params, field.name) != getattr(plain, field.name)
    }
    if "logit_bias" in given:
        given["logit_bias"] = [list(pair) for pair in given["logit_bias"]]
    return {_NAMES.get(name, name): list(v) if isinstance(v, tuple) else v for name, v in given.items()}
