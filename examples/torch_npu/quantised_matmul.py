"""A linear layer in int8: weights by channel, activations by token, one quantised matrix product."""

import torch
import torch_npu

torch.manual_seed(0)
x = torch.randn(16, 128).half().npu()
weight = torch.randn(64, 128).half().npu()  # [out, in]

weight_scale = weight.abs().amax(1) / 127
weight_int8 = (weight / weight_scale[:, None]).round().clamp(-128, 127).to(torch.int8)
x_int8, x_scale = torch_npu.npu_dynamic_quant(x)

found = torch_npu.npu_quant_matmul(
    x_int8, weight_int8.t(), weight_scale.float(), pertoken_scale=x_scale, output_dtype=torch.float16
)
expected = x @ weight.t()
error = ((found - expected).float().norm() / expected.float().norm()).item()
print(f"{x_int8.dtype} times {weight_int8.dtype} gives {found.dtype}")
print(f"relative error below 2 %: {error < 0.02}")
