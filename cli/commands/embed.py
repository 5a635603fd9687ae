"""`llm embed` and `llm rerank`: vectors of texts, and scores of documents."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from ..console import terminal
from ..console.options import MAX_CONTEXT, THREADS_HELP, Device, KvType, TextOrJson, flag, with_options
from ..generation.prompt import check_utf8
from ..settings.model import Model_, chosen_model

if TYPE_CHECKING:
    from ...runtime.model.model import Model
    from ..embedding.texts import Item

BATCH_TEXTS, BATCH_CHARACTERS = 1024, 1 << 18  # that are embedded together


class Format(StrEnum):
    json = "json"
    npy = "npy"


@dataclass(frozen=True, kw_only=True)
class LoadFlags:
    """The flags of `llm embed` about the model and where it runs."""

    context: Annotated[
        int | None,
        flag("-c", "--context", metavar="N", min=1, max=MAX_CONTEXT, help="Tokens of a text at most."),
    ] = None
    threads: Annotated[int | None, flag("--threads", metavar="N", min=1, help=THREADS_HELP)] = None
    kv_type: Annotated[KvType, flag("--kv-type", help="Number format of the KV cache.")] = KvType.auto
    device: Annotated[Device, flag("--device", help="Where to run the model.")] = Device.auto

    def load(self, name: str, task: str) -> Model:
        """Find or download a model and load it for a task."""
        from ...runtime.hub.resolve import resolve
        from ...runtime.model.options import LoadOptions
        from ..console.progress import Progress
        from ..generation.options import load_quietly

        options = LoadOptions(self.device.value, self.context, self.threads, self.kv_type.value, task=task)
        return load_quietly(resolve(name, Progress), name, options)


@dataclass(frozen=True, kw_only=True)
class EmbedOptions(LoadFlags):
    """The flags of `llm embed`."""

    file: Annotated[
        list[str] | None,
        flag("-f", "--file", metavar="FILE", help="A text a line, or JSON lines in a .jsonl; -: stdin."),
    ] = None
    jsonl: Annotated[bool, flag("--jsonl", help="All files, and stdin, are JSON lines.")] = False
    prompt: Annotated[
        str | None, flag("--prompt", metavar="NAME", help="The model's prompt in front of each text.")
    ] = None
    dimensions: Annotated[
        int | None,
        flag("--dimensions", metavar="N", min=1, help="Keep the first N dimensions (Matryoshka)."),
    ] = None
    truncate: Annotated[bool, flag("--truncate", help="Cut texts that are too long.")] = False
    pooling: Annotated[
        str | None,
        flag("--pooling", metavar="MODE", help="mean, cls, lasttoken …; default: as the model's files say."),
    ] = None
    normalize: Annotated[
        bool | None,
        typer.Option(
            "--normalize/--no-normalize",
            envvar="LLM_NORMALIZE",
            show_envvar=False,
            help="Unit length; default: as the model's files say.",
        ),
    ] = None
    output: Annotated[Format, flag("-o", "--output", help="An object a line, or one array (.npy).")] = (
        Format.json
    )


@with_options
def embed(
    options: EmbedOptions,
    texts: Annotated[
        list[str] | None,
        typer.Argument(metavar="TEXT…", help="Texts; default: the lines of stdin.", show_default=False),
    ] = None,
    model: Model_ = None,
) -> None:
    """Make vectors of texts.

    One vector a text: the arguments, or the lines of files or stdin. How it is made of the model's hidden
    states is read from the model's files. `llm embed -f texts.txt -o npy > vectors.npy`
    """
    from ..embedding.output import JsonLines, Npy
    from ..embedding.texts import read_items

    items = read_items(texts or [], options.file or [], options.jsonl)
    if options.output is Format.npy and terminal.is_terminal(sys.stdout):
        raise typer.BadParameter("-o npy writes no text: send it into a file or a pipe (> vectors.npy)")
    with closing(options.load(chosen_model(model), "embed")) as loaded:
        sink = Npy() if options.output is Format.npy else JsonLines()
        try:
            for batch in _batches(items):
                vectors = loaded.embed(
                    [item.text for item in batch],
                    prompt=options.prompt,
                    dimensions=options.dimensions,
                    truncate=options.truncate,
                    pooling=options.pooling,
                    normalize=options.normalize,
                )
                sink.add(batch, vectors)
        except ValueError as problem:
            if type(problem) is not ValueError:
                raise
            raise typer.BadParameter(str(problem)) from None
        sink.close()


def _batches(items: Iterable[Item]) -> Iterator[list[Item]]:
    """The texts in parts of bounded size, so that any number of them passes."""
    batch: list[Item] = []
    characters = 0
    for item in items:
        batch.append(item)
        characters += len(item.text)
        if len(batch) == BATCH_TEXTS or characters >= BATCH_CHARACTERS:
            yield batch
            batch, characters = [], 0
    if batch:
        yield batch


@dataclass(frozen=True, kw_only=True)
class RerankOptions(LoadFlags):
    """The flags of `llm rerank`."""

    file: Annotated[
        list[str] | None,
        flag("-f", "--file", metavar="FILE", help="A document a line, or JSON lines; -: stdin."),
    ] = None
    jsonl: Annotated[bool, flag("--jsonl", help="All files, and stdin, are JSON lines.")] = False
    instruction: Annotated[
        str | None,
        flag("--instruction", metavar="TEXT", help="What a document must do, for models that are told."),
    ] = None
    top: Annotated[int | None, flag("--top", metavar="N", min=1, help="Only the best N.")] = None
    truncate: Annotated[bool, flag("--truncate", help="Cut documents that are too long.")] = False
    output: Annotated[TextOrJson, flag("-o", "--output", help="A line a document, or JSON lines.")] = (
        TextOrJson.text
    )


@with_options
def rerank(
    options: RerankOptions,
    query: Annotated[str, typer.Argument(metavar="QUERY", help="What the documents are to answer.")],
    documents: Annotated[
        list[str] | None,
        typer.Argument(metavar="DOCUMENT…", help="Default: the lines of stdin.", show_default=False),
    ] = None,
    model: Model_ = None,
) -> None:
    """Sort documents by how well they answer a query.

    With a cross-encoder such as bge-reranker, or Qwen3-Reranker. Scores are from 0 to 1 unless the model's
    files want logits.
    """
    from ..console.safe_text import as_json
    from ..embedding.texts import read_items

    check_utf8("the query", query)
    items = read_items(documents or [], options.file or [], options.jsonl)
    scored: list[tuple[float, int, Item]] = []
    with closing(options.load(chosen_model(model), "rerank")) as loaded:
        for batch in _batches(items):
            texts = [item.text for item in batch]
            scores = loaded.rerank(query, texts, options.instruction, options.truncate)
            numbered = enumerate(zip(scores.tolist(), batch, strict=True), len(scored))
            scored += [(score, number, item) for number, (score, item) in numbered]
    scored.sort(key=lambda each: (-each[0], each[1]))
    for score, number, item in scored[: options.top]:
        if options.output is TextOrJson.text:
            terminal.write(f"{score:8.4f}  {' '.join(item.text.split())}\n")
            continue
        facts = {"index": number, **({} if item.id is None else {"id": item.id}), "score": score}
        terminal.write(as_json({**facts, "document": item.text}) + "\n")
