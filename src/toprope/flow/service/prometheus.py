"""Figures of a service in Prometheus's text format; pure.

`service.app` serves it at /metrics. The syntax is Prometheus's (text format 0.0.4). Dashboards rely on the names and
labels of the figures: add some, rename none. Tests: tests/flow/test_serve_parts.py.
"""

from __future__ import annotations

import bisect
from collections import Counter
from collections.abc import Iterable, Sequence

from toprope.flow.observability.metrics import EdgeMetrics, StageMetrics

__all__ = ["MEDIA_TYPE", "RequestFigures", "exposition"]

MEDIA_TYPE = "text/plain; version=0.0.4; charset=utf-8"

_BOUNDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)


class RequestFigures:
    """The requests of a service: their number by status, and how long they took.

    Attributes:
        ongoing: requests that were accepted and not answered yet.
    """

    def __init__(self) -> None:
        self.ongoing = 0
        self.by_status: Counter[int] = Counter()
        self.seconds = 0.0
        self._buckets = [0] * (len(_BOUNDS) + 1)

    def add(self, status: int, seconds: float) -> None:
        """Count an answer.

        Args:
            status: of the answer; 499 where the client has gone.
            seconds: since the request came.
        """
        self.by_status[status] += 1
        self.seconds += seconds
        self._buckets[bisect.bisect_left(_BOUNDS, seconds)] += 1

    def buckets(self) -> list[tuple[float, int]]:
        """(upper bound in seconds, requests that took at most that long)."""
        found, total = [], 0
        for bound, count in zip(_BOUNDS, self._buckets, strict=False):
            total += count
            found.append((float(bound), total))
        return found


def exposition(
    requests: RequestFigures, stages: Sequence[StageMetrics], edges: Sequence[EdgeMetrics], restarts: int
) -> str:
    """The text that Prometheus reads."""
    text = _Text()
    text.family("toprope_requests_total", "counter", "Requests answered, by HTTP status; 499: the client had gone.")
    for status, count in sorted(requests.by_status.items()):
        text.sample("toprope_requests_total", count, code=str(status))
    text.family("toprope_requests_ongoing", "gauge", "Requests accepted and not answered yet.")
    text.sample("toprope_requests_ongoing", requests.ongoing)
    text.family("toprope_request_duration_seconds", "histogram", "Time from a request to its answer.")
    total = sum(requests.by_status.values())
    text.histogram("toprope_request_duration_seconds", requests.buckets(), total, requests.seconds)
    text.family("toprope_stage_duration_seconds", "histogram", "Time of a stage's call, without waiting for room.")
    for each in stages:
        text.histogram("toprope_stage_duration_seconds", each.buckets, each.calls, each.seconds, **_labels(each))
    text.family("toprope_stage_inputs_total", "counter", "Inputs of a stage's calls: more than calls where batched.")
    for each in stages:
        text.sample("toprope_stage_inputs_total", each.inputs, **_labels(each))
    text.family("toprope_stage_restarts_total", "counter", "Processes of stages that were started again.")
    text.sample("toprope_stage_restarts_total", restarts)
    for name, kind, help_, attribute in _EDGES:
        text.family(name, kind, help_)
        for edge in edges:
            value = getattr(edge, attribute)
            text.sample(
                name, value / 1000 if attribute == "waited_ms" else value, source=edge.source, output=str(edge.output),
                target=edge.target, input=str(edge.input),
            )  # fmt: skip
    return text.text()


_EDGES = (
    ("toprope_queue_length", "gauge", "Messages that wait in an edge.", "depth"),
    ("toprope_queue_capacity", "gauge", "Messages that an edge holds for each pair of instances.", "capacity"),
    ("toprope_edge_messages_total", "counter", "Messages sent over an edge.", "messages"),
    ("toprope_edge_bytes_total", "counter", "Bytes of their payloads.", "bytes"),
    ("toprope_edge_wait_seconds_total", "counter", "Time that senders waited for room.", "waited_ms"),
    ("toprope_edge_host_copies_total", "counter", "Tensors copied from their card to the host.", "to_host"),
    ("toprope_edge_card_copies_total", "counter", "Tensors copied from one card to another.", "between"),
    ("toprope_edge_shared_tensors_total", "counter", "Tensors on a card passed without a copy.", "shared"),
    ("toprope_edge_lost_total", "counter", "Messages lost to OVERWRITE.", "lost"),
)


def _labels(stage: StageMetrics) -> dict[str, str]:
    name = f"{stage.stage}.{stage.function}" if stage.function else stage.stage
    return {"stage": name, "instance": str(stage.instance)}


class _Text:
    def __init__(self) -> None:
        self._lines: list[str] = []

    def family(self, name: str, kind: str, help_: str) -> None:
        self._lines += [f"# HELP {name} {help_}", f"# TYPE {name} {kind}"]

    def sample(self, name: str, value: float, **labels: str) -> None:
        inside = ",".join(f'{key}="{_escaped(each)}"' for key, each in labels.items())
        self._lines.append(f"{name}{{{inside}}} {value}" if inside else f"{name} {value}")

    def histogram(
        self, name: str, buckets: Iterable[tuple[float, int]], count: int, total: float, **labels: str
    ) -> None:
        for bound, below in buckets:
            self.sample(f"{name}_bucket", below, **labels, le=f"{bound:g}")
        self.sample(f"{name}_bucket", count, **labels, le="+Inf")
        self.sample(f"{name}_sum", round(total, 9), **labels)
        self.sample(f"{name}_count", count, **labels)

    def text(self) -> str:
        return "\n".join(self._lines) + "\n"


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
