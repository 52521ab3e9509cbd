// Frequent operators, run without boxed values: about half the cost of the fallback for each call. Some have rules of a
// card that the host's kernels lack: products and layer norms of half precision, losses of int32 classes.
//
// An operator may be added to the lists of `use` at the end, or taken out, if fallback.cpp does nothing special for it
// (no check, no wait, no rounding). ../../inductor/host_graphs.py calls torch.ops.toprope_sim.mm and its kin. Tests:
// tests/sim/simulated/test_operators.py and test_layers.py, test_numerics.py for products.
#include <ATen/core/Tensor.h>
#include <ATen/ops/_log_softmax_ops.h>
#include <ATen/ops/_log_softmax_backward_data_ops.h>
#include <ATen/ops/_softmax_ops.h>
#include <ATen/ops/_softmax_backward_data_ops.h>
#include <ATen/ops/abs_ops.h>
#include <ATen/ops/add_ops.h>
#include <ATen/ops/addcdiv_ops.h>
#include <ATen/ops/addcmul_ops.h>
#include <ATen/ops/addmm_ops.h>
#include <ATen/ops/addmv_ops.h>
#include <ATen/ops/all_ops.h>
#include <ATen/ops/amax_ops.h>
#include <ATen/ops/any_ops.h>
#include <ATen/ops/arange_ops.h>
#include <ATen/ops/argmax_ops.h>
#include <ATen/ops/baddbmm_ops.h>
#include <ATen/ops/bitwise_and_ops.h>
#include <ATen/ops/bitwise_not_ops.h>
#include <ATen/ops/bitwise_or_ops.h>
#include <ATen/ops/bmm_ops.h>
#include <ATen/ops/cat_ops.h>
#include <ATen/ops/clamp_ops.h>
#include <ATen/ops/cos_ops.h>
#include <ATen/ops/cumsum_ops.h>
#include <ATen/ops/div_ops.h>
#include <ATen/ops/dot_ops.h>
#include <ATen/ops/embedding_ops.h>
#include <ATen/ops/embedding_dense_backward_ops.h>
#include <ATen/ops/eq_ops.h>
#include <ATen/ops/exp_ops.h>
#include <ATen/ops/gather_ops.h>
#include <ATen/ops/ge_ops.h>
#include <ATen/ops/gelu_ops.h>
#include <ATen/ops/gelu_backward_ops.h>
#include <ATen/ops/gt_ops.h>
#include <ATen/ops/index_select_ops.h>
#include <ATen/ops/le_ops.h>
#include <ATen/ops/log_ops.h>
#include <ATen/ops/logical_not_ops.h>
#include <ATen/ops/lt_ops.h>
#include <ATen/ops/masked_fill_ops.h>
#include <ATen/ops/max_ops.h>
#include <ATen/ops/maximum_ops.h>
#include <ATen/ops/mean_ops.h>
#include <ATen/ops/minimum_ops.h>
#include <ATen/ops/mm_ops.h>
#include <ATen/ops/mse_loss_ops.h>
#include <ATen/ops/mse_loss_backward_ops.h>
#include <ATen/ops/mul_ops.h>
#include <ATen/ops/mv_ops.h>
#include <ATen/ops/native_group_norm_ops.h>
#include <ATen/ops/native_group_norm_backward_ops.h>
#include <ATen/ops/native_layer_norm_ops.h>
#include <ATen/ops/native_layer_norm_backward_ops.h>
#include <ATen/ops/ne_ops.h>
#include <ATen/ops/neg_ops.h>
#include <ATen/ops/nll_loss_backward_ops.h>
#include <ATen/ops/nll_loss2d_backward_ops.h>
#include <ATen/ops/nll_loss2d_forward_ops.h>
#include <ATen/ops/nll_loss_forward_ops.h>
#include <ATen/ops/pow_ops.h>
#include <ATen/ops/reciprocal_ops.h>
#include <ATen/ops/relu_ops.h>
#include <ATen/ops/rsqrt_ops.h>
#include <ATen/ops/rsub_ops.h>
#include <ATen/ops/sigmoid_ops.h>
#include <ATen/ops/sigmoid_backward_ops.h>
#include <ATen/ops/sign_ops.h>
#include <ATen/ops/silu_ops.h>
#include <ATen/ops/silu_backward_ops.h>
#include <ATen/ops/sin_ops.h>
#include <ATen/ops/sqrt_ops.h>
#include <ATen/ops/sub_ops.h>
#include <ATen/ops/sum_ops.h>
#include <ATen/ops/tanh_ops.h>
#include <ATen/ops/tanh_backward_ops.h>
#include <ATen/ops/threshold_backward_ops.h>
#include <ATen/ops/tril_ops.h>
#include <ATen/ops/triu_ops.h>
#include <ATen/ops/where_ops.h>
#include <ATen/ops/zero_ops.h>

#include <ATen/native/Resize.h>

#include "call.h"
#include "cube.h"

// Boxed calls are rare and run as every other operator does; torch's own boxing and its inference of schemas would be
// most of this file's time to compile.
template <class Schema, bool legacy>
struct c10::impl::make_boxed_from_unboxed_functor<toprope::glue::Host<Schema>, legacy> {
  static void call(c10::OperatorKernel*, const c10::OperatorHandle& handle, c10::DispatchKeySet keys,
                   torch::jit::Stack* stack) {
    toprope::glue::fallback(handle, keys, stack);
  }
};

namespace toprope::glue {

namespace {

template <class R, class... A>
c10::KernelFunction kernel(const char* name, const char* overload, R (*redispatch)(c10::DispatchKeySet, A...)) {
  return c10::KernelFunction::makeFromUnboxedFunctor<false, Host<R(A...)>>(
      std::make_unique<Host<R(A...)>>(name, overload, redispatch));
}

void add(const char* name, const char* overload, c10::KernelFunction kernel) {
  static auto* kept = new std::vector<c10::RegistrationHandleRAII>();
  kept->push_back(c10::Dispatcher::singleton().registerImpl({name, overload}, c10::DispatchKey::PrivateUse1,
                                                            std::move(kernel), std::nullopt, nullptr, __FILE__));
}

template <class... Op>
void use() {
  (add(Op::name, Op::overload_name, kernel(Op::name, Op::overload_name, &Op::redispatch)), ...);
}

// ---- products of matrices in half precision
//
// A card adds up in float32 and rounds once. The host's kernels for half precision are up to 200 times slower than those
// for float32, so larger products are computed in float32, in memory that is not the card's.

constexpr int64_t kManyProducts = 1 << 15;

template <class A>
struct Single {
  using type = A;
  static A make(A argument) { return std::forward<A>(argument); }
};
template <class T>
  requires std::is_same_v<std::remove_cvref_t<T>, at::Tensor>
struct Single<T> {
  using type = at::Tensor;
  static at::Tensor make(const at::Tensor& tensor) { return tensor.to(at::kFloat); }
};

// Products that an operator adds up, whose last two inputs are the factors; 0 where its tensors are not of one half
// precision.
template <class... A>
int64_t half_products(const std::remove_reference_t<A>&... arguments) {
  c10::SmallVector<const at::Tensor*, 4> tensors, inputs;
  auto look = [&]<class Argument, class T>(const T& argument) {
    if constexpr (std::is_same_v<T, at::Tensor>) {
      tensors.push_back(&argument);
      if (std::is_same_v<Argument, const at::Tensor&>) inputs.push_back(&argument);
    }
  };
  (look.template operator()<A>(arguments), ...);
  c10::ScalarType dtype = tensors[0]->scalar_type();
  if (dtype != at::kHalf && dtype != at::kBFloat16) return 0;
  for (const at::Tensor* tensor : tensors) {
    if (tensor->scalar_type() != dtype) return 0;
  }
  const at::Tensor& last = *inputs.back();
  return inputs[inputs.size() - 2]->numel() * (last.dim() > 1 ? last.size(-1) : 1);
}

// The factors are the last two of the tensors that are only read.
template <class... A>
constexpr std::array<bool, sizeof...(A)> factors() {
  std::array<bool, sizeof...(A)> found{std::is_same_v<A, const at::Tensor&>...};
  int left = 2;
  for (size_t i = found.size(); i-- > 0;) found[i] = found[i] && left-- > 0;
  return found;
}

template <bool Factor, class A>
decltype(auto) as_factor(A&& argument) {
  if constexpr (Factor) {
    return taken(argument, kept_bits.products);
  } else {
    return std::forward<A>(argument);
  }
}

template <class Op, class Schema>
struct InSingle;
template <class Op, class R, class... A>
struct InSingle<Op, R(c10::DispatchKeySet, A...)> {
  static R run(c10::DispatchKeySet keys, A... arguments) {
    if (half_products<A...>(arguments...) < kManyProducts) {
      if (kept_bits.products.load(std::memory_order_relaxed) != 0) [[unlikely]] {
        return rounding(keys, std::index_sequence_for<A...>{}, std::forward<A>(arguments)...);
      }
      return Op::redispatch(keys, std::forward<A>(arguments)...);
    }
    if constexpr (std::is_reference_v<R>) {
      at::Tensor result = compute(keys, arguments...);
      at::Tensor& written = convert::returned(arguments...);
      at::native::resize_output(written, result.sizes());
      return written.copy_(result);
    } else {
      c10::ScalarType dtype = std::get<0>(std::forward_as_tuple(arguments...)).scalar_type();
      return compute(keys, arguments...).to(dtype);
    }
  }

 private:
  template <size_t... I>
  static R rounding(c10::DispatchKeySet keys, std::index_sequence<I...>, A... arguments) {
    constexpr auto is_factor = factors<A...>();
    return Op::redispatch(keys, as_factor<is_factor[I]>(std::forward<A>(arguments))...);
  }
  static at::Tensor compute(c10::DispatchKeySet keys, const std::remove_reference_t<A>&... arguments) {
    sim::KernelScope on_host(sim::kNoDevice);
    return redispatch(keys, Single<A>::make(arguments)...);
  }
  static at::Tensor redispatch(c10::DispatchKeySet keys, typename Single<A>::type... single) {
    return Op::redispatch(keys, single...);
  }
};

template <class... Op>
void use_in_single() {
  (add(Op::name, Op::overload_name,
       kernel(Op::name, Op::overload_name, &InSingle<Op, std::remove_pointer_t<decltype(&Op::redispatch)>>::run)),
   ...);
}

// The same for graphs that Inductor compiles as the host's.
template <class Op, class Schema = std::remove_pointer_t<decltype(&Op::redispatch)>>
struct OnHost;
template <class Op, class R, class... A>
struct OnHost<Op, R(c10::DispatchKeySet, A...)> {
  static R run(A... arguments) {
    return InSingle<Op, R(c10::DispatchKeySet, A...)>::run(c10::DispatchKeySet(c10::DispatchKey::CPU),
                                                           std::forward<A>(arguments)...);
  }
};

}  // namespace

namespace op = at::_ops;

namespace {

// ---- layer norm in half precision
//
// Mean and reciprocal deviation are float32 whatever the weight is (LayerNormKernelNpuOpApi.cpp of op-plugin); the
// host's kernel gives them in the input's dtype unless the weight is float32, and its gradient wants them as it gave them.

bool is_half(const at::Tensor& tensor) {
  return tensor.scalar_type() == at::kHalf || tensor.scalar_type() == at::kBFloat16;
}

at::Tensor single(const at::Tensor& tensor) { return tensor.to(at::kFloat); }
std::optional<at::Tensor> single(const std::optional<at::Tensor>& tensor) {
  return tensor && tensor->defined() ? std::make_optional(single(*tensor)) : tensor;
}

using Optional = const std::optional<at::Tensor>&;
using Three = std::tuple<at::Tensor, at::Tensor, at::Tensor>;

Three layer_norm(c10::DispatchKeySet keys, const at::Tensor& input, c10::SymIntArrayRef shape, Optional weight,
                 Optional bias, double eps) {
  if (!is_half(input)) return op::native_layer_norm::redispatch(keys, input, shape, weight, bias, eps);
  Three found;
  {
    sim::KernelScope on_host(sim::kNoDevice);
    found = op::native_layer_norm::redispatch(keys, single(input), shape, single(weight), single(bias), eps);
  }
  auto& [result, mean, deviation] = found;
  return {result.to(input.scalar_type()), mean.clone(), deviation.clone()};
}

Three layer_norm_backward(c10::DispatchKeySet keys, const at::Tensor& grad, const at::Tensor& input,
                          c10::SymIntArrayRef shape, const at::Tensor& mean, const at::Tensor& deviation,
                          Optional weight, Optional bias, std::array<bool, 3> wanted) {
  using gradient = op::native_layer_norm_backward;
  if (!is_half(input)) return gradient::redispatch(keys, grad, input, shape, mean, deviation, weight, bias, wanted);
  Three found;
  {
    sim::KernelScope on_host(sim::kNoDevice);
    found = gradient::redispatch(keys, single(grad), single(input), shape, single(mean), single(deviation),
                                 single(weight), single(bias), wanted);
  }
  auto as = [](const at::Tensor& value, Optional like, const at::Tensor& otherwise) {
    if (!value.defined()) return value;
    return value.to((like && like->defined() ? *like : otherwise).scalar_type(), false, true);
  };
  return {as(std::get<0>(found), input, input), as(std::get<1>(found), weight, input), as(std::get<2>(found), bias, input)};
}

// ---- losses of classes, which a card also takes as int32 (aclnnNLLLoss gets them as they are)

at::Tensor as_long(const at::Tensor& classes) {
  if (classes.scalar_type() != at::kInt) return classes;
  sim::KernelScope on_host(sim::kNoDevice);
  return classes.to(at::kLong);
}

template <class Forward, class Backward>
void use_nll() {
  using Index = c10::SymInt;
  auto* forward = +[](c10::DispatchKeySet keys, const at::Tensor& self, const at::Tensor& target, Optional weight,
                      int64_t reduction, Index ignored) -> std::tuple<at::Tensor, at::Tensor> {
    return Forward::redispatch(keys, self, as_long(target), weight, reduction, std::move(ignored));
  };
  auto* backward = +[](c10::DispatchKeySet keys, const at::Tensor& grad, const at::Tensor& self,
                       const at::Tensor& target, Optional weight, int64_t reduction, Index ignored,
                       const at::Tensor& total) -> at::Tensor {
    return Backward::redispatch(keys, grad, self, as_long(target), weight, reduction, std::move(ignored), total);
  };
  add(Forward::name, Forward::overload_name, kernel(Forward::name, Forward::overload_name, forward));
  add(Backward::name, Backward::overload_name, kernel(Backward::name, Backward::overload_name, backward));
}

}  // namespace

const bool registered_frequent = [] {
  use<op::add_Tensor, op::add__Tensor, op::sub_Tensor, op::sub__Tensor, op::mul_Tensor, op::mul__Tensor,
      op::div_Tensor, op::div__Tensor, op::neg, op::rsub_Scalar, op::addcmul_, op::addcdiv_, op::lerp__Scalar,
      op::maximum, op::minimum, op::clamp, op::abs, op::sign>();
  use_in_single<op::mm, op::addmm, op::bmm, op::baddbmm, op::mv, op::addmv>();
  use_in_single<op::mm_out, op::addmm_out, op::addmm_, op::bmm_out, op::baddbmm_out, op::baddbmm_>();
  use<op::dot>();
  use<op::sum, op::sum_dim_IntList, op::mean, op::mean_dim, op::amax, op::max_dim, op::argmax, op::any,
      op::all, op::cumsum>();
  use<op::relu, op::relu_, op::threshold_backward, op::gelu, op::gelu_backward, op::silu, op::silu_backward,
      op::sigmoid, op::sigmoid_backward, op::tanh, op::tanh_backward>();
  use<op::exp, op::log, op::sqrt, op::rsqrt, op::reciprocal, op::sin, op::cos, op::pow_Tensor_Scalar>();
  use<op::_softmax, op::_softmax_backward_data, op::_log_softmax, op::_log_softmax_backward_data>();
  use<op::mse_loss, op::mse_loss_backward>();
  use_nll<op::nll_loss_forward, op::nll_loss_backward>();
  use_nll<op::nll_loss2d_forward, op::nll_loss2d_backward>();
  add(op::native_layer_norm::name, "", kernel(op::native_layer_norm::name, "", &layer_norm));
  add(op::native_layer_norm_backward::name, "", kernel(op::native_layer_norm_backward::name, "", &layer_norm_backward));
  use<op::native_group_norm, op::native_group_norm_backward>();
  use<op::embedding, op::embedding_dense_backward, op::index_select, op::gather, op::cat, op::where_self>();
  use<op::eq_Scalar, op::eq_Tensor, op::ne_Scalar, op::ne_Tensor, op::lt_Scalar, op::lt_Tensor, op::gt_Scalar,
      op::gt_Tensor, op::le_Scalar, op::le_Tensor, op::ge_Scalar, op::ge_Tensor, op::bitwise_and_Tensor,
      op::bitwise_or_Tensor, op::bitwise_not, op::logical_not, op::masked_fill__Scalar,
      op::masked_fill_Scalar>();
  use<op::zero_, op::fill__Scalar, op::arange_start_out, op::triu, op::tril>();
  return true;
}();

TORCH_LIBRARY_FRAGMENT(toprope_sim, m) {
  m.def("mm(Tensor self, Tensor mat2, *, Tensor(a!) out) -> Tensor(a!)", &OnHost<op::mm_out>::run);
  m.def("bmm(Tensor self, Tensor mat2, *, Tensor(a!) out) -> Tensor(a!)", &OnHost<op::bmm_out>::run);
  m.def("addmm(Tensor self, Tensor mat1, Tensor mat2, *, Scalar beta=1, Scalar alpha=1, Tensor(a!) out) -> Tensor(a!)",
        &OnHost<op::addmm_out>::run);
  m.def("baddbmm(Tensor self, Tensor mat1, Tensor mat2, *, Scalar beta=1, Scalar alpha=1, Tensor(a!) out) -> Tensor(a!)",
        &OnHost<op::baddbmm_out>::run);
}

}  // namespace toprope::glue
