"""scripts/bench_peers.py, with programs that only claim to be a llama-bench."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from kukri.tests.script_modules import load_script

# Notes its arguments in a file beside it, then claims `speeds[run]` × 1, 2, … for its tests.
FAKE = """#!{python}
import json, pathlib, sys
if "--help" in sys.argv:
    sys.exit(print({help!r}))
log = pathlib.Path(sys.argv[0] + ".log")
with log.open("a") as file:
    print(json.dumps(sys.argv[1:]), file=file)
speed = {speeds!r}[len(log.read_text().splitlines()) - 1]
if speed is None:
    sys.exit("first line\\nout of order")

def values(flag):
    return [int(n) for n in sys.argv[sys.argv.index(flag) + 1].split(",")] if flag in sys.argv else [0]

tests = [(p, n, dict(n_depth=d)) for d in values("-d") for p, n in
         [*((p, 0) for p in values("-p")), *((0, n) for n in values("-n"))] if p or n]
if not {depths!r}:
    tests = [(p, n, dict(test="pp" if p else "tg")) for p, n, _ in tests]
    tests += [(d, n, dict(test=f"tg{{n}}@pp{{d}}")) for i, word in enumerate(sys.argv) if word == "-gp"
              for d, n in [map(int, sys.argv[i + 1].split(","))]]
results = [dict(n_prompt=p, n_gen=n, n_threads=values("-t")[0], build_commit="abc", build_number=7,
                avg_ts=1e9, samples_ts=[speed * (i + 1) * f for f in (9, 1, 0.5)], **more)
           for i, (p, n, more) in enumerate(tests)]
print("loading [noise]")
print(json.dumps(results, indent=2) if {valid!r} else "[{{")
print("done")
"""


@pytest.fixture(scope="module")
def peers() -> ModuleType:
    return load_script("bench_peers.py")


def fake(path: Path, speeds: list[float | None], depths: bool = True, valid: bool = True) -> Path:
    """A program of these speeds, one a run (None: it fails); without `depths` one like ik_llama.cpp's."""
    usage = "-d, --n-depth <n>" if depths else "-gp <pp,tg>"
    path.write_text(FAKE.format(python=sys.executable, help=usage, speeds=speeds, depths=depths, valid=valid))
    path.chmod(0o755)
    return path


def asked(path: Path) -> list[list[str]]:
    return [json.loads(line) for line in Path(f"{path}.log").read_text().splitlines()]


def compared(
    peers: ModuleType, ours: Path, others: dict[str, Path], rounds: int, **more: Any
) -> dict[str, Any]:
    plan = {"prompts": [8], "gens": [4], "depths": [0], "threads": [2], "repetitions": 3} | more
    programs = [peers.Program("kukri", (str(ours),))]
    programs += [peers.Program(name, (str(path),), ("-x", "1")) for name, path in others.items()]
    report: dict[str, Any] = peers.compare(programs, [Path("a.gguf")], peers.Plan(**plan), rounds)
    return report


def test_medians_of_rounds_and_of_ratios(peers: ModuleType, tmp_path: Path) -> None:
    """The third round is slow for all: it moves neither the medians nor the ratios."""
    ours = fake(tmp_path / "ours", [100, 120, 10])
    theirs = fake(tmp_path / "theirs", [50, 40, 5])
    prefill, decode = compared(peers, ours, {"peer": theirs}, 3)["results"]
    assert (prefill["test"], decode["test"], prefill["n_threads"]) == ("pp8", "tg4", 2)
    assert (prefill["median_ts"], prefill["ratio"]) == ({"kukri": 100, "peer": 40}, {"peer": 2})
    assert (decode["median_ts"], decode["ratio"]) == ({"kukri": 200, "peer": 80}, {"peer": 2})
    assert asked(ours) == [["-m", "a.gguf", "-p", "8", "-n", "4", "-t", "2", "-r", "3", "-o", "json"]] * 3
    assert asked(theirs) == [[*asked(ours)[0], "-x", "1"]] * 3


def test_who_goes_first_changes(peers: ModuleType, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    programs = {name: fake(tmp_path / name, [1, 1]) for name in ("kukri", "one", "two")}
    ours = programs.pop("kukri")
    compared(peers, ours, programs, 2)
    order = [
        line.split(": ")[1].split(",")[0] for line in capfd.readouterr().err.splitlines() if "of 2:" in line
    ]
    assert order == ["kukri", "one", "two", "one", "two", "kukri"]


def test_depths_in_the_words_of_each(peers: ModuleType, tmp_path: Path) -> None:
    ours = fake(tmp_path / "ours", [100] * 3)
    new, old = fake(tmp_path / "new", [50] * 3), fake(tmp_path / "old", [25] * 3, depths=False)
    report = compared(peers, ours, {"new": new, "old": old}, 1, depths=[0, 16])
    ratios = {r["test"]: r["ratio"] for r in report["results"]}
    assert ratios == {
        "pp8": {"new": 2, "old": 4},
        "tg4": {"new": 2, "old": 4},
        "pp8 @ d16": {"new": 2, "old": None},
        "tg4 @ d16": {"new": 2, "old": pytest.approx(16 / 3)},  # the fake's third test, our fourth
    }
    assert "-gp" not in asked(new)[0]
    report = compared(peers, ours, {"old": old}, 1, depths=[16])
    assert [r["test"] for r in report["results"]] == ["pp8 @ d16", "tg4 @ d16"]
    report = compared(peers, ours, {"old": old}, 1, depths=[16], gens=[0])
    assert len(asked(old)) == 2  # it has no such test
    assert report["failures"] == []


def test_a_peer_that_fails_leaves_the_others(peers: ModuleType, tmp_path: Path) -> None:
    ours = fake(tmp_path / "ours", [100, 100])
    others = {
        "sometimes": fake(tmp_path / "sometimes", [None, 50]),
        "garbled": fake(tmp_path / "garbled", [1, 1], valid=False),
        "gone": tmp_path / "gone",
    }
    report = compared(peers, ours, others, 2)
    assert report["results"][0]["ratio"] == {"sometimes": 2, "garbled": None, "gone": None}
    told = [failure.split(": ", 1) for failure in report["failures"]]
    assert [where for where, _ in told].count("sometimes, a.gguf, round 1") == 1
    assert any(why == "exit code 1: out of order" for _, why in told)
    assert sum("not as llama-bench writes them" in why for _, why in told) == 2
    assert sum("cannot start" in why for _, why in told) == 2


@pytest.mark.parametrize(
    "text", ["", "[]", "no [ json", "[1]", "[{}]", '[{"n_prompt": 1}]', '[{"n_prompt": "x"}]', "]\n["]
)
def test_results_that_are_none(peers: ModuleType, text: str) -> None:
    with pytest.raises(peers.Failed):
        peers.speeds(text)


def test_results_without_samples(peers: ModuleType) -> None:
    entry = {"n_prompt": "8", "n_gen": "0", "n_threads": "2", "avg_ts": 5.5}
    ((threads, test), result), *rest = peers.speeds(json.dumps([entry])).items()
    assert (threads, test.name, result["median_ts"], rest) == (2, "pp8", 5.5, [])


def test_peers_on_the_command_line(peers: ModuleType, tmp_path: Path) -> None:
    path = fake(tmp_path / "llama:bench", [1])
    plain, extra = peers.parse_peer(f"a={path}"), peers.parse_peer(f"b={path}:-rtr 1 -x 'y z'")
    assert (plain.name, plain.command, plain.extra) == ("a", (str(path),), ())
    assert (extra.command, extra.extra) == ((str(path),), ("-rtr", "1", "-x", "y z"))
    for wrong in (f"{path}", f"={path}", f"kukri={path}", f"a={tmp_path}", "a=", f"a={path}x:-y"):
        with pytest.raises(ValueError, match=r"\S"):
            peers.parse_peer(wrong)


def test_other_programs_time_is_told_from_ours(peers: ModuleType) -> None:
    before = peers.others_seconds()
    if before is None:
        assert not Path("/proc/stat").exists()
        return
    sum(range(10**7))
    assert peers.others_seconds() - before >= -0.1  # the clocks tick coarsely


@pytest.mark.slow
def test_the_whole_script(
    peers: ModuleType, tiny: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    peer = fake(tmp_path / "llama-bench", [50, 50])
    flags = ["--models", str(tiny), "-p", "6", "-n", "2", "-t", "1", "-r", "1", "--rounds", "1"]
    assert peers.main(["--peer", f"fake={peer}:-x 1", *flags]) == 0
    cpu, versions, load, _, header, _, prefill, decode = capfd.readouterr().out.splitlines()
    assert "fake abc (7) -x 1" in versions
    assert "processors" in cpu
    assert "load average" in load
    names = [cell.strip() for cell in header.strip("|").split("|")]
    assert names == ["model", "threads", "test", "kukri", "fake", "ratio", "of bandwidth"]
    assert re.search(r"\| +50.0 \|", prefill)
    assert re.search(r"\| +100.0 \|", decode)
    assert "GB/s" in decode
    assert peers.main(["--peer", f"fake={peer}", *flags, "--ours=--kv-type f16", "-o", "json"]) == 0
    report = json.loads(capfd.readouterr().out)
    assert [r["type_k"] for r in report["runs"] if r["program"] == "kukri"] == ["f16", "f16"]
    assert report["results"][0]["ratio"]["fake"] == report["results"][0]["median_ts"]["kukri"] / 50
    assert peers.main(["--peer", f"fake={peer}", *flags]) == 1  # it has no third run


@pytest.mark.parametrize(
    "flags",
    [
        ("--peer", "x"),
        ("-p", "x"),
        ("-t", "0"),
        ("--rounds", "0"),
        ("-r", "0"),
        ("--models", "no/such.gguf"),
        ("-o", "csv"),
    ],
    ids=" ".join,
)
def test_wrong_flags(
    peers: ModuleType, tiny: Path, flags: tuple[str, ...], capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as end:
        peers.main(["--models", str(tiny), *flags])
    assert end.value.code == 2
    assert "error: " in capfd.readouterr().err
