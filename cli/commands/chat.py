"""`llm chat`: a conversation, typed line by line, or one answer to what is piped in."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ...quant.home import home
from ..chat.conversation import Conversation, Turn
from ..chat.repetition import LoopWatch
from ..chat.slash import COMMANDS, handle
from ..console import terminal
from ..console.explain import explain
from ..console.options import (
    DEFAULT_MODEL,
    GenerationOptions,
    Model_,
    TextOrJson,
    flag,
    with_generation_options,
)
from ..console.prompt import read_prompt
from ..console.reply import INTERRUPTED, Reply, generate, show_stats, why_cut
from .run import answer, refuse_system_of_raw

if TYPE_CHECKING:
    from ...runtime.engine.sampler import SamplingParams
    from ...runtime.model.model import Model

FENCE = '"""'


class Chat:
    """The state of one session, which the /commands work on."""

    def __init__(self, model: Model, name: str, options: GenerationOptions, params: SamplingParams) -> None:
        self.model = model
        self.name = name
        self.params = params
        self.show_stats = options.stats
        self.last: Reply | None = None
        self.conversation = Conversation(options.system or "", raw=options.raw or not model.chat_template)

    @property
    def cut(self) -> bool:
        """Whether the newest answer can be continued."""
        turns = self.conversation.turns
        return bool(turns and turns[-1].reply and turns[-1].cut)

    def say(self, text: str) -> None:
        """Answer a new message; without any answer, the message is forgotten."""
        turns = self.conversation.turns
        self.conversation.turns = [*turns, Turn(text)]
        try:
            self.answer()
        except BaseException:
            self.conversation.turns = turns
            raise
        if self.conversation.turns[-1].reply is None:
            self.conversation.turns.pop()
            terminal.remark("(interrupted before the first word; the message is forgotten)")

    def again(self) -> None:
        """Answer the newest message anew; if nothing comes of that, the old answer stays."""
        turn = self.conversation.turns[-1]
        old, turn.reply, turn.cut = (turn.reply, turn.cut), None, ""
        try:
            self.answer()
        finally:
            if turn.reply is None:
                turn.reply, turn.cut = old

    def answer(self) -> None:
        """Write the answer to the newest message, or go on with it, and keep it if there is any."""
        turn = self.conversation.turns[-1]
        ids, gone = self.conversation.fit(self.model, self.params.max_tokens)
        if gone:
            terminal.note(f"(the oldest turns no longer fit: {gone} tokens went)")
        sink = terminal.ModelText()
        try:
            reply = self.last = generate(self.model, ids, self.params, sink.write, LoopWatch().push)
        except Exception:
            if sink.text:  # the error gets a line of its own
                sink.finish()
            raise
        if reply.text:
            sink.finish()
        if not reply.text and reply.finish_reason == INTERRUPTED:
            return
        turn.reply = (turn.reply or "") + reply.text
        cut = why_cut(reply, self.model)
        turn.cut = reply.finish_reason if cut else ""
        if cut:
            terminal.remark(f"({cut}; Enter on an empty line goes on)" if turn.reply else f"({cut})")
        if self.show_stats:
            show_stats(reply)


@with_generation_options
def chat(
    options: GenerationOptions,
    model: Model_ = DEFAULT_MODEL,
    no_stdin: Annotated[bool, flag("--no-stdin", help="Do not read stdin, even if it is a pipe.")] = False,
) -> None:
    """Hold a conversation.

    With text piped into it, it answers once and ends.
    """
    params = options.sampling()
    if not terminal.is_terminal(sys.stdin):
        if no_stdin:
            raise typer.BadParameter(
                "stdin is no terminal, and --no-stdin forbids to read it, so there is nothing to answer; "
                "llm run takes a prompt as an argument"
            )
        refuse_system_of_raw(options)
        text = read_prompt([], no_stdin)
        with closing(options.load(model)) as loaded:
            answer(loaded, model, text, options, params)
        return
    if options.output is TextOrJson.json:
        raise typer.BadParameter("-o json is for one answer: pipe the prompt, or use llm run")
    with closing(options.load(model)) as loaded:
        session = Chat(loaded, model, options, params)
        terminal.remark(
            f"{Path(model).name}, context {loaded.context} tokens. /help lists commands, Ctrl-D leaves."
        )
        if session.conversation.raw and not options.raw:
            terminal.note("This model has no chat template: it continues text, it does not answer it.")
        converse(session)


def converse(session: Chat) -> None:
    """Read, answer, repeat, until Ctrl-D or /bye. An error costs one turn, not the session."""
    prompt = _line_editor()
    while True:
        try:
            text = _read_message(prompt)
        except KeyboardInterrupt:
            terminal.remark("(Ctrl-D or /bye leaves)")
            continue
        except EOFError:
            return
        try:
            if text.startswith("/"):
                handle(session, text)
            elif text.strip():
                session.say(text)
            elif session.cut:
                session.answer()
        except EOFError:
            return
        except (ValueError, OSError, RuntimeError, ArithmeticError) as problem:
            terminal.error(explain(problem))
        except KeyboardInterrupt:
            terminal.remark("(interrupted)")


def _read_message(prompt: Callable[[str], str]) -> str:
    text = prompt(">>> ")
    if not text.startswith(FENCE):
        return text
    lines = [text.removeprefix(FENCE)]
    while FENCE not in lines[-1]:
        lines.append(prompt("... "))
    lines[-1] = lines[-1].split(FENCE)[0]
    return "\n".join(lines).strip("\n")


def _line_editor() -> Callable[[str], str]:
    """A function from a prompt to a line, with editing, and a history that outlives the session.

    The prompt is not model text, so it goes to stderr wherever that is a terminal.
    """
    stream = sys.stderr if terminal.is_terminal(sys.stderr) else sys.stdout
    if not terminal.takes_escapes(stream):
        return _plain_line
    from prompt_toolkit import PromptSession
    from prompt_toolkit.completion import WordCompleter
    from prompt_toolkit.history import FileHistory, History, InMemoryHistory
    from prompt_toolkit.output import ColorDepth, create_output

    history: History
    path = home() / "chat_history"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.open("ab").close()
        history = FileHistory(path)
    except OSError as problem:
        terminal.remark(f"(the history is not kept: {path}: {problem.strerror})")
        history = InMemoryHistory()
    session: PromptSession[str] = PromptSession(
        history=history,
        output=create_output(stdout=stream),
        color_depth=None if terminal.takes_colour(stream) else ColorDepth.DEPTH_1_BIT,
        completer=WordCompleter(sorted(COMMANDS), sentence=True),
        complete_while_typing=False,
    )
    return session.prompt


def _plain_line(prompt: str) -> str:
    """Read a line where nothing can be edited: a dumb terminal, or one that shows neither stream."""
    terminal.tell(prompt)
    line = sys.stdin.readline()
    if not line:
        raise EOFError
    return line.removesuffix("\n")
