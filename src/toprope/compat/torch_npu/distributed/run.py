"""Facade program `python -m torch_npu.distributed.run`: torchrun with the rendezvous `parallel`.

Tests: tests/compat/test_torch_npu_launcher.py.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch.distributed import run as torch_run
from torch.distributed.elastic.multiprocessing.errors import record

from .launch_options import parse_args
from .rendezvous import launching

__all__ = ["parse_args"]


@record
def _main(args: Sequence[str] | None = None) -> None:
    options = parse_args(args)
    options.rdzv_backend = "parallel"
    options.rdzv_endpoint = options.rdzv_endpoint or f"{options.master_addr}:{options.master_port}"
    with launching(options):
        torch_run.run(options)  # type: ignore[no-untyped-call]


if __name__ == "__main__":
    _main()
