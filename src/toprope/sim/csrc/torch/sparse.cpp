// Sparse tensors in coordinate format: torch_npu registers the operators for which torch has one kernel for hosts and
// GPUs (the lines "SparseCPU, SparseCUDA" of native_functions.yaml, which its torchnpugen reads), and its own add, mul,
// coalesce and max (op-plugin's op_plugin_functions.yaml, "sparse:"). Missing are those whose kernel ends in CUDA's
// own: mm, mv, and the conversions to compressed formats.
//
// An operator of a later release is a name in a list. Tests: tests/sim/simulated/test_sparse.py.
#include "sparse.h"

#include <ATen/ops/max.h>

#include <unordered_set>

namespace toprope::glue {

namespace {

// By name, whatever the overload; an underscore at the end is the variant in place.
bool is_among(const std::unordered_set<std::string>& names, const c10::FunctionSchema& schema) {
  std::string name = schema.name();
  if (name.rfind("aten::", 0) != 0) return false;
  name.erase(0, sizeof("aten::") - 1);
  if (names.count(name) > 0) return true;
  return name.size() > 1 && name.back() == '_' && names.count(name.substr(0, name.size() - 1)) > 0;
}

}  // namespace

bool is_sparse_on_card(const c10::FunctionSchema& schema) {
  static const std::unordered_set<std::string> names = {
      "_coalesce", "_coalesced_", "_dimI", "_dimV", "_indices", "_nnz", "_sparse_broadcast_to",
      "_sparse_coo_tensor_with_dims", "_sparse_coo_tensor_with_dims_and_tensors", "_sparse_mask_projection", "_to_dense",
      "_to_sparse", "_values", "abs", "add", "any", "asin", "asinh", "atan", "atanh", "cat", "ceil", "clone",
      "conj_physical", "copy_", "copy_sparse_to_sparse_", "deg2rad", "dense_dim", "div", "empty", "empty_like", "erf",
      "erfinv", "expm1", "floor", "floor_divide", "frac", "indices", "is_coalesced", "isinf", "isnan", "isneginf",
      "isposinf", "log1p", "mul", "nan_to_num", "narrow_copy", "native_norm", "neg", "norm", "permute", "pow",
      "rad2deg", "relu", "resize_as_sparse_", "round", "sgn", "sign", "signbit", "sin", "sinh", "sparse_dim",
      "sparse_mask", "sparse_resize_", "sparse_resize_and_clear_", "sqrt", "sub", "sum", "tan", "tanh",
      "threshold_backward", "trunc", "unsqueeze", "values", "view_as_complex", "view_as_real", "zero_", "zeros"};
  return is_among(names, schema);
}

// torch_npu registers what torch has one kernel of for hosts and GPUs (the lines "SparseCsrCPU, SparseCsrCUDA"). Left out
// are sums and products of matrices, whose kernels end in ones that are CUDA's own, and ways to other formats.
bool is_compressed_on_card(const c10::FunctionSchema& schema) {
  static const std::unordered_set<std::string> names = {
      "_conj_physical", "_nnz", "_to_dense", "abs", "angle", "asin", "asinh", "atan", "atanh", "ccol_indices", "ceil",
      "clone", "col_indices", "conj_physical", "copy_", "crow_indices", "deg2rad", "dense_dim", "empty", "empty_like",
      "erf", "erfinv", "expm1", "fill_", "floor", "frac", "isinf", "isnan", "isneginf", "isposinf", "log1p", "mul", "neg",
      "normal_", "rad2deg", "relu", "resize_", "resize_as_sparse_", "round", "row_indices", "select", "select_copy",
      "sgn", "sign", "signbit", "sin", "sinh", "sparse_dim", "sparse_mask", "sqrt", "sum", "tan", "tanh",
      "threshold_backward", "trunc", "values", "zero_"};
  return is_among(names, schema);
}

bool asks_for_shape(const std::string& name) {
  static const std::unordered_set<std::string> names = {"aten::_nnz",      "aten::sparse_dim", "aten::_dimI",
                                                        "aten::dense_dim", "aten::_dimV",      "aten::is_coalesced"};
  return names.count(name) > 0;
}

bool copies(const std::string& name) { return name == "aten::copy_" || name == "aten::copy_sparse_to_sparse_"; }

at::Tensor max_of_sparse(const at::Tensor& self) { return self.to_dense().max(); }

}  // namespace toprope::glue
