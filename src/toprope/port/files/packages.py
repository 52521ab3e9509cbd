"""Names of packages that are for CUDA alone, as lists of requirements, commands and a setup.py have them.

Used by `text` and `rules.builds`. A package that is added needs an example in one of their tests. Tests:
tests/port/test_port_packages.py.
"""

from __future__ import annotations

__all__ = ["PACKAGES"]

PACKAGES = r"""
    flash[-_]attn | xformers | triton(?:-windows)? | bitsandbytes | tensorrt(?:[-_]\w+)* | onnxruntime-gpu | apex
    | deepspeed-kernels | nvidia-[\w-]+-cu1\d | cupy(?:-cuda\d+x?)? | pycuda | cudf-cu1\d | cuml-cu1\d
    | mamba[-_]ssm | causal[-_]conv1d | ring[-_]flash[-_]attn
    | pytorch-cuda | cuda(?:9|1\d)\d | dgl-cu\d+ | cudatoolkit(?:-dev)? | cudnn | nvidia::[\w-]+
    | cuda-(?:nvcc|toolkit|runtime|compiler|cudart|libraries|nvtx|cccl|driver|command-line-tools)
      (?:-dev|-static)?
    | pynvml | nvidia-ml-py3? | faiss-gpu
    | tinycudann | tiny-cuda-nn | nvdiffrast | kaolin | (?:spconv|cumm)-cu\d+ | cuda-python | numba-cuda
    | tensorflow-gpu | transformer[-_]engine | flashinfer(?:-python)? | torch2trt | torch[-_]tensorrt
"""
"""An expression for re.X and re.I."""
