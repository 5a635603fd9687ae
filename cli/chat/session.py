"""One chat session: its state, and the loop that reads messages and writes answers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from ..console import terminal
from ..console.explain import explain
from ..console.wording import count
from ..generation.reply import INTERRUPTED, Reply, generate, show_stats, why_cut
from ..generation.tool_use import MOST_ROUNDS, ToolUse, spelled
from .conversation import Conversation, Turn
from .line_editor import line_editor
from .slash import completions, handle

if TYPE_CHECKING:
    from ...runtime.engine.sampling.params import SamplingParams
    from ...runtime.model.model import Model
    from ..generation.options import GenerationOptions


class Session:
    """The state of one chat: the model, its parameters and the conversation, which the /commands change.

    `attached`: texts that go in front of the next message. `save(conversation, ending)` keeps the
    conversation on disk; `ending`: for the last time. It may raise OSError or ValueError.
    """

    def __init__(
        self,
        model: Model,
        name: str,
        options: GenerationOptions,
        params: SamplingParams,
        conversation: Conversation,
        attached: Sequence[str] = (),
        save: Callable[[Conversation, bool], None] | None = None,
    ) -> None:
        self.model = model
        self.name = name
        self.params = params
        self.show_stats = options.stats
        self.wrap = not options.no_wrap
        self.hide_thinking = options.hide_thinking
        self.tools = ToolUse(options.offered_tools, options.yes, options.tool_timeout)
        self.last: Reply | None = None
        self.attached = [*attached]
        self.draft: str | None = None  # the next message is written in an editor, beginning with this
        self.editor = line_editor(completions())
        self.form = options.response_format
        conversation.asked = options.asked(model)
        self.conversation = conversation
        self._save = save

    def keep(self, ending: bool = False) -> None:
        """Keep the conversation on disk, if it is to be kept; where that fails, a line says so once."""
        if self._save is None:
            return
        try:
            self._save(self.conversation, ending)
        except (OSError, ValueError) as problem:
            self._save = None
            terminal.error(f"this conversation is no longer kept: {explain(problem)}")

    @property
    def cut(self) -> bool:
        """Whether the newest answer can be continued."""
        turns = self.conversation.turns
        return bool(turns and (turns[-1].reply or turns[-1].begun) and turns[-1].cut)

    def say(self, text: str) -> None:
        """Answer a new message; without any answer, the message is forgotten."""
        turns = self.conversation.turns
        if self.conversation.raw and turns:
            text = "\n" + text  # a line of its own
        self.conversation.turns = [*turns, Turn("\n\n".join([*self.attached, text]))]
        try:
            self.answer()
        except BaseException:
            self.conversation.turns = turns
            raise
        if self.conversation.turns[-1].reply is None:
            self.conversation.turns.pop()
            terminal.remark("(interrupted before the first word; the message is forgotten)")
        else:
            self.attached = []

    def again(self) -> None:
        """Answer the newest message anew; if nothing comes of that, the old answer stays."""
        turn = self.conversation.turns[-1]
        old = replace(turn)
        turn.reply, turn.cut, turn.thinking, turn.steps, turn.begun = None, "", "", [], []
        try:
            self.answer()
        finally:
            if turn.reply is None:
                self.conversation.turns[-1] = old

    def answer(self) -> None:
        """Write the answer to the newest message, or go on with it, and keep it if there is any.

        Functions that the model calls are run, if the user agrees, and it goes on.
        """
        for n in range(MOST_ROUNDS + 1):
            reply = self._write()
            if reply is None or not reply.tool_calls:
                return
            if not self.tools.can_run(reply.tool_calls):
                for call in reply.tool_calls:
                    terminal.remark(f"→ {spelled(call)} (nothing runs this)")
                return
            if n == MOST_ROUNDS:
                terminal.remark(f"(stopped after {n} rounds of calls)")
                return
            turn = self.conversation.turns[-1]
            with self.editor.asking():
                results = self.tools.results(reply.tool_calls)
            turn.steps += [reply.message, *results]
            turn.reply, turn.thinking, turn.begun = None, "", []

    def _write(self) -> Reply | None:
        """Write one answer, and keep it; None if there is nothing of it."""
        turn = self.conversation.turns[-1]
        request, gone = self.conversation.fit(self.model, self.params.max_tokens)
        if gone:
            terminal.note(f"(the oldest turns no longer fit: {count(gone, 'token')} went)")
        sink = terminal.ModelText(self.wrap)
        try:
            with self.editor.answering(on_resume=sink.begin_line):
                request = replace(request, params=self.params)
                thinking = terminal.ThinkingText(hidden=self.hide_thinking)
                reply = self.last = generate(self.model, request, sink.write, thinking)
        except Exception:
            if sink.text:  # the error gets a line of its own
                sink.finish()
            raise
        if reply.text:
            sink.finish()
        if not reply.ids and reply.finish_reason == INTERRUPTED:
            return None
        turn.begun = [*request.begun, *reply.ids]
        turn.reply = (turn.reply or "") + reply.text
        turn.thinking += reply.thinking
        cut = why_cut(reply, self.model, cure="/set repeat_penalty 1.1 and /regen")
        turn.cut = reply.finish_reason if cut and self.form is None else ""
        if cut and self.form is not None:  # what has a form is not continued in pieces
            terminal.remark(f"({cut}; /regen answers anew)")
        elif cut:
            terminal.remark(f"({cut}; Enter on an empty line goes on)" if turn.reply else f"({cut})")
        if self.show_stats:
            show_stats(reply)
        return reply


def converse(session: Session) -> None:
    """Read, answer, repeat, until Ctrl-D or /bye. An error costs one turn, not the session."""
    with session.editor:
        while True:
            draft, session.draft = session.draft, None
            try:
                text = session.editor.read(draft)
            except KeyboardInterrupt:
                terminal.remark("(Ctrl-D or /bye leaves)")
                continue
            except EOFError:
                return
            except ValueError as problem:  # there is no editor
                terminal.error(explain(problem))
                continue
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
            session.keep()
