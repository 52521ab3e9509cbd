"""`toprope serve` next to LitServe and Ray Serve: requests per second at the same limit of p99, in interleaved rounds.

    python benchmarks/serve.py                               a table, and exit status 1 when the target is missed
    python benchmarks/serve.py --litserve .../bin/python     the Python of an environment that has LitServe
    python benchmarks/serve.py --without-ray --rounds 1 --seconds 0.5    a quick look

The model, the client and the JSON of requests and answers are the same. Each software is tuned first: of a few settings
the fastest within the limit is measured. In each round all take turns; the others are stopped meanwhile, Ray apart,
whose processes answer each other. The target: 1.5 times the better of the two, the confidence interval excluding 1.

Run by hand and by benchmarks/run.py; docs/benchmarks.md has the figures. The three services are in `parts.services`,
the client is `parts.http_load`. The target is a demand on the product; each side's settings may be tuned further, ours
no more than the others.

Tests: tests/flow/test_serve_benchmark.py, of our service alone.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import math
import statistics
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from parts.processes import stopped
from parts.ratios import ratio
from parts.services import Service, litserve, ray_serve, toprope_serve

CONNECTIONS = (4, 16, 64)
BODY = json.dumps({"x": [[round(math.sin(number), 4) for number in range(64)]]}).encode()
TARGET = 1.5


def fastest(service: Service, seconds: float, limit: float) -> tuple[float, float, int]:
    """Requests per second of the fastest number of connections within the limit of p99, its p99, and the number."""
    found = [(0.0, math.inf, 0)]
    for connections in CONNECTIONS:
        seen = service.measure(BODY, connections, seconds)
        if seen["errors"]:
            raise RuntimeError(f"{service.name}: {seen['errors']}")
        if float(str(seen["p99"])) <= limit:
            found.append((float(str(seen["rps"])), float(str(seen["p99"])), connections))
    return max(found)


def tuned(
    make: Callable[[int, float, int], Service], seconds: float, limit: float, settings: list[tuple[int, float, int]]
) -> Service:
    """The fastest of a few settings, running."""
    best: tuple[float, Service] | None = None
    for each in settings:
        service = make(*each)
        service.start()
        rate = fastest(service, seconds, limit)[0]
        print(f"  {service.name}, {service.settings}: {rate:.0f}/s", file=sys.stderr)
        if best is not None and best[0] >= rate:
            service.stop()
            continue
        if best is not None:
            best[1].stop()
        best = rate, service
    assert best is not None
    return best[1]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=6, help="6 or more give an interval of 95 %%")
    parser.add_argument("--seconds", type=float, default=2.0, help="of each measurement")
    parser.add_argument("--limit-ms", type=float, default=50.0, help="of p99")
    parser.add_argument("--litserve", metavar="PYTHON", help="Python of an environment with LitServe")
    parser.add_argument("--ray", metavar="PYTHON", default=sys.executable, help="Python of one with ray[serve]")
    parser.add_argument("--without-ray", action="store_true")
    parser.add_argument("--untuned", action="store_true", help="the first settings of each alone")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    limit, services = given.limit_ms / 1000, []
    python = given.litserve or (sys.executable if importlib.util.find_spec("litserve") else None)
    with tempfile.TemporaryDirectory(prefix="toprope-serve-") as name:
        folder = Path(name)
        makers: list[tuple[Callable[[int, float, int], Service], list[tuple[int, float, int]]]] = [
            (lambda *each: toprope_serve(folder, *each), [(32, 0, 1), (32, 2, 1)])
        ]
        if python:
            makers.append((lambda *each: litserve(folder, python, *each), [(32, 2, 2), (32, 2, 1), (8, 1, 1)]))
        else:
            print("LitServe is not installed: --litserve names a Python that has it", file=sys.stderr)
        if given.ray == sys.executable and not importlib.util.find_spec("grpc"):
            print("Ray Serve is not installed: --ray names a Python that has ray[serve]", file=sys.stderr)
        elif not given.without_ray:
            makers.append((lambda *each: ray_serve(folder, given.ray, *each), [(32, 2, 1), (32, 2, 2)]))
        try:
            for make, settings in makers:
                chosen = settings[:1] if given.untuned else settings
                with stopped([pid for each in services if each.name != "Ray Serve" for pid in each.pids()]):
                    services.append(tuned(make, min(1.0, given.seconds), limit, chosen))
            rates: dict[str, list[tuple[float, float, int]]] = {each.name: [] for each in services}
            for number in range(given.rounds):
                for service in services[number % len(services) :] + services[: number % len(services)]:
                    others = [
                        pid
                        for each in services
                        if each not in (service,) and each.name != "Ray Serve"
                        for pid in each.pids()
                    ]
                    with stopped(others):
                        rates[service.name].append(fastest(service, given.seconds, limit))
        finally:
            for each in services:
                each.stop()
    return report(services, rates, given)


def report(services: list[Service], rates: dict[str, list[tuple[float, float, int]]], given: argparse.Namespace) -> int:
    """Print what was measured; the exit status."""
    ours, *peers = services
    rows, met = [], True
    for service in services:
        found = rates[service.name]
        row = {
            "name": service.name, "settings": service.settings, "rps": statistics.median(each[0] for each in found),
            "p99_ms": 1000 * statistics.median(each[1] for each in found), "rounds": found,
        }  # fmt: skip
        if service is not ours:
            pairs = list(zip(rates[ours.name], found, strict=True))
            if not all(mine[0] for mine, _ in pairs):
                row["ratio"], met = None, False
            elif not all(theirs[0] for _, theirs in pairs):
                row["ratio"] = None  # nothing of it within the limit
            else:
                found_ratio = ratio([mine[0] for mine, _ in pairs], [theirs[0] for _, theirs in pairs])
                row["ratio"] = found_ratio
                met = met and found_ratio.median >= TARGET and found_ratio.low > 1
        rows.append(row)
    if given.json:
        print(json.dumps({"limit_ms": given.limit_ms, "rows": rows, "met": met if peers else None}))
    else:
        print(
            f"| service | requests/s, p99 <= {given.limit_ms:g} ms | p99 | ours / its | settings |\n"
            "| --- | --- | --- | --- | --- |"
        )
        for row in rows:
            found = row.get("ratio", ())
            text = "" if found == () else "none within the limit" if found is None else str(found)
            print(f"| {row['name']} | {row['rps']:.0f} | {row['p99_ms']:.1f} ms | {text} | {row['settings']} |")
    return int(bool(peers) and not met)


if __name__ == "__main__":
    sys.exit(main())
