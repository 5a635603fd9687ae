"""The families of chat models that have a built-in template.

Written from the prompt formats that their publishers describe; `test_builtin.py` compares what these make of
plain conversations with what the published templates make of them.
"""

from __future__ import annotations

from .builtin import Family
from .prompt_forms import SYSTEM, Form, always, folded, given, or_else, turns
from .prompt_sources import (
    IM,
    IM_SYSTEM,
    THINKING_IS_OFF,
    chatml,
    cohere,
    deepseek,
    deepseek_v3_1,
    granite,
    harmony,
    llama_3,
    mistral,
    smollm3,
)

_CHATML = ("<|im_start|>", "<|im_end|>")
_DEEPSEEK = ("<\uff5cUser\uff5c>", "<\uff5cAssistant\uff5c>")
_GLM = ("[gMASK]", "<sop>", "<|user|>", "<|assistant|>")
_GRANITE = ("<|start_of_role|>", "<|end_of_role|>")
_LLAMA_3 = ("<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>")
_PHI = ("<|user|>", "<|assistant|>", "<|end|>")
_ZEPHYR = Form("<|$role|>\n", "$eos\n")
_PHI_3 = Form("<|$role|>\n", "<|end|>\n")
_PHI_4_MINI = Form("<|$role|>", "<|end|>")
_PHI_4 = Form("<|im_start|>$role<|im_sep|>", "<|im_end|>")
_HEADER = Form("<|start_header_id|>$role<|end_header_id|>\n\n", "<|eot_id|>", trim=True)
_TURN = Form("<|turn>$role\n", "<turn|>\n", trim=True)
_SEED = Form("<seed:bos>$role\n", "<seed:eos>")
_GLM_4 = Form("<|$role|>\n", "")
_EXAONE = Form("[|$role|]\n", "[|endofturn|]\n")
_ERNIE = "<|begin_of_sentence|>"

# Those with the most particular marks first.
FAMILIES = (
    Family("Zephyr", turns(_ZEPHYR, _ZEPHYR, "<|assistant|>\n", _ZEPHYR), named="zephyr|tinyllama"),
    Family(
        "Tulu",
        turns(
            Form("<|user|>\n", "\n"),
            Form("<|assistant|>\n", "$eos\n"),
            "<|assistant|>\n",
            Form("<|system|>\n", "\n"),
            begin="$bos",
        ),
        named="olmo2|tulu",
    ),
    Family(
        "DeepSeek R1",
        deepseek(
            "{{ '<\uff5cAssistant\uff5c><think>\\n' }}{% if "
            + THINKING_IS_OFF
            + " %}{{ '</think>' }}{% endif %}",
            thoughts=False,
        ),
        (*_DEEPSEEK, "<think>"),
        named="r1",
    ),
    Family("DeepSeek V3.1", deepseek_v3_1(), _DEEPSEEK, named=r"deepseek[- ]?v3\.[12]\S*", chat_only=True),
    Family("DeepSeek V3", deepseek("<\uff5cAssistant\uff5c>", thoughts=True), _DEEPSEEK, chat_only=True),
    Family(
        "Phi-4",
        turns(_PHI_4, _PHI_4, "<|im_start|>assistant<|im_sep|>", _PHI_4),
        (*_CHATML, "<|im_sep|>"),
        chat_only=True,
    ),
    Family(
        "LFM2",
        turns(IM, IM, "<|im_start|>assistant\n", IM, begin="$bos", opening=given(IM_SYSTEM)),
        (*_CHATML, "<|tool_list_start|>", "<|startoftext|>"),
        turn_end="<|im_end|>",
    ),
    Family(
        "SmolLM2",
        chatml("You are a helpful AI assistant named SmolLM, trained by Hugging Face"),
        _CHATML,
        named=r"smollm2\S*",
        turn_end="<|im_end|>",
    ),
    Family(
        "Qwen2.5",
        chatml("You are Qwen, created by Alibaba Cloud. You are a helpful assistant."),
        _CHATML,
        named=r"qwen-?2\.5\S*",
        turn_end="<|im_end|>",
    ),
    Family(
        "Qwen3",
        chatml(
            thoughts=False,
            prompt="{{ '<|im_start|>assistant\\n' }}{% if " + THINKING_IS_OFF + " %}"
            "{{ '<think>\\n\\n</think>\\n\\n' }}{% endif %}",
        ),
        (*_CHATML, "<think>"),
        named="qwen3(-moe|moe)?",
        turn_end="<|im_end|>",
    ),
    Family("SmolLM3", smollm3(), _CHATML, named=r"smollm-?3\S*", chat_only=True),
    Family("ChatML", chatml(), _CHATML, turn_end="<|im_end|>"),
    Family(
        "Llama 3.2",
        llama_3("strftime_now('%d %b %Y')"),
        _LLAMA_3,
        named=r"llama[- ]?3\.2\S*",
        turn_end="<|eot_id|>",
    ),
    Family(
        "Llama 3.1",
        llama_3("'26 Jul 2024'"),
        _LLAMA_3,
        named=r"llama[- ]?3\.[13]\S*",
        turn_end="<|eot_id|>",
    ),
    Family("Llama 3.1", llama_3("'26 Jul 2024'"), (*_LLAMA_3, "<|eom_id|>"), turn_end="<|eot_id|>"),
    Family(
        "Llama 3",
        turns(_HEADER, _HEADER, "<|start_header_id|>assistant<|end_header_id|>\n\n", _HEADER, begin="$bos"),
        _LLAMA_3,
        turn_end="<|eot_id|>",
    ),
    Family(
        "Gemma",
        folded(
            Form("<start_of_turn>user\n$first", "<end_of_turn>\n", trim=True),
            Form("<start_of_turn>model\n", "<end_of_turn>\n", trim=True),
            "<start_of_turn>model\n",
            begin="$bos",
        ),
        ("<start_of_turn>", "<end_of_turn>"),
        turn_end="<end_of_turn>",
    ),
    Family(
        "Gemma 4",
        turns(
            _TURN,
            Form("<|turn>model\n", "<turn|>\n", trim=True),
            "{{ '<|turn>model\\n' + ('' if enable_thinking else '<|channel>thought\\n<channel|>') }}",
            _TURN,
            begin="$bos",
            opening="{% if enable_thinking or system is defined %}{{ '<|turn>system\\n' + "
            f"('<|think|>\\n' if enable_thinking else '') + ({SYSTEM} | trim) + '<turn|>\\n' }}}}"
            "{% endif %}",
        ),
        ("<|turn>", "<turn|>"),
        turn_end="<turn|>",
    ),
    Family(
        "Mistral v7",
        turns(
            Form("[INST]", "[/INST]"),
            Form("", "$eos"),
            "",
            Form("[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]"),
            begin="$bos",
        ),
        ("[INST]", "[SYSTEM_PROMPT]", "<SPECIAL_30>"),
    ),
    Family("Mistral v3, Tekken", mistral(""), ("[INST]", "[TOOL_CALLS]", "<SPECIAL_30>")),
    Family("Mistral v3", mistral(" "), ("[INST]", "[TOOL_CALLS]")),
    Family(
        "Mistral v1",
        folded(Form(" [INST] $first", " [/INST]"), Form(" ", "$eos"), "", begin="$bos"),
        named=r"mi[sx]tral[\w. -]*instruct\S*",
    ),
    Family(
        "Llama 2",
        turns(
            Form("$bos[INST] $first", " [/INST]"),
            Form(" ", " $eos"),
            "",
            opening="{% set folded = '<<SYS>>\\n' + system + '\\n<</SYS>>\\n\\n' "
            "if system is defined else '' %}",
        ),
        named=r"llama[- ]?2[\w. -]*chat\S*|codellama[\w. -]*instruct\S*",
    ),
    Family(
        "Phi-4 mini",
        turns(_PHI_4_MINI, _PHI_4_MINI, "<|assistant|>", _PHI_4_MINI),
        (*_PHI, "<|/tool_call|>"),
        chat_only=True,
    ),
    Family(
        "Phi-3",
        turns(_PHI_3, _PHI_3, "<|assistant|>\n", opening=given(Form("<|system|>\n", "<|end|>\n"))),
        (*_PHI, "<|system|>"),
        chat_only=True,
    ),
    Family("gpt-oss", harmony(), ("<|start|>", "<|message|>", "<|channel|>", "<|end|>"), chat_only=True),
    Family(
        "Command R7B",
        cohere("<|START_RESPONSE|>", "<|END_RESPONSE|>"),
        ("<|START_OF_TURN_TOKEN|>", "<|START_RESPONSE|>"),
        chat_only=True,
    ),
    Family("Command R", cohere("", ""), ("<|START_OF_TURN_TOKEN|>", "<|END_OF_TURN_TOKEN|>"), chat_only=True),
    Family(
        "GLM-4.5",
        turns(
            Form("<|user|>\n", "{off}"),
            Form("<|assistant|>\n<think></think>\n", "", trim=True, thoughts=False),
            "{{ '<|assistant|>' }}{% if " + THINKING_IS_OFF + " %}{{ '\\n<think></think>' }}{% endif %}",
            _GLM_4,
            begin="[gMASK]<sop>",
        ).replace('"{off}"', f"('/nothink' if {THINKING_IS_OFF} else '')"),
        (*_GLM, "<think>"),
        chat_only=True,
    ),
    Family("GLM-4", turns(_GLM_4, _GLM_4, "<|assistant|>", _GLM_4, begin="[gMASK]<sop>"), _GLM),
    Family(
        "Granite 4",
        granite(
            "system if system else "
            "'You are a helpful assistant. Please ensure responses are professional, accurate, and safe.'"
        ),
        _GRANITE,
        named=r"granite-?4\S*|granite-4\S*|granite[- ]4\S*|granitehybrid|granitemoehybrid",
        chat_only=True,
    ),
    Family(
        "Granite 3",
        granite(
            or_else(
                "'Knowledge Cutoff Date: April 2024. Today\\'s Date: ' + strftime_now('%B %d, %Y') + "
                "'. You are Granite, developed by IBM. You are a helpful AI assistant.'"
            )
        ),
        _GRANITE,
    ),
    Family(
        "Seed-OSS",
        turns(_SEED, Form(_SEED.before, _SEED.after, trim=True), "<seed:bos>assistant\n", _SEED),
        ("<seed:bos>", "<seed:eos>"),
    ),
    Family(
        "MiniMax-M2",
        turns(
            Form("]~b]user\n", "[e~[\n"),
            Form("]~b]ai\n", "[e~[\n", thoughts=False),
            "]~b]ai\n<think>\n",
            begin="]~!b[",
            opening=always(
                Form("]~b]system\n", "[e~[\n"), "system if system else 'You are a helpful assistant.'"
            ),
        ),
        ("]~!b[", "]~b]", "[e~["),
        chat_only=True,
    ),
    Family(
        "Kimi K2",
        turns(
            Form("<|im_user|>user<|im_middle|>", "<|im_end|>"),
            Form("<|im_assistant|>assistant<|im_middle|>", "<|im_end|>"),
            "<|im_assistant|>assistant<|im_middle|>",
            Form("<|im_system|>system<|im_middle|>", "<|im_end|>"),
            opening=always(
                Form("<|im_system|>system<|im_middle|>", "<|im_end|>"),
                or_else("'You are Kimi, an AI assistant created by Moonshot AI.'"),
            )
            + "{{ '' if system is defined else '\\n' }}",
        ),
        ("<|im_user|>", "<|im_assistant|>", "<|im_middle|>"),
        turn_end="<|im_end|>",
    ),
    Family(
        "Hunyuan",
        turns(
            Form("<\uff5chy_User\uff5c>", ""),
            Form("<\uff5chy_Assistant\uff5c>", "<\uff5chy_place\u2581holder\u2581no\u25812\uff5c>"),
            "<\uff5chy_Assistant\uff5c>",
            begin="$bos",
            opening=given(Form("", "<\uff5chy_place\u2581holder\u2581no\u25813\uff5c>")),
        ),
        ("<\uff5chy_User\uff5c>", "<\uff5chy_Assistant\uff5c>"),
    ),
    Family(
        "EXAONE 4",
        turns(
            _EXAONE,
            Form("[|assistant|]\n", "[|endofturn|]\n", thoughts=False),
            "{{ '[|assistant|]\\n<think>\\n' + ('' if enable_thinking else '\\n</think>\\n\\n') }}",
            _EXAONE,
        ),
        ("[|user|]", "[|assistant|]", "[|endofturn|]"),
        named="exaone4",
        turn_end="[|endofturn|]",
    ),
    Family(
        "ERNIE 4.5",
        turns(
            Form("User: ", "\n"),
            Form("Assistant: ", "<|end_of_sentence|>"),
            "Assistant: ",
            Form("", "\n"),
            begin=_ERNIE,
        ),
        (_ERNIE, "<|end_of_sentence|>"),
        named=r"ernie-?4[-.]5\S*",
        chat_only=True,
    ),
)
