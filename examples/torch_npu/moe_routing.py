"""A mixture of experts with fused operators: routing, grouped matrix products, and the way back."""

import torch
import torch_npu

torch.manual_seed(0)
tokens, width, hidden, experts, top_k = 24, 32, 48, 4, 2
x = torch.randn(tokens, width).half().npu()
router = torch.randn(width, experts).half().npu()
up = (torch.randn(experts, width, 2 * hidden) / 8).half().npu()
down = (torch.randn(experts, hidden, width) / 8).half().npu()

weights, chosen, _ = torch_npu.npu_moe_gating_top_k_softmax(x @ router, None, k=top_k)
weights = weights / weights.sum(-1, keepdim=True)

permuted, order = torch_npu.npu_moe_token_permute(x, chosen)
ends = torch.histc(chosen.float(), experts, 0, experts - 1).cumsum(0).long()
middle = torch_npu.npu_grouped_matmul([permuted], [up], group_list=ends, split_item=3, group_type=0)[0]
out = torch_npu.npu_grouped_matmul([torch_npu.npu_swiglu(middle)], [down], group_list=ends, split_item=3, group_type=0)[
    0
]
found = torch_npu.npu_moe_token_unpermute(out, order, weights.half())

expected = torch.zeros_like(x)
for token in range(tokens):
    for place in range(top_k):
        expert = chosen[token, place]
        gate, value = (x[token] @ up[expert]).chunk(2)
        expected[token] += weights[token, place].half() * ((torch.nn.functional.silu(gate) * value) @ down[expert])
print(f"as one token after the other: {torch.allclose(found, expected, atol=2e-2)}")
