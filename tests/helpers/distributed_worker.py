"""One process of a group: runs cases and writes down, for each, what went wrong ("" where nothing did) and
how many seconds it took.

    python distributed_worker.py FOLDER INIT MODULE:CASE...

INIT is the text of init_process_group's arguments, such as '"hccl"'. RANK and the rest are in the environment.
"""

import faulthandler
import importlib
import json
import os
import sys
import time
import traceback
import warnings
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

CASE_LIMIT = 60
"""Seconds for one case, after which the process prints every thread's stack and ends."""


def main(folder: str, init: str, *cases: str) -> int:
    warnings.simplefilter("error")
    warnings.filterwarnings("ignore", message=r"barrier\(\): using the device under current context")
    warnings.filterwarnings("ignore", category=FutureWarning)
    warnings.filterwarnings("ignore", message=r"`torch.jit", category=DeprecationWarning)
    torch.set_num_threads(1)
    rank = int(os.environ["RANK"])
    torch.npu.set_device(rank % torch.npu.device_count())
    arguments: Any = eval(
        f"dict(timeout=timedelta(seconds=60), {init})", {"torch": torch, "rank": rank, "timedelta": timedelta}
    )
    dist.init_process_group(**arguments)
    with (Path(folder) / f"{rank}.jsonl").open("w") as results:
        for case in cases:
            faulthandler.dump_traceback_later(CASE_LIMIT, exit=True)
            torch.manual_seed(0)
            wrong, began = "", time.monotonic()
            try:
                module, _, function = case.partition(":")
                getattr(importlib.import_module(module), function)()
            except BaseException:
                wrong = traceback.format_exc()
            results.write(json.dumps([case, wrong, time.monotonic() - began]) + "\n")
            results.flush()
            if wrong:
                return 1  # the other process may wait for this one: the rest cannot be run
    faulthandler.cancel_dump_traceback_later()
    dist.destroy_process_group()
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
