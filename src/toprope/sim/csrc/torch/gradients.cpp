// Gradients that torch_npu computes otherwise than torch: derivatives.yaml of op-plugin names them. Registered with
// torch; nothing here calls it.
//
// Tests: tests/sim/simulated/test_vendor_gradients.py.
#include <ATen/FuncTorchTLS.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/_fft_c2c.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/real.h>
#include <ATen/ops/repeat_interleave.h>
#include <ATen/ops/repeat_interleave_native.h>
#include <ATen/ops/stft.h>
#include <ATen/ops/stft_native.h>
#include <ATen/ops/view_as_complex.h>
#include <ATen/ops/view_as_real.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include <vector>

#include "call.h"

namespace toprope::glue {

namespace {

using at::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::tensor_list;

bool is_half(const Tensor& tensor) {
  return tensor.scalar_type() == c10::kHalf || tensor.scalar_type() == c10::kBFloat16;
}

int64_t axis_of(const Tensor& grad, std::optional<int64_t> dim) {
  int64_t axis = dim.value_or(-1);
  return axis < 0 ? axis + grad.dim() : axis;
}

// Each element was repeated as often as the others: a sum of neighbours (RepeatInterleaveBackwardKernelOpApi.cpp).
Tensor sum_of_repeats(const Tensor& grad, c10::SymIntArrayRef sizes, c10::SymInt repeats, std::optional<int64_t> dim) {
  if (repeats == 0) raise_unsupported("aten::repeat_interleave", "repeats must be not zero");
  int64_t axis = axis_of(grad, dim);
  std::vector<c10::SymInt> shape = grad.sym_sizes().vec();
  shape[axis] = shape[axis] / repeats;
  shape.insert(shape.begin() + axis + 1, repeats);
  return grad.reshape_symint(shape).sum(axis + 1).reshape_symint(sizes);
}

class RepeatOne : public torch::autograd::Function<RepeatOne> {
 public:
  static Tensor forward(AutogradContext* context, const Tensor& self, c10::SymInt repeats, std::optional<int64_t> dim,
                        std::optional<c10::SymInt> output_size) {
    context->saved_data["sizes"] = self.sym_sizes();
    context->saved_data["repeats"] = repeats;
    context->saved_data["dim"] = dim;
    at::AutoDispatchBelowAutograd below;
    return at::repeat_interleave_symint(self, std::move(repeats), dim, std::move(output_size));
  }
  static tensor_list backward(AutogradContext* context, const tensor_list& grads) {
    std::vector<c10::SymInt> sizes = context->saved_data["sizes"].toSymIntVector();
    Tensor found = sum_of_repeats(grads[0], sizes, context->saved_data["repeats"].toSymInt(),
                                  context->saved_data["dim"].toOptional<int64_t>());
    return {found, Tensor(), Tensor(), Tensor()};
  }
};

class RepeatEach : public torch::autograd::Function<RepeatEach> {
 public:
  static Tensor forward(AutogradContext* context, const Tensor& self, const Tensor& repeats, std::optional<int64_t> dim,
                        std::optional<c10::SymInt> output_size) {
    context->save_for_backward({repeats});
    context->saved_data["sizes"] = self.sym_sizes();
    context->saved_data["dim"] = dim;
    at::AutoDispatchBelowAutograd below;
    return at::repeat_interleave_symint(self, repeats, dim, std::move(output_size));
  }
  static tensor_list backward(AutogradContext* context, const tensor_list& grads) {
    const Tensor &grad = grads[0], repeats = context->get_saved_variables()[0];
    std::vector<c10::SymInt> sizes = context->saved_data["sizes"].toSymIntVector();
    auto dim = context->saved_data["dim"].toOptional<int64_t>();
    if (repeats.sym_numel() == 1) {
      return {sum_of_repeats(grad, sizes, repeats.item().toLong(), dim), Tensor(), Tensor(), Tensor()};
    }
    int64_t axis = axis_of(grad, dim);
    std::vector<c10::SymInt> shape = grad.sym_sizes().vec();
    shape[axis] = repeats.sym_size(0);
    Tensor owner = at::repeat_interleave_symint(repeats.to(grad.device()), std::make_optional(grad.sym_size(axis)));
    Tensor wide = is_half(grad) ? grad.to(c10::kFloat) : grad;
    Tensor sums = at::zeros_symint(shape, wide.options()).index_add(axis, owner, wide);
    return {sums.to(grad.scalar_type()).reshape_symint(sizes), Tensor(), Tensor(), Tensor()};
  }
};

struct Transform {
  int64_t size = 0;
  std::optional<int64_t> hop, width;
  bool normalized = false;
  std::optional<bool> onesided, return_complex, align;
};

// As StftKernelNpuOpApi.cpp: the gradients of the frames, added where the frames lie. Complex numbers are added as pairs
// of real ones: the card's kernel that adds at an index takes no others.
Tensor stft_gradient(const Tensor& output, const Tensor& self, const Tensor& given_window, const Transform& how) {
  const int64_t hop = how.hop.value_or(how.size / 4), width = how.width.value_or(how.size);
  Tensor window = given_window;
  if (width < how.size) {
    const int64_t left = (how.size - width) / 2;
    Tensor inner = window.defined() ? window : at::ones({width}, self.options());
    window = at::constant_pad_nd(inner, {left, how.size - width - left});
  }
  const bool is_complex = self.is_complex() || (window.defined() && window.is_complex());
  const bool given_complex = self.is_complex() || (given_window.defined() && given_window.is_complex());
  Tensor grad = how.return_complex.value_or(given_complex) ? output : at::view_as_complex(output.contiguous());
  if (self.dim() == 1) grad = grad.unsqueeze(0);
  grad = grad.transpose(1, 2);
  const int64_t missing = how.size - grad.size(2);
  if (!is_complex && how.onesided.value_or(true) && missing > 0) grad = at::constant_pad_nd(grad, {0, missing});
  constexpr int64_t kByRoot = 1;
  grad = at::_fft_c2c(grad.contiguous(), {2}, how.normalized ? kByRoot : 0, false);
  if (!is_complex) grad = at::real(grad);
  if (window.defined()) grad = grad.mul(window.conj());
  if (!self.is_complex() && grad.is_complex()) grad = at::real(grad);
  if (grad.is_complex()) grad = at::view_as_real(grad.resolve_conj());

  auto places = at::TensorOptions().dtype(c10::kLong).device(self.device());
  Tensor place = at::arange(grad.size(1), places).mul(hop).unsqueeze(1).add(at::arange(how.size, places));
  std::vector<int64_t> shape{grad.size(0), self.size(-1)};
  if (self.is_complex()) shape.push_back(2);
  Tensor sums = at::zeros(shape, grad.options()).index_add(1, place.flatten(), grad.flatten(1, 2));
  if (self.is_complex()) sums = at::view_as_complex(sums);
  return sums.reshape(self.sizes());
}

class Stft : public torch::autograd::Function<Stft> {
 public:
  static Tensor forward(AutogradContext* context, const Tensor& self, const std::optional<Tensor>& window,
                        const Transform& how) {
    context->save_for_backward({self, window.value_or(Tensor())});
    how_of(context, how);
    at::AutoDispatchBelowAutograd below;
    return at::stft(self, how.size, how.hop, how.width, window, how.normalized, how.onesided, how.return_complex,
                    how.align);
  }
  static tensor_list backward(AutogradContext* context, const tensor_list& grads) {
    auto saved = context->get_saved_variables();
    auto& data = context->saved_data;
    Transform how{data["size"].toInt(),
                  data["hop"].toOptional<int64_t>(),
                  data["width"].toOptional<int64_t>(),
                  data["normalized"].toBool(),
                  data["onesided"].toOptional<bool>(),
                  data["return_complex"].toOptional<bool>(),
                  std::nullopt};
    return {stft_gradient(grads[0], saved[0], saved[1], how), Tensor(), Tensor()};
  }

 private:
  static void how_of(AutogradContext* context, const Transform& how) {
    auto& data = context->saved_data;
    data["size"] = how.size;
    data["hop"] = how.hop;
    data["width"] = how.width;
    data["normalized"] = how.normalized;
    data["onesided"] = how.onesided;
    data["return_complex"] = how.return_complex;
  }
};

// torch.func's transforms take no such functions: there the gradients are those of torch's composition.
bool in_transform() {
  const auto& transforms = at::functorch::functorchTLSAccessor();
  if (!transforms) return false;
  try {
    transforms->checkSupportsCppAutogradFunction();
    return false;
  } catch (const c10::Error&) {
    return true;
  }
}

Tensor repeat_one(const Tensor& self, c10::SymInt repeats, std::optional<int64_t> dim,
                  std::optional<c10::SymInt> output_size) {
  if (in_transform()) {
    return at::native::repeat_interleave_symint(self, std::move(repeats), dim, std::move(output_size));
  }
  return RepeatOne::apply(self, std::move(repeats), dim, std::move(output_size));
}

Tensor repeat_each(const Tensor& self, const Tensor& repeats, std::optional<int64_t> dim,
                   std::optional<c10::SymInt> output_size) {
  if (in_transform()) return at::native::repeat_interleave_symint(self, repeats, dim, std::move(output_size));
  return RepeatEach::apply(self, repeats, dim, std::move(output_size));
}

Tensor stft(const Tensor& self, int64_t n_fft, std::optional<int64_t> hop_length, std::optional<int64_t> win_length,
            const std::optional<Tensor>& window, bool normalized, std::optional<bool> onesided,
            std::optional<bool> return_complex, std::optional<bool> align_to_window) {
  if (in_transform() || (window.has_value() && window->requires_grad())) {
    return at::native::stft(self, n_fft, hop_length, win_length, window, normalized, onesided, return_complex,
                            align_to_window);
  }
  return Stft::apply(self, window,
                     Transform{n_fft, hop_length, win_length, normalized, onesided, return_complex, align_to_window});
}

}  // namespace

TORCH_LIBRARY_IMPL(aten, AutogradPrivateUse1, m) {
  m.impl("repeat_interleave.self_int", &repeat_one);
  m.impl("repeat_interleave.self_Tensor", &repeat_each);
  m.impl("stft", &stft);
}

}  // namespace toprope::glue
