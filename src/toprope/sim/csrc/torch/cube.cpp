// Rounding of float32 for the cube cores; see cube.h.
//
// Tests: tests/sim/simulated/test_numerics.py.
#include "cube.h"

#include <ATen/ops/empty_like.h>
#include <ATen/Parallel.h>

#include <bit>
#include <cstdint>

#include "call.h"

namespace toprope::glue {

Factors kept_bits;

at::Tensor rounded(const at::Tensor& tensor, int bits) {
  sim::KernelScope on_host(sim::kNoDevice);  // the card does it on the way to its units, and needs no memory for it
  at::Tensor source = tensor.contiguous();
  at::Tensor result = at::empty_like(source);
  const auto* from = reinterpret_cast<const uint32_t*>(source.const_data_ptr<float>());
  auto* to = reinterpret_cast<uint32_t*>(result.mutable_data_ptr<float>());
  const int dropped = 23 - bits;
  const uint32_t below_half = (1u << (dropped - 1)) - 1, mask = ~((1u << dropped) - 1);
  constexpr uint32_t kExponent = 0x7f800000;
  at::parallel_for(0, source.numel(), 1 << 15, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; i++) {
      uint32_t value = from[i];
      bool finite = (value & kExponent) != kExponent;
      to[i] = finite ? (value + below_half + (value >> dropped & 1)) & mask : value;
    }
  });
  return result;
}

}  // namespace toprope::glue

// Bits of the mantissa that float32 keeps as a factor of a product of matrices and of a convolution; 0 for all.
extern "C" TOPROPE_API void tsg_keep_bits(int products, int convolutions) {
  toprope::glue::kept_bits.products.store(products);
  toprope::glue::kept_bits.convolutions.store(convolutions);
}
