// Which operators run in lower precision under torch.autocast("npu"): torch's own lists for devices.
#include <ATen/autocast_mode.h>

// The macros name these without their namespaces.
using at::Tensor;
using c10::IntArrayRef;
using c10::Scalar;
using c10::ScalarType;
namespace at {
using c10::Scalar;
}

namespace {

// torch refuses it under autocast on every device: the logarithm of a sigmoid in half precision is mostly infinite.
Tensor refuse_binary_cross_entropy(const Tensor&, const Tensor&, const std::optional<Tensor>&, int64_t) {
  TORCH_CHECK(false,
              "torch.nn.functional.binary_cross_entropy and torch.nn.BCELoss are unsafe to autocast. Use"
              " binary_cross_entropy_with_logits or BCEWithLogitsLoss, which take what comes before the sigmoid.");
}

}  // namespace

#define LOWER_PRECISION(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, lower_precision_fp)
#define SINGLE_PRECISION(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, fp32)
#define SINGLE_PRECISION_OPTION(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, fp32_set_opt_dtype)
#define PROMOTE(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, promote)

TORCH_LIBRARY_IMPL(_, AutocastPrivateUse1, m) { m.fallback(torch::CppFunction::makeFallthrough()); }

TORCH_LIBRARY_IMPL(aten, AutocastPrivateUse1, m) {
  AT_FORALL_LOWER_PRECISION_FP(LOWER_PRECISION)
  AT_FORALL_FP32(SINGLE_PRECISION)
  AT_FORALL_FP32_SET_OPT_DTYPE(SINGLE_PRECISION_OPTION)
  AT_FORALL_PROMOTE(PROMOTE)
  m.impl("binary_cross_entropy", &refuse_binary_cross_entropy);
  AT_FORALL_DIFFERENT_REDISPATCH_SIGNATURE(KERNEL_DIFFERENT_REDISPATCH_SIGNATURE_PRIVATEUSEONE)
}
