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
"""`torch_npu.contrib`: functions of detection and attention, and `transfer_to_npu`, which acts when it is imported."""

from toprope.compat.missing import missing_from

from . import function
from .function import (
    fuse_add_softmax_dropout,
    matmul_transpose,
    npu_batched_multiclass_nms,
    npu_bbox_coder_decode_xywh2xyxy,
    npu_bbox_coder_encode_xyxy2xywh,
    npu_bbox_coder_encode_yolo,
    npu_ciou,
    npu_diou,
    npu_fast_condition_index_put,
    npu_giou,
    npu_iou,
    npu_multiclass_nms,
    npu_ptiou,
    npu_single_level_responsible_flags,
    roll,
)

__all__ = [
    "function",
    "fuse_add_softmax_dropout",
    "matmul_transpose",
    "npu_batched_multiclass_nms",
    "npu_bbox_coder_decode_xywh2xyxy",
    "npu_bbox_coder_encode_xyxy2xywh",
    "npu_bbox_coder_encode_yolo",
    "npu_ciou",
    "npu_diou",
    "npu_fast_condition_index_put",
    "npu_giou",
    "npu_iou",
    "npu_multiclass_nms",
    "npu_ptiou",
    "npu_single_level_responsible_flags",
    "roll",
]

__getattr__ = missing_from(__name__)
