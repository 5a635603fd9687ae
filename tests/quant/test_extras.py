"""The command that installs an extra is one that works for this installation."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kukri.quant import extras


class Installed:
    """A distribution with this direct_url.json."""

    def __init__(self, direct_url: str | None) -> None:
        self.direct_url = direct_url

    def read_text(self, name: str) -> str | None:
        return self.direct_url if name == "direct_url.json" else None


def test_a_checkout_is_named_by_its_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").touch()
    monkeypatch.setattr(extras, "PACKAGE_FOLDER", tmp_path)
    assert extras.how_to_install("plot") == f'pip install -e "{tmp_path}[plot]"'
    monkeypatch.chdir(tmp_path)
    assert extras.how_to_install("cuda") == 'pip install -e ".[cuda]"'


@pytest.mark.parametrize(
    ("direct_url", "expected"),
    [
        (None, "kukri[plot]"),
        (json.dumps({"url": "file:///tmp/kukri-1-py3-none-any.whl", "archive_info": {}}),
         "kukri[plot] @ file:///tmp/kukri-1-py3-none-any.whl"),
        (json.dumps({"url": "https://example.org/kukri", "vcs_info": {"vcs": "git", "commit_id": "abc"}}),
         "kukri[plot] @ git+https://example.org/kukri@abc"),
        ("no JSON", "kukri[plot]"),
        ("[]", "kukri[plot]"),
    ],
)  # fmt: skip
def test_an_installation_is_named_by_its_origin(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, direct_url: str | None, expected: str
) -> None:
    monkeypatch.setattr(extras, "PACKAGE_FOLDER", tmp_path)
    monkeypatch.setattr(extras, "distribution", lambda name: Installed(direct_url))
    assert extras.how_to_install("plot") == f'pip install "{expected}"'


def test_what_is_not_installed_at_all(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def missing(name: str) -> None:
        raise extras.PackageNotFoundError(name)

    monkeypatch.setattr(extras, "PACKAGE_FOLDER", tmp_path)
    monkeypatch.setattr(extras, "distribution", missing)
    assert extras.how_to_install("plot") == 'pip install "kukri[plot]"'
