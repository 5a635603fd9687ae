"""Signals that arrive where Python wraps what their handlers raise."""

from __future__ import annotations

import sys

import pytest
import typer

from kukri.cli import main as command_line
from kukri.cli.signals import as_sent


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
