// Every operator without a kernel of its own: its host kernel runs over the card's bytes. Also refused dtypes, wider
// dtypes, and operators that run on the host on a real card. A kernel of its own, in an ops_*.cpp file, takes
// precedence.
//
// Tests: tests/sim/simulated/test_samples.py with torch's own database of operators, test_samples_with_documents.py,
// test_wider_dtypes.py.
#include <ATen/ops/_to_copy_native.h>
#include <torch/csrc/autograd/autograd_not_implemented_fallback.h>
#include <torch/library.h>

#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "call.h"
#include "checks.h"
#include "composite.h"
#include "sparse.h"

namespace toprope::glue {

namespace {

struct Operator {
  std::string name;
  std::string overload;
  sim::Kind* kind = nullptr;
  const sim::Rules* rules = nullptr;
  uint32_t host_arguments = 0;     // may be tensors of the host, as on a real card; bits are positions
  uint32_t written = 0;            // bits are positions
  uint32_t dtypes = 0;             // of results that have them as an argument; bits are positions
  int host_result = -1;        // a result that stays on the host
  bool waits = false;              // the host learns something from the data: a value, or the size of a result
  HostOperator* on_host = nullptr;  // where it runs on the host on a real card too
  const ArgumentCheck* check = nullptr;  // what torch_npu itself refuses
  bool rounds_once = false;        // half precision is computed in float32
  bool indexes = false;            // argument 1 holds indices; a mask among them has a size to be learnt
  std::vector<size_t> generators;  // places of arguments named "generator"
};

bool takes_indices_of_host(const std::string& name) {
  static const std::unordered_set<std::string> names = {
      "aten::index",              "aten::index_put",   "aten::index_put_",  "aten::_index_put_impl_",      "aten::_unsafe_index",
      "aten::_unsafe_index_put",  "aten::repeat_interleave", "aten::tensor_split", "aten::_pack_padded_sequence"};
  return names.count(name) > 0;
}

bool has_size_from_data(const std::string& name) {
  static const std::unordered_set<std::string> names = {"aten::nonzero",      "aten::masked_select", "aten::_unique",
                                                        "aten::_unique2",     "aten::unique_dim",    "aten::bincount",
                                                        "aten::unique_consecutive", "aten::_coalesce", "aten::_to_sparse"};
  return names.count(name) > 0;
}

// Where the host's kernel rounds each of several steps to half precision, and the vendor's tests hold the card against
// float32: of more than 1,000 samples in torch's op_db, those of these operators were off by more than the last place.
bool rounds_once(const std::string& name) {
  static const std::unordered_set<std::string> names = {
      "aten::binary_cross_entropy_with_logits", "aten::grid_sampler_2d", "aten::grid_sampler_2d_backward",
      "aten::grid_sampler_3d", "aten::grid_sampler_3d_backward"};
  return names.count(name) > 0;
}

bool is_list(const c10::Argument& argument) { return argument.type()->kind() == c10::TypeKind::ListType; }

bool is_dtype(const c10::TypePtr& type) {
  if (auto optional = type->cast<c10::OptionalType>()) return is_dtype(optional->getElementType());
  return type->kind() == c10::TypeKind::ScalarTypeType;
}

bool has_mask(const c10::IValue& indices) {
  if (!indices.isOptionalTensorList() && !indices.isTensorList()) return false;
  for (const c10::IValue& index : indices.toList()) {
    if (!index.isTensor() || !index.toTensor().defined()) continue;
    c10::ScalarType dtype = index.toTensor().scalar_type();
    if (dtype == c10::ScalarType::Bool || dtype == c10::ScalarType::Byte) return true;
  }
  return false;
}

Operator describe(const c10::FunctionSchema& schema) {
  Operator op;
  op.name = schema.name();
  op.overload = schema.overload_name();
  op.kind = sim::kind(op.name.c_str());
  const std::string full = full_name(op.name.c_str(), op.overload.c_str());
  op.rules = sim::rules_of(full);
  op.on_host = host_operator(full);
  if (takes_indices_of_host(op.name)) op.host_arguments = 1 << 1;
  if (copies(op.name)) op.host_arguments = ~0u;
  if (op.name == "aten::_pack_padded_sequence") op.host_result = 1;
  op.waits = has_size_from_data(op.name);
  op.rounds_once = rounds_once(op.name);
  op.check = argument_check(op.name);
  op.indexes = op.name.rfind("aten::index", 0) == 0 && schema.arguments().size() > 1 && is_list(schema.arguments()[1]);
  for (const c10::Argument& result : schema.returns()) {
    auto type = result.type()->kind();
    op.waits |= type != c10::TypeKind::TensorType && type != c10::TypeKind::ListType && !asks_for_shape(op.name);
  }
  for (size_t i = 0; i < schema.arguments().size(); i++) {
    const c10::Argument& argument = schema.arguments()[i];
    if (argument.name() == "generator") op.generators.push_back(i);
    if (i < 32 && argument.alias_info() != nullptr && argument.alias_info()->isWrite()) op.written |= 1u << i;
    if (i < 32 && is_dtype(argument.real_type())) op.dtypes |= 1u << i;
  }
  return op;
}

const Operator& known(const c10::FunctionSchema& schema) {
  static thread_local std::unordered_map<const c10::FunctionSchema*, Operator> all;
  Operator& op = all[&schema];
  // A library that was taken down may have left its place to another operator.
  if (op.name != schema.name() || op.overload != schema.overload_name()) [[unlikely]] op = describe(schema);
  return op;
}

void take(Call& call, c10::IValue& value, bool is_dtype) {
  if (is_dtype) {
    if (value.isInt()) call.of_result(value.toScalarType());
  } else if (value.isTensor()) {
    value = call.in_owned(std::move(value).toTensor());
  } else if (value.isTensorList()) {
    c10::List<at::Tensor> host;
    for (const at::Tensor& tensor : value.toTensorList()) host.push_back(call.in_owned(tensor));
    value = std::move(host);
  } else if (value.isOptionalTensorList()) {
    c10::List<std::optional<at::Tensor>> host;
    for (std::optional<at::Tensor> tensor : value.toOptionalTensorList()) {
      host.push_back(tensor.has_value() ? std::optional<at::Tensor>(call.in_owned(*tensor)) : std::nullopt);
    }
    value = std::move(host);
  } else if (value.isDevice() && value.toDevice().type() == kNpu) {
    call.on(value.toDevice());
    value = c10::Device(c10::kCPU);
  }
}

void give(Call& call, c10::IValue& value) {
  if (value.isTensor()) {
    value = call.out(value.toTensor());
  } else if (value.isTensorList()) {
    c10::List<at::Tensor> results;
    for (const at::Tensor& tensor : value.toTensorList()) results.push_back(call.out(tensor));
    value = std::move(results);
  }
}

// The dtype of the first tensor among the arguments, which are on the stack; -1 where there is none.
int first_dtype(const torch::jit::Stack& stack, size_t count) {
  for (size_t i = stack.size() - count; i < stack.size(); i++) {
    if (stack[i].isTensor() && stack[i].toTensor().defined()) return static_cast<int>(stack[i].toTensor().scalar_type());
    if (stack[i].isTensorList() && !stack[i].toTensorList().empty()) {
      return static_cast<int>(stack[i].toTensorList().get(0).scalar_type());
    }
  }
  return -1;
}

// ---- dtypes that the host's kernel lacks

constexpr std::string_view kLacks = "not implemented for '";

// The dtype that a host kernel says it has no code for; Undefined for any other error.
c10::ScalarType lacking_dtype(const c10::Error& error) {
  const std::string& text = error.msg();
  size_t place = text.find(kLacks);
  if (place == std::string::npos) return c10::ScalarType::Undefined;
  std::string name = text.substr(place + kLacks.size(), text.find('\'', place + kLacks.size()) - place - kLacks.size());
  for (int type = 0; type < static_cast<int>(c10::ScalarType::NumOptions); type++) {
    if (name == c10::toString(static_cast<c10::ScalarType>(type))) return static_cast<c10::ScalarType>(type);
  }
  return c10::ScalarType::Undefined;
}

[[noreturn]] void raise_lacking(c10::ScalarType type, const sim::Kind* kind, const sim::Rules* rules) {
  bool on_card = rules != nullptr && ((rules->known[0] & ~rules->refused[0]) >> static_cast<int>(type) & 1);
  raise_lack(sim::Lack::kDtype, kind->name, static_cast<int>(type),
             c10::str(kind->name, " has no kernel for ", sim::vendor_dtype(static_cast<int>(type)),
                      " on the simulated npu; ", on_card ? "a card has one, by the vendor's documents."
                                                         : "no document of the vendor says that a card has one."));
}

// Dtypes that hold all values of a narrower one, in the order in which they are tried.
std::vector<c10::ScalarType> wider(c10::ScalarType type) {
  if (type == c10::ScalarType::Half || type == c10::ScalarType::BFloat16) return {c10::ScalarType::Float};
  if (type == c10::ScalarType::Long) return {c10::ScalarType::Double};
  if (c10::isIntegralType(type, /*includeBool=*/true)) return {c10::ScalarType::Long, c10::ScalarType::Double};
  return {};
}

void change_dtype(c10::IValue& value, c10::ScalarType from, c10::ScalarType to) {
  auto change = [&](const at::Tensor& tensor) {
    return tensor.defined() && tensor.scalar_type() == from ? tensor.to(to) : tensor;
  };
  if (value.isTensor()) {
    value = change(value.toTensor());
  } else if (value.isTensorList()) {
    c10::List<at::Tensor> changed;
    for (const at::Tensor& tensor : value.toTensorList()) changed.push_back(change(tensor));
    value = std::move(changed);
  } else if (value.isOptionalTensorList()) {
    c10::List<std::optional<at::Tensor>> changed;
    for (std::optional<at::Tensor> tensor : value.toOptionalTensorList()) {
      changed.push_back(tensor.has_value() ? std::optional<at::Tensor>(change(*tensor)) : std::nullopt);
    }
    value = std::move(changed);
  }
}

// Runs the host's kernel in the nearest wider dtype that it has, and gives the results in the dtype that was asked for.
void run_wider(const c10::OperatorHandle& handle, const Operator& op, const std::vector<c10::IValue>& arguments,
               c10::ScalarType from, torch::jit::Stack* stack) {
  for (c10::ScalarType to : wider(from)) {
    std::vector<c10::IValue> changed = arguments;
    for (size_t i = 0; i < changed.size(); i++) {
      change_dtype(changed[i], from, to);
      bool is_dtype = handle.schema().arguments()[i].name() == "dtype" && changed[i].isInt();
      if (is_dtype && changed[i].toInt() == static_cast<int64_t>(from)) changed[i] = static_cast<int64_t>(to);
    }
    stack->insert(stack->end(), changed.begin(), changed.end());
    try {
      handle.redispatchBoxed(kHostKeys, stack);
    } catch (const c10::Error& error) {
      if (lacking_dtype(error) == c10::ScalarType::Undefined) throw;
      stack->resize(stack->size() - arguments.size());
      continue;
    }
    const size_t results = handle.schema().returns().size();
    for (size_t i = 0; i < changed.size(); i++) {
      if (i >= 32 || (op.written >> i & 1) == 0 || !changed[i].isTensor()) continue;
      const at::Tensor& wide = changed[i].toTensor();
      const at::Tensor& asked = arguments[i].toTensor();
      if (wide.is_same(asked)) continue;
      if (asked.sizes() != wide.sizes()) asked.resize_(wide.sizes());
      asked.copy_(wide);
      for (size_t result = stack->size() - results; result < stack->size(); result++) {
        if ((*stack)[result].isTensor() && (*stack)[result].toTensor().is_same(wide)) (*stack)[result] = asked;
      }
    }
    for (size_t result = stack->size() - results; result < stack->size(); result++) {
      change_dtype((*stack)[result], to, from);
    }
    return;
  }
  raise_lacking(from, op.kind, op.rules);
}

c10::IValue with_zero_indices(const c10::IValue& value) {
  if (value.isTensor()) return convert::zero_indices(value.toTensor());
  if (!value.isOptionalTensorList()) return value;
  c10::List<std::optional<at::Tensor>> changed;
  for (std::optional<at::Tensor> tensor : value.toOptionalTensorList()) {
    changed.push_back(tensor.has_value() ? std::optional<at::Tensor>(convert::zero_indices(*tensor)) : std::nullopt);
  }
  return changed;
}

// The host's kernel; arguments are on the stack, as host tensors.
void run_on_host(const c10::OperatorHandle& handle, const Operator& op, const Call& call, c10::DispatchKeySet host,
                 size_t count, torch::jit::Stack* stack) {
  const Arguments arguments(stack->end() - static_cast<ptrdiff_t>(count), stack->end());
  if (op.check != nullptr) [[unlikely]] check_arguments(*op.check, op.name, arguments);
  const size_t below = stack->size() - count;
  if (op.rounds_once) {
    auto dtype = static_cast<c10::ScalarType>(first_dtype(*stack, count));
    if (dtype == c10::ScalarType::Half || dtype == c10::ScalarType::BFloat16) {
      stack->resize(below);
      run_wider(handle, op, arguments, dtype, stack);
      return;
    }
  }
  try {
    handle.redispatchBoxed(host, stack);
  } catch (const c10::Error& error) {
    if (c10::ScalarType lacking = lacking_dtype(error); lacking != c10::ScalarType::Undefined) {
      stack->resize(below);
      run_wider(handle, op, arguments, lacking, stack);
      return;
    }
    if (!failed_on_card(call, op.kind, error)) rethrow_as_vendor(op.name, error);
    stack->resize(below);
    for (size_t i = 0; i < count; i++) {
      bool kept = i < 32 && (op.written >> i & 1);
      stack->push_back(kept ? arguments[i] : with_zero_indices(arguments[i]));
    }
    handle.redispatchBoxed(host, stack);
  }
}

}  // namespace

void rethrow(const c10::Error& error, const sim::Kind* kind, const sim::Rules* rules) {
  c10::ScalarType lacking = lacking_dtype(error);
  if (lacking != c10::ScalarType::Undefined) raise_lacking(lacking, kind, rules);
  rethrow_as_vendor(kind->name, error);
}

namespace {

// torch_npu's fallback hands an operator to the CPU, and torch has no kernel for it there: its error.
void fall_back_in_vain(const c10::OperatorHandle& handle, const Operator& op, torch::jit::Stack* stack) {
  announce_host_operator(*op.on_host);
  const std::string text = c10::str("Could not run '", op.on_host->name, "' with arguments from the 'CPU' backend.");
  sim::note_lack(sim::Lack::kKernel, op.on_host->name.c_str(), first_dtype(*stack, handle.schema().arguments().size()),
                 text.c_str());
  handle.redispatchBoxed(kHostKeys, stack);
  TORCH_CHECK_NOT_IMPLEMENTED(false, text);
}

void run(const c10::OperatorHandle& handle, c10::DispatchKey host, torch::jit::Stack* stack) {
  const Operator& op = known(handle.schema());
  const size_t count = handle.schema().arguments().size();
  if (!handle.hasComputedKernelForDispatchKey(host)) [[unlikely]] {
    if (op.on_host != nullptr && host == c10::DispatchKey::CPU) fall_back_in_vain(handle, op, stack);
    raise_lack(sim::Lack::kKernel, full_name(op.name.c_str(), op.overload.c_str()), first_dtype(*stack, count),
               op.name + " has no kernel for the simulated npu, because torch has none for the CPU.");
  }
  const size_t begin = stack->size() - count;
  Call call(op.kind, op.rules, op.host_arguments);
  if (host == c10::DispatchKey::CPU) call.runs_on(op.on_host);
  if (host == c10::DispatchKey::SparseCsrCPU) call.takes_compressed();
  for (size_t i = 0; i < count; i++) {
    call.argument(static_cast<int>(i), i < 32 && (op.written >> i & 1));
    take(call, (*stack)[begin + i], i < 32 && (op.dtypes >> i & 1));
  }
  for (size_t i : op.generators) {
    c10::IValue& value = (*stack)[begin + i];
    value = call.in_generator(value.isNone() ? std::nullopt : std::optional<at::Generator>(value.toGenerator()));
  }
  call.begin();
  if (op.waits || (op.indexes && has_mask((*stack)[begin + 1]))) {
    sim::add(sim::counters->synchronisations);
    note_site(op.kind->name, false, true);
    synchronise_current_stream(call.device());
  }
  sim::KernelScope scope(call.device());
  run_on_host(handle, op, call, c10::DispatchKeySet(host), count, stack);
  call.finish();
  const size_t results = handle.schema().returns().size();
  for (size_t i = 0; i < results; i++) {
    if (static_cast<int>(i) != op.host_result) give(call, (*stack)[stack->size() - results + i]);
  }
}

}  // namespace

void fallback(const c10::OperatorHandle& handle, c10::DispatchKeySet, torch::jit::Stack* stack) {
  run(handle, c10::DispatchKey::CPU, stack);
}

namespace {

// ---- operators that torch composes of others, and the vendor has kernels for

// torch's composition for backends without a kernel, found by the dispatch key of an unused backend.
void compose(const c10::OperatorHandle& handle, torch::jit::Stack* stack) {
  const Operator& op = known(handle.schema());
  Composite composite(op.name);
  const size_t count = handle.schema().arguments().size(), results = handle.schema().returns().size();
  if (composite) [[unlikely]] {
    for (size_t i = 0; i < count; i++) {
      bool written = i < 32 && (op.written >> i & 1);
      composite.add(written ? sim::Role::kWritten : sim::Role::kRead, (*stack)[stack->size() - count + i]);
    }
  }
  handle.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::IPU), stack);
  if (composite && op.written == 0) [[unlikely]] {
    for (size_t i = 0; i < results; i++) composite.add(sim::Role::kResult, (*stack)[stack->size() - results + i]);
  }
}

// Operators without a gradient formula of their own: checked, then composed as usual, so that gradients flow.
void composed(const c10::OperatorHandle& handle, c10::DispatchKeySet, torch::jit::Stack* stack) {
  if (sim::watching(sim::kDocuments) && !Unchecked::active()) {
    const Operator& op = known(handle.schema());
    const size_t begin = stack->size() - handle.schema().arguments().size();
    Call call(op.kind, op.rules);
    for (size_t i = 0; begin + i < stack->size(); i++) {
      call.argument(static_cast<int>(i), false);
      c10::IValue copy = (*stack)[begin + i];
      take(call, copy, i < 32 && (op.dtypes >> i & 1));
    }
  }
  Unchecked unchecked;
  compose(handle, stack);
}

// One kernel for all tensors of a list on chips with separate vector cores, a kernel for each on the others.
void for_each(const c10::OperatorHandle& handle, c10::DispatchKeySet, torch::jit::Stack* stack) {
  if (sim::cores()[sim::kVector] > sim::cores()[sim::kCube]) {
    compose(handle, stack);
  } else {
    handle.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::IPU), stack);
  }
}

using c10::DispatchKey;

void check_composites() {
  static auto* card = new torch::Library(torch::Library::IMPL, "aten", DispatchKey::PrivateUse1, __FILE__, __LINE__);
  static auto* autograd =
      new torch::Library(torch::Library::IMPL, "aten", DispatchKey::AutogradPrivateUse1, __FILE__, __LINE__);
  c10::Dispatcher& dispatcher = c10::Dispatcher::singleton();
  for (const c10::OperatorName& name : dispatcher.getAllOpNames()) {
    if (name.name.rfind("aten::", 0) != 0) continue;
    std::string full = full_name(name.name.c_str(), name.overload_name.c_str());
    const char* plain = full.c_str() + sizeof("aten::") - 1;
    auto handle = dispatcher.findOp(name);
    if (!handle || handle->hasKernelForDispatchKey(DispatchKey::PrivateUse1)) continue;
    if (name.name.rfind("aten::_foreach_", 0) == 0 &&
        handle->hasKernelForDispatchKey(DispatchKey::CompositeExplicitAutograd)) {
      card->impl(plain, torch::CppFunction::makeFromBoxedFunction<&for_each>());
      continue;
    }
    if (sim::rules_of(full) == nullptr) continue;
    if (handle->hasKernelForDispatchKey(DispatchKey::CompositeImplicitAutograd)) {
      card->impl(plain, torch::CppFunction::makeFromBoxedFunction<&composed>());
      if (!handle->hasKernelForDispatchKey(DispatchKey::AutogradPrivateUse1)) {
        autograd->impl(plain, torch::CppFunction::makeFromBoxedFunction<&composed>());
      }
    } else if (handle->hasKernelForDispatchKey(DispatchKey::CompositeExplicitAutograd) ||
               handle->hasKernelForDispatchKey(DispatchKey::CompositeExplicitAutogradNonFunctional)) {
      card->impl(plain, torch::CppFunction::makeFromBoxedFunction<&fallback>());
    }
  }
}

}  // namespace

TORCH_LIBRARY_IMPL(_, PrivateUse1, m) { m.fallback(torch::CppFunction::makeFromBoxedFunction<&fallback>()); }
// Operators that torch composes with a choice by device in C++, which has no answer for ours: the host's kernel is run
// as a whole. And operators of which torch_npu checks the arguments itself (checks.cpp).
TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  for (const char* name : {"affine_grid_generator_backward", "conj_physical_", "mode", "mode.values"}) {
    m.impl(name, torch::CppFunction::makeFromBoxedFunction<&fallback>());
  }
  // Composed by torch of their out= variants, which would be counted in their place.
  for (const char* name : {"avg_pool2d", "avg_pool2d_backward", "max_pool2d_with_indices",
                           "max_pool2d_with_indices_backward", "upsample_nearest2d"}) {
    m.impl(name, torch::CppFunction::makeFromBoxedFunction<&fallback>());
  }
  // Composed too, and then their result has the memory format of an operand that is permuted, which the card refuses.
  for (const char* name : {"upsample_nearest2d_backward", "_upsample_nearest_exact2d",
                           "_upsample_nearest_exact2d_backward", "upsample_bilinear2d", "upsample_bilinear2d_backward",
                           "upsample_bicubic2d", "upsample_bicubic2d_backward", "_upsample_bilinear2d_aa",
                           "_upsample_bilinear2d_aa_backward", "_upsample_bicubic2d_aa",
                           "_upsample_bicubic2d_aa_backward", "upsample_nearest3d", "upsample_nearest3d_backward",
                           "_upsample_nearest_exact3d", "_upsample_nearest_exact3d_backward", "upsample_trilinear3d",
                           "upsample_trilinear3d_backward"}) {
    m.impl(name, torch::CppFunction::makeFromBoxedFunction<&fallback>());
  }
}

[[noreturn]] void refuse_layout(const c10::OperatorHandle& handle, const torch::jit::Stack& stack, const char* layout) {
  const std::string& name = handle.schema().name();
  raise_lack(sim::Lack::kLayout, name, first_dtype(stack, handle.schema().arguments().size()),
             c10::str(name, ": ", layout, " tensors are not supported on npu."));
}
void refuse_sparse(const c10::OperatorHandle& handle, c10::DispatchKeySet, torch::jit::Stack* stack) {
  refuse_layout(handle, *stack, "sparse");
}
void refuse_nested(const c10::OperatorHandle& handle, c10::DispatchKeySet, torch::jit::Stack* stack) {
  refuse_layout(handle, *stack, "nested");
}

// Copies from device to device with a new dtype or layout: torch's own way, but for what torch_npu's does otherwise (its
// aten/common/ToKernelNpu.cpp).
at::Tensor to_copy(const at::Tensor& self, std::optional<c10::ScalarType> dtype, std::optional<c10::Layout> layout,
                   std::optional<c10::Device> device, std::optional<bool> pin_memory, bool non_blocking,
                   std::optional<c10::MemoryFormat> memory_format) {
  if (dtype == at::kDouble && self.scalar_type() != at::kDouble && !layout.has_value() && !device.has_value()) {
    static const bool warned = warn("Device do not support double dtype now, dtype cast replace with float.");
    (void)warned;
    dtype = at::kFloat;
  }
  if (memory_format.value_or(c10::MemoryFormat::Preserve) != c10::MemoryFormat::Preserve &&
      *memory_format != c10::MemoryFormat::Contiguous) {
    raise_unsupported("aten::_to_copy", "Only contiguous_format or preserve_format is supported.");
  }
  return at::native::_to_copy(self, dtype, layout, device, pin_memory, non_blocking, memory_format);
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) { m.impl("_to_copy", &to_copy); }

void not_for_sparse(const c10::OperatorHandle& handle, c10::DispatchKeySet, torch::jit::Stack*) {
  raise_unsupported(handle.schema().name(), c10::str("CAUTION: The operator '", handle.schema().operator_name(),
                                                     "' is not currently supported on the NPU backend."));
}

void sparse(const c10::OperatorHandle& handle, c10::DispatchKeySet, torch::jit::Stack* stack) {
  run(handle, c10::DispatchKey::SparseCPU, stack);
}

// Sums of values of one place are wider than half precision: the vendor's tests hold them against float32.
void coalesce(const c10::OperatorHandle& handle, c10::DispatchKeySet, torch::jit::Stack* stack) {
  c10::ScalarType dtype = stack->back().toTensor().scalar_type();
  const bool is_half = dtype == c10::ScalarType::Half || dtype == c10::ScalarType::BFloat16;
  if (is_half) stack->back() = stack->back().toTensor().to(c10::ScalarType::Float);
  run(handle, c10::DispatchKey::SparseCPU, stack);
  if (is_half) stack->back() = stack->back().toTensor().to(dtype);
}

TORCH_LIBRARY_IMPL(_, SparsePrivateUse1, m) { m.fallback(torch::CppFunction::makeFromBoxedFunction<&not_for_sparse>()); }
TORCH_LIBRARY_IMPL(aten, SparsePrivateUse1, m) {
  m.impl("_to_copy", &to_copy);
  m.impl("max", &max_of_sparse);
  m.impl("_coalesce", torch::CppFunction::makeFromBoxedFunction<&coalesce>());
  c10::Dispatcher& dispatcher = c10::Dispatcher::singleton();
  for (const c10::OperatorName& name : dispatcher.getAllOpNames()) {
    auto op = dispatcher.findSchema(name);
    if (!op || name.name == "aten::_coalesce" || !is_sparse_on_card(op->schema()) || !op->hasKernelForDispatchKey(c10::DispatchKey::SparseCPU)) continue;
    m.impl(full_name(name.name.c_str() + sizeof("aten::") - 1, name.overload_name.c_str()).c_str(),
           torch::CppFunction::makeFromBoxedFunction<&sparse>());
  }
}
// Those that torch has for nested tensors of any device come first.
TORCH_LIBRARY_IMPL(_, NestedTensorPrivateUse1, m) {
  m.fallback(torch::CppFunction::makeFromBoxedFunction<&refuse_nested>());
}

void compressed(const c10::OperatorHandle& handle, c10::DispatchKeySet, torch::jit::Stack* stack) {
  run(handle, c10::DispatchKey::SparseCsrCPU, stack);
}

void reduce_compressed(const c10::OperatorHandle& handle, c10::DispatchKeySet, torch::jit::Stack* stack) {
  announce_compressed_on_host(full_name(handle.schema().name().c_str(), handle.schema().overload_name().c_str()));
  run(handle, c10::DispatchKey::SparseCsrCPU, stack);
}

TORCH_LIBRARY_IMPL(_, SparseCsrPrivateUse1, m) {
  m.fallback(torch::CppFunction::makeFromBoxedFunction<&refuse_sparse>());
}
TORCH_LIBRARY_IMPL(aten, SparseCsrPrivateUse1, m) {
  m.impl("_sparse_csr_sum.dim_dtype", torch::CppFunction::makeFromBoxedFunction<&reduce_compressed>());
  m.impl("_sparse_csr_prod.dim_dtype", torch::CppFunction::makeFromBoxedFunction<&reduce_compressed>());
  c10::Dispatcher& dispatcher = c10::Dispatcher::singleton();
  for (const c10::OperatorName& name : dispatcher.getAllOpNames()) {
    auto op = dispatcher.findSchema(name);
    if (!op || !is_compressed_on_card(op->schema()) || !op->hasKernelForDispatchKey(c10::DispatchKey::SparseCsrCPU)) continue;
    m.impl(full_name(name.name.c_str() + sizeof("aten::") - 1, name.overload_name.c_str()).c_str(),
           torch::CppFunction::makeFromBoxedFunction<&compressed>());
  }
}

// As torch_npu has it (VariableFallbackKernel.cpp): an operator without a gradient warns in a backward pass.
TORCH_LIBRARY_IMPL(_, AutogradPrivateUse1, m) { m.fallback(torch::autograd::basicAutogradNotImplementedFallback()); }

}  // namespace toprope::glue

// Lets operators that torch composes of others be looked up in the vendor's documents, once these are loaded.
extern "C" TOPROPE_API void tsg_check_composites() { toprope::glue::check_composites(); }
