"""The metrics page, under vLLM's names, so that whatever reads a vLLM engine reads this one."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from tidegate.simserver.stepper import Stepper
from tidegate.simulation import BLOCK


class _EngineCollector(Collector):
    def __init__(self, stepper: Stepper, model_name: str) -> None:
        self._stepper = stepper
        self._labels = {"engine": "0", "model_name": model_name}

    def collect(self) -> Iterator[Metric]:
        model = self._stepper.model
        totals = model.counters
        yield self._gauge("num_requests_running", "Sequences in the running batch.", model.running)
        yield self._gauge("num_requests_waiting", "Sequences waiting to be admitted.", model.waiting)
        yield self._gauge("kv_cache_usage_perc", "Share of KV blocks in use, 0 to 1.", model.kv.use)
        yield self._counter("num_preemptions", "Sequences preempted by recompute.", totals.preemptions)
        yield self._counter("prompt_tokens", "Prompt tokens processed.", totals.prompt)
        yield self._counter("generation_tokens", "Tokens generated.", totals.generated)
        yield self._counter("prefix_cache_queries", "Prompt tokens looked up in the cache.", totals.prefix_queries)
        yield self._counter("prefix_cache_hits", "Prompt tokens found in the cache.", totals.prefix_hits)
        success = CounterMetricFamily(
            "vllm:request_success", "Requests by finished reason.", labels=[*self._labels, "finished_reason"]
        )
        for reason, count in self._stepper.finished.items():
            success.add_metric([*self._labels.values(), reason], count)
        yield success
        info = {"block_size": str(BLOCK), "num_gpu_blocks": str(model.kv.total), "enable_prefix_caching": "True"}
        yield self._gauge("cache_config_info", "Configuration of the KV cache.", 1, info)

    def _gauge(self, name: str, text: str, value: float, extra: dict[str, str] | None = None) -> Metric:
        labels = {**self._labels, **(extra or {})}
        family = GaugeMetricFamily(f"vllm:{name}", text, labels=list(labels))
        family.add_metric(list(labels.values()), value)
        return family

    def _counter(self, name: str, text: str, value: float) -> Metric:
        family = CounterMetricFamily(f"vllm:{name}", text, labels=list(self._labels))
        family.add_metric(list(self._labels.values()), value)
        return family


class MetricsPage:
    """Renders the page."""

    content_type = b"text/plain; version=0.0.4; charset=utf-8"

    def __init__(self, stepper: Stepper, model_name: str) -> None:
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(_EngineCollector(stepper, model_name))

    def render(self) -> bytes:
        """The page as it is now."""
        return generate_latest(self._registry)
