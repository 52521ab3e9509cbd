"""Two cards that wait for each other, because streams share their cores: the picture of docs/limits.md, run.

    python examples/core_deadlock.py              the deadlock: ends with the card's error 507034, at once
    python examples/core_deadlock.py --limit 8    NonZero is kept to 8 vector cores: everything ends well
    toprope run --chip 910B2 --count 2 examples/core_deadlock.py

On each card three streams work side by side: a ReduceScatter on 16 vector cores and a DispatchCombine on 24, which wait
for their peers on the other card, and a NonZero on all 48, whose blocks wait for each other.
"""

import argparse

import toprope.sim

if toprope.sim.installed() is None:
    toprope.sim.install("910B2", count=2)

import torch

CARDS = (0, 1)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--limit", type=int, default=48, help="vector cores that NonZero may use (default: all 48)")
    limit = parser.parse_args().limit

    reduce_scatter = toprope.sim.collective("reduce scatter", CARDS)
    dispatch_combine = toprope.sim.collective("dispatch combine", CARDS)
    streams = {card: [torch.npu.Stream(card) for _ in range(3)] for card in CARDS}
    for card in CARDS:
        torch.npu.set_stream_limit(streams[card][2], vector_num=limit)

    def launch(card: int, name: str) -> None:
        first, second, third = streams[card]
        if name == "ReduceScatter":
            toprope.sim.launch("vector", vector=16, stream=first, name=name, collective=reduce_scatter)
        elif name == "DispatchCombine":
            toprope.sim.launch("vector", vector=24, stream=second, name=name, collective=dispatch_combine)
        else:
            toprope.sim.launch("vector", vector=48, stream=third, name=name, sync_all=True)

    # The streams of a card are independent: which of their kernels comes first differs from card to card.
    for name in ("ReduceScatter", "NonZero", "DispatchCombine"):
        launch(0, name)
    for name in ("DispatchCombine", "NonZero", "ReduceScatter"):
        launch(1, name)
    for card in CARDS:
        torch.npu.synchronize(card)
    print(f"all six kernels ended, with NonZero on {limit} vector cores")


if __name__ == "__main__":
    main()
