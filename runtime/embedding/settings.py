"""How a model's files want vectors to be made of its hidden states."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from .pooling import MODES
from .stages import Dense, Normalize, Stage


@dataclass(frozen=True)
class EmbeddingSettings:
    """Pooling, what is done to pooled vectors, and what is put in front of texts.

    - `pooling`: modes of `pooling.MODES`; the vectors of several are joined.
    - `stages`: applied to the pooled vectors in order.
    - `prompts`: texts by name, one of which is put in front of a text; `default_prompt` names the one that is
      put there if none is asked for.
    - `skip_prompt`: the prompt's tokens do not count in pooling.
    - `max_tokens`: of a text, with special tokens; None: as many as the context holds.
    - `lowercase`: texts are lowercased before they are encoded.
    """

    pooling: tuple[str, ...] = ("mean",)
    stages: tuple[Stage, ...] = (Normalize(),)
    prompts: Mapping[str, str] = field(default_factory=dict)
    default_prompt: str | None = None
    skip_prompt: bool = False
    max_tokens: int | None = None
    lowercase: bool = False

    @property
    def normalized(self) -> bool:
        """Whether the vectors have unit length."""
        return bool(self.stages) and isinstance(self.stages[-1], Normalize)

    def width(self, hidden: int) -> int:
        """The number of dimensions of a vector, where hidden states have `hidden`."""
        dense = [stage for stage in self.stages if isinstance(stage, Dense)]
        return len(dense[-1].weight) if dense else hidden * len(self.pooling)

    def changed(self, pooling: str | None, normalize: bool | None) -> EmbeddingSettings:
        """These settings with another pooling, or with or without scaling to unit length.

        Raises ValueError for an unknown pooling.
        """
        settings = self
        if pooling is not None:
            if pooling not in MODES:
                raise ValueError(f"unknown pooling {pooling!r}; there are {', '.join(MODES)}")
            settings = replace(settings, pooling=(pooling,))
        if normalize is not None and normalize != settings.normalized:
            stages = (*settings.stages, Normalize()) if normalize else settings.stages[:-1]
            settings = replace(settings, stages=stages)
        return settings

    def prompt(self, name: str | None) -> str:
        """The text of the prompt called `name`; of the default one, or "", without a name.

        Raises ValueError for a name that the model's files do not have.
        """
        if name is None:
            name = self.default_prompt
            return self.prompts.get(name, "") if name else ""
        if name not in self.prompts:
            known = f"it has {', '.join(self.prompts)}" if self.prompts else "it has none"
            raise ValueError(f"the model has no prompt {name!r}: {known}")
        return self.prompts[name]


def default_settings(causal: bool) -> EmbeddingSettings:
    """The settings of a model whose files have none, whose tokens see what is in front of them or all.

    The vector of the last token, or the mean of all tokens, scaled to unit length.
    """
    return EmbeddingSettings(pooling=("lasttoken",) if causal else ("mean",))
