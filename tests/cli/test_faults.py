"""What a network and a small machine do to people: HTTP errors, broken bodies, a full disk, little memory."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from ..running import LLM, Run, failed
from ..runtime.hub.hub_server import HubServer

GGUF = b"GGUF" + bytes(range(256)) * 3000
REPO = "some-org/Some-Model-GGUF"


@pytest.fixture
def hub(environment: dict[str, str]) -> Iterator[HubServer]:
    server = HubServer({REPO: {"some-model-Q4_K_M.gguf": GGUF}})
    server.start()
    environment["HF_ENDPOINT"] = server.url
    yield server
    server.stop()


def left_over(environment: dict[str, str]) -> list[str]:
    """Names under which somebody could take a part for the whole."""
    paths = [*Path(environment["HF_HOME"]).rglob("*.gguf"), *Path(environment["HF_HOME"]).rglob("blobs/*")]
    return [path.name for path in paths if not path.name.endswith(".incomplete")]


@pytest.mark.parametrize("status", [408, 429, 500, 502, 503])
def test_errors_that_pass_are_waited_for(llm_inside: Run, llm: Run, hub: HubServer, status: int) -> None:
    hub.statuses = [status, status]
    done = llm("pull", REPO)
    assert done.returncode == 0, done.stderr.decode()
    assert Path(done.stdout.decode().strip()).read_bytes() == GGUF


@pytest.mark.parametrize(
    ("status", "code", "message"),
    [
        (401, 3, "HF_TOKEN"),
        (403, 3, "HF_TOKEN"),
        (404, 3, ""),
        (410, 3, "410"),
        (503, 1, "goes on from there"),
    ],
)
def test_errors_that_stay_are_one_line(
    llm: Run, hub: HubServer, environment: dict[str, str], status: int, code: int, message: str
) -> None:
    hub.statuses = [status] * 20
    assert message in failed(llm("pull", REPO), code)
    assert left_over(environment) == []


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"<html>",
        b"[]",
        b"null",
        b"{}",
        b"[" * 50_000,
        b'{"id": "org/model", "siblings": [1]}',
        b'{"id": "org/model", "siblings": [{"rfilename": "a.gguf", "lfs": 5}]}',
    ],
)
def test_an_answer_that_is_no_list_of_files(llm: Run, hub: HubServer, answer: bytes) -> None:
    hub.api = answer
    assert "no list of files" in failed(llm("pull", REPO), 1)


@pytest.mark.parametrize(
    "name",
    ["../../up.gguf", "/tmp/up.gguf", "a/../b.gguf", "a\0.gguf", "a" * 300 + ".gguf"],  # noqa: S108 - only a name
)
def test_names_that_lead_elsewhere_are_refused(
    llm: Run, hub: HubServer, environment: dict[str, str], name: str
) -> None:
    hub.repos[REPO] = {name: GGUF}
    assert "cannot be stored" in failed(llm("pull", REPO), 1)
    assert left_over(environment) == []


@pytest.mark.parametrize(
    ("header", "value"),
    [
        ("X-Repo-Commit", "../../../../up"),
        ("X-Repo-Commit", "main"),
        ("ETag", '"../up"'),
        ("ETag", '"' + "a" * 300 + '"'),
        ("ETag", '"' + "0" * 64 + '"'),
        ("Content-Range", "bytes 7-9/99"),
    ],
)
def test_headers_that_cannot_be(
    llm: Run, hub: HubServer, environment: dict[str, str], header: str, value: str
) -> None:
    hub.headers = {header: value}
    failed(llm("pull", REPO), 1)
    assert left_over(environment) == []


def test_a_transfer_without_end_is_not_read_on(llm: Run, hub: HubServer, environment: dict[str, str]) -> None:
    hub.endless = True
    assert "more instead of" in failed(llm("pull", REPO), 1)
    assert left_over(environment) == []
    assert not list(Path(environment["HF_HOME"]).rglob("*.incomplete"))


def test_addresses_that_are_none(llm: Run) -> None:
    for name, value in (("HF_ENDPOINT", "http://[::1"), ("HF_HUB_DOWNLOAD_TIMEOUT", "soon")):
        assert "HF_" in failed(llm("pull", REPO, env={name: value}), 1)
    failed(llm("pull", REPO, env={"HF_ENDPOINT": "http://127.0.0.1:9", "http_proxy": "::::"}), 3)


def test_a_gated_model_says_what_to_do(llm: Run, hub: HubServer) -> None:
    hub.gated.add(REPO)
    line = failed(llm("run", "-m", REPO, "hi"), 3)
    assert f"accept its licence at {hub.url}/{REPO}" in line
    assert "HF_TOKEN" in line


def test_a_body_that_is_false_after_a_resume_is_found_out(
    llm: Run, hub: HubServer, environment: dict[str, str]
) -> None:
    hub.drops = [5000, *[0] * 20]
    failed(llm("pull", REPO), 1)
    hub.drops = []
    hub.false_content = {"some-model-Q4_K_M.gguf": GGUF[:5000] + b"x" * (len(GGUF) - 5000)}
    assert "SHA-256" in failed(llm("pull", REPO), 1)
    assert left_over(environment) == []
    hub.false_content = {}
    assert Path(llm("pull", REPO).stdout.decode().strip()).read_bytes() == GGUF


def test_a_disk_that_fills_up_on_the_way(
    llm: Run, hub: HubServer, environment: dict[str, str], tmp_path: Path
) -> None:
    """On a real full disk where this user may mount one; else nothing can be shown here."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=300k", "tmpfs", str(disk)], capture_output=True, check=False
    )
    if mounted.returncode:
        pytest.skip("only root may mount a disk")
    try:
        assert "free" in failed(llm("pull", REPO, env={"HF_HOME": str(disk)}), 1)
        assert not list(disk.rglob("*.gguf"))
    finally:
        subprocess.run(["umount", str(disk)], check=False)


@pytest.fixture
def full_disk(tmp_path: Path) -> Iterator[Path]:
    """A folder with 4 KB left on its disk, where this user may mount one."""
    disk = tmp_path / "full"
    disk.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(disk)]
    if subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("only root may mount a disk")
    (disk / "other").write_bytes(bytes(60 << 10))
    yield disk
    subprocess.run(["umount", str(disk)], check=False)


def test_a_full_disk_is_named(llm_inside: Run, tiny: Path, full_disk: Path, tmp_path: Path) -> None:
    rows = tmp_path / "in.jsonl"
    rows.write_text("".join(json.dumps({"prompt": f"{i}", "pad": "x" * 2_000}) + "\n" for i in range(100)))
    out = full_disk / "out.jsonl"
    batch = ("batch", rows, out, "-m", tiny, "--raw", "-n", "1")
    cut = llm_inside(*batch)
    assert f"{out}: No space left" in failed(cut, 1)
    assert b"rows are done; the same command goes on" in cut.stderr
    session = full_disk / "talk"
    lost = llm_inside("run", "-m", tiny, "-n", "1", "--session", session, "--raw", "hi")
    assert lost.returncode == 1
    assert f"error: {session}: No space left".encode() in lost.stderr
    assert not list(full_disk.glob(".*")), "an unfinished file is left"
    subprocess.run(["mount", "-o", "remount,size=1m", str(full_disk)], check=True)
    assert llm_inside(*batch).returncode == 0
    assert len({json.loads(line)["prompt"] for line in out.read_text().splitlines()}) == 100


def test_little_memory_is_refused_before_it_is_missing(llm: Run, tiny: Path, tmp_path: Path) -> None:
    """300 MB in a container: the model that needs more is refused with numbers and advice."""
    big = tmp_path / "big.gguf"
    big.write_bytes(tiny.read_bytes())
    os.truncate(big, 400_000_000)  # sparse
    patch = tmp_path / "patch"
    patch.mkdir()
    (patch / "sitecustomize.py").write_text(
        "import pathlib\n"
        "real = pathlib.Path.read_text\n"
        "texts = {'/proc/self/cgroup': '0::/\\n', '/sys/fs/cgroup/memory.max': '300000000\\n',\n"
        "         '/sys/fs/cgroup/memory.current': '20000000\\n', '/sys/fs/cgroup/memory.stat': ''}\n"
        "def read_text(path, *args, **more):\n"
        "    return texts[str(path)] if str(path) in texts else real(path, *args, **more)\n"
        "pathlib.Path.read_text = read_text\n"
    )
    line = failed(
        llm(
            "run",
            "-m",
            big,
            "hi",
            env={"PYTHONPATH": str(patch) + os.pathsep + os.environ.get("PYTHONPATH", "")},
        ),
        1,
    )
    assert "280.0 MB are free" in line
    assert "smaller" in line


@pytest.mark.skipif(sys.platform != "linux", reason="limits of addresses")
def test_a_limit_of_addresses_is_an_error_and_no_crash(environment: dict[str, str], endless: Path) -> None:
    """Under `ulimit -v` of any size: an answer, or one line that says what is missing."""
    for megabytes in (300, 500, 800, 1200):

        def limit(size: int = megabytes << 20) -> None:
            resource.setrlimit(resource.RLIMIT_AS, (size, size))

        done = subprocess.run(
            [*LLM, "run", "-m", str(endless), "-n", "2", "-c", "512", "hi"],
            env=environment | {"OPENBLAS_NUM_THREADS": "1"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            preexec_fn=limit,
            timeout=60,
            check=False,
        )
        assert done.returncode in (0, 1), (megabytes, done.returncode, done.stderr)
        assert b"Traceback" not in done.stderr, (megabytes, done.stderr)
