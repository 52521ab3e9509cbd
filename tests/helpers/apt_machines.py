"""Stand-ins for machines with other devices, in Python alone, for tests/compat/test_apt_*.py. Not a test."""

from device_stand_ins import cuda, in_python

FACADES = """
import os, threading, warnings
from toprope.compat import install
install()
"""

# What torch would tell of GPUs, and torch_npu of NPUs, beyond how many there are.
GPUS = (
    cuda(2)
    + """
from types import SimpleNamespace
torch.version.cuda = "12.8"
torch.cuda.get_device_properties = lambda index: SimpleNamespace(
    name="NVIDIA A100", total_memory=40 * 2**30, multi_processor_count=108, major=8, minor=0
)
"""
)
NPUS = (
    in_python(count=2)
    + """
from types import SimpleNamespace
npu.get_device_properties = lambda index: SimpleNamespace(
    name="Ascend910B3", total_memory=64 * 2**30, vector_core_num=40, cube_core_num=20
)
npu.memory_allocated = lambda index: 2**30 * (index + 1)
npu.memory_reserved = lambda index: 2**31 * (index + 1)
npu.max_memory_allocated = lambda index: 3 * 2**29 * (index + 1)
npu.empty_cache = lambda: None
"""
)

# The card of toprope itself, for real tensors: in this process, as a program without `toprope run` has it.
SIMULATED = """
import toprope.sim, torch
toprope.sim.install("910B3", count=2)
"""

MACHINES = {"none": "", "npu": NPUS, "cuda": GPUS, "both": GPUS + NPUS}
