// Frequent operators, run without the detour through boxed values: about half the cost of the fallback a call.
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

#include "call.h"

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

}  // namespace

namespace op = at::_ops;

const bool registered_frequent = [] {
  use<op::add_Tensor, op::add__Tensor, op::sub_Tensor, op::sub__Tensor, op::mul_Tensor, op::mul__Tensor,
      op::div_Tensor, op::div__Tensor, op::neg, op::rsub_Scalar, op::addcmul_, op::addcdiv_, op::lerp__Scalar,
      op::maximum, op::minimum, op::clamp, op::abs, op::sign>();
  use<op::mm, op::addmm, op::bmm, op::baddbmm, op::dot, op::mv, op::addmv>();
  use<op::sum, op::sum_dim_IntList, op::mean, op::mean_dim, op::amax, op::max_dim, op::argmax, op::any,
      op::all, op::cumsum>();
  use<op::relu, op::relu_, op::threshold_backward, op::gelu, op::gelu_backward, op::silu, op::silu_backward,
      op::sigmoid, op::sigmoid_backward, op::tanh, op::tanh_backward>();
  use<op::exp, op::log, op::sqrt, op::rsqrt, op::reciprocal, op::sin, op::cos, op::pow_Tensor_Scalar>();
  use<op::_softmax, op::_softmax_backward_data, op::_log_softmax, op::_log_softmax_backward_data>();
  use<op::nll_loss_forward, op::nll_loss_backward, op::mse_loss, op::mse_loss_backward>();
  use<op::native_layer_norm, op::native_layer_norm_backward, op::native_group_norm,
      op::native_group_norm_backward>();
  use<op::embedding, op::embedding_dense_backward, op::index_select, op::gather, op::cat, op::where_self>();
  use<op::eq_Scalar, op::eq_Tensor, op::ne_Scalar, op::ne_Tensor, op::lt_Scalar, op::lt_Tensor, op::gt_Scalar,
      op::gt_Tensor, op::le_Scalar, op::le_Tensor, op::ge_Scalar, op::ge_Tensor, op::bitwise_and_Tensor,
      op::bitwise_or_Tensor, op::bitwise_not, op::logical_not, op::masked_fill__Scalar,
      op::masked_fill_Scalar>();
  use<op::zero_, op::fill__Scalar, op::arange_start_out, op::triu, op::tril>();
  return true;
}();

}  // namespace toprope::glue
