// Search for bad numbers in results; see numbers.h.
//
// Tests: tests/sim/simulated/test_numbers.py.
#include "numbers.h"

#include <cstdint>
#include <string>
#include <unordered_set>

namespace toprope::glue {

namespace {

// A mask of infinities is no overflow.
bool writes_what_it_is_told(const std::string& name) {
  static const std::unordered_set<std::string> names = {"aten::fill_",  "aten::masked_fill", "aten::masked_fill_",
                                                        "aten::where",  "aten::full",        "aten::scatter",
                                                        "aten::scatter_", "aten::index_fill", "aten::index_fill_",
                                                        "aten::log",    "aten::log_",        "aten::constant_pad_nd"};
  return names.count(name) > 0;
}

template <class Bits>
NotFinite look(const at::Tensor& tensor, Bits exponent, Bits mantissa) {
  NotFinite found;
  const auto* values = static_cast<const Bits*>(tensor.const_data_ptr());
  for (int64_t i = 0; i < tensor.numel(); i++) {
    if ((values[i] & exponent) != exponent) [[likely]] continue;
    ((values[i] & mantissa) != 0 ? found.nan : found.infinite) = true;
  }
  return found;
}

}  // namespace

NotFinite not_finite(const at::Tensor& host) {
  if (!host.defined() || host.layout() != c10::kStrided || !host.device().is_cpu() || host.numel() == 0) return {};
  const c10::ScalarType dtype = host.scalar_type();
  if (dtype != at::kHalf && dtype != at::kBFloat16 && dtype != at::kFloat && dtype != at::kDouble) return {};
  sim::KernelScope on_host(sim::kNoDevice);
  const at::Tensor tensor = host.contiguous();
  switch (dtype) {
    case at::kHalf: return look<uint16_t>(tensor, 0x7c00, 0x03ff);
    case at::kBFloat16: return look<uint16_t>(tensor, 0x7f80, 0x007f);
    case at::kFloat: return look<uint32_t>(tensor, 0x7f800000, 0x007fffff);
    default: return look<uint64_t>(tensor, 0x7ff0000000000000, 0x000fffffffffffff);
  }
}

void look_at_numbers(const char* name, const NotFinite& operands, const at::Tensor& result) {
  const NotFinite found = not_finite(result);
  if (found.nan && !operands.nan) sim::note_number(sim::kNan, name, line_here());
  if (found.infinite && !operands.infinite && !operands.nan && !writes_what_it_is_told(name)) {
    sim::note_number(sim::kOverflow, name, line_here());
  }
}

}  // namespace toprope::glue

// Switches the search in results on or off.
extern "C" TOPROPE_API void tsg_watch_numbers(int on) { toprope::sim::watch(toprope::sim::kNumbers, on != 0); }
