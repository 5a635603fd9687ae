"""What lies in the cache after a hostile Hub or was put there before: bytes, links, and what `rm` deletes."""

from __future__ import annotations

import collections
import hashlib
import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from kukri.runtime.hub import cache, installed, repository
from kukri.runtime.hub.errors import ModelNotFound, StoreError

from ...running import Run, failed
from .hostile_hub import FILE, GGUF, REPO, TOKEN, Field, field
from .hub_server import COMMIT, Handler, HubServer, git_sha1

__all__ = ["field"]  # a fixture

SHA256 = hashlib.sha256(GGUF).hexdigest()
CHECKPOINT = {
    "config.json": b'{"a": 1}',
    "model.safetensors": b"weights" * 100,
    "tokenizer.json": b"{}" * 500,
}
links = pytest.mark.skipif(os.name == "nt", reason="needs the right to make links")


def transfers(field: Field) -> int:
    return len([r for r in field.hub.requests if r.method == "GET" and "/resolve/" in r.path])


# What is found afterwards, by kukri and by huggingface-hub


def test_huggingface_hub_finds_it_offline(field: Field, monkeypatch: pytest.MonkeyPatch) -> None:
    from huggingface_hub import hf_hub_download, try_to_load_from_cache

    more = "additional_chat_templates/tool_use.jinja"
    field.hub.repos[REPO] = {**CHECKPOINT, more: b"{{ a }}"}
    folder = field.pull()
    field.hub.stop()
    assert repository.find(REPO, None) == folder
    for name, data in field.hub.repos[REPO].items():
        found = hf_hub_download(REPO, name, cache_dir=field.cache, local_files_only=True)
        assert Path(found) == folder / name
        assert Path(found).read_bytes() == data
        assert try_to_load_from_cache(REPO, name, cache_dir=field.cache) == found
    assert os.readlink(folder / more) == f"../../../blobs/{git_sha1(b'{{ a }}')}"
    assert os.readlink(folder / "config.json") == f"../../blobs/{git_sha1(CHECKPOINT['config.json'])}"


@pytest.mark.parametrize("how", ["system", "setting"])
def test_without_links_the_file_itself_is_there(
    field: Field, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    from huggingface_hub import hf_hub_download

    def no_links(*arguments: object) -> None:
        raise OSError("a required privilege is not held by the client")

    if how == "system":
        monkeypatch.setattr(os, "symlink", no_links)
    else:
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_DISABLE_SYMLINKS", True, raising=False)
    field.hub.repos[REPO] = {**CHECKPOINT, "generation_config.json": CHECKPOINT["config.json"]}
    for _ in range(2):
        folder = repository.download(REPO, None, "x")
        assert {p.name: p.read_bytes() for p in folder.iterdir()} == field.hub.repos[REPO]
        assert not any(path.is_symlink() for path in folder.iterdir())
        assert transfers(field) == 4
    found = hf_hub_download(REPO, "config.json", cache_dir=field.cache, local_files_only=True)
    assert Path(found) == folder / "config.json"
    (folder / "config.json").write_bytes(b"{}")
    assert (repository.download(REPO, None, "x") / "config.json").read_bytes() == CHECKPOINT["config.json"]


def test_a_commit_that_breaks_off_leaves_the_one_before(
    field: Field, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = "e" * 40
    field.pull()
    field.hub.headers = {"X-Repo-Commit": other}
    siblings = [{"rfilename": FILE, "size": 9}]
    field.hub.api = json.dumps({"sha": other, "siblings": siblings}).encode()
    with pytest.raises(ModelNotFound):
        field.pull()
    assert repository.find(REPO, None) == field.path
    assert (field.folder / "refs" / "main").read_text() == COMMIT


# Bytes


@pytest.mark.parametrize("name", CHECKPOINT)
@pytest.mark.parametrize("kind", ["other", "longer", "shorter", "nothing"])
def test_bytes_that_are_not_those_stated_are_deleted(field: Field, name: str, kind: str) -> None:
    field.hub.repos[REPO] = dict(CHECKPOINT)
    true = CHECKPOINT[name]
    false = {"other": b"x" * len(true), "longer": true + b"x", "shorter": true[:-1], "nothing": b""}[kind]
    field.hub.false_content = {name: false}
    field.refused("was deleted")
    assert not list(field.folder.glob("blobs/*.incomplete"))
    field.hub.false_content = {}
    assert (field.pull() / name).read_bytes() == true


def test_a_pinned_digest_is_that_of_the_bytes(field: Field) -> None:
    field.refused("not the file this name stands for", sha256="0" * 64)
    field.hub.api = json.dumps({"sha": COMMIT, "siblings": [{"rfilename": FILE}]}).encode()
    field.hub.headers = {"ETag": '"abc"'}  # so that neither answer states a digest
    field.refused("SHA-256", sha256="0" * 64)
    field.hub.headers = {"ETag": f'"{"0" * 64}"'}
    field.refused("SHA-256", sha256="0" * 64)
    assert transfers(field) == 2
    field.hub.headers = {"ETag": '"abc"'}
    assert field.pull(sha256=SHA256).read_bytes() == GGUF


def test_listing_and_headers_may_not_contradict_each_other(field: Field) -> None:
    field.hub.headers = {"X-Linked-Etag": f'"{"1" * 64}"'}
    field.refused("not the file this name stands for")


@pytest.mark.parametrize(
    "planted", [b"x" * len(GGUF), b"", GGUF + b"x"], ids=["same size", "empty", "longer"]
)
@pytest.mark.parametrize("linked", [False, True])
def test_a_blob_is_not_trusted_for_its_name(field: Field, planted: bytes, linked: bool) -> None:
    blob = field.folder / "blobs" / SHA256
    blob.parent.mkdir(parents=True)
    blob.write_bytes(planted)
    if linked:
        field.path.parent.mkdir(parents=True)
        field.path.symlink_to(f"../../blobs/{SHA256}")
    assert field.pull().read_bytes() == GGUF
    assert field.pull().read_bytes() == GGUF
    assert transfers(field) == 1


def test_a_blob_that_is_right_is_not_transferred_again(field: Field) -> None:
    field.pull()
    field.path.unlink()
    assert field.pull().read_bytes() == GGUF
    assert transfers(field) == 1


@pytest.mark.parametrize("name", ["config.json", "model.safetensors"])
def test_a_planted_part_is_found_out(field: Field, name: str) -> None:
    field.hub.repos[REPO] = dict(CHECKPOINT)
    data = CHECKPOINT[name]
    digest = hashlib.sha256(data).hexdigest() if name == "model.safetensors" else git_sha1(data)
    partial = field.folder / "blobs" / f"{digest}.incomplete"
    partial.parent.mkdir(parents=True)
    for planted in (b"x" * 3, b"x" * len(data)):
        partial.write_bytes(planted)
        field.refused("was deleted")
        assert not partial.exists()
    partial.write_bytes(b"x" * 100_000)
    assert (field.pull() / name).read_bytes() == data


def test_files_with_the_same_etag_are_not_mixed_up(field: Field) -> None:
    """The ETag is no digest, and the same for all: a mirror's, or that of one who wants a file to become
    another."""
    field.hub.repos[REPO] = dict(CHECKPOINT)
    siblings = [{"rfilename": name, "size": len(data)} for name, data in CHECKPOINT.items()]
    field.hub.api = json.dumps({"sha": COMMIT, "siblings": siblings}).encode()
    field.hub.headers = {"ETag": 'W/"same"'}
    for _ in range(2):
        folder = field.pull()
        assert {path.name: path.read_bytes() for path in folder.iterdir()} == CHECKPOINT
        assert transfers(field) == 3
    assert not (field.folder / "blobs" / "same").exists()


def test_what_cannot_be_checked_is_not_resumed(field: Field, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("time.sleep", lambda seconds: None)
    field.hub.api = json.dumps({"sha": COMMIT, "siblings": [{"rfilename": FILE, "size": len(GGUF)}]}).encode()
    field.hub.headers = {"ETag": '"abc"'}
    field.hub.drops = [70_000, *[0] * 20]
    field.refused("broke off")
    assert not list(field.folder.glob("blobs/*"))


def test_a_mirror_may_give_plain_sha1(field: Field) -> None:
    field.hub.repos[REPO] = dict(CHECKPOINT)

    def script(handler: Handler) -> bool:
        data = CHECKPOINT.get(handler.path.rpartition("/")[2], b"")
        handler.hub.headers = {"ETag": hashlib.sha1(data, usedforsecurity=False).hexdigest()}
        return False

    field.hub.script = script
    folder = repository.download(REPO, None, "x")
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == CHECKPOINT


def test_files_that_are_no_weights_are_small(field: Field, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(repository, "MOST_SMALL_BYTES", 900)
    field.hub.repos[REPO] = dict(CHECKPOINT)
    field.refused("more than such a file may be")
    assert not field.hub.transfers("tokenizer.json")
    siblings = [{"rfilename": name} for name in CHECKPOINT]
    field.hub.api = json.dumps({"sha": COMMIT, "siblings": siblings}).encode()
    field.hub.headers = {"Content-Encoding": "x"}  # then the answer's length is not the file's
    field.refused("larger than 900 B")
    assert not list(field.folder.glob("blobs/*.incomplete"))


def test_all_files_together_must_fit_the_disk(field: Field, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = collections.namedtuple("usage", "total used free")
    monkeypatch.setattr("shutil.disk_usage", lambda path: usage(10**9, 0, 64_000_000 + 1700))
    field.hub.repos[REPO] = dict(CHECKPOINT)
    field.refused("needs 1.7 kB")
    assert transfers(field) == 0
    monkeypatch.setattr("shutil.disk_usage", lambda path: usage(10**9, 0, 64_000_000 + 1708))
    field.pull()


# Links and names that were there before


@links
@pytest.mark.parametrize("kind", ["link", "dangling", "hard link", "pipe"])
def test_nothing_is_written_through_a_planted_part(field: Field, kind: str) -> None:
    partial = field.folder / "blobs" / f"{SHA256}.incomplete"
    partial.parent.mkdir(parents=True)
    if kind == "link":
        partial.symlink_to(field.around / "bashrc")
    elif kind == "dangling":
        partial.symlink_to(field.around / "not-there")
    elif kind == "pipe":
        os.mkfifo(partial)
    else:
        outside = field.around / "bashrc"
        os.link(outside, partial)
    assert field.pull().read_bytes() == GGUF


@links
@pytest.mark.parametrize("target", ["bashrc", "not-there", "one"])
@pytest.mark.parametrize("where", ["blob", "snapshot file"])
def test_a_link_in_the_place_of_a_file_is_replaced(field: Field, where: str, target: str) -> None:
    path = field.path if where == "snapshot file" else field.folder / "blobs" / SHA256
    path.parent.mkdir(parents=True)
    path.symlink_to(field.around / target)
    assert field.pull().read_bytes() == GGUF
    assert field.path.resolve() == field.folder / "blobs" / SHA256


@links
@pytest.mark.parametrize("which", ["snapshots", f"snapshots/{COMMIT}", f"snapshots/{COMMIT}/sub", "refs"])
@pytest.mark.parametrize("target", ["one", "not-there"])
def test_a_link_in_the_place_of_a_folder_is_not_followed(field: Field, which: str, target: str) -> None:
    field.hub.repos[REPO] = {f"sub/{FILE}": GGUF}
    link = field.folder / which
    link.parent.mkdir(parents=True, exist_ok=True)
    link.symlink_to(field.around / target)
    before = field.tree()
    with pytest.raises(StoreError, match="is a link"):
        repository.download(REPO, None, "x")
    assert field.tree() == before


@links
@pytest.mark.parametrize(
    "content", ["../../..", "/", "../" * 40, "a" * 41, "main", "", "\0", "x" * 10_000_000]
)
def test_a_planted_ref_leads_nowhere(field: Field, content: str) -> None:
    field.pull()
    (field.folder / "refs" / "main").write_text(content)
    assert cache.snapshot(REPO) == field.path.parent
    assert field.pull() == field.path


@links
def test_planted_snapshots_are_none(field: Field) -> None:
    snapshots = field.folder / "snapshots"
    snapshots.mkdir(parents=True)
    (snapshots / ("a" * 40)).symlink_to(field.around / "one")
    (snapshots / "..x").mkdir()
    (snapshots / "..x" / FILE).write_bytes(b"x")
    (field.folder / "refs").mkdir()
    (field.folder / "refs" / "main").write_text("a" * 40)
    assert cache.snapshot(REPO) is None
    assert repository.find(REPO, None) is None
    assert installed.installed() == []


def test_shards_of_an_index_that_lie_elsewhere_are_none(field: Field) -> None:
    index = {"weight_map": {"a": "../../../../../../x"}}
    field.hub.repos[REPO] = {**CHECKPOINT, "model.safetensors.index.json": json.dumps(index).encode()}
    folder = field.pull()
    assert (folder / "../../../../../../x").is_file()
    assert repository.find(REPO, None) is None


# rm


def plant_nothing(field: Field) -> None:
    pass


def plant_snapshot_file(field: Field) -> None:
    field.path.unlink()
    field.path.symlink_to(field.around / "one" / "x.gguf")


def plant_snapshot(field: Field) -> None:
    (field.folder / "snapshots" / ("b" * 40)).symlink_to(field.around / "one")


def plant_snapshots(field: Field) -> None:
    other = field.around / "elsewhere"
    (field.folder / "snapshots").rename(other)
    (field.folder / "snapshots").symlink_to(other)


def plant_folder_in_snapshot(field: Field) -> None:
    (field.path.parent / "sub").symlink_to(field.around / "one")


def plant_blobs(field: Field) -> None:
    other = field.around / "elsewhere"
    (field.folder / "blobs").rename(other)
    (other / "mine.incomplete").write_bytes(b"x")
    (field.folder / "blobs").symlink_to(other)


def plant_blob(field: Field) -> None:
    blob = field.folder / "blobs" / SHA256
    blob.unlink()
    blob.symlink_to(field.around / "one" / "x.gguf")


def plant_incomplete(field: Field) -> None:
    (field.folder / "blobs" / "a.incomplete").symlink_to(field.around / "bashrc")
    (field.folder / "blobs" / "b.incomplete").symlink_to(field.around / "not-there")
    (field.folder / "blobs" / "c.incomplete").write_bytes(b"x")


def plant_locks(field: Field) -> None:
    other = field.around / "elsewhere"
    (field.cache / ".locks").rename(other)
    (field.cache / ".locks").symlink_to(other)


PLANTS = [
    plant_nothing, plant_snapshot_file, plant_snapshot, plant_snapshots, plant_folder_in_snapshot,
    plant_blobs, plant_blob, plant_incomplete, plant_locks,
]  # fmt: skip


@links
@pytest.mark.parametrize("name", [REPO, f"{REPO}:Q4_0"])
@pytest.mark.parametrize("plant", PLANTS)
def test_rm_deletes_nothing_outside_the_cache(
    field: Field, plant: Callable[[Field], None], name: str
) -> None:
    field.pull()
    plant(field)
    before = field.tree()
    installed.installed()
    assert installed.remove(name) > 0
    assert field.tree() == before
    assert repository.find(REPO, None) is None


@links
def test_rm_of_a_repository_that_is_a_link_says_so(field: Field) -> None:
    field.pull()
    other = field.around / "elsewhere"
    field.folder.rename(other)
    field.folder.symlink_to(other)
    before = field.tree()
    assert field.path.read_bytes() == GGUF
    for name in (REPO, f"{REPO}:Q4_0"):
        with pytest.raises(StoreError, match="is a link to"):
            installed.remove(name)
    assert field.tree() == before


# The command


@pytest.fixture
def hub(field: Field, environment: dict[str, str]) -> HubServer:
    environment |= {"HF_ENDPOINT": field.hub.url, "HF_HUB_CACHE": str(field.cache), "HF_TOKEN": TOKEN}
    return field.hub


def test_pull_of_second_answers(llm: Run, field: Field, hub: HubServer) -> None:
    n = [0]

    def script(handler: Handler) -> bool:
        n[0] += handler.command == "HEAD"
        if n[0] > 1 or (handler.command == "GET" and "/resolve/" in handler.path):
            hub.headers = {"ETag": f'"{field.around}/x"', "X-Repo-Commit": "../../../.."}
        return False

    hub.script = script
    done = llm("pull", REPO)
    assert done.returncode == 0, done.stderr.decode()
    assert Path(done.stdout.decode().removesuffix("\n")) == field.path
    assert field.path.read_bytes() == GGUF
    field.check()


def test_pull_follows_no_redirect_to_a_file_and_gives_no_token_away(
    llm: Run, field: Field, hub: HubServer
) -> None:
    other = HubServer(hub.repos)
    other.start()
    to = [other.url + "{path}"]

    def script(handler: Handler) -> bool:
        handler.send(307, b"", {"Location": to[0].format(path=handler.path)})
        return True

    hub.script = script
    done = llm("pull", REPO)
    assert done.returncode == 0, done.stderr.decode()
    assert {request.authorization for request in other.requests} == {None}
    other.stop()
    to[0] = "file:///etc/passwd"
    assert "refused" in failed(llm("pull", f"{REPO}:Q4_0", env={"HF_HUB_CACHE": str(field.cache / "new")}), 3)
    field.check()


def test_pull_of_what_cannot_be(llm: Run, field: Field, hub: HubServer) -> None:
    hub.repos[REPO] = {"../../../../one/x.gguf": b"GGUF"}
    assert "cannot be stored" in failed(llm("pull", REPO), 1)
    hub.api = b'{"a": ' * 1_000_000
    assert "no list of files" in failed(llm("pull", REPO), 1)
    hub.api = b" " * 9_000_000
    assert "longer than" in failed(llm("pull", REPO), 1)
    field.check()
