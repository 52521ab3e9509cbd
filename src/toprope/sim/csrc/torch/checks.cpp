// Checks of arguments that torch_npu's operators make themselves, before CANN is asked, and their texts. Each entry
// names its file in op-plugin's op_plugin/ops/opapi, without "KernelNpuOpApi.cpp", or another place. Called by call.cpp
// and fallback.cpp.
//
// A new check is an entry of one of the tables. Tests: tests/sim/simulated/test_argument_checks.py.
#include "checks.h"

#include <ATen/core/Tensor.h>

#include <array>
#include <limits>
#include <unordered_map>
#include <unordered_set>

namespace toprope::glue {

namespace {

constexpr const char* kParameter = "ERR01001 OPS invalid parameter";
constexpr const char* kType = "ERR01002 OPS invalid type";
constexpr const char* kNotSupported = "ERR01007 OPS feature not supported";
constexpr const char* kValue = "ERR01003 OPS invalid value";

// ---- what the host refuses too: torch_npu's text, where it is another, and its code

struct Text {
  const char* torch;  // words of the host's error
  const char* code;
  const char* vendor = nullptr;  // the whole text, where it is not the host's
};

using Texts = std::unordered_map<std::string, std::vector<Text>>;

const Texts& texts_of_checks() {
  static const Text range[] = {
      {"step must be nonzero", kValue},
      {"unsupported range", kValue},
      {"bound inconsistent with step sign", kValue, "upper bound and larger bound inconsistent with step sign"}};
  static const Text index[] = {
      // AdvancedIndex.cpp
      {"tensors used as indices must be long", kType, "tensors used as indices must be long, int, byte, or bool tensors"},
      {"indexing tensors could not be broadcast together", kValue},
      {"The shape of the mask", kValue},
      {"index is out of bounds for dimension with size 0", kParameter},
      {"cannot be broadcast to indexing result", kParameter}};  // IndexPut
  static const Text convolution[] = {  // Convolution
      {"negative padding is not supported", kNotSupported},
      {"negative output_padding is not supported", kNotSupported},
      {"non-positive stride is not supported", kNotSupported},
      {"-dimensional input for", kParameter},
      {"expected weight to be", kParameter},
      {"channels, but got", kParameter},
      {"expected bias to be", kParameter},
      {"Kernel size can't be greater than actual input size", kParameter}};
  static const Text average2d[] = {{"divisor must be not zero", kValue},  // AvgPool2d
                                   {"stride should not be zero", kValue},
                                   {"pad should be", kValue}};
  static const Text average3d[] = {{"must be a single int", kParameter},  // AvgPool3d
                                   {"divisor must be not zero", kValue},
                                   {"stride should not be zero", kValue},
                                   {"4D or 5D", kParameter}};
  static const Text normal[] = {{"normal expects std >= 0.0", kValue},  // Normal
                                {"to be non-complex", kType},
                                {"normal expects all elements of std >= 0.0", kValue}};
  auto all = [](const auto& list) { return std::vector<Text>(std::begin(list), std::end(list)); };
  static const Texts table = {
      {"aten::_adaptive_avg_pool2d", {{"tensor expected for input", kParameter}}},  // AdaptiveAvgPool2d
      {"aten::_cdist_backward", {{"must have the same number of columns", kParameter}}},  // CdistBackward
      {"aten::_linalg_svd", {{"must have at least 2 dimensions", kValue, "The dim of input tensor must larger than two."}}},
      {"aten::_pack_padded_sequence",  // PackPaddedSequence
       {{"Cannot pack empty tensors", kParameter, "Cannot pack empty tensors."},
        {"Expected `len(lengths)` to be equal to batch_size", kParameter},
        {"has to be greater than 0", kParameter}}},
      {"aten::_pad_packed_sequence", {{"Expected total_length to be at least", kParameter}}},  // PadPackedSequence
      {"aten::_pdist_forward", {{"pdist only supports non-negative p values", kValue}}},       // Pdist
      {"aten::add", {{"Boolean alpha only supported", kType}, {"argument alpha must not be a floating point", kType}}},
      {"aten::addbmm", {{"batch1 must be a 3D tensor", kParameter}}},  // Addbmm
      {"aten::arange", all(range)},                                    // Arange
      {"aten::avg_pool2d", all(average2d)},
      {"aten::avg_pool2d_backward", all(average2d)},
      {"aten::avg_pool3d", all(average3d)},
      {"aten::bincount", {{"non-negative integral inputs", kValue, "bincount only support 1-d non-negative integral inputs."}}},
      {"aten::bucketize", {{"boundaries tensor must be 1 dimension", kParameter}}},
      {"aten::cat", {{"cannot be concatenated", kParameter}}},
      {"aten::constant_pad_nd",
       {{"Length of pad must be even", kParameter},
        {"Length of pad should be no more than twice", kParameter},
        {"resulted in a negative output size", kParameter}}},
      {"aten::convolution_overrideable", all(convolution)},
      {"aten::div", {{"div expected rounding_mode to be one of None, 'trunc', or 'floor'", kParameter}}},  // Div
      {"aten::exponential_", {{"exponential_ expects lambda > 0.0", kParameter}}},
      {"aten::eye", {{"must be greater or equal to 0", kParameter}}},
      {"aten::gelu", {{"approximate argument must be either none or tanh", kParameter,
                       "NPU error, approximate argument must be either none or tanh."}}},  // KernelNpuNewParams.cpp
      {"aten::histc",
       {{"bins must be > 0", kValue}, {"is not finite", kValue}, {"max must be larger than min", kValue}}},
      {"aten::index", all(index)},
      {"aten::_index_put_impl_", all(index)},
      {"aten::index_put_", all(index)},
      {"aten::index_add",
       {{"source tensor shape must match self tensor shape", kParameter}}},
      {"aten::index_fill", {{"0-dimensional tensor", kValue}, {"Index has to be a vector/scalar", kType,
                                                               "Index has to be a vector/scalar."}}},
      {"aten::index_fill_", {{"0-dimensional tensor", kValue}, {"Index has to be a vector/scalar", kType,
                                                                "Index has to be a vector/scalar."}}},
      {"aten::linalg_cross",
       {{"must have the same number of dimensions", kParameter}, {"must have length 3", kParameter}}},
      {"aten::linalg_qr", {{"at least 2 dimensions", kParameter}, {"unrecognized mode", kParameter}}},
      {"aten::linalg_solve_triangular", {{"at least 2 dimensions", kParameter}}},
      {"aten::linspace", {{"number of steps must be non-negative", kValue}}},
      {"aten::logspace", {{"number of steps must be non-negative", kParameter}}},
      {"aten::max_pool2d_with_indices", {{"must either be a single int", kParameter}, {"must be either be a single int", kParameter},
                                         {"tensor expected for input", kParameter}}},
      {"aten::max_pool3d_with_indices", {{"must either be a single int", kParameter}, {"tensor expected for input", kParameter}}},
      {"aten::native_layer_norm",
       {{"Expected normalized_shape to be at least 1-dimensional", kParameter},
        {"to be of same shape as normalized_shape", kParameter},
        {"expected input with shape", kParameter}}},
      {"aten::normal", all(normal)},
      {"aten::normal_", all(normal)},
      {"aten::range", all(range)},
      {"aten::repeat_interleave", {{"repeats can not be negative", kParameter, "repeats can not be negative."}}},
      {"aten::scatter", {{"reduce argument must be either add or multiply", kParameter,
                          "Reduce should be either add or multiply"}}},
      {"aten::scatter_reduce", {{"reduce argument must be", kParameter}}},
      {"aten::sub", {{"argument alpha must not be a floating point", kType}}},
      {"aten::unique_dim",
       {{"Number of zero sized dimensions is more than one", kParameter}, {"There are 0 sized dimensions", kParameter}}}};
  return table;
}

// ---- what the host takes

c10::ScalarType dtype_of(const Arguments& arguments) { return arguments[0].toTensor().scalar_type(); }

bool exceeds_float(const c10::IValue& number) { return !(number.toDouble() <= std::numeric_limits<float>::max()); }

template <class Error>
void raise_kind(const c10::Error& error, const std::string& text) {
  if (dynamic_cast<const Error*>(&error) != nullptr) throw Error({__func__, __FILE__, __LINE__}, text);
}

}  // namespace

bool is_failure_in_kernel(const std::string& op, const c10::Error& error) {
  static const std::unordered_set<std::string> reads_indices = {
      "aten::embedding", "aten::embedding_dense_backward", "aten::index_select", "aten::gather", "aten::take",
      "aten::index", "aten::_index_put_impl_", "aten::index_put_", "aten::put_", "aten::scatter", "aten::scatter_",
      "aten::scatter_add", "aten::scatter_add_", "aten::scatter_reduce", "aten::scatter_reduce_", "aten::index_add",
      "aten::index_add_", "aten::index_fill_", "aten::nll_loss_forward", "aten::nll_loss2d_forward",
      "aten::nll_loss_backward", "aten::nll_loss2d_backward",
      "aten::multi_margin_loss", "aten::multi_margin_loss_backward", "aten::multilabel_margin_loss_forward",
      "aten::_embedding_bag", "aten::_embedding_bag_forward_only"};
  const std::string& text = error.msg();
  auto says = [&](const char* words) { return text.find(words) != std::string::npos; };
  bool bad_index = says("out of bounds") || says("out of range") || says("out of DATA bounds") ||
                   says("not in the range") || says("takes value");
  return bad_index && !says("dimension with size 0") && !says("Dimension out of range") && reads_indices.count(op) > 0;
}

const ArgumentCheck* argument_check(const std::string& op) {
  static const std::unordered_map<std::string, ArgumentCheck> table = {
      {"aten::affine_grid_generator_backward",  // AffineGridGeneratorBackward
       {kParameter, [](const Arguments& given) -> std::string {
          return given[1].toListRef().size() != 4 ? "AffineGridGeneratorBackward needs 4d (spatial) input." : "";
        }}},
      {"aten::_linalg_svd",  // LinalgSvd
       {kType, [](const Arguments& given) -> std::string {
          if (dtype_of(given) == at::kFloat) return "";
          return c10::str("svd_npu only supported Float, but get", given[0].toTensor().dtype());
        }}},
      {"aten::random_",  // Random; the overload with `to` alone asks for no largest number
       {kType, [](const Arguments& given) -> std::string {
          static const std::unordered_set<c10::ScalarType> taken = {
              at::kHalf, at::kFloat, at::kDouble, at::kInt, at::kShort, at::kChar, at::kByte, at::kLong, at::kBFloat16, at::kBool};
          constexpr size_t kWithToAlone = 3;
          if (given.size() == kWithToAlone || taken.count(dtype_of(given)) > 0) return "";
          return c10::str("self scalar_type:", dtype_of(given), "is not surpported.");
        }}},
      {"aten::upsample_bilinear2d",  // UpsampleBilinear2d
       {kType, [](const Arguments& given) -> std::string {
          return dtype_of(given) == at::kDouble ? "upsample_binlinear_2d not support torch.fp64 dtypes" : "";
        }}},
      {"aten::_pdist_forward",  // Pdist
       {kType, [](const Arguments& given) -> std::string {
          return exceeds_float(given[1]) ? "p dose not support float64 currently." : "";
        }}},
      {"aten::_cdist_backward",  // CdistBackward
       {kParameter, [](const Arguments& given) -> std::string {
          if (!exceeds_float(given[3])) return "";
          return "The value of p (" + std::to_string(given[3].toDouble()) + ") exceeds the maximum value of float (" +
                 std::to_string(std::numeric_limits<float>::max()) + ")";
        }}}};
  auto found = table.find(op);
  return found == table.end() ? nullptr : &found->second;
}

void check_arguments(const ArgumentCheck& check, const std::string& op, const Arguments& arguments) {
  if (check.code == kType && !sim::watching(sim::kDocuments)) return;  // dtypes are not to be refused
  std::string text = check.refusal(arguments);
  if (text.empty()) return;
  sim::note_lack(sim::Lack::kFormat, op.c_str(), -1, text.c_str());
  raise_coded(text, check.code);
}

void rethrow_as_vendor(const std::string& op, const c10::Error& error) {
  if (auto found = texts_of_checks().find(op); found != texts_of_checks().end()) {
    for (const Text& text : found->second) {
      if (error.msg().find(text.torch) == std::string::npos) continue;
      std::string whole = (text.vendor != nullptr ? text.vendor : error.msg()) + trailer(text.code);
      raise_kind<c10::IndexError>(error, whole);
      raise_kind<c10::ValueError>(error, whole);
      raise_kind<c10::TypeError>(error, whole);
      TORCH_CHECK(false, whole);
    }
  }
  throw;
}

}  // namespace toprope::glue
