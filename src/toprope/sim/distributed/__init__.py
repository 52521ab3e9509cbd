"""torch.distributed on simulated cards: the backend `hccl`, over gloo and host views of the cards' memory.

`register` is called when the card is installed. Tests: tests/sim/test_distributed.py (two processes).
"""

from toprope.sim.distributed.registration import register

__all__ = ["register"]
