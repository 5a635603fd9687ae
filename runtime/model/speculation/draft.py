"""The draft model that a model is loaded with: a second, smaller model of the same process."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from ...engine.speculation.draft_model import DraftModel
from ...engine.split import weight_bytes
from ...ops import Program
from ...program.build import build_program
from ...weights.binding import Weights
from ..model import Model
from ..placing import Placing
from ..source import Source, open_source
from .translation import TokenTranslation


def open_draft(target: Placing) -> Placing | None:
    """The draft model that the options of `target` name, ready to be placed; None if they do without it.

    Errors are those of `load_model`, and ValueError for a draft model that cannot draft for `target`.
    """
    options = target.options
    if options.draft is None or options.speculate not in ("auto", "draft"):
        return None
    source = open_source(Path(options.draft), target.source.tokenizer is not None)
    check_tokenizers(source, target.source)
    program = build_program(source.config, Weights(source.config, source.tensors))
    first = options.devices[:1] if options.devices else None
    return replace(
        target,
        source=source,
        program=program,
        options=replace(options, speculate="off", draft=None, gpu_layers=None, cpu_moe=0, devices=first),
        context=min(target.context, source.config.max_context or target.context),
        max_sequences=target.sequences,
    )


def check_tokenizers(draft: Source, target: Source) -> None:
    """Raise ValueError if it is not known how to turn a draft model's ids into the model's."""
    known = draft.tokenizer is not None and target.tokenizer is not None
    sizes = [source.config.vocab_size for source in (draft, target)]
    if not known and sizes[0] != sizes[1]:
        raise ValueError(
            f"{draft.name} has {sizes[0]} token ids, {target.name} has {sizes[1]}, and without tokenizers "
            "they cannot be compared"
        )


def same_tokens(draft: Source, target: Source) -> bool:
    """Whether the ids that both vocabularies have stand for the same bytes, special tokens aside."""
    a, b = draft.tokenizer, target.tokenizer
    assert a is not None
    assert b is not None
    n = min(a.vocab_size, b.vocab_size)
    special = {*a.special_tokens.values(), *b.special_tokens.values()}
    return all(a.token_bytes(i) == b.token_bytes(i) or i in special for i in range(n))


def load_draft(placing: Placing, target: Source, program: Program) -> tuple[Model, DraftModel]:
    """The draft model, loaded, and what drafts with it for the model `target`, which runs `program`."""
    model = placing.place()
    sources: tuple[Source, ...] = (placing.source, target)
    translation = None
    own, others = placing.source.tokenizer, target.tokenizer
    if own is not None and others is not None and not same_tokens(placing.source, target):
        n_ids = min(target.config.vocab_size, others.vocab_size)
        translation = TokenTranslation(others, own, n_ids, own.prefix_ids)
        sources = (placing.source,)
    sizes = [source.config.vocab_size for source in sources]
    sizes += [source.tokenizer.vocab_size for source in sources if source.tokenizer]
    engine = model.engine
    drafter = DraftModel(
        engine.machine,
        engine.table,
        context=engine.context,
        n_tokens=min(sizes),
        chunk=engine.prefill_chunk,
        states=engine.machine.states,
        translation=translation,
        relative_cost=weight_bytes(placing.program) / max(1, weight_bytes(program)),
    )
    return model, drafter
