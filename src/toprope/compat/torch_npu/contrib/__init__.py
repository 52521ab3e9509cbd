"""`torch_npu.contrib`: layers of torch_npu's own, and `transfer_to_npu`, which acts when it is imported."""

from toprope.compat.missing import missing_from

from . import module
from .module import (
    BiLSTM,
    ChannelShuffle,
    DCNv2,
    FastBatchNorm1d,
    FastBatchNorm2d,
    FastBatchNorm3d,
    FastSyncBatchNorm,
    Focus,
    FusedColorJitter,
    LabelSmoothingCrossEntropy,
    LinearA8W8Quant,
    LinearQuant,
    LinearWeightQuant,
    Mish,
    ModulatedDeformConv,
    MultiheadAttention,
    NpuCachedDropout,
    NpuDropPath,
    NpuFairseqDropout,
    Prefetcher,
    PSROIPool,
    ROIAlign,
    SiLU,
    Swish,
)

__all__ = [
    "BiLSTM",
    "ChannelShuffle",
    "DCNv2",
    "FastBatchNorm1d",
    "FastBatchNorm2d",
    "FastBatchNorm3d",
    "FastSyncBatchNorm",
    "Focus",
    "FusedColorJitter",
    "LabelSmoothingCrossEntropy",
    "LinearA8W8Quant",
    "LinearQuant",
    "LinearWeightQuant",
    "Mish",
    "ModulatedDeformConv",
    "MultiheadAttention",
    "NpuCachedDropout",
    "NpuDropPath",
    "NpuFairseqDropout",
    "PSROIPool",
    "Prefetcher",
    "ROIAlign",
    "SiLU",
    "Swish",
    "module",
]

__getattr__ = missing_from(__name__)
