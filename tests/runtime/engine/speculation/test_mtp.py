"""Multi-token prediction: the layer's drafts are those of a NumPy twin, and answers are those without."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

import kukri
from kukri.runtime.engine.cache import Batch, PageTable
from kukri.runtime.engine.scheduling.drafting import MOST_AGAIN
from kukri.runtime.engine.speculation.policy import Acceptance
from kukri.runtime.model.model import Model
from kukri.runtime.model.source import open_source
from kukri.runtime.program.build import build_program
from kukri.runtime.reference.machine import ReferenceMachine
from kukri.runtime.weights.binding import Weights

from ....mtp_fixtures import with_mtp

PROMPTS = [[1, 2, 3, 4, 5] * 6, [7, 8, 9] * 30, list(range(70))]
FEW = {"logit_bias": [(id_, 8.0) for id_ in range(4)]}  # so that a draft is right now and then


@pytest.fixture(autouse=True)
def _drafts_that_are_wrong_do_not_end_drafting(monkeypatch):
    monkeypatch.setattr(Acceptance, "observe", lambda self, kind, right: None)


def params(n: int = 40, **more) -> kukri.SamplingParams:
    return kukri.SamplingParams(**{"temperature": 0, "max_tokens": n, "ignore_eos": True, **FEW, **more})


def always_draft(model: Model, n: int) -> Model:
    """Let drafts cost nothing, and have `n` ids each, so that nothing depends on the clock."""
    costs = model.engine._scheduler.times.costs
    costs.observe = lambda n_rows, seconds: None
    costs._seconds.update(dict.fromkeys(range(1, 80), 1.0))
    drafter = model.engine._drafter
    drafter.seconds = lambda n, n_sequences, step: 0.0
    propose = drafter.propose
    drafter.propose = lambda wishes: propose([replace(wish, n=min(n, wish.n)) for wish in wishes])
    return model


def twin(folder: Path, ids: list[int], hidden: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Logits and hidden states of the MTP layer of a Qwen3.5 folder, for the ids behind tokens with `hidden`
    states [n, width], in float64 and without a cache."""
    config, tensors = (
        json.loads((folder / "config.json").read_text()),
        load_file(folder / "model.safetensors"),
    )
    n, dim = len(ids), config["head_dim"]
    heads, kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
    rope = config.get("rope_parameters") or config
    theta, part = rope["rope_theta"], rope["partial_rotary_factor"]

    def weight(name: str) -> np.ndarray:
        return tensors[f"mtp.{name}.weight"].astype(np.float64)

    def norm(x: np.ndarray, name: str) -> np.ndarray:
        return x / np.sqrt((x * x).mean(-1, keepdims=True) + config["rms_norm_eps"]) * (1 + weight(name))

    def rotate(x: np.ndarray) -> np.ndarray:  # [n, heads, dim]
        half = int(dim * part) // 2
        angles = np.arange(n)[:, None, None] * theta ** (-np.arange(half) / half)
        a, b = x[..., :half], x[..., half : 2 * half]
        turned = [a * np.cos(angles) - b * np.sin(angles), b * np.cos(angles) + a * np.sin(angles)]
        return np.concatenate([*turned, x[..., 2 * half :]], axis=-1)

    def silu(x: np.ndarray) -> np.ndarray:
        return x / (1 + np.exp(-x))

    embedding = tensors["model.embed_tokens.weight"][ids].astype(np.float64)
    both = [norm(embedding, "pre_fc_norm_embedding"), norm(hidden.astype(np.float64), "pre_fc_norm_hidden")]
    x = np.concatenate(both, axis=-1) @ weight("fc").T
    h = norm(x, "layers.0.input_layernorm")
    q, gate = np.split((h @ weight("layers.0.self_attn.q_proj").T).reshape(n, heads, 2 * dim), 2, axis=-1)
    k = (h @ weight("layers.0.self_attn.k_proj").T).reshape(n, kv_heads, dim)
    v = (h @ weight("layers.0.self_attn.v_proj").T).reshape(n, kv_heads, dim)
    q, k = rotate(norm(q, "layers.0.self_attn.q_norm")), rotate(norm(k, "layers.0.self_attn.k_norm"))
    k, v = (np.repeat(each, heads // kv_heads, axis=1) for each in (k, v))
    scores = np.einsum("qhd,khd->hqk", q, k) / np.sqrt(dim) + np.where(np.tri(n), 0, -np.inf)
    scores = np.exp(scores - scores.max(-1, keepdims=True))
    out = np.einsum("hqk,khd->qhd", scores / scores.sum(-1, keepdims=True), v) / (1 + np.exp(-gate))
    x = x + out.reshape(n, -1) @ weight("layers.0.self_attn.o_proj").T
    h = norm(x, "layers.0.post_attention_layernorm")
    inner = silu(h @ weight("layers.0.mlp.gate_proj").T) * (h @ weight("layers.0.mlp.up_proj").T)
    x = norm(x + inner @ weight("layers.0.mlp.down_proj").T, "norm")
    return x @ tensors.get("lm_head.weight", tensors["model.embed_tokens.weight"]).T.astype(np.float64), x


def hidden_states(folder: Path, ids: list[int]) -> np.ndarray:
    """The model's hidden states behind its output norm, [n, width], of one pass over all ids."""
    source = open_source(folder, text=False)
    program = build_program(source.config, Weights(source.config, source.tensors), hidden="normed")
    machine, table = ReferenceMachine(program, 4), PageTable(4)
    table.extend(0, len(ids))
    rows = np.arange(len(ids), dtype=np.int32)
    machine.step(Batch(np.array(ids, np.int32), np.zeros_like(rows), rows, rows[-1:]), table)
    return machine.read_boundary(len(ids))[0]


def choice(logits: np.ndarray) -> int:
    """The greedy choice with the bias of FEW."""
    return int((logits + np.where(np.arange(len(logits)) < 4, 8.0, 0.0)).argmax())


def expected_drafts(folder: Path, ids: list[int], hidden: np.ndarray, length: int, n: int) -> list[int]:
    """What the twin drafts behind the first `length` of `ids`."""
    following, states, drafted = list(ids[1:length]), hidden[: length - 1], list[int]()
    for _ in range(n):
        logits, out = twin(folder, following, states)
        drafted.append(choice(logits[-1]))
        following, states = [*following, drafted[-1]], np.concatenate([states, out[-1:]])
    return drafted


@pytest.mark.parametrize("device", ["reference", "cpu"])
@pytest.mark.parametrize("n", [1, 3])
def test_as_many_are_accepted_as_the_twin_says(conformance, tmp_path, device, n):
    folder = with_mtp(conformance("qwen3.5"), tmp_path / "model")
    drafted = accepted = 0
    for prompt in PROMPTS:
        with kukri.load(folder, device=device, speculate="off") as plain:
            answer = list(plain.engine.submit(prompt, params()))
        with kukri.load(folder, device=device, speculate="mtp") as model:
            always_draft(model, n)
            assert list(model.engine.submit(prompt, params())) == answer
            stats = model.stats
        ids = [*prompt, *answer]
        hidden, length, counts = hidden_states(folder, ids), len(prompt) + 1, [0, 0]
        seen = length - 1  # ids that the recurrent state has seen
        while length < len(ids):
            most = min(n, len(ids) - length - 1) if length - seen <= MOST_AGAIN else 0
            drafts = expected_drafts(folder, ids, hidden, length, most)
            right = next((i for i, d in enumerate(drafts) if d != ids[length + i]), len(drafts))
            counts = [counts[0] + len(drafts), counts[1] + right]
            seen = length + right if right == len(drafts) else seen
            length += 1 + right
        drafted, accepted = drafted + counts[0], accepted + counts[1]
        assert (stats.drafted_by_kind.get("mtp", 0), stats.accepted_by_kind.get("mtp", 0)) == tuple(counts)
    assert 0 < accepted < drafted


@pytest.mark.parametrize("device", ["reference", "cpu"])
@pytest.mark.parametrize("name", ["deepseek-v3", "qwen3-next"])
def test_the_ids_are_those_without(conformance, tmp_path, name, device):
    folder = with_mtp(conformance(name), tmp_path / "model")
    kinds = [params(), params(temperature=1.1, seed=3)]
    with kukri.load(folder, device=device, speculate="off", parallel=2) as plain:
        expected = [list(plain.engine.submit(ids, kind)) for ids in PROMPTS for kind in kinds]
    with kukri.load(folder, device=device, speculate="mtp", parallel=2) as model:
        always_draft(model, 3)
        generations = [model.engine.submit(ids, kind) for ids in PROMPTS for kind in kinds]
        assert [list(generation) for generation in generations] == expected
        accepted = sum(generation.stats.accepted_tokens for generation in generations)
        assert 0 < accepted < sum(generation.stats.drafted_tokens for generation in generations)
        again = [*PROMPTS[1], *expected[2]]  # a conversation that goes on
        assert list(model.engine.submit(again, kinds[0])) == list(
            plain_answer(folder, device, again, kinds[0])
        )


def plain_answer(folder: Path, device: str, ids: list[int], kind: kukri.SamplingParams) -> list[int]:
    with kukri.load(folder, device=device, speculate="off") as plain:
        return list(plain.engine.submit(ids, kind))


def test_a_model_without_such_a_layer(conformance):
    with pytest.raises(kukri.UnsupportedModel, match="multi-token prediction"):
        kukri.load(conformance("qwen3.5"), device="cpu", speculate="mtp")
    with pytest.raises(kukri.UnsupportedModel, match="not complete"):
        kukri.load(conformance("glm4-moe"), device="reference", speculate="mtp")
    with pytest.raises(ValueError, match="one device"):
        kukri.load(conformance("qwen3.5"), device="cuda", speculate="mtp", gpu_layers=2)
