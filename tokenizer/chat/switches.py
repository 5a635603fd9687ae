"""What a chat template can be told about thinking, by the variables that it reads."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from .template import TemplateError

# Variables by which templates turn thinking on and off, and their values for that.
SWITCHES: dict[str, tuple[object, object]] = {
    "enable_thinking": (True, False),  # Qwen3, GLM, Gemma 4, SmolLM3, EXAONE, Hunyuan
    "thinking": (True, False),  # Granite, DeepSeek V3.1
    "enable_reasoning": (True, False),
    "reasoning": (True, False),  # Command A
}
EFFORT = "reasoning_effort"  # low, medium or high in gpt-oss; none or high in others
BUDGET = "thinking_budget"  # tokens, 0 for no thinking: Seed-OSS
_NONE = ("'none'", '"none"')


def thinking_variables(template: str, wanted: bool) -> dict[str, Any] | None:
    """The variables by which `template` turns thinking on or off; None if it has no switch for that.

    An empty dict: nothing need be said. Raises TemplateError for a template that cannot be read.
    """
    read = variables_of(template)
    found: dict[str, Any] = {
        name: on if wanted else off for name, (on, off) in SWITCHES.items() if name in read
    }
    if EFFORT in read and not wanted and any(none in template for none in _NONE):
        found[EFFORT] = "none"
    elif EFFORT in read and wanted and not found:
        return {}  # thinking is always on there
    if BUDGET in read and not wanted:
        found[BUDGET] = 0
    elif BUDGET in read and not found:
        return {}
    return found or None


@lru_cache(maxsize=16)
def variables_of(template: str) -> frozenset[str]:
    """The variables that a template reads before it has set them itself."""
    from jinja2 import Environment, meta
    from jinja2 import TemplateError as JinjaError
    from jinja2.ext import loopcontrols

    from .sandbox import MAX_TEMPLATE, GenerationTag

    if len(template) > MAX_TEMPLATE:
        raise TemplateError(
            f"chat template: {len(template)} characters long; at most {MAX_TEMPLATE} are read"
        )
    environment = Environment(extensions=[loopcontrols, GenerationTag])  # noqa: S701 - nothing is rendered
    try:
        return frozenset(meta.find_undeclared_variables(environment.parse(template)))
    except (JinjaError, RecursionError, MemoryError) as problem:
        raise TemplateError(
            f"chat template: {(str(problem) or 'nested too deeply').splitlines()[0]:.500}"
        ) from None
