"""Facade module: options of torch_npu's launcher (`python -m torch_npu.distributed.run`).

Used by run.py and rendezvous.py. Tests: tests/compat/test_torch_npu_launcher.py.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from torch.distributed import run as torch_run
from torch.distributed.argparse_util import env

__all__ = ["parse_args"]


def parse_args(args: Sequence[str] | None) -> argparse.Namespace:
    """Parse the options of torchrun and `--enable_tiered_parallel_tcpstore`.

    Args:
        args: command line; None for this process's.
    """
    parser = torch_run.get_args_parser()
    parser.add_argument(
        "--enable_tiered_parallel_tcpstore",
        action=env,
        type=str,
        default="false",
        help="workers reach the store through a proxy of their launcher; without effect on the simulated card",
    )
    return parser.parse_args(args)
