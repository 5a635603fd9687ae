"""Inspecting ids: the steps that run them with taps, and what is made of the taps' contents."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ...quant.units import human_bytes
from ..engine.engine import Engine
from ..engine.observing import Observed, Tap
from .attention import AttentionChoice, AttentionWeights, attention_weights, chosen
from .distributions import Distributions
from .inspection import CacheUse, ExpertChoices, Inspection, Lens, StateNorms
from .sites import Sites

MOST_BYTES = 2 << 30  # of attention weights, residual streams or logits that an inspection keeps


@dataclass(frozen=True)
class InspectOptions:
    """What an inspection keeps. `top`: tokens of each distribution. `lens`: the layers whose input goes
    through the head, negative numbers counting back from the end of the last layer; or all (True) or none.
    `states`: norms behind every position, which takes a step for each, instead of behind the last one.
    `n_tokens`: ids of the vocabulary, if the logits have more.
    """

    top: int = 10
    attention: AttentionChoice | None = None
    lens: bool | Sequence[int] = False
    residual: bool = False
    logits: bool = False
    states: bool = False
    n_tokens: int | None = None


def inspect_ids(engine: Engine, ids: Sequence[int], options: InspectOptions) -> Inspection:
    """Run `ids` with taps, as the only sequence. Raises like `Engine.submit`, and ValueError for no ids, for
    layers, heads or rows that there are not, and for more than MOST_BYTES of what is to be kept."""
    if not len(ids):
        raise ValueError("there is nothing to inspect: no token")
    if options.top < 1:
        raise ValueError(f"an inspection shows at least 1 token of each distribution, not {options.top}")
    inspecting = _Inspecting(engine, [int(i) for i in ids], options)
    one_by_one = options.states and inspecting.sites.states
    engine.observe(ids, inspecting.taps, inspecting.take, most_rows=1 if one_by_one else None)
    return inspecting.result()


class _Inspecting:
    """Takes what steps show, and keeps what was asked for."""

    def __init__(self, engine: Engine, ids: list[int], options: InspectOptions) -> None:
        self._engine, self._options = engine, options
        self._machine = engine.machine
        self._ids = np.array(ids, np.int32)
        program = self._machine.program
        self.sites = sites = Sites.of(program)
        n, n_layers, vocab = len(ids), sites.n_layers, program.logits.width
        self._vocab = min(options.n_tokens or vocab, vocab)
        n_top = min(options.top, self._vocab)
        choice = options.attention
        layers = chosen(choice.layers, n_layers, "layers") if choice else ()
        self._attention = {i: sites.attention[i] for i in layers if i in sites.attention}
        self._rows = tuple(sorted(set(chosen(choice.rows, n, "positions")))) if choice else ()
        self._heads = {
            i: chosen(choice.heads if choice else None, site.op.heads, "heads")
            for i, site in self._attention.items()
        }
        lens = options.lens
        self._lens_layers = (
            () if lens is False else chosen(None if lens is True else lens, n_layers + 1, "layers")
        )
        self._check_size(n)
        self._queries: dict[int, list[np.ndarray]] = {i: [] for i in self._attention}
        self._keys: dict[Tap, list[np.ndarray]] = {site.keys: [] for site in self._attention.values()}
        streams, width = len(sites.residual[0]), sites.residual[0][0].buffer.width
        self._residual = np.empty((n_layers + 1, streams, n, width), np.float32) if options.residual else None
        self._logits = np.empty((n, vocab), np.float32) if options.logits else None
        self._norms = np.empty((n_layers + 1, n), np.float32)
        self._updates = np.empty((n_layers, n), np.float32)
        self._top = Distributions.empty((n,), n_top)
        self._lens = Distributions.empty((len(self._lens_layers), n), n_top)
        self._routed: dict[int, list[tuple[np.ndarray, np.ndarray]]] = {i: [] for i in sites.routers}
        self._states: list[tuple[int, list[float]]] = []

    @property
    def taps(self) -> list[Tap]:
        """What is to be copied out of each step."""
        sites = self.sites
        taps = [tap for streams in sites.residual for tap in streams]
        taps += [tap for site in self._attention.values() for tap in (site.queries, site.keys)]
        taps += [tap for site in sites.routers.values() for tap in (site.experts, site.weights)]
        return list(dict.fromkeys(taps))

    def _check_size(self, n: int) -> None:
        options, sites = self._options, self.sites
        kept = {
            "attention weights": 4 * n * len(self._rows) * sum(map(len, self._heads.values())),
            "residual streams": options.residual
            * 4
            * n
            * len(sites.residual)
            * sum(tap.buffer.width for tap in sites.residual[0]),
            "logits": options.logits * 4 * n * self._machine.program.logits.width,
        }
        for what, size in kept.items():
            if size > MOST_BYTES:
                raise ValueError(
                    f"the {what} of {n} positions take {human_bytes(size)}; choose fewer layers, heads or "
                    "rows, or a shorter text"
                )

    def take(self, start: int, observed: Observed) -> None:
        """Keep what a step showed, whose first row is at position `start`."""
        values, logits = observed.values, observed.logits
        rows = slice(start, start + len(logits))
        following = self._ids[start + 1 : rows.stop + 1]
        self._top.fill(start, logits[:, : self._vocab], following)
        if self._logits is not None:
            self._logits[rows] = logits
        self._take_residual(rows, values, following)
        for i, site in self._attention.items():
            wanted = [row - start for row in self._rows if rows.start <= row < rows.stop]
            self._queries[i].append(values[site.queries][wanted])
        for tap, parts in self._keys.items():
            parts.append(values[tap])
        for i, router in self.sites.routers.items():
            self._routed[i].append((values[router.experts], values[router.weights]))
        if self.sites.states and (self._options.states or rows.stop == len(self._ids)):
            arrays = self._machine.states.save(0).arrays
            self._states.append((rows.stop - 1, [float(np.linalg.norm(array)) for array in arrays]))

    def _take_residual(self, rows: slice, values: Mapping[Tap, np.ndarray], following: np.ndarray) -> None:
        before = np.empty(0)
        for layer, taps in enumerate(self.sites.residual):
            streams = np.stack([values[tap] for tap in taps])  # [streams, rows, width]
            self._norms[layer, rows] = _root_mean_square(streams)
            if layer:
                self._updates[layer - 1, rows] = _root_mean_square(streams - before)
            if self._residual is not None:
                self._residual[layer, :, rows] = streams
            if layer in self._lens_layers:
                ends = self.sites.residual[-1]
                contents = {end.buffer: part for end, part in zip(ends, streams, strict=True)}
                logits = self._machine.finish(self.sites.head_at, contents)
                lens = self._lens[self._lens_layers.index(layer)]
                lens.fill(rows.start, logits[:, : self._vocab], following)
            before = streams

    def result(self) -> Inspection:
        """What was kept."""
        residual = self._residual
        if residual is not None and residual.shape[1] == 1:
            residual = residual[:, 0]
        return Inspection(
            ids=self._ids,
            top=self._top,
            norms=self._norms,
            updates=self._updates,
            logits=self._logits,
            residual=residual,
            lens=Lens(self._lens_layers, self._lens) if self._lens_layers else None,
            attention=self._attention_weights(),
            experts=self._expert_choices(),
            states=self._state_norms(),
            cache=self._cache_use(),
        )

    def _attention_weights(self) -> dict[int, AttentionWeights]:
        keys = {tap: np.concatenate(parts) for tap, parts in self._keys.items()}
        found = {}
        for i, site in self._attention.items():
            op, rows, heads = site.op, self._rows, self._heads[i]
            queries = np.concatenate(self._queries[i])
            weights = attention_weights(op, queries, keys[site.keys], rows, heads)
            found[i] = AttentionWeights(i, weights, heads, rows, op.heads, op.kv_heads, op.window)
        return found

    def _expert_choices(self) -> dict[int, ExpertChoices]:
        found = {}
        for i, parts in self._routed.items():
            experts, weights = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
            found[i] = ExpertChoices(i, self.sites.routers[i].n_experts, experts.astype(np.int32), weights)
        return found

    def _state_norms(self) -> dict[int, StateNorms]:
        positions = np.array([position for position, _ in self._states], np.int32)
        norms = np.array([norms for _, norms in self._states], np.float32)
        return {
            i: StateNorms(i, positions, norms[:, list(states)]) for i, states in self.sites.states.items()
        }

    def _cache_use(self) -> CacheUse:
        owners = {site.op.layer: i for i, site in reversed(self.sites.attention.items())}
        page_bytes = self._machine.page_bytes
        page_size = self._engine.table.page_size
        return CacheUse(
            kv_type=self._machine.kv_type,
            page_size=page_size,
            pages=-(-len(self._ids) // page_size),
            page_bytes={owners[c]: page_bytes[c] for c in sorted(owners)},
        )


def _root_mean_square(streams: np.ndarray) -> np.ndarray:
    """float32 [rows] of float32 [streams, rows, width]."""
    return np.sqrt(np.mean(streams * streams, axis=(0, 2)))
