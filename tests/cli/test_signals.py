"""Signals that arrive where Python wraps what their handlers raise."""

from __future__ import annotations

import os
import signal
import sys
import weakref

import pytest
import typer

from kukri.cli import main as command_line
from kukri.cli.signals import as_sent, send_lost_signals_again, unwinding


def made_while(request: BaseException) -> BaseException:
    """What making a class raises if `request` is raised in the middle of it."""

    class Guard:
        def __set_name__(self, owner: type, name: str) -> None:
            raise request

    with pytest.raises(BaseException) as caught:  # noqa: PT011
        type("Made", (), {"guard": Guard()})
    return caught.value


@pytest.mark.parametrize(("request_", "code"), [(SystemExit(129), 129), (KeyboardInterrupt(), 130)])
def test_a_signal_while_a_class_is_made(
    request_: BaseException, code: int, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    raised = made_while(request_)
    assert isinstance(raised, RuntimeError) == (sys.version_info < (3, 12))
    assert as_sent(raised) is request_

    def fail(app: typer.Typer) -> None:
        raise raised

    monkeypatch.setattr(typer.main, "get_command", fail)
    assert command_line.main(["list"]) == code
    assert capfd.readouterr() == ("", "")


def test_other_errors_are_told() -> None:
    problem = made_while(ValueError("no"))
    assert as_sent(problem) is problem


class Watched:
    """Something that weak references may point to."""


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, None), (signal.SIGTERM, 143), (signal.SIGHUP, 129)]
)
def test_a_signal_inside_a_callback_is_not_lost(
    number: signal.Signals,
    code: int | None,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """Python drops what is raised where a weak reference's callback runs."""
    monkeypatch.setattr(sys, "unraisablehook", send_lost_signals_again)
    watched = Watched()
    reference = weakref.ref(watched, lambda _: os.kill(os.getpid(), number))
    lost: list[bool] = []

    def wait() -> None:
        nonlocal watched
        with unwinding():
            del watched
            lost.append(True)
            signal.pause()

    with pytest.raises((KeyboardInterrupt, SystemExit)) as caught:
        wait()
    assert lost
    assert reference() is None
    assert getattr(caught.value, "code", None) == code
    assert capfd.readouterr() == ("", "")


def test_other_errors_inside_a_callback_are_told(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "unraisablehook", send_lost_signals_again)
    watched = Watched()
    reference = weakref.ref(watched, lambda _: {}[0])
    del watched
    assert reference() is None
    assert "KeyError" in capfd.readouterr().err
