"""Parameters of OpenAI's API, and of servers that speak it, which are refused since they change answers."""

from __future__ import annotations

from typing import Any

# name → the values that change nothing
REFUSED: dict[str, tuple[Any, ...]] = {
    "audio": (),
    "modalities": (["text"],),
    "functions": ([],),
    "function_call": ("none",),
    "web_search_options": (),
    "verbosity": ("medium",),
    "best_of": (1,),
    "use_beam_search": (False,),
    "length_penalty": (1, 1.0),
    "min_tokens": (0,),
    "bad_words": ([],),
    "allowed_token_ids": (),
    "guided_json": (),
    "guided_regex": (),
    "guided_choice": (),
    "guided_grammar": (),
    "structured_outputs": (),
    "grammar": ("",),
    "json_schema": (),
    "chat_template": (),
    "truncate_prompt_tokens": (),
    "lora": ([],),
    "image_data": ([],),
    "mm_processor_kwargs": (),
    "documents": ([],),
    "n_probs": (0,),
}
