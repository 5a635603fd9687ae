"""The flags of the disk caches of prompts and of answers."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from ..console.options import flag
from ..console.terminal import remark

if TYPE_CHECKING:
    from ...runtime.model.model import Model
    from ...runtime.response_cache.cache import ResponseCache

PROMPT_CACHE_SIZE = 2048  # MB
CACHE_SIZE = 1024  # MB


@dataclass(frozen=True)
class AnswerCacheOptions:
    """The flags of the cache of answers."""

    cache: Annotated[
        Path | None,
        flag(
            "--cache",
            metavar="DIR",
            help="Keep answers in this folder, and take those from it that would be the same again.",
        ),
    ] = None
    cache_size: Annotated[
        int,
        flag(
            "--cache-size",
            metavar="MB",
            min=1,
            help=f"Space for answers; those used longest ago go first; default: {CACHE_SIZE}.",
        ),
    ] = CACHE_SIZE

    def open_cache(self) -> ResponseCache | None:
        """The cache of answers, if the flags want one. Raises DamagedFile and OSError."""
        if self.cache is None:
            return None
        from ...runtime.response_cache.cache import ResponseCache

        return ResponseCache(self.cache, self.cache_size << 20, lambda line: remark(f"({line})"))


@dataclass(frozen=True)
class CachingOptions(AnswerCacheOptions):
    """One field for each flag."""

    prompt_cache: Annotated[
        bool,
        flag("--prompt-cache", help="Keep beginnings of long prompts on disk, and start from them."),
    ] = False
    prompt_cache_size: Annotated[
        int,
        flag(
            "--prompt-cache-size",
            metavar="MB",
            min=1,
            help=f"Space for them; the oldest go first; default: {PROMPT_CACHE_SIZE}.",
        ),
    ] = PROMPT_CACHE_SIZE

    def begin_prompts(self, model: Model) -> None:
        """Let a model's prompts begin with what is on disk of them, if the flags want that."""
        if self.prompt_cache:
            from ...runtime.sessions.prompt_cache import PromptCache

            size = self.prompt_cache_size << 20
            PromptCache(model, size, lambda line: remark(f"({line})"))

    def keep_prompts(self, model: Model) -> None:
        """Keep the first prompt on disk, if the flags want that; when all is answered."""
        if self.prompt_cache:
            from ...runtime.sessions.prompt_cache import PromptCache

            source = model.engine.prompt_source
            if isinstance(source, PromptCache):
                source.keep()
