"""The settings file: what it may say, which value goes before which, and what is said of a wrong one."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from kukri.cli.app import command_group
from kukri.cli.settings import file
from kukri.cli.settings.file import (
    WITHOUT_SETTINGS,
    SettingsError,
    change,
    read_settings,
    settings_path,
)
from kukri.cli.settings.flags import defaults, from_words, settable

from ...running import Run, failed

FLAGS = ("-t", 0, "-o", "json", "hello")


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The place of the settings file, which is not there yet; the one that `llm_inside` uses."""
    path = tmp_path / "config.toml"
    monkeypatch.setenv("KUKRI_CONFIG", str(path))
    return path


def commands() -> dict[str, Any]:
    return settable(command_group().commands, WITHOUT_SETTINGS)


def new_tokens(llm_inside: Run, *flags: Any, env: dict[str, str] | None = None) -> int:
    done = llm_inside("run", *flags, *FLAGS, env=env)
    assert done.returncode == 0, done.stderr.decode()
    n: int = json.loads(done.stdout)["stats"]["new_tokens"]
    return n


def test_the_flag_the_variable_the_commands_table_the_top(llm_inside: Run, config: Path, tiny: Path) -> None:
    """Each of them goes before the next."""
    top = f"model = '{tiny}'\nmax-tokens = 5\n"
    config.write_text(top)
    assert new_tokens(llm_inside) == 5
    config.write_text(top + "[chat]\nmax-tokens = 6\n[run]\nmax-tokens = 4\n")
    assert new_tokens(llm_inside) == 4
    variable = {"LLM_MAX_TOKENS": "3"}
    assert new_tokens(llm_inside, env=variable) == 3
    assert new_tokens(llm_inside, "-n", 2, env=variable) == 2


def test_every_kind_of_flag(llm_inside: Run, config: Path, tiny: Path) -> None:
    config.write_text(
        f"model = '{tiny}'\n"
        "temperature = 0  # a whole number is a number\n"
        "max_tokens = 40\n"
        "stop = ['never', 'nor this']\n"
        "raw = true\n"
        "kv-type = 'f32'\n"
        "output = 'json'\n"
        "device = 'cpu'\n"
    )
    told = json.loads(llm_inside("run", "abc").stdout)
    assert (told["stats"]["prompt_tokens"], told["stats"]["new_tokens"]) == (3, 40)
    config.write_text(config.read_text() + f"[run]\nstop = '''{told['text'][9:12]}'''\n")
    assert json.loads(llm_inside("run", "abc").stdout)["finish_reason"] == "stop_string"


def test_numbers_go_where_a_list_of_numbers_is_taken(config: Path) -> None:
    found = defaults({"threads": 3, "bench": {"n-gen": [4, "8"]}}, commands(), config)
    assert found["run"] == found["chat"] == {"threads": 3}
    assert found["bench"] == {"threads": ["3"], "n_gen": ["4", "8"]}
    assert found["quantize"] == {"threads": 3}
    assert found["pull"] == {}


def test_a_choice_that_only_some_commands_have_leaves_the_others_alone(config: Path) -> None:
    found = defaults({"output": "csv"}, commands(), config)
    assert {name for name, values in found.items() if values} == {"bench"}
    assert {name for name, values in defaults({"output": "json"}, commands(), config).items() if values} >= {
        "run", "chat", "list", "show", "bench", "eval", "tokenize"
    }  # fmt: skip


def test_the_default_model_is_never_what_rm_deletes(llm_inside: Run, config: Path) -> None:
    config.write_text("model = 'smollm2'\n")
    for command in ("rm", "show", "pull"):
        assert "no model is named" in failed(llm_inside(command), 2)
        assert "model" not in commands()[command]
        assert defaults({"model": "smollm2"}, commands(), config)[command] == {}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("temprature = 1", "temprature is no flag of any command; did you mean temperature?"),
        ("debug = true", "debug is no flag of any command"),
        ("help = true", "help is no flag of any command"),
        ("[ruun]\nstats = true", "[ruun] is no command; did you mean run?"),
        ("[config]\nunset = true", "[config] is no command"),
        ("[run]\nn-gen = 3", "[run] n-gen: llm run has no such flag"),
        ("[rm]\nmodel = 'smollm2'", "[rm] model: llm rm has no such flag"),
        ("max-tokens = 'many'", 'max-tokens takes a whole number, not "many"'),
        ("max-tokens = true", "max-tokens takes a whole number, not true"),
        ("max-tokens = 1.5", "max-tokens takes a whole number, not 1.5"),
        ("temperature = '0'", 'temperature takes a number, not "0"'),
        ("raw = 1", "raw takes true or false, not 1"),
        ("system = 5", "system takes text in quotes, not 5"),
        ("system = ['a']", 'system takes text in quotes, not ["a"]'),
        ("stop = [1, [2]]", "stop takes text or a list of texts, not [2]"),
        ("device = 'tpu'", "device: "),
        ("[run]\ncontext = 0", "[run] context: 0 is not in the range"),
        ("output = 'xml'", "output: "),
        ("max-tokens = 1\nmax_tokens = 2", "max-tokens is there twice"),
        ("max-tokens = ", "Invalid value (at end of document)"),
        ("a = 1\nb c", "(at line 2, column 3)"),
        ("x = " + "[" * 20_000, "config.toml: "),
        ("\udcff", "is not UTF-8 text"),
    ],
)
def test_a_wrong_file_is_one_line_and_code_2(
    llm_inside: Run, config: Path, tiny: Path, text: str, message: str
) -> None:
    config.write_bytes(text.encode("utf-8", "surrogateescape"))
    error = failed(llm_inside("run", "-m", tiny, "-n", 1, "hello"), 2)
    assert f"error: {config}: " in error
    assert message in error


def test_what_is_no_file(llm_inside: Run, config: Path, tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config.mkdir()
    assert "not an ordinary file" in failed(llm_inside("run", "-m", tiny, "hello"), 2)
    config.rmdir()
    config.write_bytes(b"#" * (file.LONGEST + 1))
    assert "holds more than 1 MiB" in failed(llm_inside("run", "-m", tiny, "hello"), 2)
    config.unlink()
    (config.parent / "f").write_text("")
    for nothing in (os.devnull, str(config), str(config.parent / "f" / "c.toml")):
        monkeypatch.setenv("KUKRI_CONFIG", nothing)
        assert read_settings() == {}


def test_help_needs_no_settings(llm_inside: Run, config: Path) -> None:
    config.write_text("nonsense")
    assert llm_inside("--help").returncode == 0
    assert llm_inside("--version").returncode == 0
    assert llm_inside("config", "--path").stdout == f"{config}\n".encode()


def test_where_the_file_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KUKRI_CONFIG", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    assert settings_path() == tmp_path / ".config" / "kukri" / "config.toml"
    monkeypatch.setenv("XDG_CONFIG_HOME", "relative")
    assert settings_path() == tmp_path / ".config" / "kukri" / "config.toml"
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "xdg"))
    assert settings_path() == tmp_path / "xdg" / "kukri" / "config.toml"
    monkeypatch.setenv("KUKRI_CONFIG", "~/mine.toml")
    assert settings_path() == tmp_path / "mine.toml"
    monkeypatch.setenv("KUKRI_CONFIG", "~nobody-of-that-name/x")
    with pytest.raises(SettingsError, match="no such user"):
        settings_path()
    monkeypatch.setenv("KUKRI_CONFIG", "")
    monkeypatch.setattr(Path, "home", lambda: (_ for _ in ()).throw(RuntimeError))
    monkeypatch.setenv("XDG_CONFIG_HOME", "")
    assert settings_path() is None
    assert read_settings() == {}
    with pytest.raises(SettingsError, match="KUKRI_CONFIG names another place"):
        change("", "seed", 1)


# ---- changing it


def test_a_change_leaves_the_rest_of_the_file_as_it_is(config: Path) -> None:
    config.write_text("# mine\nmax_tokens = 5 # few\n\n[run] # one\nseed = 1\n")
    change("", "max-tokens", 6)
    change("", "model", "smollm2")
    change("chat", "system", 'a "b"\nc\\')
    assert config.read_text().startswith("# mine\nmax_tokens = 6 # few\nmodel =")
    assert "[run] # one\nseed = 1\n" in config.read_text()
    assert read_settings() == {
        "max_tokens": 6,
        "model": "smollm2",
        "run": {"seed": 1},
        "chat": {"system": 'a "b"\nc\\'},
    }
    change("run", "seed", None)
    change("", "max-tokens", None)
    change("bench", "n-gen", None)
    assert read_settings() == {"model": "smollm2", "chat": {"system": 'a "b"\nc\\'}}
    assert "# mine" in config.read_text()


def test_a_value_at_the_top_of_a_file_of_tables(config: Path) -> None:
    config.write_text("[run]\nseed = 1\n")
    change("", "model", "x")
    assert read_settings() == {"model": "x", "run": {"seed": 1}}


@pytest.mark.skipif(os.name == "nt", reason="permissions are POSIX's")
def test_the_file_is_its_owners_and_a_link_stays_one(config: Path, tmp_path: Path) -> None:
    (tmp_path / "dotfiles").mkdir()
    real = tmp_path / "dotfiles" / "kukri.toml"
    real.write_text("seed = 1\n")
    real.chmod(0o644)
    config.symlink_to(real)
    change("", "seed", 2)
    assert config.is_symlink()
    assert real.read_text() == "seed = 2\n"
    assert stat.S_IMODE(real.stat().st_mode) == 0o600
    assert {path.name for path in real.parent.iterdir()} == {"kukri.toml"}


def test_folders_are_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUKRI_CONFIG", str(tmp_path / "a" / "b" / "c.toml"))
    assert change("", "seed", 2).read_text() == "seed = 2\n"


def test_a_write_that_fails_leaves_the_old_file(config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config.write_text("seed = 1\n")

    def full(number: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(SettingsError, match=r"config.toml cannot be written: No space left"):
        change("", "seed", 2)
    assert config.read_text() == "seed = 1\n"
    assert [path.name for path in config.parent.iterdir() if path.suffix == ".toml"] == ["config.toml"]
    assert not [path for path in config.parent.iterdir() if path.name.startswith(".config")]


# ---- llm config


def test_config_sets_shows_and_removes(llm_inside: Run, config: Path) -> None:
    assert b"no settings yet" in llm_inside("config").stderr
    for words in (("top-k", 20), ("run.temperature", "0.5"), ("stop", "a b", "c"), ("raw", "yes"),
                  ("n-gen", 7), ("chat.system", "Be brief."), ("threads", 2)):  # fmt: skip
        done = llm_inside("config", *words)
        assert (done.returncode, done.stdout) == (0, b""), done.stderr
    assert read_settings() == {
        "top-k": 20, "run": {"temperature": 0.5}, "stop": ["a b", "c"], "raw": True, "n-gen": ["7"],
        "chat": {"system": "Be brief."}, "threads": 2,
    }  # fmt: skip
    shown = llm_inside("config").stdout.decode()
    assert shown.splitlines() == [
        "top-k = 20", 'stop = ["a b", "c"]', "raw = true", 'n-gen = ["7"]', "threads = 2",
        "run.temperature = 0.5", 'chat.system = "Be brief."',
    ]  # fmt: skip
    assert llm_inside("config", "top_k").stdout == b"20\n"
    assert llm_inside("config", "stop").stdout == b"a b\nc\n"
    assert llm_inside("config", "chat.system").stdout == b"Be brief.\n"
    assert llm_inside("config", "--unset", "run.temperature").returncode == 0
    assert "run" not in read_settings()
    for words in (("config", "seed"), ("config", "--unset", "seed")):
        done = llm_inside(*words)
        assert (done.returncode, done.stdout) == (1, b"")
        assert b"seed is not set" in done.stderr


def test_config_refuses_what_no_command_would_take(llm_inside: Run, config: Path) -> None:
    for words, message in (
        (("temprature", 1), "did you mean temperature?"),
        (("top-k", "many"), 'top-k takes a whole number, not "many"'),
        (("top-k", 1, 2), "takes one value, not 2"),
        (("raw", "perhaps"), 'raw takes true or false, not "perhaps"'),
        (("threads", 0), "threads: 0 is not in the range"),
        (("device", "tpu"), "device: "),
        (("run.n-gen", 1), "llm run has no flag --n-gen"),
        (("rum.seed", 1), "rum is no command that has settings"),
        (("rm.model", "smollm2"), "llm rm has no flag --model"),
        (("--unset",), "--unset takes KEY alone"),
        (("--unset", "seed", 1), "--unset takes KEY alone"),
        (("--path", "seed"), "--path goes alone"),
    ):
        assert message in failed(llm_inside("config", *words), 2)
    assert not config.exists()


def test_what_is_not_text_or_no_terminal_should_get(llm_inside: Run, config: Path, tmp_path: Path) -> None:
    config.write_text("seed = 1\n")
    assert "not UTF-8 text" in failed(llm_inside("config", "chat.system", "\udcff"), 2)
    (tmp_path / "m\udcff.gguf").write_bytes(b"")
    assert "not UTF-8 text" in failed(llm_inside("use", f"{tmp_path}/m\udcff.gguf"), 2)
    assert config.read_text() == "seed = 1\n"
    assert llm_inside("config", "chat.system", "a\x1b[2Jb\x9b").returncode == 0
    for words in (("config",), ("config", "chat.system")):
        assert not set(llm_inside(*words).stdout.decode()) & {"\x1b", "\x9b"}
    assert read_settings()["chat"]["system"] == "a\x1b[2Jb\x9b"


def test_config_mends_a_file_that_says_something_wrong(llm_inside: Run, config: Path, tiny: Path) -> None:
    config.write_text("temprature = 1\n")
    assert llm_inside("config", "temprature").stdout == b"1\n"
    assert llm_inside("run", "-m", tiny, "-n", 1, "hi").returncode == 2
    assert llm_inside("config", "--unset", "temprature").returncode == 0
    assert llm_inside("run", "-m", tiny, "-n", 1, "hi").returncode == 0


def test_words_of_a_command_line_as_values() -> None:
    run = commands()["run"]
    assert from_words(run["stop"], ["a"], "stop") == ["a"]
    assert from_words(run["stats"], ["OFF"], "stats") is False
    assert from_words(run["temperature"], ["1"], "t") == 1.0
    assert from_words(run["system"], ["5"], "s") == "5"


@pytest.mark.slow
def test_a_plain_start_reads_no_toml(tmp_path: Path) -> None:
    code = (
        "import sys; from kukri.cli.main import main; main(sys.argv[1:]); "
        "print([m for m in ('tomllib', 'tomlkit') if m in sys.modules], file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, "list"],
        capture_output=True,
        env=os.environ | {"KUKRI_CONFIG": str(tmp_path / "none.toml"), "KUKRI_HOME": str(tmp_path)},
        check=True,
    )
    assert done.stderr.decode().splitlines()[-1] == "[]"
