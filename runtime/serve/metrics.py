"""What the server counts, in the text format of Prometheus."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from ..engine.stats import GenerationStats
from .pool import ModelPool

_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
_BETWEEN = (0.001, 0.0025, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.2, 0.5, 1.0)


class Metrics:
    """Counters and histograms of one application, in a registry of its own."""

    def __init__(self, pool: ModelPool) -> None:
        registry = self.registry = CollectorRegistry()
        self.requests = Counter(
            "kukri_requests", "Requests by path and status", ["path", "status"], registry=registry
        )
        self.request_seconds = Histogram(
            "kukri_request_seconds", "From the head of a request to the end of its answer", ["path"],
            registry=registry, buckets=(*_SECONDS, 300.0),
        )  # fmt: skip
        self.prompt_tokens = Counter("kukri_prompt_tokens", "Tokens of prompts", ["model"], registry=registry)
        self.cached_tokens = Counter(
            "kukri_cached_prompt_tokens", "Tokens of prompts found in the cache", ["model"], registry=registry
        )
        self.kept_answers = Counter(
            "kukri_kept_answers", "Answers found in the cache of answers", ["model"], registry=registry
        )
        self.new_tokens = Counter("kukri_generated_tokens", "Tokens of answers", ["model"], registry=registry)
        self.answers = Counter(
            "kukri_answers", "Answers by why they ended", ["model", "reason"], registry=registry
        )
        self.first_token = Histogram(
            "kukri_time_to_first_token_seconds", "From the request to the first token", ["model"],
            registry=registry, buckets=_SECONDS,
        )  # fmt: skip
        self.between_tokens = Histogram(
            "kukri_time_between_tokens_seconds", "Mean time between the tokens of an answer", ["model"],
            registry=registry, buckets=_BETWEEN,
        )  # fmt: skip
        registry.register(_Engines(pool))

    def answered(self, model: str, stats: GenerationStats, first_token_seconds: float | None) -> None:
        """Count an answer that has ended."""
        self.prompt_tokens.labels(model).inc(stats.prompt_tokens)
        self.cached_tokens.labels(model).inc(stats.cached_tokens)
        self.new_tokens.labels(model).inc(stats.new_tokens)
        self.answers.labels(model, stats.finish_reason or "interrupted").inc()
        self.kept_answers.labels(model).inc(stats.from_cache)
        if first_token_seconds is not None:
            self.first_token.labels(model).observe(first_token_seconds)
        if stats.decode_tokens:
            self.between_tokens.labels(model).observe(stats.decode_seconds / stats.decode_tokens)

    def text(self) -> bytes:
        return generate_latest(self.registry)


class _Engines(Collector):
    """The state of the loaded models' engines at the moment they are asked for."""

    def __init__(self, pool: ModelPool) -> None:
        self._pool = pool

    def collect(self) -> Iterator[GaugeMetricFamily]:
        names = {
            "kukri_requests_running": "Sequences in the engine's slots",
            "kukri_requests_waiting": "Sequences in the engine's queue",
            "kukri_cache_pages_active": "Pages of the KV cache that running sequences hold",
            "kukri_cache_pages_free": "Pages that hold nothing",
            "kukri_cache_pages": "Pages of the KV cache",
        }
        gauges = {name: GaugeMetricFamily(name, text, labels=["model"]) for name, text in names.items()}
        loaded = GaugeMetricFamily("kukri_model_loaded", "Whether a model is in memory", labels=["model"])
        for entry in self._pool.all_entries:
            name = entry.name if entry.task == "auto" else f"{entry.name} ({entry.task})"
            loaded.add_metric([name], float(entry.model is not None))
            if entry.model is not None:
                use = entry.model.engine.use()
                values = (use.running, use.waiting, use.active_pages, use.free_pages, use.pages)
                for gauge, value in zip(gauges.values(), values, strict=True):
                    gauge.add_metric([name], value)
        yield loaded
        yield from gauges.values()
