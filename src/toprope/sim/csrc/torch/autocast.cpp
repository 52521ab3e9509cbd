// Operators that run in lower precision under torch.autocast("npu"): torch's own lists for devices, so that a new torch
// brings its own changes.
//
// Tests: tests/sim/simulated/test_amp.py.
#include <ATen/autocast_mode.h>

#include <ATen/ops/norm.h>

namespace {

namespace autocast = at::autocast;
using at::Tensor;
using c10::DispatchKey;
using c10::ScalarType;
using torch::jit::Stack;

constexpr c10::DeviceType kDevice = c10::DeviceType::PrivateUse1;

void cast(c10::IValue& value, ScalarType dtype) {
  if (value.isTensor()) {
    value = autocast::cached_cast(dtype, value.toTensor(), kDevice);
  } else if (value.isTensorList()) {
    c10::List<Tensor> cast;
    for (const Tensor& tensor : value.toTensorList()) cast.push_back(autocast::cached_cast(dtype, tensor, kDevice));
    value = std::move(cast);
  }
}

// The kernels are boxed: typed ones, as torch's own macros make them, take most of a minute to compile.
class Arguments {
 public:
  Arguments(const c10::OperatorHandle& handle, Stack* stack)
      : handle_(handle), stack_(stack), count_(handle.schema().arguments().size()) {}

  size_t size() const { return count_; }
  c10::IValue& operator[](size_t i) { return (*stack_)[stack_->size() - count_ + i]; }
  const c10::Argument& argument(size_t i) const { return handle_.schema().arguments()[i]; }
  void cast_all(ScalarType dtype) {
    for (size_t i = 0; i < count_; i++) cast((*this)[i], dtype);
  }
  void call() { handle_.callBoxed(stack_); }

 private:
  const c10::OperatorHandle& handle_;
  Stack* stack_;
  size_t count_;
  c10::impl::ExcludeDispatchKeyGuard without_autocast_{DispatchKey::AutocastPrivateUse1};
};

void lower_precision(const c10::OperatorHandle& handle, Stack* stack) {
  Arguments arguments(handle, stack);
  arguments.cast_all(autocast::get_autocast_dtype(kDevice));
  arguments.call();
}

void single_precision(const c10::OperatorHandle& handle, Stack* stack) {
  Arguments arguments(handle, stack);
  arguments.cast_all(c10::kFloat);
  arguments.call();
}

// Operators with a dtype for the result.
void single_precision_result(const c10::OperatorHandle& handle, Stack* stack) {
  Arguments arguments(handle, stack);
  if (autocast::is_eligible(arguments[0].toTensor(), kDevice)) {
    for (size_t i = 1; i < arguments.size(); i++) {
      if (arguments.argument(i).name() == "dtype" && arguments[i].isNone()) arguments[i] = c10::kFloat;
    }
  }
  arguments.call();
}

void widest(const c10::OperatorHandle& handle, Stack* stack) {
  Arguments arguments(handle, stack);
  ScalarType dtype = autocast::get_autocast_dtype(kDevice);
  for (size_t i = 0; i < arguments.size(); i++) {
    if (arguments[i].isTensor()) {
      dtype = autocast::prioritize(dtype, arguments[i].toTensor(), kDevice);
    } else if (arguments[i].isTensorList()) {
      for (const Tensor& tensor : arguments[i].toTensorList()) dtype = autocast::prioritize(dtype, tensor, kDevice);
    }
  }
  arguments.cast_all(dtype);
  arguments.call();
}

Tensor norm(const Tensor& self, const c10::Scalar& p) {
  c10::impl::ExcludeDispatchKeyGuard without_autocast(DispatchKey::AutocastPrivateUse1);
  return at::norm(self, p, autocast::type_from_firstarg(kDevice, c10::kFloat, self));
}

Tensor norm_along(const Tensor& self, const std::optional<c10::Scalar>& p, at::IntArrayRef dim, bool keepdim) {
  c10::impl::ExcludeDispatchKeyGuard without_autocast(DispatchKey::AutocastPrivateUse1);
  return at::norm(self, p, dim, keepdim, autocast::type_from_firstarg(kDevice, c10::kFloat, self));
}

// torch refuses it under autocast on every device: the logarithm of a sigmoid in half precision is mostly infinite.
Tensor refuse_binary_cross_entropy(const Tensor&, const Tensor&, const std::optional<Tensor>&, int64_t) {
  TORCH_CHECK(false,
              "torch.nn.functional.binary_cross_entropy and torch.nn.BCELoss are unsafe to autocast. Use"
              " binary_cross_entropy_with_logits or BCEWithLogitsLoss, which take what comes before the sigmoid.");
}

}  // namespace

TORCH_LIBRARY_IMPL(_, AutocastPrivateUse1, m) { m.fallback(torch::CppFunction::makeFallthrough()); }

#define NAME(OP, ...) #OP __VA_OPT__("." #__VA_ARGS__),

TORCH_LIBRARY_IMPL(aten, AutocastPrivateUse1, m) {
  auto use = [&m]<c10::BoxedKernel::BoxedKernelFunction* kernel>(std::initializer_list<const char*> names) {
    for (const char* name : names) m.impl(name, torch::CppFunction::makeFromBoxedFunction<kernel>());
  };
  use.template operator()<&lower_precision>({AT_FORALL_LOWER_PRECISION_FP(NAME)});
  use.template operator()<&single_precision>({AT_FORALL_FP32(NAME)});
  use.template operator()<&single_precision_result>({AT_FORALL_FP32_SET_OPT_DTYPE(NAME)});
  use.template operator()<&widest>({AT_FORALL_PROMOTE(NAME)});
  m.impl("norm.Scalar", &norm);
  m.impl("norm.ScalarOpt_dim", &norm_along);
  m.impl("binary_cross_entropy", &refuse_binary_cross_entropy);
}
