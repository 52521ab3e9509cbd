"""Give the weight of a linear layer the card's own format for matrix products, FRACTAL_NZ."""

import torch
import torch_npu

torch.npu.config.allow_internal_format = True
layer = torch.nn.Linear(64, 64).half().npu()
x = torch.randn(8, 64).half().npu()
before = layer(x)
layer.weight.data = torch_npu.npu_format_cast(layer.weight.data, torch_npu.Format.FRACTAL_NZ)
print(f"format: {torch_npu.get_npu_format(layer.weight.data)!s}")
print(f"same result: {torch.equal(layer(x), before)}")
back = torch_npu.npu_format_cast(layer.weight.data, torch_npu.Format.ND)
print(f"format: {torch_npu.get_npu_format(back)!s}")
