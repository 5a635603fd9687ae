"""Models from the Hub: against a small Hub on the loopback interface, in processes of their own."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from ...running import LLM, Run, failed
from .hub_server import HubServer

GGUF = b"GGUF" + bytes(range(256)) * 3000
REPO = "some-org/Some-Model-GGUF"


@pytest.fixture
def hub(environment: dict[str, str]) -> Iterator[HubServer]:
    server = HubServer(
        {REPO: {"README.md": b"# x", "some-model-Q4_K_M.gguf": GGUF, "some-model-Q8_0.gguf": GGUF[::-1]}}
    )
    server.start()
    environment["HF_ENDPOINT"] = server.url
    yield server
    server.stop()


def incomplete(environment: dict[str, str]) -> list[Path]:
    return list(Path(environment["HF_HOME"]).rglob("*.incomplete"))


def test_the_preferred_quantisation_is_fetched_once_and_works_offline(
    llm: Run, hub: HubServer, environment: dict[str, str]
) -> None:
    done = llm("pull", REPO)
    assert done.returncode == 0, done.stderr.decode()
    path = Path(done.stdout.decode().removesuffix("\n"))
    assert path.name == "some-model-Q4_K_M.gguf"
    assert path.read_bytes() == GGUF
    assert path.is_relative_to(environment["HF_HOME"])
    assert b"\x1b" not in done.stderr
    assert len(hub.transfers("Q4_K_M.gguf")) == 1

    again = llm("pull", REPO)
    assert again.stdout == done.stdout
    assert len(hub.transfers("Q4_K_M.gguf")) == 1

    hub.stop()
    for offline in ({}, {"HF_HUB_OFFLINE": "1"}):
        assert llm("pull", REPO, env=offline).stdout == done.stdout
    listed = json.loads(llm("list", "-o", "json").stdout)
    assert [(m["name"], m["size"], m["quant"], m["partial"]) for m in listed] == [
        (f"{REPO}:Q4_K_M", len(GGUF), "Q4_K_M", False)
    ]


def test_a_quantisation_can_be_asked_for(llm: Run, hub: HubServer) -> None:
    assert llm("pull", f"{REPO}:q8_0").stdout.endswith(b"some-model-Q8_0.gguf\n")
    assert llm("pull", f"{REPO}:some-model-Q8_0").stdout.endswith(b"some-model-Q8_0.gguf\n")
    assert "it has Q4_K_M, Q8_0" in failed(llm("pull", f"{REPO}:Q2_K"), 3)


def test_all_shards_come_and_the_first_is_the_model(llm: Run, hub: HubServer) -> None:
    shards = {f"big-Q4_0-0000{i}-of-00003.gguf": GGUF[i:] for i in (1, 2, 3)}
    hub.repos["org/big"] = {"mmproj-F16.gguf": b"x", **shards}
    done = llm("pull", "org/big")
    first = Path(done.stdout.decode().strip())
    assert first.name == "big-Q4_0-00001-of-00003.gguf"
    assert {path.name: path.read_bytes() for path in first.parent.iterdir()} == shards

    listed = json.loads(llm("list", "-o", "json").stdout)
    assert [(m["name"], m["size"]) for m in listed] == [("org/big:Q4_0", sum(map(len, shards.values())))]
    first.unlink()
    assert llm("pull", "org/big:Q4_0").stdout == done.stdout  # from the blob that is still there
    assert len(hub.transfers("00001-of-00003.gguf")) == 1


def test_a_checkpoint_comes_without_pickles(llm: Run, hub: HubServer) -> None:
    wanted = {
        "config.json": b"{}",
        "tokenizer.json": b"{}",
        "model-00001-of-00002.safetensors": b"a" * 10,
        "model-00002-of-00002.safetensors": b"b" * 10,
        "model.safetensors.index.json": b"{}",
    }
    unwanted = {
        "pytorch_model.bin": b"\x80",
        "training_args.bin": b"\x80",
        "consolidated.safetensors": b"c",
        "onnx/model.safetensors": b"d",
        "modeling_x.py": b"import os",
    }
    hub.repos["org/checkpoint"] = wanted | unwanted
    folder = Path(llm("pull", "org/checkpoint").stdout.decode().strip())
    assert {path.name for path in folder.iterdir()} == set(wanted)


def test_only_pickles_is_refused(llm: Run, hub: HubServer) -> None:
    hub.repos["org/pickles"] = {"config.json": b"{}", "pytorch_model.bin": b"\x80"}
    assert "pickled weights are never loaded" in failed(llm("pull", "org/pickles"), 3)
    assert not hub.transfers("pytorch_model.bin")


def test_a_dropped_connection_goes_on_where_it_stopped(llm: Run, hub: HubServer) -> None:
    hub.drops = [1000, 0, 5000]
    done = llm("pull", REPO)
    assert done.returncode == 0, done.stderr.decode()
    assert Path(done.stdout.decode().strip()).read_bytes() == GGUF
    assert [r.range for r in hub.transfers("Q4_K_M.gguf")] == [
        None, "bytes=1000-", "bytes=1000-", "bytes=6000-"]  # fmt: skip


def test_a_server_without_ranges_starts_over(llm: Run, hub: HubServer) -> None:
    hub.drops, hub.no_ranges = [1000], True
    assert Path(llm("pull", REPO).stdout.decode().strip()).read_bytes() == GGUF


def test_a_connection_that_keeps_breaking_is_an_error_that_can_be_resumed(
    llm: Run, hub: HubServer, environment: dict[str, str]
) -> None:
    hub.drops = [1000, *[0] * 20]
    assert "goes on from there" in failed(llm("pull", REPO), 1)
    assert [path.stat().st_size for path in incomplete(environment)] == [1000]
    (partial,) = json.loads(llm("list", "-o", "json").stdout)
    assert (partial["name"], partial["size"], partial["partial"]) == (REPO, 1000, True)

    hub.drops = []
    assert Path(llm("pull", REPO).stdout.decode().strip()).read_bytes() == GGUF
    assert hub.transfers("Q4_K_M.gguf")[-1].range == "bytes=1000-"
    assert not incomplete(environment)


def start_and_wait(hub: HubServer, environment: dict[str, str]) -> subprocess.Popen[bytes]:
    """A pull that is half way through its transfer."""
    hub.hold = threading.Event()
    process = subprocess.Popen(
        [*LLM, "pull", REPO], env=environment, stderr=subprocess.PIPE, stdout=subprocess.PIPE
    )
    for _ in range(600):
        if any(path.stat().st_size for path in incomplete(environment)):
            return process
        time.sleep(0.05)
    process.kill()
    raise AssertionError("the download never started")


@pytest.mark.skipif(os.name == "nt", reason="signals")
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT])
def test_a_killed_download_resumes(
    llm: Run, hub: HubServer, environment: dict[str, str], how: signal.Signals
) -> None:
    process = start_and_wait(hub, environment)
    process.send_signal(how)
    _, errors = process.communicate(timeout=30)
    assert process.returncode == (130 if how is signal.SIGINT else -how)
    assert b"Traceback" not in errors
    assert hub.hold is not None
    hub.hold.set()
    hub.hold = None
    (partial,) = incomplete(environment)
    have = partial.stat().st_size
    assert have > 0
    done = llm("pull", REPO)
    assert Path(done.stdout.decode().strip()).read_bytes() == GGUF
    assert hub.transfers("Q4_K_M.gguf")[-1].range == f"bytes={have}-"


@pytest.mark.skipif(os.name == "nt", reason="signals")
def test_rm_removes_a_partial_download(llm: Run, hub: HubServer, environment: dict[str, str]) -> None:
    process = start_and_wait(hub, environment)
    process.kill()
    process.communicate()
    assert incomplete(environment)
    assert llm("rm", REPO).returncode == 0
    assert not incomplete(environment)
    assert json.loads(llm("list", "-o", "json").stdout) == []


def test_two_pulls_at_once_transfer_once(hub: HubServer, environment: dict[str, str]) -> None:
    first = start_and_wait(hub, environment)
    second = subprocess.Popen(
        [*LLM, "pull", REPO], env=environment, stderr=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert second.stderr is not None
    assert b"waiting for another download" in second.stderr.readline()
    assert hub.hold is not None
    held, hub.hold = hub.hold, None
    held.set()
    outputs = [process.communicate(timeout=60)[0] for process in (first, second)]
    assert outputs[0] == outputs[1] != b""
    assert len(hub.transfers("Q4_K_M.gguf")) == 2  # the broken one and the one that went on from it


def test_false_content_is_deleted_and_named(llm: Run, hub: HubServer, environment: dict[str, str]) -> None:
    hub.false_content = {"some-model-Q4_K_M.gguf": GGUF[::-1]}
    assert "SHA-256" in failed(llm("pull", REPO), 1)
    assert not incomplete(environment)
    assert json.loads(llm("list", "-o", "json").stdout) == []


@pytest.mark.parametrize("content", [GGUF[:1000], GGUF + b"more"], ids=["short", "long"])
def test_a_wrong_size_is_deleted_and_named(
    llm: Run, hub: HubServer, environment: dict[str, str], content: bytes
) -> None:
    hub.false_content = {"some-model-Q4_K_M.gguf": content}
    assert f"instead of {len(GGUF)}" in failed(llm("pull", REPO), 1)
    assert not incomplete(environment)


def test_what_the_hub_does_not_have_is_not_found(llm: Run, hub: HubServer) -> None:
    assert "no model no/such" in failed(llm("pull", "no/such"), 3)
    hub.gated.add(REPO)
    assert "accept its licence" in failed(llm("pull", REPO), 3)


def test_a_private_model_needs_the_token(llm: Run, hub: HubServer) -> None:
    hub.private.add(REPO)
    assert "HF_TOKEN" in failed(llm("pull", REPO), 3)
    done = llm("pull", REPO, env={"HF_TOKEN": "secret"})
    assert done.returncode == 0, done.stderr.decode()
    assert hub.transfers("Q4_K_M.gguf")[0].authorization == "Bearer secret"
    wrong = llm("pull", f"{REPO}:Q8_0", env={"HF_TOKEN": "hf_wrongtoken"})
    assert "hf_wrongtoken" not in failed(wrong, 3)


def test_a_hub_out_of_reach_is_found_out_quickly(llm: Run) -> None:
    start = time.monotonic()
    assert "cannot be reached" in failed(llm("pull", REPO), 3)
    assert "HF_HUB_OFFLINE" in failed(llm("pull", REPO, env={"HF_HUB_OFFLINE": "1"}), 3)
    assert "cannot be reached" in failed(
        llm("pull", REPO, env={"HF_ENDPOINT": "http://no-such-host.invalid"}), 3
    )
    assert time.monotonic() - start < 20


def test_a_disk_without_room_is_an_error_before_the_transfer(
    llm: Run, hub: HubServer, environment: dict[str, str], tmp_path: Path
) -> None:
    patch = tmp_path / "patch"
    patch.mkdir()
    (patch / "sitecustomize.py").write_text(
        "import shutil, collections\n"
        "usage = collections.namedtuple('usage', 'total used free')\n"
        "shutil.disk_usage = lambda path: usage(10**9, 10**9, 500)\n"
    )
    paths = os.pathsep.join([str(patch), *filter(None, [os.environ.get("PYTHONPATH")])])
    line = failed(llm("pull", REPO, env={"PYTHONPATH": paths}), 1)
    assert "has 500 B free" in line
    assert "HF_HOME" in line
    assert not hub.transfers("Q4_K_M.gguf")


def test_a_cache_that_cannot_be_written_is_an_error(llm: Run, hub: HubServer, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    assert "HF_HOME" in failed(llm("pull", REPO, env={"HF_HOME": str(tmp_path / "file" / "hf")}), 1)


def test_rm_of_one_quantisation_keeps_the_other(
    llm: Run, hub: HubServer, environment: dict[str, str]
) -> None:
    llm("pull", f"{REPO}:Q4_K_M")
    llm("pull", f"{REPO}:Q8_0")
    assert b"freed" in llm("rm", f"{REPO}:Q4_K_M").stderr
    assert [m["quant"] for m in json.loads(llm("list", "-o", "json").stdout)] == ["Q8_0"]
    blobs = [path for path in Path(environment["HF_HOME"]).rglob("blobs/*") if path.is_file()]
    assert [hashlib.sha256(blob.read_bytes()).hexdigest() for blob in blobs] == [blobs[0].name]
    assert llm("rm", REPO).returncode == 0
    assert not list(Path(environment["HF_HOME"]).rglob("models--*"))
    assert "not on disk" in failed(llm("rm", REPO), 3)


def test_rm_leaves_files_of_the_users_own_alone(llm: Run, tmp_path: Path) -> None:
    path = tmp_path / "mine.gguf"
    path.write_bytes(GGUF)
    assert "delete it yourself" in failed(llm("rm", path), 1)
    assert path.exists()


def test_more_chat_templates_belong_to_a_checkpoint() -> None:
    from kukri.runtime.hub.files import choose_checkpoint

    more = "additional_chat_templates/tool_use.jinja"
    others = ["additional_chat_templates/x/y.jinja", "additional_chat_templates/x.py", "other/a.jinja"]
    chosen = choose_checkpoint(iter(["config.json", "model.safetensors", more, *others]))
    assert chosen == [more, "config.json", "model.safetensors"]
