"""kukri's own folder: the order of places, and a user without a home."""

from __future__ import annotations

import logging
import os
import stat
import tempfile
from pathlib import Path

import pytest

from kukri.quant import home as home_module
from kukri.quant.errors import NoHome
from kukri.quant.home import home
from kukri.quant.jit import kernel_cache


@pytest.fixture
def _no_home(tmp_path, monkeypatch):
    """A user without a name, and without HOME."""

    def fail() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("KUKRI_HOME", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(Path, "home", fail)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    home_module._temporary_home.cache_clear()
    yield
    home_module._temporary_home.cache_clear()


def test_the_order_of_places(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("USERPROFILE", str(tmp_path))
    monkeypatch.setenv("KUKRI_HOME", str(tmp_path / "own"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert home() == tmp_path / "own"
    monkeypatch.setenv("KUKRI_HOME", "~/tilde")
    assert home() == tmp_path / "tilde"
    monkeypatch.delenv("KUKRI_HOME")
    assert home() == tmp_path / "xdg" / "kukri"
    for ignored in ("relative", ""):
        monkeypatch.setenv("XDG_CACHE_HOME", ignored)
        assert home() == tmp_path / ".cache" / "kukri"
    assert not any(tmp_path.iterdir())  # asking makes nothing


def test_a_user_that_does_not_exist(monkeypatch):
    monkeypatch.setenv("KUKRI_HOME", "~no-such-user/kukri")
    with pytest.raises(NoHome, match="no such user") as problem:
        home()
    assert "\n" not in str(problem.value)
    folder = kernel_cache.cache_folder.__wrapped__()  # kernels go to a temporary folder
    assert folder.is_dir()


@pytest.mark.skipif(os.name == "nt", reason="every user has a home")
@pytest.mark.usefixtures("_no_home")
class TestWithoutAHome:
    def test_there_is_a_private_folder(self, tmp_path, capfd, caplog):
        with caplog.at_level(logging.WARNING):
            folder = home()
            assert folder == home() == tmp_path / f"kukri-{os.getuid()}"
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
        assert [record.name for record in caplog.records] == ["kukri.quant.home"]
        assert "KUKRI_HOME" in caplog.text
        assert capfd.readouterr() == ("", "")

    def test_kernels_are_kept_there(self, tmp_path):
        folder = kernel_cache.cache_folder.__wrapped__()
        assert folder.is_relative_to(tmp_path / f"kukri-{os.getuid()}")

    @pytest.mark.parametrize("mode", [0o777, 0o770, 0o702])
    def test_a_folder_that_others_can_write_is_refused(self, tmp_path, mode):
        folder = tmp_path / f"kukri-{os.getuid()}"
        folder.mkdir()
        folder.chmod(mode)
        with pytest.raises(NoHome, match="open to others"):
            home()
        assert not kernel_cache.cache_folder.__wrapped__().is_relative_to(folder)

    def test_a_link_is_refused(self, tmp_path):
        (tmp_path / "elsewhere").mkdir()
        (tmp_path / f"kukri-{os.getuid()}").symlink_to(tmp_path / "elsewhere")
        with pytest.raises(NoHome, match="open to others"):
            home()
