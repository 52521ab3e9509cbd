// Float32 on the cube cores: with `numerics=card`, rounded to a shorter mantissa (HF32) where torch_npu's settings say
// so. Set by ../../npu/npu_config.py; used by ops_frequent.cpp (products) and ops_nn.cpp (convolutions).
//
// Tests: tests/sim/simulated/test_numerics.py.
#pragma once

#include <ATen/core/Tensor.h>

#include <atomic>

namespace toprope::glue {

// Bits of the mantissa that float32 keeps as a factor; 0 for all of it.
struct Factors {
  std::atomic<int> products{0};
  std::atomic<int> convolutions{0};
};
extern Factors kept_bits;

// A host tensor as the units take it: a copy, to the nearest, ties to even; other dtypes, inf and nan as they are.
at::Tensor rounded(const at::Tensor& tensor, int bits);

inline at::Tensor taken(const at::Tensor& tensor, const std::atomic<int>& setting) {
  int bits = setting.load(std::memory_order_relaxed);
  if (bits == 0 || !tensor.defined() || tensor.scalar_type() != at::kFloat) [[likely]] return tensor;
  return rounded(tensor, bits);
}

}  // namespace toprope::glue
