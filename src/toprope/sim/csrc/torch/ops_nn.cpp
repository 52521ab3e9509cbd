// Operators for which torch asks the device type in C++ and takes a branch of its own for PrivateUse1: convolutions,
// dropout, attention, recurrent cells.
//
// toprope/estimate/record/meta_attention.py has the conditions of card_has_fused_attention again, for models on paper.
// Tests: tests/sim/simulated/test_attention.py, test_layers.py and test_recurrent.py; test_timing.py for what the trace
// says of them.
#include <ATen/SequenceNumber.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/_fused_sdp_choice_ops.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu_backward.h>
#include <ATen/TensorOperators.h>
#include <ATen/native/transformers/attention.h>
#include <ATen/ops/bernoulli.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/convolution.h>
#include <ATen/ops/convolution_backward.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/scaled_dot_product_attention_native.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/tanh.h>
#include <ATen/ops/zeros_like.h>
#include <torch/library.h>

#include "call.h"
#include "composite.h"
#include "composite_gradient.h"
#include "cube.h"

namespace toprope::glue {

namespace {

using at::Tensor;
using c10::SymInt;
using c10::SymIntArrayRef;
using MaybeTensor = std::optional<Tensor>;

// ---- convolutions: the choice of a backend is made again for the host

Tensor as_factor(const Tensor& host) { return taken(host, kept_bits.convolutions); }

// Each element of the side that the weight's first dimension belongs to is a product of a filter.
uint64_t operations(const Tensor& side, const Tensor& weight) {
  return weight.size(0) == 0 ? 0 : 2 * static_cast<uint64_t>(side.numel()) * (weight.numel() / weight.size(0));
}

Tensor convolution(const Tensor& input, const Tensor& weight, const MaybeTensor& bias, SymIntArrayRef stride,
                   SymIntArrayRef padding, SymIntArrayRef dilation, bool transposed, SymIntArrayRef output_padding,
                   SymInt groups) {
  static sim::Kind* const kind = sim::kind("aten::convolution");
  Call call(kind);
  Tensor host_input = call.in(input);
  Tensor host_weight = call.in(weight);
  MaybeTensor host_bias = call.in(bias);
  call.begin();
  sim::KernelScope scope(call.device());
  host_input = as_factor(host_input);
  host_weight = as_factor(host_weight);
  try {
    Tensor result = at::convolution_symint(host_input, host_weight, host_bias, stride, padding, dilation, transposed,
                                           output_padding, std::move(groups));
    call.computes(operations(transposed ? input : result, weight));
    return call.out(result);
  } catch (const c10::Error& error) {
    rethrow(error, kind, nullptr);
  }
}

std::tuple<Tensor, Tensor, Tensor> convolution_backward(const Tensor& grad_output, const Tensor& input,
                                                        const Tensor& weight, SymIntArrayRef stride,
                                                        SymIntArrayRef padding, SymIntArrayRef dilation,
                                                        bool transposed, SymIntArrayRef output_padding, SymInt groups,
                                                        std::array<bool, 3> mask) {
  static sim::Kind* const kind = sim::kind("aten::convolution_backward");
  Call call(kind);
  Tensor host_grad = call.in(grad_output);
  Tensor host_input = call.in(input);
  Tensor host_weight = call.in(weight);
  call.begin();
  sim::KernelScope scope(call.device());
  call.computes((mask[0] + mask[1]) * operations(transposed ? input : grad_output, weight));
  std::vector<SymInt> bias_size{transposed ? weight.sym_size(1) * groups : weight.sym_size(0)};
  auto [grad_input, grad_weight, grad_bias] = at::convolution_backward_symint(
      as_factor(host_grad), as_factor(host_input), as_factor(host_weight), mask[2] ? at::OptionalSymIntArrayRef(bias_size) : std::nullopt, stride,
      padding, dilation, transposed, output_padding, groups, mask);
  return {call.out(grad_input), call.out(grad_weight), call.out(grad_bias)};
}

// ---- dropout: the host's kernel would draw from the host's generator

std::tuple<Tensor, Tensor> native_dropout(const Tensor& input, double p, std::optional<bool> train) {
  if (!train.value_or(true)) return {input.clone(), at::ones_like(input, input.options().dtype(at::kBool))};
  Tensor mask = at::empty_like(input, input.options().dtype(at::kBool));
  mask.bernoulli_(1 - p);
  return {input.mul(mask).mul_(p < 1 ? 1 / (1 - p) : 0.0), mask};
}

Tensor native_dropout_backward(const Tensor& grad_output, const Tensor& mask, double scale) {
  return grad_output.mul(mask).mul_(scale);
}

// ---- attention

// torch's numbers of attention backends (at::SDPBackend); the fused one of a backend like ours is "overrideable".
constexpr int64_t kMath = 0, kFlash = 1, kOverrideable = 4;

int64_t fused_sdp_choice(const Tensor& query, const Tensor& key, const Tensor& value, const MaybeTensor& mask,
                         double dropout, bool is_causal, std::optional<double> scale, bool enable_gqa) {
  if (mask.has_value() && mask->requires_grad()) return kMath;  // the fused kernel gives the mask no gradient
  if (enable_gqa || query.dim() != 4) return kMath;
  // Shapes that a trace leaves open have no bytes that a host's view could be of.
  for (const Tensor* tensor : {&query, &key, &value, mask.has_value() ? &*mask : &query}) {
    if (tensor->unsafeGetTensorImpl()->has_symbolic_sizes_strides()) return kMath;
  }
  MaybeTensor host_mask = mask.has_value() && mask->device().type() == kNpu ? host_alias(*mask) : mask;
  auto host = [](const Tensor& tensor) { return tensor.device().type() == kNpu ? host_alias(tensor) : tensor; };
  int64_t choice = at::_ops::_fused_sdp_choice::redispatch(kHostKeys, host(query), host(key), host(value), host_mask,
                                                           dropout, is_causal, scale, enable_gqa);
  return choice == kFlash ? kOverrideable : kMath;
}

// Two products of the forward pass; what a causal mask hides is not computed.
uint64_t operations_of_attention(const Tensor& query, const Tensor& key, const Tensor& value, bool is_causal) {
  const uint64_t rows = static_cast<uint64_t>(query.size(0)) * query.size(1) * query.size(2);
  const uint64_t all = 2 * rows * key.size(2) * (query.size(3) + value.size(3));
  return is_causal ? all / 2 : all;
}

// Whether the vendor has one kernel for it: the conditions of op-plugin's scaled_dot_product_attention
// (ScaledDotProductAttentionKernelNpuOpApi.cpp, 015a2e4b), on chips with separate vector cores.
bool card_has_fused_attention(const Tensor& query, const Tensor& key, const Tensor& value, const MaybeTensor& mask) {
  if (sim::cores()[sim::kVector] <= sim::cores()[sim::kCube]) return false;
  if (query.dim() != 4 || key.dim() != 4 || value.dim() != 4 || !query.is_floating_point()) return false;
  if (query.scalar_type() == at::kDouble || query.size(1) > 2048 || query.size(3) > 512) return false;
  if (key.size(1) == 0 || key.size(1) > query.size(1) || query.size(1) % key.size(1) != 0) return false;
  return !mask.has_value() || !mask->defined() || mask->scalar_type() == at::kBool;
}

// Attention as torch chooses it, in the trace as one operator where the card has a kernel and this host composes it: of
// heads that share keys, with dropout, of layouts that the host's kernel does not take.
Tensor whole_attention(const Tensor& query, const Tensor& key, const Tensor& value, const MaybeTensor& mask,
                       double dropout, bool is_causal, std::optional<double> scale, bool enable_gqa) {
  const auto computed = [&] {
    return at::native::scaled_dot_product_attention(query, key, value, mask, dropout, is_causal, scale, enable_gqa);
  };
  if (!sim::watching(sim::kTracing)) [[likely]] return computed();
  for (const Tensor* tensor : {&query, &key, &value}) {
    if (tensor->device().type() != kNpu || tensor->key_set().has(c10::DispatchKey::Python) || !tensor->has_storage() ||
        tensor->unsafeGetTensorImpl()->has_symbolic_sizes_strides()) {
      return computed();
    }
  }
  if (!card_has_fused_attention(query, key, value, mask) ||
      fused_sdp_choice(query, key, value, mask, dropout, is_causal, scale, enable_gqa) == kOverrideable) {
    return computed();
  }
  const uint64_t operations = operations_of_attention(query, key, value, is_causal);
  const uint64_t first = at::sequence_number::peek();
  static const char kGradient[] = "aten::scaled_dot_product_attention_backward";
  sim::SignatureOf gradient(sim::index_of(sim::kind(kGradient)));
  gradient.set_operations(operations / 2 * 5);  // five products, one of them again
  Tensor result;
  {
    Composite composite("aten::scaled_dot_product_attention");
    if (composite) {
      composite.computes(operations);
      for (const Tensor* tensor : {&query, &key, &value}) composite.add(sim::Role::kRead, *tensor);
      if (mask.has_value()) composite.add(sim::Role::kRead, *mask);
    }
    result = computed();
    if (composite) composite.add(sim::Role::kResult, result);
  }
  if (!result.requires_grad()) return result;
  for (const Tensor* tensor : std::initializer_list<const Tensor*>{&query, &key, &value, &result}) add_tensor(gradient, sim::Role::kRead, *tensor, false);
  add_tensor(gradient, sim::Role::kRead, result, false);  // its gradient
  for (const Tensor* tensor : {&query, &key, &value}) add_tensor(gradient, sim::Role::kResult, *tensor, false);
  record_gradient({result}, first, kGradient, query.device().index(), gradient.made());
  return result;
}

std::tuple<Tensor, Tensor, Tensor, Tensor, SymInt, SymInt, Tensor, Tensor, Tensor> attention(
    const Tensor& query, const Tensor& key, const Tensor& value, const MaybeTensor& bias, double dropout,
    bool is_causal, bool, std::optional<double> scale) {
  static sim::Kind* const kind = sim::kind("aten::scaled_dot_product_attention");
  Call call(kind);
  Tensor host_query = call.in(query);
  Tensor host_key = call.in(key);
  Tensor host_value = call.in(value);
  MaybeTensor host_bias = call.in(bias);
  call.begin();
  sim::KernelScope scope(call.device());
  call.computes(operations_of_attention(query, key, value, is_causal));
  auto [output, logsumexp] = at::_scaled_dot_product_flash_attention_for_cpu(host_query, host_key, host_value, dropout,
                                                                             is_causal, host_bias, scale);
  Tensor seed = at::empty({}, at::kLong), offset = at::empty({}, at::kLong);
  return {call.out(output), call.out(logsumexp), Tensor(),         Tensor(), query.sym_size(2),
          key.sym_size(2),  call.out(seed),      call.out(offset), Tensor()};
}

std::tuple<Tensor, Tensor, Tensor, Tensor> attention_backward(
    const Tensor& grad_output, const Tensor& query, const Tensor& key, const Tensor& value, const Tensor& bias,
    std::array<bool, 4>, const Tensor& output, const Tensor& logsumexp, const Tensor&, const Tensor&, SymInt, SymInt,
    double dropout, bool is_causal, const Tensor&, const Tensor&, std::optional<double> scale) {
  static sim::Kind* const kind = sim::kind("aten::scaled_dot_product_attention_backward");
  Call call(kind);
  Tensor host_grad = call.in(grad_output);
  Tensor host_query = call.in(query);
  Tensor host_key = call.in(key);
  Tensor host_value = call.in(value);
  Tensor host_output = call.in(output);
  Tensor host_logsumexp = call.in(logsumexp);
  MaybeTensor host_bias = bias.defined() ? MaybeTensor(call.in(bias)) : std::nullopt;
  call.begin();
  sim::KernelScope scope(call.device());
  call.computes(operations_of_attention(query, key, value, is_causal) / 2 * 5);  // five products, one of them again
  auto [grad_query, grad_key, grad_value] = at::_scaled_dot_product_flash_attention_for_cpu_backward(
      host_grad, host_query, host_key, host_value, host_output, host_logsumexp, dropout, is_causal, host_bias, scale);
  return {call.out(grad_query), call.out(grad_key), call.out(grad_value), Tensor()};
}

// The same for graphs that Inductor compiles as the host's: results have the strides that torch's meta kernels promise.
Tensor laid_out_as(const Tensor& like, const Tensor& result) {
  return result.strides() == like.strides() ? result : at::empty_like(like).copy_(result);
}

std::tuple<Tensor, Tensor, Tensor, Tensor, SymInt, SymInt, Tensor, Tensor, Tensor> host_attention(
    const Tensor& query, const Tensor& key, const Tensor& value, const MaybeTensor& bias, double dropout,
    bool is_causal, bool, std::optional<double> scale) {
  auto [output, logsumexp] =
      at::_scaled_dot_product_flash_attention_for_cpu(query, key, value, dropout, is_causal, bias, scale);
  return {laid_out_as(query, output), logsumexp.contiguous(), Tensor(), Tensor(), query.sym_size(2), key.sym_size(2),
          at::empty({}, at::kLong), at::empty({}, at::kLong), Tensor()};
}

std::tuple<Tensor, Tensor, Tensor, Tensor> host_attention_backward(
    const Tensor& grad_output, const Tensor& query, const Tensor& key, const Tensor& value, const Tensor& bias,
    std::array<bool, 4>, const Tensor& output, const Tensor& logsumexp, const Tensor&, const Tensor&, SymInt, SymInt,
    double dropout, bool is_causal, const Tensor&, const Tensor&, std::optional<double> scale) {
  MaybeTensor mask = bias.defined() ? MaybeTensor(bias) : std::nullopt;
  auto [grad_query, grad_key, grad_value] = at::_scaled_dot_product_flash_attention_for_cpu_backward(
      grad_output, query, key, value, output, logsumexp, dropout, is_causal, mask, scale);
  return {laid_out_as(query, grad_query), laid_out_as(key, grad_key), laid_out_as(value, grad_value), Tensor()};
}

// ---- recurrent cells: torch has fused ones only for devices; these are the textbook formulas

Tensor plus(Tensor sum, const MaybeTensor& bias) {
  return bias.has_value() && bias->defined() ? sum.add(*bias) : std::move(sum);
}

std::tuple<Tensor, Tensor, Tensor> lstm_cell(const Tensor& input_gates, const Tensor& hidden_gates, const Tensor& cx,
                                             const MaybeTensor& input_bias, const MaybeTensor& hidden_bias) {
  auto gates = plus(plus(input_gates.add(hidden_gates), input_bias), hidden_bias).chunk(4, 1);
  Tensor input = gates[0].sigmoid(), forget = gates[1].sigmoid(), cell = gates[2].tanh(), output = gates[3].sigmoid();
  Tensor cy = forget.mul(cx).add(input.mul(cell));
  return {output.mul(cy.tanh()), cy, at::cat({input, forget, cell, output}, 1)};
}

std::tuple<Tensor, Tensor, Tensor> lstm_cell_backward(const MaybeTensor& grad_hy, const MaybeTensor& grad_cy,
                                                      const Tensor& cx, const Tensor& cy, const Tensor& workspace,
                                                      bool has_bias) {
  auto saved = workspace.chunk(4, 1);
  const Tensor &input = saved[0], &forget = saved[1], &cell = saved[2], &output = saved[3];
  Tensor grad_output = at::zeros_like(output), grad_cell = at::zeros_like(cy);
  if (grad_hy.has_value() && grad_hy->defined()) {
    Tensor squashed = cy.tanh();
    grad_output = grad_hy->mul(squashed).mul(output).mul(1 - output);
    grad_cell = grad_hy->mul(output).mul(1 - squashed.mul(squashed));
  }
  if (grad_cy.has_value() && grad_cy->defined()) grad_cell = grad_cell.add(*grad_cy);
  Tensor grad_gates = at::cat({grad_cell.mul(cell).mul(input).mul(1 - input),
                               grad_cell.mul(cx).mul(forget).mul(1 - forget),
                               grad_cell.mul(input).mul(1 - cell.mul(cell)), grad_output},
                              1);
  return {grad_gates, grad_cell.mul(forget), has_bias ? grad_gates.sum(0) : Tensor()};
}

std::tuple<Tensor, Tensor> gru_cell(const Tensor& input_gates, const Tensor& hidden_gates, const Tensor& hx,
                                    const MaybeTensor& input_bias, const MaybeTensor& hidden_bias) {
  auto x = plus(input_gates, input_bias).chunk(3, 1);
  auto h = plus(hidden_gates, hidden_bias).chunk(3, 1);
  Tensor reset = x[0].add(h[0]).sigmoid(), update = x[1].add(h[1]).sigmoid();
  Tensor candidate = x[2].add(reset.mul(h[2])).tanh();
  return {candidate.add(update.mul(hx.sub(candidate))), at::cat({reset, update, candidate, hx, h[2]}, 1)};
}

std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor> gru_cell_backward(const Tensor& grad_hy, const Tensor& workspace,
                                                                     bool has_bias) {
  auto saved = workspace.chunk(5, 1);
  const Tensor &reset = saved[0], &update = saved[1], &candidate = saved[2], &hx = saved[3], &hidden = saved[4];
  Tensor grad_candidate = grad_hy.mul(1 - update).mul(1 - candidate.mul(candidate));
  Tensor grad_update = grad_hy.mul(hx.sub(candidate)).mul(update).mul(1 - update);
  Tensor grad_reset = grad_candidate.mul(hidden).mul(reset).mul(1 - reset);
  Tensor grad_input = at::cat({grad_reset, grad_update, grad_candidate}, 1);
  Tensor grad_hidden = at::cat({grad_reset, grad_update, grad_candidate.mul(reset)}, 1);
  return {grad_input, grad_hidden, grad_hy.mul(update), has_bias ? grad_input.sum(0) : Tensor(),
          has_bias ? grad_hidden.sum(0) : Tensor()};
}

// Nested tensors are not simulated; torch's encoder then takes the way without them.
bool no_nested_tensor(const Tensor&, const Tensor&) { return false; }

}  // namespace

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("_nested_tensor_from_mask_left_aligned", &no_nested_tensor);
  m.impl("convolution_overrideable", &convolution);
  m.impl("convolution_backward_overrideable", &convolution_backward);
  m.impl("native_dropout", &native_dropout);
  m.impl("native_dropout_backward", &native_dropout_backward);
  m.impl("_fused_sdp_choice", &fused_sdp_choice);
  m.impl("scaled_dot_product_attention", &whole_attention);
  m.impl("_scaled_dot_product_fused_attention_overrideable", &attention);
  m.impl("_scaled_dot_product_fused_attention_overrideable_backward", &attention_backward);
  m.impl("_thnn_fused_lstm_cell", &lstm_cell);
  m.impl("_thnn_fused_lstm_cell_backward_impl", &lstm_cell_backward);
  m.impl("_thnn_fused_gru_cell", &gru_cell);
  m.impl("_thnn_fused_gru_cell_backward", &gru_cell_backward);
}

TORCH_LIBRARY_IMPL(aten, AutogradPrivateUse1, m) { m.impl("scaled_dot_product_attention", &whole_attention); }

TORCH_LIBRARY_IMPL(aten, CPU, m) {
  m.impl("_scaled_dot_product_fused_attention_overrideable", &host_attention);
  m.impl("_scaled_dot_product_fused_attention_overrideable_backward", &host_attention_backward);
}

}  // namespace toprope::glue

// scaled_dot_product_attention asks this table, not the dispatcher, which kernel a device has.
namespace at::native {
REGISTER_PRIVATEUSE1_DISPATCH(_fused_sdp_choice_stub, &toprope::glue::fused_sdp_choice)
}  // namespace at::native
