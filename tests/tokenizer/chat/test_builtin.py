"""Built-in chat templates: who gets which, and that they write what the published ones write."""

from __future__ import annotations

import json
import lzma
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

from kukri.tokenizer import TemplateError, Tokenizer, encode_chat, render_chat, tokenizer_from_gguf
from kukri.tokenizer.chat.builtin import builtin_template
from kukri.tokenizer.chat.families import FAMILIES

DATA = Path(__file__).parents[2] / "data" / "chat_templates"
CASES: dict[str, Any] = json.loads(lzma.decompress((DATA / "cases.json.xz").read_bytes()))
CONVERSATIONS: dict[str, Any] = json.loads((DATA / "conversations.json").read_text())
PLAIN = ("user_only", "system_user", "multi_turn", "unicode_whitespace", "template_like", "empty_content")
PUBLISHED = {
    "ChatML": "openhermes-chatml",
    "SmolLM2": "smollm2-135m-instruct",
    "Qwen2.5": "qwen2.5-coder-0.5b-instruct",
    "Qwen3": "qwen3-0.6b",
    "LFM2": "lfm2-8b-a1b",
    "Llama 3": "llama-3-instruct",
    "Llama 3.1": "llama-3.1-8b-instruct",
    "Llama 3.2": "llama-3.2-3b-instruct",
    "Gemma": "gemma-3-it",
    "Gemma 4": "gemma-4-31b-it",
    "Mistral v1": "mistral-7b-instruct-v1",
    "Mistral v3, Tekken": "mistral-nemo-2407",
    "Mistral v7": "mistral-small-3.2",
    "Phi-3": "phi-3.5-mini-instruct",
    "Phi-4": "phi-4",
    "gpt-oss": "gpt-oss-120b",
    "GLM-4.5": "glm-4.6",
    "Granite 3": "granite-3.3-2b-instruct",
    "Granite 4": "granite-4.0",
    "Seed-OSS": "seed-oss",
    "MiniMax-M2": "minimax-m2",
    "Kimi K2": "kimi-k2-instruct",
    "DeepSeek V3": "deepseek-v3",
    "DeepSeek V3.1": "deepseek-v3.1",
    "SmolLM3": "smollm3-3b",
    "DeepSeek R1": "deepseek-r1-distill-qwen-32b",
}
SWITCHES = ("enable_thinking", "reasoning_effort")
# What the published template does beyond the format, by family: the cases that are left out.
OWN_WAYS: dict[str, Callable[[str, dict[str, Any]], bool]] = {
    "Mistral v7": lambda name, _: name in ("user_only", "unicode_whitespace"),  # a long system message
    "DeepSeek R1": lambda _, kwargs: "enable_thinking" not in kwargs,  # that file thinks only if asked to
}
NO_PROMPT_ONLY = ("Llama 3", "Phi-3", "Phi-4")  # always prompt, or write an end token where they do not


def template_of(family: str) -> str:
    return next(f.template for f in FAMILIES if f.name == family)


def rendered(family: str, case: dict[str, Any], spec: dict[str, Any]) -> str:
    conversation = CONVERSATIONS[case["conversation"]]
    return render_chat(
        template_of(family),
        conversation["messages"],
        conversation.get("tools"),
        now=spec["now"],
        bos_token=spec["bos_token"],
        eos_token=spec["eos_token"],
        **case["kwargs"],
    )


@pytest.mark.parametrize("family", PUBLISHED)
def test_plain_conversations_are_as_published(family: str) -> None:
    spec = CASES[PUBLISHED[family]]
    own_ways = OWN_WAYS.get(family, lambda name, kwargs: False)
    compared = 0
    for case in spec["cases"]:
        name, kwargs = case["conversation"], case["kwargs"]
        switches = set(kwargs) - {"add_generation_prompt"}
        if name not in PLAIN or "expected" not in case or switches - set(SWITCHES) or own_ways(name, kwargs):
            continue
        if kwargs["add_generation_prompt"] or family not in NO_PROMPT_ONLY:
            assert rendered(family, case, spec) == case["expected"], (name, kwargs)
            compared += 1
    assert compared >= 5


def test_tools_of_mistral_are_as_published() -> None:
    spec = CASES["mistral-nemo-2407"]
    cases = [c for c in spec["cases"] if "tool" in c["conversation"] and "expected" in c]
    cases = [
        c for c in cases if c["conversation"] != "tool_args_string"
    ]  # which encode_chat turns into objects
    assert len(cases) >= 8
    for case in cases:
        assert rendered("Mistral v3, Tekken", case, spec) == case["expected"]


@pytest.mark.parametrize(
    "family", [family for family in FAMILIES if not family.name.startswith("Mistral v3")]
)
def test_tools_and_strange_roles_are_refused_not_lost(family: Any) -> None:
    hi = [{"role": "user", "content": "hi"}]
    with pytest.raises(TemplateError, match="takes no tools") as caught:
        render_chat(family.template, hi, [{"type": "function"}], bos_token="", eos_token="")
    assert caught.value.raised
    with pytest.raises(TemplateError, match="no place for the role ghost"):
        render_chat(family.template, [*hi, {"role": "ghost", "content": "boo"}], bos_token="", eos_token="")


def test_thoughts_of_earlier_turns_are_left_out() -> None:
    messages = [
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": "<think>\nhm\n</think>\n\nb\n"},
        {"role": "user", "content": "c"},
    ]
    text = render_chat(template_of("Qwen3"), messages)
    assert "hm" not in text
    assert "<|im_start|>assistant\nb\n<|im_end|>" in text
    assert "hm" in render_chat(template_of("ChatML"), messages)


# ---- who gets which

Make = Callable[..., Tokenizer]


@pytest.fixture
def with_tokens(load_small: Callable[[], Tokenizer], small: dict[str, Any]) -> Make:
    """A small tokenizer that has these tokens besides."""

    def make(tokens: Iterable[str]) -> Tokenizer:
        first = len(small["model"]["vocab"])
        small["added_tokens"] = [
            {"id": first + i, "content": content, "special": i % 2 == 0} for i, content in enumerate(tokens)
        ]
        return load_small()

    return make


def chosen(tokenizer: Tokenizer, *names: str, end: str | None = None) -> str | None:
    ends = [] if end is None else tokenizer.encode(end, special=True)
    family = builtin_template(tokenizer, names, ends)
    return family and family.name


IM = ("<|im_start|>", "<|im_end|>", "<|endoftext|>")
LLAMA = ("<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>", "<|end_of_text|>")
GEMMA = ("<start_of_turn>", "<end_of_turn>", "<eos>")
DEEPSEEK = ("<\uff5cUser\uff5c>", "<\uff5cAssistant\uff5c>")
INST = ("[INST]", "[/INST]", "[TOOL_CALLS]")
PHI = ("<|user|>", "<|assistant|>", "<|end|>", "<|system|>")
GLM = ("[gMASK]", "<sop>", "<|user|>", "<|assistant|>", "<|system|>")
GRANITE = ("<|start_of_role|>", "<|end_of_role|>", "<|end_of_text|>")


@pytest.mark.parametrize(
    ("tokens", "names", "end", "family"),
    [
        (IM, ["Qwen2.5 0.5B Instruct", "qwen2"], None, "Qwen2.5"),
        (IM, ["Qwen2.5-0.5B", "qwen2"], "<|endoftext|>", None),
        (IM, ["Qwen2.5-0.5B", "qwen2"], "<|im_end|>", "Qwen2.5"),
        (IM, ["Smollm2 135M 8k Lc100K Mix1 Ep2", "llama"], "<|im_end|>", "SmolLM2"),
        (IM, ["SmolLM2-135M", "llama"], "<|endoftext|>", None),
        (IM, ["OpenHermes 2.5 Mistral 7B", "llama"], None, "ChatML"),
        (IM, ["yi-base", "llama"], "<|im_end|>", None),
        (IM, ["something", "llama"], None, None),
        (IM, ["stablelm-2-zephyr-1_6b", "stablelm"], None, "Zephyr"),
        ((*IM, "<|im_sep|>"), ["phi-4", "phi3"], None, "Phi-4"),
        ((*IM, "<think>"), ["Qwen3-0.6B", "qwen3"], "<|im_end|>", "Qwen3"),
        ((*IM, "<think>"), ["Qwen3-0.6B-Base", "qwen3"], "<|im_end|>", None),
        ((*IM, "<think>", *DEEPSEEK), ["DeepSeek R1 Distill Qwen 1.5B", "qwen2"], None, "DeepSeek R1"),
        (DEEPSEEK, ["DeepSeek-V3-0324", "deepseek_v3"], None, "DeepSeek V3"),
        (DEEPSEEK, ["DeepSeek-V3.1-Terminus", "deepseek_v3"], None, "DeepSeek V3.1"),
        (IM, ["SmolLM3 3B", "smollm3"], "<|im_end|>", "SmolLM3"),
        (IM, ["SmolLM3-3B-Base", "smollm3"], "<|im_end|>", None),
        (DEEPSEEK, ["DeepSeek-V3-Base", "deepseek_v3"], None, None),
        (LLAMA, ["Meta-Llama-3-8B-Instruct", "llama"], None, "Llama 3"),
        (LLAMA, ["Meta-Llama-3-8B", "llama"], "<|end_of_text|>", None),
        (LLAMA, ["my-finetune", "llama"], "<|eot_id|>", "Llama 3"),
        (LLAMA, ["Llama-3.1-8B-Instruct", "llama"], None, "Llama 3.1"),
        (LLAMA, ["Llama 3.2 1B Instruct", "llama"], None, "Llama 3.2"),
        ((*LLAMA, "<|eom_id|>"), ["my-finetune", "llama"], "<|eot_id|>", "Llama 3.1"),
        (LLAMA, ["Llama-3.1-Tulu-3-8B", "llama"], None, "Tulu"),
        (GEMMA, ["gemma-3-1b-it", "gemma3"], "<eos>", "Gemma"),
        (GEMMA, ["gemma-3-1b-pt", "gemma3"], "<end_of_turn>", None),
        (GEMMA, ["Gemma 3 270m", "gemma3"], "<eos>", None),
        (INST, ["Mistral-7B-Instruct-v0.3", "mistral"], None, "Mistral v3"),
        (INST, ["Mistral-7B-v0.3", "mistral"], None, None),
        ((*INST, "<SPECIAL_30>"), ["Mistral-Nemo-Instruct-2407", "mistral"], None, "Mistral v3, Tekken"),
        (
            (*INST, "<SPECIAL_30>", "[SYSTEM_PROMPT]"),
            ["Mistral-Small-Instruct", "mistral"],
            None,
            "Mistral v7",
        ),
        ((), ["Mistral-7B-Instruct-v0.2", "mistral"], None, "Mistral v1"),
        ((), ["Mixtral 8x7B Instruct v0.1", "llama"], None, "Mistral v1"),
        ((), ["neural-chat-7b", "mistral"], None, None),
        ((), ["Llama-2-7b-chat-hf", "llama"], None, "Llama 2"),
        ((), ["Llama-2-7b-hf", "llama"], None, None),
        ((), ["TinyLlama-1.1B-Chat-v1.0", "llama"], None, "Zephyr"),
        ((), ["TinyLlama-1.1B-step-50K", "llama"], None, None),
        ((), ["OLMo-2-1124-7B-Instruct", "olmo2"], None, "Tulu"),
        ((), ["gpt2"], None, None),
        (PHI, ["Phi-3-mini-4k-instruct", "phi3"], None, "Phi-3"),
        ((*PHI, "<|/tool_call|>"), ["Phi-4-mini-instruct", "phi3"], None, "Phi-4 mini"),
        (GLM, ["glm-4-9b-chat", "glm4"], None, "GLM-4"),
        (GLM, ["glm-4-9b", "glm4"], None, None),
        ((*GLM, "<think>"), ["GLM-4.5-Air", "glm4_moe"], None, "GLM-4.5"),
        ((*GLM, "<think>"), ["GLM-4.5-Air-Base", "glm4_moe"], None, None),
        (GRANITE, ["granite-3.3-2b-instruct", "granite"], None, "Granite 3"),
        (GRANITE, ["granite-3.3-2b-base", "granite"], None, None),
        (GRANITE, ["Granite 4.0 Micro", "granite"], None, "Granite 4"),
        (("<|begin_of_sentence|>", "<|end_of_sentence|>"), ["ERNIE-4.5-0.3B-PT"], None, "ERNIE 4.5"),
        (("<|begin_of_sentence|>", "<|end_of_sentence|>"), ["ERNIE-4.5-0.3B-Base-PT"], None, None),
    ],
)
def test_the_family_of_a_model(
    with_tokens: Make, tokens: tuple[str, ...], names: list[str], end: str | None, family: str | None
) -> None:
    assert chosen(with_tokens(tokens), *names, end=end) == family


@pytest.mark.parametrize("family", [family for family in FAMILIES if family.tokens and not family.named])
def test_every_vocabulary_is_found(with_tokens: Make, family: Any) -> None:
    assert chosen(with_tokens(family.tokens), "an-instruct-model") == family.name


@pytest.mark.slow
@pytest.mark.parametrize(
    ("vocabulary", "family"),
    [
        ("gemma3", "Gemma"), ("qwen3", "ChatML"), ("llama3_1", "Llama 3"), ("deepseek_v3", "DeepSeek V3"),
        ("phi2", None), ("gpt_neox", None),
    ],
)  # fmt: skip
def test_published_vocabularies(
    tokenizer: Callable[[str], Tokenizer], vocabulary: str, family: str | None
) -> None:
    assert chosen(tokenizer(vocabulary), "some-instruct-model") == family
    assert chosen(tokenizer(vocabulary), "some-base-model") is None


@pytest.mark.parametrize("model", ["smollm2-135m-instruct", "qwen2.5-coder-0.5b-instruct"])
def test_ids_are_those_of_the_shipped_template(metadata: Callable[[str], dict[str, Any]], model: str) -> None:
    data = metadata(f"gguf/{model}")
    read = tokenizer_from_gguf(data)
    shipped = data.pop("tokenizer.chat_template")
    names = [data["general.name"], data["general.architecture"]]
    family = builtin_template(read, names, [read.eos_id or 0])
    assert family is not None
    assert family.template != shipped
    for name in PLAIN:
        messages = CONVERSATIONS[name]["messages"]
        assert encode_chat(read, family.template, messages) == encode_chat(read, shipped, messages)


def test_a_base_model_gets_none(metadata: Callable[[str], dict[str, Any]]) -> None:
    data = metadata("gguf/gemma-3-270m")
    read = tokenizer_from_gguf(data)
    names = [data["general.name"], data["general.basename"], "gemma3-270m", data["general.architecture"]]
    assert builtin_template(read, names, [read.eos_id or 0]) is None
