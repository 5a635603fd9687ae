"""Opening files that strangers made, reading JSON, and that no read of a file goes around it."""

from __future__ import annotations

import ast
import os
from pathlib import Path
from typing import Any

import pytest

from kukri import untrusted
from kukri.quant.errors import DamagedFile
from kukri.tokenizer import TokenizerError
from kukri.untrusted import MAX_DEPTH, open_file, parse_json, read_file

ROOT = Path(__file__).resolve().parent.parent
SECRET = b'{"a": "a secret"}'
posix = pytest.mark.skipif(os.name == "nt", reason="links, devices and pipes of POSIX")


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    path = tmp_path / "secret"
    path.write_bytes(SECRET)
    return path


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "model"
    path.mkdir()
    return path


# ---- what is opened


def test_an_ordinary_file(outside: Path) -> None:
    with open_file(outside, DamagedFile) as file:
        assert file.read() == SECRET
    assert read_file(outside, len(SECRET), DamagedFile) == SECRET
    with pytest.raises(DamagedFile, match=f"^secret: is larger than {len(SECRET) - 1} bytes$"):
        read_file(outside, len(SECRET) - 1, DamagedFile)
    with pytest.raises(FileNotFoundError) as missing:
        open_file(outside.with_name("none"), DamagedFile)
    assert missing.value.filename
    with pytest.raises(OSError, match=r"Is a directory|Permission"):
        open_file(outside.parent, DamagedFile)


@posix
def test_devices_and_pipes_are_not_opened(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    os.mkfifo(folder / "pipe")
    (folder / "device").symlink_to("/dev/zero")
    monkeypatch.setattr(os, "open", lambda *_: pytest.fail("opened"))
    for name in ("pipe", "device"):
        with pytest.raises(TokenizerError, match=f"^{name}: is not an ordinary file$"):
            open_file(folder / name, TokenizerError)


@posix
def test_links_out_of_a_folder(folder: Path, outside: Path) -> None:
    (folder / "link").symlink_to("../secret")
    with pytest.raises(DamagedFile) as refused:
        open_file(folder / "link", DamagedFile, folder)
    assert str(refused.value) == f"link: leads to {str(outside)!r}, outside of the model's folder"
    (folder / "more").symlink_to("..")
    with pytest.raises(DamagedFile, match=r"^secret: leads to"):
        open_file(folder / "more" / "secret", DamagedFile, folder)
    (folder / "again").symlink_to("link")
    with pytest.raises(DamagedFile, match=r"^again: leads to"):
        open_file(folder / "again", DamagedFile, folder)
    assert read_file(folder / "link", 100, DamagedFile) == SECRET  # a file that the user named


@posix
def test_a_folder_whose_name_only_begins_alike(folder: Path) -> None:
    other = folder.with_name("model-2")
    other.mkdir()
    (other / "secret").write_bytes(SECRET)
    (folder / "link").symlink_to("../model-2/secret")
    with pytest.raises(DamagedFile, match="leads to"):
        open_file(folder / "link", DamagedFile, folder)


@posix
def test_links_that_stay(folder: Path, tmp_path: Path) -> None:
    (folder / "file").write_bytes(SECRET)
    (folder / "link").symlink_to("file")
    (tmp_path / "name").symlink_to("model")
    for root in (folder, tmp_path / "name"):
        for name in ("file", "link"):
            assert read_file(root / name, 100, DamagedFile, root) == SECRET


@posix
def test_the_layout_of_the_hubs_cache(tmp_path: Path) -> None:
    repo = tmp_path / "models--org--name"
    snapshot = repo / "snapshots" / ("0" * 40)
    snapshot.mkdir(parents=True)
    (repo / "blobs").mkdir()
    (repo / "blobs" / "abc").write_bytes(SECRET)
    (repo / "refs").mkdir()
    (repo / "refs" / "main").write_bytes(SECRET)
    (tmp_path / "models--org--other" / "blobs").mkdir(parents=True)
    (tmp_path / "models--org--other" / "blobs" / "abc").write_bytes(SECRET)
    (snapshot / "good").symlink_to("../../blobs/abc")
    (snapshot / "more").mkdir()
    (snapshot / "more" / "good").symlink_to("../../../blobs/abc")
    (snapshot / "refs").symlink_to("../../refs/main")
    (snapshot / "other").symlink_to("../../../models--org--other/blobs/abc")
    (tmp_path / "moved").symlink_to(snapshot)
    for root in (snapshot, tmp_path / "moved"):
        assert read_file(root / "good", 100, DamagedFile, root) == SECRET
        assert read_file(root / "more" / "good", 100, DamagedFile, root) == SECRET
        for name in ("refs", "other"):
            with pytest.raises(DamagedFile, match="leads to"):
                read_file(root / name, 100, DamagedFile, root)
    alike = tmp_path / "other--org--name"  # not a repository's folder
    repo.rename(alike)
    with pytest.raises(DamagedFile, match="leads to"):
        read_file(
            alike / "snapshots" / ("0" * 40) / "good", 100, DamagedFile, alike / "snapshots" / ("0" * 40)
        )


@posix
def test_a_file_that_becomes_a_link(folder: Path, outside: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between the look at where it lies and its opening."""
    (folder / "file").write_bytes(b"{}")
    before = untrusted._resolved

    def swapped(*arguments: Any) -> Path:
        found = before(*arguments)
        (folder / "file").unlink()
        (folder / "file").symlink_to(outside)
        return found

    monkeypatch.setattr(untrusted, "_resolved", swapped)
    with pytest.raises(OSError, match="symbolic links"):
        open_file(folder / "file", DamagedFile, folder)


# ---- JSON


@pytest.mark.parametrize(
    ("text", "marks"),
    [("1", 0), ("[]", 2), ("[1,2]", 3), ('{"a":1}', 3), ('{"a":[1,{}]}', 8), ('"[,:{"', 6)],
)
def test_marks(text: str, marks: int) -> None:
    parse_json(text.encode(), "x", marks, DamagedFile)
    if marks:
        with pytest.raises(DamagedFile, match=f"^x: holds too much: over {marks - 1} brackets"):
            parse_json(text.encode(), "x", marks - 1, DamagedFile)


def test_nesting() -> None:
    def nested(n: int, inside: str = "") -> bytes:
        return (b'{"a":[' * (n // 2)) + b"[" * (n % 2) + inside.encode() + b"]" * (n % 2) + b"]}" * (n // 2)

    for n in (MAX_DEPTH - 1, MAX_DEPTH):
        assert parse_json(nested(n, "1"), "x", 1000, DamagedFile)
    for n in (MAX_DEPTH + 1, 500, 100_000):
        with pytest.raises(DamagedFile, match=r"^x: is nested too deeply$"):
            parse_json(nested(n), "x", 1_000_000, DamagedFile)


def test_what_is_no_json() -> None:
    for raw in (b"", b"{", b"\xff", b"9" * 5000, b"{} {}"):
        with pytest.raises(TokenizerError, match=r"^x: is not valid JSON: ") as refused:
            parse_json(raw, "x", 1000, TokenizerError)
        assert "\n" not in str(refused.value)
    assert parse_json(b"\xef\xbb\xbf[1]", "x", 100, DamagedFile) == [1]


# ---- nothing goes around it

READS = {
    "read_text",
    "read_bytes",
    "open",
    "fdopen",
    "load",
    "loads",
    "mmap",
    "memmap",
    "fromfile",
    "safe_open",
}
OWN = "is written by kukri or by the system"
NAMED = "is a text that the user names, read up to a limit"
EXPLAINED = {  # file → the calls in it that look like reading a file, and why they need no `untrusted`
    "untrusted.py": ({"os.open", "os.fdopen", "json.loads"}, "is the place itself"),
    "quant/mapped_file.py": ({"mmap.mmap"}, "maps what open_file opened"),
    "quant/checkpoint/safetensors_header.py": ({"safe_open"}, "checks what MappedFile opened"),
    "tokenizer/readers/packed_json.py": ({"json.loads"}, "reads one escaped character"),
    "tokenizer/chat/chat.py": ({"json.loads"}, "reads what a caller handed in"),
    "tokenizer/chat/output/tools.py": ({"json.loads"}, "reads a value of a call that a model wrote"),
    "tokenizer/chat/output/families/json_calls.py": (
        {"json.loads"},
        "reads what its scanner has passed, of a model's answer",
    ),
    "runtime/answers/running.py": ({"json.loads"}, "reads arguments that the scanner has passed"),
    "cli/generation/tool_use.py": ({"json.loads"}, "reads arguments that the scanner has passed"),
    "runtime/answers/structured/calls/grammar.py": (
        {"json.loads"},
        "reads a grammar that this package wrote",
    ),
    "runtime/model/convert.py": ({"gguf.Metadata.load"}, "reads files that were read, or looked at, before"),
    "runtime/hub/download.py": ({"os.open", "os.fdopen"}, "hashes and writes downloads"),
    "runtime/hub/repository.py": ({"path.open"}, "hashes downloads"),
    "runtime/hub/cache.py": ({"open"}, "writes"),
    "runtime/hub/wheels.py": (
        {"archive.open", "part.open", "partial.open", "unpacked.open", "log.open"},
        "unpacks wheels up to the size and the hash that they must have",
    ),
    "cli/console/bounded_io.py": ({"path.open"}, NAMED),
    "runtime/batch/rows.py": ({"json.loads"}, NAMED + ", line by line"),
    "runtime/batch/requests.py": ({"json.loads"}, "reads a column of such a line"),
    "runtime/batch/job.py": ({"json.loads", "work.open"}, "writes"),
    "runtime/batch/output.py": ({"errors_path.open", "self._errors_path.open"}, "writes"),
    "runtime/batch/journal.py": ({"json.loads", "path.open"}, "reads what it wrote, and checks each record"),
    "cli/embedding/texts.py": ({"Path(name).expanduser().open", "json.loads"}, NAMED + ", line by line"),
    "cli/eval/text.py": ({"Path(name).open"}, NAMED),
    "cli/generation/input_files.py": ({"path.open"}, NAMED),
    "cli/bench/serving/client.py": ({"json.loads"}, "reads what the server that is measured answers"),
    "cli/bench/serving/command.py": ({"json.loads"}, "as above, and of so many bytes"),
    "runtime/inspection/page/document.py": ({"Path(__file__).with_name(name).read_text"}, OWN),
    "runtime/serve/page.py": ({"Path(__file__).with_name('page.html').read_bytes"}, OWN),
    "quant/extras.py": ({"installed.read_text", "json.loads"}, OWN),
    "cli/settings/file.py": ({"tomllib.loads"}, OWN),
    "cli/chat/line_editor.py": ({"os.open"}, OWN),
    "cli/console/terminal.py": ({"open", "os.open"}, OWN),
    "cli/commands/doctor.py": ({"path.read_text"}, OWN),
    "quant/safe_files.py": ({"open", "os.open"}, "writes"),
    "quant/ownership.py": ({"open", "os.open"}, "reads a file that only this user or root can have written"),
    "quant/jit/file_cache.py": ({"open"}, OWN),
    "quant/jit/kernel_cache.py": ({"json.loads", "mmap.mmap"}, OWN + ", and maps no file"),
    "quant/jit/sources.py": ({"path.read_bytes"}, OWN),
    "runtime/cuda/compile/workers.py": ({"json.loads"}, OWN),
    "runtime/calibration/encoder.py": ({"Path(__file__).with_name('calibration.txt').read_text"}, OWN),
    "runtime/cpu/bandwidth.py": ({"path.read_text"}, OWN),
    "runtime/cpu/processors.py": (
        {
            "Path('/proc/cpuinfo').read_text",
            "(root / topology.format(number)).read_text",
        },
        OWN,
    ),
    "runtime/response_cache/store.py": (
        {"os.open"},
        "makes an empty file; SQLite reads it, and its checks are the store's",
    ),
    "runtime/control_groups.py": ({"path.read_text"}, OWN),
}
NO_FILES = {"Checkpoint.open", "GGUFFile.open", "read_text", "integers.read_bytes"}  # functions of ours
LOADERS = {"json", "np", "numpy", "pickle", "yaml", "tomllib", "gguf.Metadata", "torch"}


def reading_calls(source: str) -> set[str]:
    """The calls in a module that may read a file, as they are spelled."""
    found = set()
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.Call):
            continue
        name = node.func.attr if isinstance(node.func, ast.Attribute) else ast.unparse(node.func)
        called = ast.unparse(node.func)
        if name not in READS or called in NO_FILES:
            continue
        if name in ("load", "loads") and called.rpartition(".")[0] not in LOADERS:
            continue
        found.add(called)
    return found


def test_what_counts_as_reading() -> None:
    source = "json.load(f); open(p); (a / b).read_text(); x.load(1); GGUFFile.open(p); p.open(); np.load(p)"
    assert reading_calls(source) == {"json.load", "open", "(a / b).read_text", "p.open", "np.load"}


def test_no_read_goes_around_it() -> None:
    sources = [
        path for part in ("cli", "runtime", "quant", "tokenizer") for path in (ROOT / part).rglob("*.py")
    ]
    found = {
        path.relative_to(ROOT).as_posix(): calls
        for path in [*sources, *ROOT.glob("*.py")]
        if (calls := reading_calls(path.read_text("utf-8")))
    }
    expected = {file: calls for file, (calls, _) in EXPLAINED.items()}
    new = {file: calls - expected.get(file, set()) for file, calls in found.items()}
    assert not {file: calls for file, calls in new.items() if calls}, (
        "open it by kukri.untrusted, or say why not"
    )
    gone = {file: calls - found.get(file, set()) for file, calls in expected.items()}
    assert not {file: calls for file, calls in gone.items() if calls}, "remove these from EXPLAINED"
