"""Chat templates that take more than a list of forms, after what their publishers say about the formats."""

from __future__ import annotations

from .prompt_forms import (
    FOLD,
    NO_SUCH_ROLE,
    SYSTEM,
    TAKE_SYSTEM,
    Form,
    always,
    given,
    one_message,
    or_else,
    turns,
    written,
)

IM = Form("<|im_start|>$role\n", "<|im_end|>\n")
IM_SYSTEM = Form("<|im_start|>system\n", "<|im_end|>\n")
THINKING_IS_OFF = "enable_thinking is defined and not enable_thinking"


def chatml(system: str = "", prompt: str = "<|im_start|>assistant\n", thoughts: bool = True) -> str:
    answer = Form(IM.before, IM.after, thoughts=thoughts)
    opening = always(IM_SYSTEM, or_else(f"'{system}'")) if system else None
    return turns(IM, answer, prompt, IM, opening=opening)


def llama_3(date: str) -> str:
    """Llama 3 from 3.1 on: the system message always begins with dates."""
    form = Form("<|start_header_id|>$role<|end_header_id|>\n\n", "<|eot_id|>", trim=True)
    dates = "'Cutting Knowledge Date: December 2023\\nToday Date: ' + " + date + " + '\\n\\n'"
    opening = always(
        Form("<|start_header_id|>system<|end_header_id|>\n\n", "<|eot_id|>"), f"{dates} + ({SYSTEM} | trim)"
    )
    prompt = "<|start_header_id|>assistant<|end_header_id|>\n\n"
    return turns(form, form, prompt, form, begin="$bos", opening=opening)


def granite(system: str) -> str:
    form = Form("<|start_of_role|>$role<|end_of_role|>", "<|end_of_text|>\n")
    opening = always(Form("<|start_of_role|>system<|end_of_role|>", form.after), system)
    return turns(form, form, "<|start_of_role|>assistant<|end_of_role|>", form, opening=opening)


def deepseek(prompt: str, thoughts: bool) -> str:
    answer = Form("<\uff5cAssistant\uff5c>", "<\uff5cend\u2581of\u2581sentence\uff5c>", thoughts=thoughts)
    opening = f"{{{{ {SYSTEM} }}}}"
    return turns(Form("<\uff5cUser\uff5c>", ""), answer, prompt, begin="$bos", opening=opening)


def deepseek_v3_1() -> str:
    """DeepSeek V3.1: answers begin with thoughts, which are empty unless it is told to think."""
    assistant, nothing = "<\uff5cAssistant\uff5c>", "<think></think>"
    answer = Form(assistant + nothing, "<\uff5cend\u2581of\u2581sentence\uff5c>", thoughts=False)
    thinking = "(thinking if thinking is defined else enable_thinking | default(false))"
    prompt = f"{{{{ '{assistant}' + ('<think>' if {thinking} else '{nothing}') }}}}"
    opening = f"{{{{ {SYSTEM} }}}}"
    return turns(Form("<\uff5cUser\uff5c>", ""), answer, prompt, begin="$bos", opening=opening)


def smollm3() -> str:
    """SmolLM3: the system message says whether it thinks, and instructs it itself if nobody does."""
    who = "You are a helpful AI assistant named SmolLM, trained by Hugging Face."
    how = (
        "Your role as an assistant involves thoroughly exploring questions through a systematic "
        "thinking process before providing the final precise and accurate solutions. This requires "
        "engaging in a comprehensive cycle of analysis, summarizing, exploration, reassessment, "
        "reflection, backtracking, and iteration to develop well-considered thinking process. Please "
        "structure your response into two main sections: Thought and Solution using the specified "
        "format: <think> Thought section </think> Solution section. In the Thought section, detail "
        "your reasoning process in steps. Each step should include detailed considerations such as "
        "analysing questions, summarizing relevant findings, brainstorming new ideas, verifying the "
        "accuracy of the current steps, refining any errors, and revisiting previous steps. In the "
        "Solution section, based on various attempts, explorations, and reflections from the Thought "
        "section, systematically present the final solution that you deem correct. The Solution "
        "section should be logical, accurate, and concise and detail necessary steps needed to reach "
        "the conclusion."
    )
    opening = (
        f"{{% set mode = '/no_think' if {THINKING_IS_OFF} else '/think' %}}"
        "{% if system is defined %}{% if '/no_think' in system %}{% set mode = '/no_think' %}"
        "{% elif '/think' in system %}{% set mode = '/think' %}{% endif %}"
        "{% set own = system.replace('/no_think', '').replace('/think', '').rstrip() %}{% endif %}"
        "{% if mode == '/no_think' %}{% set unthought = '<think>\n\n</think>\n' %}{% endif %}"
    ) + always(
        Form("<|im_start|>system\n## Metadata\n\nKnowledge Cutoff Date: June 2025\n", "\n\n<|im_end|>\n"),
        "'Reasoning Mode: ' + mode + '\n\n## Custom Instructions\n\n' + "
        f"(own or ('{who} {how}' if mode == '/think' else '{who}'))",
    )
    answer = Form("<|im_start|>assistant\n$unthought", IM.after, first_lines=False)
    prompt = written("<|im_start|>assistant\n$unthought")
    return turns(IM, answer, prompt, opening=opening)


def cohere(before: str, after: str) -> str:
    start, end = "<|START_OF_TURN_TOKEN|>", "<|END_OF_TURN_TOKEN|>"
    return turns(
        Form(f"{start}<|USER_TOKEN|>", end, trim=True),
        Form(f"{start}<|CHATBOT_TOKEN|>{before}", f"{after}{end}", trim=True),
        f"{start}<|CHATBOT_TOKEN|>",
        Form(f"{start}<|SYSTEM_TOKEN|>", end, trim=True),
        begin="$bos",
    )


def harmony() -> str:
    system = (
        "'You are ChatGPT, a large language model trained by OpenAI.\\nKnowledge cutoff: 2024-06\\n"
        "Current date: ' + strftime_now('%Y-%m-%d') + '\\n\\nReasoning: ' + "
        "(reasoning_effort | default('medium')) + '\\n\\n# Valid channels: analysis, commentary, final. "
        "Channel must be included for every message.'"
    )
    instructions = Form("<|start|>developer<|message|># Instructions\n\n", "\n\n<|end|>")
    opening = always(Form("<|start|>system<|message|>", "<|end|>"), system) + given(instructions)
    return turns(
        Form("<|start|>user<|message|>", "<|end|>"),
        Form("<|start|>assistant<|channel|>final<|message|>", "<|end|>"),
        "<|start|>assistant",
        opening=opening,
    )


def mistral(space: str) -> str:
    """Mistral's third format, with tools; `space` is what follows control tokens in it.

    The system message and the tools stand before the last user message.
    Source: mistral-common's documentation of prompt formats.
    """
    user = Form(f"[INST]{space}$last", "[/INST]")
    return (
        TAKE_SYSTEM
        + FOLD
        + "{{ bos_token }}"
        + "{% set users = messages | selectattr('role', 'equalto', 'user') | list %}"
        + "{% for message in messages %}{% if message.role == 'user' %}"
        + "{% if tools and message == users[-1] %}"
        + f"{{{{ '[AVAILABLE_TOOLS]{space}' + (tools | tojson) + '[/AVAILABLE_TOOLS]' }}}}"
        + "{% endif %}"
        + one_message(user)
        + "{% elif message.role == 'assistant' and message.tool_calls %}"
        + f"{{{{ '[TOOL_CALLS]{space}[' }}}}"
        + "{% for call in message.tool_calls %}{% set made = call.function if call.function else call %}"
        + "{{ '{\"name\": ' + (made.name | tojson) + ', \"arguments\": ' + (made.arguments | tojson) }}"
        + "{% if call.id is defined %}{{ ', \"id\": ' + (call.id | tojson) }}{% endif %}"
        + "{{ '}' if loop.last else '}, ' }}{% endfor %}"
        + "{{ ']' + eos_token }}"
        + "{% elif message.role == 'assistant' %}"
        + one_message(Form(space, "$eos"))
        + "{% elif message.role == 'tool' %}"
        + f"{{{{ '[TOOL_RESULTS]{space}{{\"content\": ' + (message.content | string) }}}}"
        + "{% if message.tool_call_id is defined %}{{ ', \"call_id\": ' + (message.tool_call_id | tojson) }}"
        + "{% endif %}{{ '}[/TOOL_RESULTS]' }}"
        + "{% else %}"
        + NO_SUCH_ROLE
        + "{% endif %}{% endfor %}"
    )
