"""torch.distributed on simulated cards: the backend `hccl`."""

from toprope.sim.distributed.registration import register

__all__ = ["register"]
