// A call of a host kernel for a card; see call.h.
//
// Tests: tests/sim/simulated/test_operators.py for values, test_refused_dtypes.py for refusals, test_trace.py for the
// records.
#include "call.h"

#include <ATen/SparseCsrTensorImpl.h>
#include <ATen/SparseTensorImpl.h>
#include <ATen/core/TensorBase.h>
#include <ATen/ops/zeros_like.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/DeviceGuard.h>

#include <typeinfo>

#include "checks.h"
#include "random.h"

namespace toprope::glue {

namespace {

// Storages that torch makes itself (torch.load, UntypedStorage) are not ours and have no shadow to keep.
c10::Storage shadow_of(c10::StorageImpl* storage) {
  if (typeid(*storage) == typeid(NpuStorage)) [[likely]] return static_cast<NpuStorage*>(storage)->shadow();
  c10::Storage made(c10::make_intrusive<c10::StorageImpl>(
      c10::StorageImpl::use_byte_size_t(), storage->nbytes(),
      c10::DataPtr(const_cast<void*>(storage->data()), c10::Device(c10::kCPU)), c10::GetCPUAllocator(),
      /*resizable=*/true));
  if (storage->data() == nullptr && storage->nbytes() > 0) {  // the card would read or write at address 0
    made.unsafeGetStorageImpl()->release_data_and_set_meta_custom_data_ptr_error_msg_(
        "this tensor has no memory on npu: it stands for values that are elsewhere.");
  }
  return made;
}

void copy_shape(c10::TensorImpl* to, c10::TensorImpl* from) {
  to->set_storage_offset(from->storage_offset());
  to->set_sizes_and_strides(from->sizes(), from->strides());
}

void copy_bits(const at::Tensor& to, const at::Tensor& from) {
  if (from.is_conj()) [[unlikely]] to._set_conj(true);
  if (from.is_neg()) [[unlikely]] to._set_neg(true);
}

at::SparseTensorImpl* sparse_impl(const at::Tensor& tensor) {
  return static_cast<at::SparseTensorImpl*>(tensor.unsafeGetTensorImpl());
}

at::Tensor sparse_tensor(c10::DispatchKeySet keys, const at::SparseTensorImpl& like, const at::Tensor& indices,
                         const at::Tensor& values) {
  c10::OptionalDeviceGuard guard;
  if (values.device().type() == kNpu) guard.reset_device(values.device());  // it is where its values are
  at::Tensor tensor = at::detail::make_tensor<at::SparseTensorImpl>(keys, values.dtype());
  at::SparseTensorImpl* impl = sparse_impl(tensor);
  impl->raw_resize_(like.sparse_dim(), like.dense_dim(), like.sizes());
  impl->set_indices_and_values_unsafe(indices, values);
  impl->set_coalesced(like.coalesced());
  return tensor;
}

at::SparseCsrTensorImpl* compressed_impl(const at::Tensor& tensor) {
  return static_cast<at::SparseCsrTensorImpl*>(tensor.unsafeGetTensorImpl());
}

at::Tensor compressed_tensor(c10::DispatchKey key, c10::Layout layout, c10::IntArrayRef sizes, const at::Tensor& compressed,
                             const at::Tensor& plain, const at::Tensor& values) {
  at::Tensor tensor = at::detail::make_tensor<at::SparseCsrTensorImpl>(c10::DispatchKeySet(key), values.device(), layout,
                                                                       values.dtype());
  compressed_impl(tensor)->set_member_tensors(compressed, plain, values, sizes);
  return tensor;
}

bool is_compressed(c10::Layout layout) {
  return layout == c10::kSparseCsr || layout == c10::kSparseCsc || layout == c10::kSparseBsr ||
         layout == c10::kSparseBsc;
}

}  // namespace

constexpr size_t kLookedThrough = 8;

at::Tensor host_alias(const at::Tensor& tensor) {
  c10::TensorImpl* impl = tensor.unsafeGetTensorImpl();
  at::Tensor alias = at::detail::make_tensor<c10::TensorImpl>(
      shadow_of(impl->storage().unsafeGetStorageImpl()), kHostKeys, impl->dtype());
  copy_shape(alias.unsafeGetTensorImpl(), impl);
  if (impl->is_wrapped_number()) [[unlikely]] alias.unsafeGetTensorImpl()->set_wrapped_number(true);
  copy_bits(alias, tensor);
  return alias;
}

at::Tensor device_tensor(c10::Storage storage, const at::Tensor& like) {
  at::Tensor tensor = at::detail::make_tensor<c10::TensorImpl>(
      std::move(storage), c10::DispatchKeySet(c10::DispatchKey::PrivateUse1), like.dtype());
  copy_shape(tensor.unsafeGetTensorImpl(), like.unsafeGetTensorImpl());
  copy_bits(tensor, like);
  return tensor;
}

at::Tensor Call::take(const at::Tensor& tensor, c10::MaybeOwned<at::Tensor> original) {
  if (!tensor.defined()) return tensor;
  if (tensor.device().type() != kNpu) {
    if (tensor.device().is_cpu()) {
      bool allowed = position_ < 32 && (host_arguments_ >> position_ & 1);
      if (written_ || (tensor.dim() != 0 && !allowed)) saw_host_ = true;
      if (tensor.has_storage()) {
        host_storages_.push_back(tensor.unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl());
      }
    }
    return tensor;
  }
  if (tensor.layout() == c10::kSparse) [[unlikely]] return take_sparse(tensor);
  if (takes_compressed_ && is_compressed(tensor.layout())) [[unlikely]] return take_compressed(tensor);
  if (!tensor.has_storage() || tensor.layout() != c10::kStrided) [[unlikely]] {
    if (tensor.layout() == c10::kStrided) tensor.storage();  // raises the text of a tensor that may not be used any more
    raise_lack(sim::Lack::kLayout, kind_->name, static_cast<int>(tensor.scalar_type()),
               c10::str(kind_->name, ": tensors of layout ", tensor.layout(), " are not supported on npu."));
  }
  int device = tensor.device().index();
  if (device_ == sim::kNoDevice) {
    device_ = device;
  } else if (device != device_) {
    other_device_ = device;
  }
  int dtype = static_cast<int>(tensor.scalar_type());
  if (dtype_ < 0) dtype_ = dtype;
  if (host_ != nullptr) [[unlikely]] {
    bytes_to_host_ += tensor.nbytes();  // torch_npu copies each argument, also one that is given twice
    if (written_) bytes_back_ += tensor.nbytes();
  }
  const bool by_documents = host_ == nullptr || host_->dtypes != 0;  // which are about kernels of the card
  if (sim::watching(sim::kDocuments | sim::kRefusals)) {
    check_dtype(kind_, rules_, position_, dtype, by_documents);
    if (by_documents) check_dimensions(kind_, rules_, position_, tensor.dim());
  }
  if (written_) {
    check_host_memory(device, tensor);
  } else if (sim::watching(sim::kUnsafe)) [[unlikely]] {
    check_safe(tensor);
  }
  // A tensor that is given twice stays one, so that the kernel sees what overlaps. Not so in long lists of tensors,
  // whose kernels take one after the other.
  for (size_t i = 0; i < std::min<size_t>(operands_.size(), kLookedThrough); i++) {
    if (!operands_[i].original->is_same(tensor)) continue;
    if (written_) {
      operands_[i].written = true;
    } else if (sim::watching(sim::kTracing)) [[unlikely]] {
      again_.push_back(i);
    }
    return operands_[i].alias;
  }
  at::Tensor alias = host_alias(tensor);
  operands_.push_back({std::move(original), alias, written_});
  return alias;
}

at::Tensor Call::take_sparse(const at::Tensor& tensor) {
  for (const SparseOperand& operand : sparse_) {
    if (operand.original.is_same(tensor)) return operand.alias;
  }
  at::SparseTensorImpl* impl = sparse_impl(tensor);
  at::Tensor indices, values;
  {
    Unchecked unchecked;  // the vendor's documents are about dense tensors
    indices = in_owned(impl->indices());
    values = in_owned(impl->values());
  }
  at::Tensor alias = sparse_tensor(kHostSparseKeys, *impl, indices, values);
  sparse_.push_back({tensor, alias, indices, values});
  return alias;
}

at::Tensor Call::take_compressed(const at::Tensor& tensor) {
  for (const CompressedOperand& operand : compressed_) {
    if (operand.original.is_same(tensor)) return operand.alias;
  }
  at::SparseCsrTensorImpl* impl = compressed_impl(tensor);
  CompressedOperand operand{tensor};
  {
    Unchecked unchecked;  // the vendor's documents are about dense tensors
    operand.compressed = in_owned(impl->compressed_indices());
    operand.plain = in_owned(impl->plain_indices());
    operand.values = in_owned(impl->values());
  }
  operand.alias = compressed_tensor(c10::DispatchKey::SparseCsrCPU, tensor.layout(), tensor.sizes(), operand.compressed,
                                    operand.plain, operand.values);
  compressed_.push_back(operand);
  return operand.alias;
}

at::Generator Call::in_generator(const std::optional<at::Generator>& generator) {
  if (!generator.has_value() || !generator->defined()) {
    return draw(default_generator(device_ == sim::kNoDevice ? sim::current_device() : device_));
  }
  TORCH_CHECK(device_ != sim::kNoDevice || generator->device().type() != kNpu,
              "Expected a 'cpu' device type for generator but found '", generator->device().type(), "'");
  TORCH_CHECK(generator->device().type() == kNpu, "Expected a 'npu' device type for generator but found '",
              generator->device().type(), "'");
  return draw(*generator);
}

void Call::on(c10::Device device) {
  if (device_ == sim::kNoDevice) device_ = device_index(device);
}

void Call::refuse_devices(c10::Device other) const {
  // The first two sentences are torch_npu's (OpPreparation.cpp), where a tensor is on no card.
  TORCH_CHECK(!other.is_cpu(),
              "Expected all tensors to be on the same device. Expected NPU tensor, please check whether the input tensor "
              "device is correct. Found at least two devices, npu:",
              device_, " and ", other, "! (when executing ", kind_->name, ")", trailer("ERR01002 OPS invalid type"));
  TORCH_CHECK(false, "Expected all tensors to be on the same device, but found at least two devices, npu:", device_,
              " and ", other, "! (when executing ", kind_->name, ")");
}

void Call::begin() {
  if (device_ == sim::kNoDevice) device_ = device_index(npu(sim::current_device()));
  if (other_device_ != sim::kNoDevice) [[unlikely]] refuse_devices(npu(other_device_));
  if (saw_host_ && has_operands()) [[unlikely]] refuse_devices(c10::Device(c10::kCPU));
  check_usable(device_);
  if (sim::watching(sim::kTracing | sim::kFaults | sim::kNumbers)) [[unlikely]] begin_watched();
  wait_for_current_stream(device_);
  sim::add(sim::counters->operators);
  sim::add(kind_->calls);
  if (host_ != nullptr) [[unlikely]] leave_card();
}

void Call::leave_card() {
  // A part of an operator that the vendor has a kernel for does not run on a card.
  if (Unchecked::active() || (host_->dtypes != 0 && (dtype_ < 0 || !(host_->dtypes >> dtype_ & 1)))) return;
  announce_host_operator(*host_);
  left_card_ = true;
}

void Call::of_result(c10::ScalarType dtype) {
  if (host_ == nullptr || host_->dtypes != 0) check_documented(kind_, rules_, position_, static_cast<int>(dtype));
}

void check_documented(const sim::Kind* kind, const sim::Rules* rules, int position, int dtype) {
  if (rules == nullptr || position >= sim::kPositions) return;
  if (!sim::watching(sim::kDocuments) || Unchecked::active()) return;
  if (rules->refused[position] >> dtype & 1) [[unlikely]] raise_undocumented(kind, *rules, position, dtype);
}

void check_dimensions(const sim::Kind* kind, const sim::Rules* rules, int position, int64_t dimensions) {
  if (rules == nullptr || position >= sim::kPositions || dimensions <= rules->dimensions[position]) return;
  if (!sim::watching(sim::kDocuments) || Unchecked::active()) return;
  raise_too_many_dimensions(kind, *rules, position);
}

void check_dtype(sim::Kind* kind, const sim::Rules* rules, int position, int dtype, bool by_documents) {
  uint64_t bit = uint64_t{1} << dtype;
  if (sim::refused_dtypes[sim::index_of(kind)] & bit) [[unlikely]] raise_refused(kind, dtype);
  if (!by_documents || !sim::watching(sim::kDocuments) || Unchecked::active()) return;
  if (rules != nullptr) {
    if (position >= sim::kPositions) return;
    if (rules->refused[position] & bit) [[unlikely]] raise_undocumented(kind, *rules, position, dtype);
    if (rules->known[position] & bit) return;
  }
  if ((kind->undocumented.load(std::memory_order_relaxed) & bit) == 0) {
    kind->undocumented |= bit;
    sim::note_assumed(kind, rules != nullptr ? position : -1, dtype);
  }
}

std::string full_name(const char* name, const char* overload) {
  return *overload ? std::string(name) + "." + overload : std::string(name);
}

thread_local int Unchecked::depth = 0;

void Call::fail(int code) const {
  static const bool blocking = [] {
    const char* set = getenv("ASCEND_LAUNCH_BLOCKING");
    return set != nullptr && set[0] == '1';
  }();
  if (blocking) raise_status(code, kind_->name, "launch");
  sim::stream(device_, sim::current_stream(device_)).fail(code);
}

bool failed_on_card(const Call& call, const sim::Kind* kind, const c10::Error& error) {
  constexpr int kAicoreAbnormal = 507015, kVectorCoreAbnormal = 507035;
  if (!is_failure_in_kernel(kind->name, error)) return false;
  const int code = sim::cores()[sim::kVector] > 0 ? kVectorCoreAbnormal : kAicoreAbnormal;
  sim::note_lack(sim::Lack::kIndex, kind->name, -1, c10::str("error code is ", code).c_str());
  call.fail(code);
  return true;
}

at::Tensor convert::zero_indices(const at::Tensor& tensor) {
  return tensor.defined() && tensor.dim() > 0 && c10::isIntegralType(tensor.scalar_type(), /*includeBool=*/false)
             ? at::zeros_like(tensor)
             : tensor;
}

void Call::begin_watched() {
  if (sim::watching(sim::kFaults)) {
    int code = sim::fault_of_operator(kind_);
    if (code != sim::kOk) fail(code);
  }
  if (sim::watching(sim::kNumbers)) {
    for (const Operand& operand : operands_) {
      NotFinite found = not_finite(operand.alias);
      before_.nan |= found.nan;
      before_.infinite |= found.infinite;
    }
  }
  if (!sim::watching(sim::kTracing)) return;
  began_ns_ = sim::now_ns();
  sim::Cores limits = sim::limits_here(device_);
  cube_ = static_cast<uint8_t>(limits[sim::kCube]);
  vector_ = static_cast<uint8_t>(limits[sim::kVector]);
  signature_ = std::make_unique<sim::SignatureOf>(sim::index_of(kind_));
  const bool counts = !sim::is_part();
  for (const Operand& operand : operands_) {
    add_tensor(*signature_, operand.written ? sim::Role::kWritten : sim::Role::kRead, *operand.original, counts);
  }
  for (size_t i : again_) add_tensor(*signature_, sim::Role::kRead, *operands_[i].original, counts);
}

void Call::record() const {
  sim::write_record({.begin_ns = began_ns_,
                     .end_ns = sim::now_ns(),
                     .bytes = left_card_ ? bytes_to_host_ + bytes_back_ : 0,
                     .address = sim::number_of(signature_->made()),
                     .stream = static_cast<int32_t>(sim::current_stream(device_)),
                     .kind = static_cast<uint16_t>(sim::index_of(kind_)),
                     .act = sim::Act::kOperator,
                     .device = static_cast<int8_t>(device_),
                     .other_device = sim::part_of(left_card_),
                     .dtype = static_cast<int8_t>(dtype_),
                     .cube = cube_,
                     .vector = vector_});
}

void Call::finish() {
  for (Operand& operand : operands_) {
    if (operand.written && sim::watching(sim::kNumbers)) [[unlikely]] {
      look_at_numbers(kind_->name, before_, operand.alias);
    }
    c10::TensorImpl* alias = operand.alias.unsafeGetTensorImpl();
    c10::TensorImpl* original = operand.original->unsafeGetTensorImpl();
    c10::StorageImpl* from = alias->unsafe_storage().unsafeGetStorageImpl();
    c10::StorageImpl* to = original->unsafe_storage().unsafeGetStorageImpl();
    if (from->data() != to->data()) [[unlikely]] {
      size_t bytes = from->nbytes();
      c10::DataPtr data = from->set_data_ptr(c10::DataPtr(nullptr, c10::Device(c10::kCPU)));
      to->set_data_ptr_noswap(into_device(std::move(data), bytes, device_));
      to->set_nbytes(bytes);
    }
    if (alias->sizes() != original->sizes() || alias->strides() != original->strides() ||
        alias->storage_offset() != original->storage_offset()) [[unlikely]] {
      copy_shape(original, alias);
    }
    if (operand.alias.is_conj() != operand.original->is_conj()) [[unlikely]] {
      operand.original->_set_conj(operand.alias.is_conj());
    }
    if (operand.alias.is_neg() != operand.original->is_neg()) [[unlikely]] {
      operand.original->_set_neg(operand.alias.is_neg());
    }
  }
  for (SparseOperand& operand : sparse_) {
    at::SparseTensorImpl *alias = sparse_impl(operand.alias), *original = sparse_impl(operand.original);
    original->raw_resize_(alias->sparse_dim(), alias->dense_dim(), alias->sizes());
    if (!alias->indices().is_same(operand.indices) || !alias->values().is_same(operand.values)) {
      original->set_indices_and_values_unsafe(out(alias->indices()), out(alias->values()));
    }
    original->set_coalesced(alias->coalesced());
  }
  for (CompressedOperand& operand : compressed_) {
    at::SparseCsrTensorImpl *alias = compressed_impl(operand.alias), *original = compressed_impl(operand.original);
    if (alias->sizes() == original->sizes() && alias->compressed_indices().is_same(operand.compressed) &&
        alias->plain_indices().is_same(operand.plain) && alias->values().is_same(operand.values)) {
      continue;
    }
    original->set_member_tensors(out(alias->compressed_indices()), out(alias->plain_indices()), out(alias->values()),
                                 alias->sizes());
  }
}

at::Tensor Call::out(const at::Tensor& result) {
  if (!result.defined() || !result.device().is_cpu()) return result;
  for (Operand& operand : operands_) {
    if (operand.alias.is_same(result)) return *operand.original;
  }
  if (result.layout() == c10::kSparse) {
    for (const SparseOperand& operand : sparse_) {
      if (operand.alias.is_same(result)) return operand.original;
    }
    const at::SparseTensorImpl& impl = *sparse_impl(result);
    at::Tensor indices = out(impl.indices());
    return sparse_tensor(c10::DispatchKeySet(c10::DispatchKey::SparsePrivateUse1), impl, indices, out(impl.values()));
  }
  if (takes_compressed_ && is_compressed(result.layout())) {
    for (const CompressedOperand& operand : compressed_) {
      if (operand.alias.is_same(result)) return operand.original;
    }
    const at::SparseCsrTensorImpl& impl = *compressed_impl(result);
    at::Tensor compressed = out(impl.compressed_indices()), plain = out(impl.plain_indices());
    return compressed_tensor(c10::DispatchKey::SparseCsrPrivateUse1, result.layout(), result.sizes(), compressed, plain,
                             out(impl.values()));
  }
  if (result.layout() != c10::kStrided || result.is_quantized()) [[unlikely]] {
    raise_lack(sim::Lack::kLayout, kind_->name, static_cast<int>(result.scalar_type()),
               c10::str(kind_->name, ": a result of layout ", result.layout(),
                        result.is_quantized() ? ", quantized," : "", " is not supported on npu."));
  }
  if (sim::watching(sim::kNumbers)) [[unlikely]] look_at_numbers(kind_->name, before_, result);
  c10::StorageImpl* storage = result.unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl();
  for (Operand& operand : operands_) {
    if (operand.alias.unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl() == storage) {
      return device_tensor(operand.original->storage(), result);
    }
  }
  for (const c10::StorageImpl* host : host_storages_) {
    if (host == storage) return result;
  }
  for (auto& [from, to] : moved_) {
    if (from == storage) return device_tensor(to, result);
  }
  size_t bytes = storage->nbytes();
  if (left_card_) [[unlikely]] bytes_back_ += bytes;
  if (signature_ != nullptr) [[unlikely]] add_tensor(*signature_, sim::Role::kResult, result, false);
  c10::DataPtr data = storage->set_data_ptr(c10::DataPtr(nullptr, c10::Device(c10::kCPU)));
  storage->set_nbytes(0);
  c10::Storage moved = make_storage(into_device(std::move(data), bytes, device_), bytes);
  if (signature_ != nullptr && !sim::is_part()) [[unlikely]] sim::touch(device_, moved.data(), bytes);
  moved_.emplace_back(storage, moved);
  return device_tensor(std::move(moved), result);
}

}  // namespace toprope::glue
