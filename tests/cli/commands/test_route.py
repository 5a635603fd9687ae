"""`--route`: what `llm eval` tells of two models is what `llm batch`, `run` and the server give."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import kukri
from kukri.runtime.routing.confidence import Calibration
from kukri.runtime.routing.labelled import Question
from kukri.runtime.routing.policy import Policy, Route

from ...running import Run, failed
from ...runtime.serve.conftest import serving
from ...tiny_model import write_tiny_model

N = 15


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("large") / "large.gguf", seed=5, name="large")


@pytest.fixture(scope="module")
def questions(tiny: Path, large: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Questions of which every third is answered as the small model does, the others as the large one."""
    path = tmp_path_factory.mktemp("questions") / "questions.jsonl"
    with kukri.load(tiny, device="cpu") as a, kukri.load(large, device="cpu") as b, path.open("w") as file:
        for i in range(N):
            text, model = f"question {i}", a if i % 3 == 0 else b
            answer = model.answer(text, temperature=0, max_tokens=5).complete().text
            file.write(json.dumps({"prompt": text, "answer": answer}) + "\n")
    return path


def test_the_table_is_what_batches_give(
    llm_inside: Run, tiny: Path, large: Path, questions: Path, tmp_path: Path
) -> None:
    route, saved = f"{tiny},{large}", tmp_path / "route.json"
    done = llm_inside(
        *("eval", "--route", route, "--file", questions, "-n", 5, "--match", "exact"),
        *("--save-calibration", saved, "-o", "json"),
    )
    assert done.returncode == 0, done.stderr.decode()
    told = json.loads(done.stdout)
    assert told["questions"] == N
    known = [Question.of(json.loads(line)) for line in questions.read_text().splitlines()]
    flags = ("--route", route, "-t", 0, "-n", 5, "--deterministic", "--ordered", "--force")
    for kind in ("calibrated", "uncalibrated"):
        rows = told[kind]
        assert (rows[0]["right"], rows[-1]["right"]) == (5 / N, 10 / N)
        more = ("--route-calibration", saved) if kind == "calibrated" else ()
        for row in (rows[0], rows[len(rows) // 2], rows[-1]):
            out = tmp_path / "out.jsonl"
            batch = ("batch", questions, out, *flags, *more, "--answer-column", "given")
            done = llm_inside(*batch, "--route-threshold", row["threshold"])
            assert done.returncode == 0, done.stderr.decode()
            given = [json.loads(line) for line in out.read_text().splitlines()]
            right = [q.is_right(g["given"], "exact") for q, g in zip(known, given, strict=True)]
            sent = [g["model"] == "large" for g in given]
            assert (sum(right) / N, sum(sent) / N) == (row["right"], row["escalated"])
            words = f", {sum(sent)} answered by the large model"
            assert (words in done.stderr.decode()) is any(sent)
    assert Calibration.load(saved).threshold == told["calibration"]["threshold"]
    shown = llm_inside("eval", "--route", route, "--file", questions, "-n", 5).stdout.decode()
    assert "| threshold" in shown
    assert shown.count("100.0%") == 2


def test_run_says_who_answers(llm_inside: Run, tiny: Path, large: Path, tmp_path: Path) -> None:
    run = ("run", "--route", f"{tiny},{large}", "-t", 0, "-n", 4, "hi", "--route-threshold")

    def routing(threshold: float) -> Any:
        return json.loads(llm_inside(*run, threshold, "-o", "json").stdout)["stats"]["routing"]

    assert (routing(0)["model"], routing(1)["model"], routing(2)["confidence"]) == ("tiny", "large", None)
    confidence = routing(0)["confidence"]
    assert b"not below 0, in 4 tokens" in llm_inside(*run, 0, "--stats").stderr
    assert b"routing: large alone" in llm_inside(*run, 2, "--stats").stderr
    assert 0 < confidence < 1
    for wrong in (
        ("-m", tiny), ("-N", 2), ("--logprobs", 1), ("--beams", 2), ("--session", tmp_path / "a.session"),
    ):  # fmt: skip
        assert "--route" in failed(llm_inside(*run, 0, *wrong), 2)
    assert "takes two models" in failed(llm_inside("run", "--route", "a", "hi"), 2)
    assert "is for --route" in failed(llm_inside("run", "-m", tiny, "--route-threshold", 1, "hi"), 2)
    other = tmp_path / "other.json"
    Calibration("other", (0.0,) * 3, (1.0,) * 3, (0.0,) * 3, 0.0).save(other)
    assert "another model" in failed(llm_inside(*run, 0, "--route-calibration", other), 2)
    other.write_text("{}")
    assert "is no calibration" in failed(llm_inside(*run, 0, "--route-calibration", other), 5)
    (tmp_path / "wrong.jsonl").write_text('{"prompt": "x"}')
    both = ("batch", other, tmp_path / "out.jsonl", "--route", f"{tiny},{large}")
    assert "--dry-run" in failed(llm_inside(*both, "--dry-run"), 2)
    assert "--embed" in failed(llm_inside(*both, "--embed"), 2)
    assert "adapter" in failed(llm_inside(*both, "--lora", tiny), 2)
    evaluate = ("eval", "--route", f"{tiny},{large}", "--file", tmp_path / "wrong.jsonl")
    assert "row 1" in failed(llm_inside(*evaluate), 2)
    assert "names both" in failed(llm_inside(*evaluate, "--plot", tmp_path / "a.svg"), 2)


def test_a_server_with_two_models(tiny: Path, large: Path) -> None:
    with serving({"both": Route(tiny, large, Policy(1.0)), "large": large}) as served:
        body: dict[str, Any] = {
            "messages": [{"role": "user", "content": "Hi"}],
            "max_tokens": 5,
            "temperature": 0,
        }
        alone = served.post("/v1/chat/completions", body | {"model": "large"}).json()
        routed = served.post("/v1/chat/completions", body | {"model": "both", "n": 2}).json()
        assert routed["choices"][0]["message"] == alone["choices"][0]["message"]
        assert [each["model"] for each in routed["usage"]["routing"]] == ["large", "large"]
        stream = body | {"stream": True, "stream_options": {"include_usage": True}}
        lines = served.post("/v1/chat/completions", stream).text.splitlines()
        parts = [json.loads(line[6:]) for line in lines if line.startswith("data: {")]
        text = "".join(p["choices"][0]["delta"].get("content") or "" for p in parts if p["choices"])
        assert text == alone["choices"][0]["message"]["content"]
        assert parts[-1]["usage"]["routing"][0]["escalated"] is True
        raw = {"prompt": ["ab", "cd"], "max_tokens": 3, "temperature": 0}
        texts = [
            [choice["text"] for choice in served.post("/v1/completions", raw | more).json()["choices"]]
            for more in ({}, {"model": "large"})
        ]
        assert texts[0] == texts[1]
        message = served.post("/v1/messages", body | {"model": "both"}).json()
        assert message["usage"]["routing"][0]["model"] == "large"
        refused = served.post("/v1/chat/completions", body | {"logprobs": True})
        assert refused.status_code == 400
        assert "no log probabilities" in refused.json()["error"]["message"]
