"""`llm show`: architecture, size, formats and licence of a model."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

from ....quant.units import human_bytes
from ....runtime.hub.catalogue import Entry
from ....runtime.hub.errors import ModelNotFound
from ....runtime.hub.names import parse_name
from ....runtime.hub.resolve import find_local
from ...console import terminal
from ...console.options import TextOrJson, flag
from ...console.safe_text import as_json
from ...console.table import pairs
from ...settings.model import ModelArgument, ModelBeside, one_model
from ...settings.model import size as size_of

Facts = dict[str, Any]  # for -o json
Rows = list[tuple[str, str]]  # (label, value), for people


def show(
    model: ModelArgument = None,
    named: ModelBeside = None,
    output: Annotated[TextOrJson, flag("-o", "--output", help="What stdout gets.")] = TextOrJson.text,
    memory: Annotated[
        bool,
        flag("--memory", help="Weights at every quantisation, KV cache by context and type."),
    ] = False,
    training: Annotated[
        bool,
        flag("--training", help="Tokens, FLOPs and cost of training a model of its size: estimates."),
    ] = False,
) -> None:
    """Show a model's architecture, size, formats and licence, or what an adapter is.

    Nothing is downloaded: of a model that is not on this machine it tells what the catalogue knows.
    """
    name = one_model(model, named)
    parsed = parse_name(name)
    path = find_local(name)
    entry = parsed if isinstance(parsed, Entry) else None
    if path is not None and (memory or training):
        from .show_sizes import show_sizes

        facts, text = show_sizes(path, name, memory, training)
        terminal.write(as_json(facts, indent=1) + "\n" if output is TextOrJson.json else text)
        return
    if path is not None:
        facts, rows = _adapter(path) or _on_disk(path, entry)
    elif entry is not None and not (memory or training):
        facts, rows = _in_catalogue(entry)
    else:
        raise ModelNotFound(f"{name} is not on disk; llm pull {name} fetches it")
    if output is TextOrJson.json:
        terminal.write(as_json(facts, indent=1) + "\n")
    else:
        terminal.write(pairs(rows))


def _on_disk(path: Path, entry: Entry | None) -> tuple[Facts, Rows]:
    """What a model's files say; the catalogue's `entry` may know a licence that they do not."""
    from ...console.description import describe, human_count

    about = describe(path)
    if not about.n_params:
        terminal.note(f"{about.name} has no weights; it cannot be run")
    licence = about.licence or (entry.licence if entry else "")
    size = sum(file.stat().st_size for file in about.paths)
    facts = {
        "name": about.name,
        "architecture": about.architecture,
        "parameters": about.n_params,
        "layers": about.n_layers,
        "hidden": about.hidden,
        "context": about.context,
        "quant": about.quant,
        "formats": {name: round(share, 4) for name, share in about.formats.items()},
        "bits_per_weight": round(about.bits_per_weight, 3),
        "tokenizer": about.tokenizer,
        "vocabulary": about.vocab_size,
        "chat_template": about.chat_template,
        "licence": licence,
        "size": size,
        "files": [str(file) for file in about.paths],
    }
    formats = ", ".join(f"{name} {share:.1%}" for name, share in about.formats.items())
    rows = [
        ("name", about.name),
        ("architecture", about.architecture),
        ("parameters", human_count(about.n_params)),
        ("layers", f"{about.n_layers}, hidden size {about.hidden}"),
        ("context", f"{about.context} tokens"),
        ("quant", about.quant),
        ("formats", f"{formats} ({about.bits_per_weight:.2f} bits per weight)"),
        ("tokenizer", f"{about.tokenizer or 'none'}, {about.vocab_size} tokens"),
        ("chat template", "yes" if about.chat_template else _builtin(path)),
        ("licence", licence or "not stated"),
        ("size", f"{human_bytes(size)}, {human_bytes(about.n_bytes)} of them weights"),
        *(("file", str(file)) for file in about.paths),
    ]
    return facts, rows


def _adapter(path: Path) -> tuple[Facts, Rows] | None:
    """What an adapter's files say; None for a model."""
    from ....runtime.adapters.about import about_adapter
    from ...console.description import human_count

    about = about_adapter(path)
    if about is None:
        return None
    size = sum(file.stat().st_size for file in about.paths)
    facts: Facts = {
        "kind": about.kind,
        "base": about.base,
        "parameters": about.n_weights,
        "matrices": about.n_matrices,
        "ranks": list(about.ranks),
        "scales": list(about.scales),
        "replaced": list(about.replaced),
        "layers": list(about.layers),
        "size": size,
        "files": [str(file) for file in about.paths],
    }
    rows = [
        ("kind", about.kind),
        ("for", about.base or "not stated"),
        ("parameters", human_count(about.n_weights)),
    ]
    if about.layers:
        rows.append(("layers", ", ".join(map(str, about.layers))))
        rows.append(("use", "llm run -m MODEL --control-vector FILE"))
    else:
        rows.append(
            ("matrices", f"{about.n_matrices}, rank {_each(about.ranks)}, scale {_each(about.scales)}")
        )
        rows += (("replaces", name) for name in about.replaced)
        rows.append(("use", "llm run -m MODEL --lora FILE"))
    rows += [("size", human_bytes(size)), *(("file", str(file)) for file in about.paths)]
    return facts, rows


def _each(values: Sequence[float]) -> str:
    """A number, or the least and the largest of several."""
    return f"{values[0]:g}" if len(values) == 1 else f"{values[0]:g} to {values[-1]:g}"


def _in_catalogue(entry: Entry) -> tuple[Facts, Rows]:
    """What the catalogue says of a model that is not on this machine."""
    facts: Facts = {
        "name": entry.name,
        "repo": entry.repo,
        "file": entry.file,
        "size": entry.n_bytes,
        "size_estimate": entry.about_bytes,
        "parameters": round(entry.params * 1e9),
        "chat": entry.chat,
        "sha256": entry.sha256,
        "licence": entry.licence,
        "files": [],
    }
    rows = [
        ("name", entry.name),
        ("Hub", f"{entry.repo}/{entry.file}"),
        ("parameters", parameters(entry)),
        ("kind", "chat" if entry.chat else "base model: continues text"),
        ("size", size_of(entry)),
        ("licence", entry.licence),
        ("on disk", f"no; llm pull {entry.name} fetches it"),
    ]
    return facts, rows


def parameters(entry: Entry) -> str:
    """The parameters of a model of the catalogue, and those active for one token if these are fewer."""
    active = f", {entry.active:g} B active" if entry.active else ""
    return f"{entry.params:.3g} B{active}" if entry.params >= 1 else f"{entry.params * 1000:.0f} M"


def _builtin(path: Path) -> str:
    """Whether a model whose files have no chat template gets one."""
    from ....quant.errors import DamagedFile
    from ....runtime.model.source import open_source
    from ....tokenizer import TokenizerError

    try:
        family = open_source(path).builtin
    except (DamagedFile, TokenizerError):
        return "no"
    return f"built in, for {family}" if family else "no"
