// Operators about memory itself: making tensors, views, copies, resizing. Also torch.ops.toprope_sim.host_view and its
// neighbours, by which Python code of toprope computes on the card's bytes.
//
// Tests: tests/sim/simulated/test_views.py, test_host_access.py and test_counters_file.py (which copies are counted,
// and which wait).
#include <ATen/Context.h>
#include <ATen/EmptyTensor.h>
#include <ATen/native/TensorFactories.h>
#include <ATen/ops/_local_scalar_dense_native.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/clone_native.h>
#include <ATen/ops/copy_ops.h>
#include <ATen/ops/empty_like_native.h>
#include <ATen/ops/resize_native.h>
#include <ATen/ops/set_native.h>
#include <ATen/ops/unfold_native.h>
#include <ATen/ops/view_as_complex_native.h>
#include <ATen/ops/view_as_real_native.h>
#include <ATen/ops/view_native.h>
#include <c10/core/DeviceGuard.h>
#include <torch/library.h>

#include <algorithm>

#include "call.h"

namespace toprope::glue {

namespace {

using at::IntArrayRef;
using at::Tensor;

void check_options(const char* name, std::optional<c10::ScalarType> dtype, std::optional<c10::Layout> layout,
                   std::optional<bool> pin_memory) {
  if (c10::layout_or_default(layout) != c10::kStrided) [[unlikely]] {
    raise_lack(sim::Lack::kLayout, name, static_cast<int>(c10::dtype_or_default(dtype)),
               c10::str("Tensors of layout ", *layout, " are not supported on npu."));
  }
  TORCH_CHECK(!c10::pinned_memory_or_default(pin_memory), "Only dense CPU tensors can be pinned");
}

Tensor new_tensor(size_t bytes, c10::ScalarType dtype, std::optional<c10::Device> device) {
  int index = device_index(c10::device_or_default(device));
  return at::detail::make_tensor<c10::TensorImpl>(make_storage(allocate(index, bytes), bytes),
                                                  c10::DispatchKeySet(c10::DispatchKey::PrivateUse1),
                                                  c10::scalarTypeToTypeMeta(dtype));
}

// In deterministic mode memory that was not written holds known values, as on the host.
void fill_if_deterministic(const Tensor& tensor) {
  const at::Context& context = at::globalContext();
  if (context.deterministicAlgorithms() && context.deterministicFillUninitializedMemory()) [[unlikely]] {
    Tensor host = host_alias(tensor);
    at::native::fill_empty_deterministic_(host);
  }
}

Tensor empty(IntArrayRef size, std::optional<c10::ScalarType> dtype_or_none, std::optional<c10::Layout> layout,
             std::optional<c10::Device> device, std::optional<bool> pin_memory,
             std::optional<c10::MemoryFormat> memory_format) {
  check_options("aten::empty", dtype_or_none, layout, pin_memory);
  at::detail::check_size_nonnegative(size);
  if (memory_format.value_or(c10::MemoryFormat::Contiguous) != c10::MemoryFormat::Contiguous) {
    raise_unsupported("aten::empty", "Only c10::MemoryFormat::Contiguous is supported for creating a npu tensor");
  }
  c10::ScalarType dtype = c10::dtype_or_default(dtype_or_none);
  Tensor tensor =
      new_tensor(at::detail::computeStorageNbytesContiguous(size, c10::elementSize(dtype)), dtype, device);
  if (size.size() != 1 || size[0] != 0) tensor.unsafeGetTensorImpl()->set_sizes_contiguous(size);
  fill_if_deterministic(tensor);
  return tensor;
}

Tensor empty_strided(IntArrayRef size, IntArrayRef stride, std::optional<c10::ScalarType> dtype_or_none,
                     std::optional<c10::Layout> layout, std::optional<c10::Device> device,
                     std::optional<bool> pin_memory) {
  check_options("aten::empty_strided", dtype_or_none, layout, pin_memory);
  at::detail::check_size_nonnegative(size);
  c10::ScalarType dtype = c10::dtype_or_default(dtype_or_none);
  Tensor tensor = new_tensor(at::detail::computeStorageNbytes(size, stride, c10::elementSize(dtype)), dtype, device);
  tensor.unsafeGetTensorImpl()->set_sizes_and_strides(size, stride);
  fill_if_deterministic(tensor);
  return tensor;
}

// torch's own, but that another memory format than the tensor's is passed over (torch_npu's TensorFactories.cpp).
Tensor empty_like(const Tensor& self, std::optional<c10::ScalarType> dtype, std::optional<c10::Layout> layout,
                  std::optional<c10::Device> device, std::optional<bool> pin_memory,
                  std::optional<c10::MemoryFormat> memory_format) {
  bool keeps = memory_format.value_or(c10::MemoryFormat::Preserve) == c10::MemoryFormat::Preserve;
  bool here = c10::device_or_default(device.value_or(self.device())).type() == kNpu;
  return at::native::empty_like(self, dtype, layout, device, pin_memory,
                                keeps || !here ? memory_format : c10::MemoryFormat::Contiguous);
}

// The same for copies, which have base formats only (its clone).
Tensor clone(const Tensor& self, std::optional<c10::MemoryFormat> memory_format) {
  bool keeps = memory_format.value_or(c10::MemoryFormat::Preserve) == c10::MemoryFormat::Preserve;
  return at::native::clone(self, keeps ? memory_format : c10::MemoryFormat::Contiguous);
}

// Zeros that take no memory, for gradients that are zero: torch makes real ones where it needs them.
Tensor efficient_zeros(IntArrayRef size, std::optional<c10::ScalarType> dtype_or_none, std::optional<c10::Layout> layout,
                       std::optional<c10::Device> device, std::optional<bool> pin_memory) {
  check_options("aten::_efficientzerotensor", dtype_or_none, layout, pin_memory);
  at::detail::check_size_nonnegative(size);
  c10::ScalarType dtype = c10::dtype_or_default(dtype_or_none);
  size_t bytes = at::detail::computeStorageNbytesContiguous(size, c10::elementSize(dtype));
  c10::DataPtr nothing(nullptr, npu(device_index(c10::device_or_default(device))));
  Tensor tensor = at::detail::make_tensor<c10::TensorImpl>(
      make_storage(std::move(nothing), bytes),
      c10::DispatchKeySet(c10::DispatchKey::PrivateUse1) | c10::DispatchKeySet(c10::DispatchKey::ZeroTensor),
      c10::scalarTypeToTypeMeta(dtype));
  tensor.unsafeGetTensorImpl()->set_sizes_contiguous(size);
  return tensor;
}

// torch_npu's hand-written kernels know contiguous tensors only.
Tensor contiguous(const Tensor& self, c10::MemoryFormat memory_format) {
  if (self.is_contiguous(memory_format)) return self;
  if (memory_format != c10::MemoryFormat::Contiguous) {
    raise_unsupported("aten::contiguous", "NPU contiguous operator only supported contiguous memory format.");
  }
  return self.clone(memory_format);
}

Tensor as_strided(const Tensor& self, IntArrayRef size, IntArrayRef stride, std::optional<int64_t> offset) {
  return at::native::as_strided_tensorimpl(self, size, stride, offset);
}
Tensor view(const Tensor& self, IntArrayRef size) { return at::native::view(self, size); }
Tensor reshape_alias(const Tensor& self, IntArrayRef size, IntArrayRef stride) {
  return at::native::_reshape_alias(self, size, stride);
}
Tensor unfold(const Tensor& self, int64_t dimension, int64_t size, int64_t step) {
  return at::native::unfold(self, dimension, size, step);
}

// Whether Module.to() may put a tensor of another device into a parameter instead of making a new one: as on the real
// card, dense tensors of host and card may take each other's place, so that optimizers keep what they were given.
bool has_compatible_shallow_copy_type(const Tensor& self, const Tensor& from) {
  auto is_dense = [](const Tensor& tensor) {
    return tensor.layout() == c10::kStrided && (tensor.device().is_cpu() || tensor.device().type() == kNpu);
  };
  return self.key_set() == from.key_set() || (is_dense(self) && is_dense(from));
}

// ---- copies

bool on_npu(const Tensor& tensor) { return tensor.device().type() == kNpu; }

sim::Act direction(const Tensor& to, const Tensor& from) {
  if (!on_npu(from)) return sim::Act::kCopyToCard;
  if (!on_npu(to)) return sim::Act::kCopyFromCard;
  return to.device() == from.device() ? sim::Act::kOperator : sim::Act::kCopyBetween;
}

// What a copy is for the counters, for the trace and for the link between host and card.
class Copy {
 public:
  Copy(const Tensor& to, const Tensor& from, bool non_blocking)
      : act_(direction(to, from)),
        device_((on_npu(to) ? to : from).device().index()),
        other_(on_npu(from) ? from.device().index() : device_),
        dtype_(static_cast<int>(from.scalar_type())),
        bytes_(from.numel() * from.element_size()),
        began_ns_(sim::watching(sim::kTracing | sim::kTrafficLimits) ? sim::now_ns() : 0) {
    sim::Counters& all = *sim::counters;
    switch (act_) {
      case sim::Act::kCopyToCard:
        count(all.copies_to_card, all.bytes_to_card);
        if (sim::rehearsing && to.storage().nbytes() == bytes_) sim::mark_copied(to.storage().data());
        break;
      case sim::Act::kCopyFromCard:
        count(all.copies_from_card, all.bytes_from_card);
        break;
      case sim::Act::kCopyBetween:
        count(all.copies_between, all.bytes_between);
        return;
      default:
        sim::add(kind()->calls);
        sim::add(all.operators);
        if (sim::watching(sim::kTracing)) [[unlikely]] {
          signature_ = signature_of(to, from);
          other_ = sim::part_of();
        }
        return;
    }
    // A card reads and writes pageable memory only while the host waits.
    if (!non_blocking || !(on_npu(to) ? from : to).is_pinned()) {
      sim::add(all.synchronisations);
      note_copy(true);
      synchronise_current_stream(device_);
    } else {
      note_copy(false);
    }
  }
  ~Copy() {
    if (began_ns_ == 0) return;
    bool over_link = act_ == sim::Act::kCopyToCard || act_ == sim::Act::kCopyFromCard;
    if (over_link && sim::watching(sim::kTrafficLimits)) sim::wait_for_link(bytes_, began_ns_);
    if (!sim::watching(sim::kTracing)) return;
    sim::Cores limits = act_ == sim::Act::kOperator ? sim::limits_here(device_) : sim::Cores{};
    sim::write_record({.begin_ns = began_ns_,
                       .end_ns = sim::now_ns(),
                       .bytes = bytes_,
                       .address = signature_,
                       .stream = static_cast<int32_t>(sim::current_stream(device_)),
                       .kind = static_cast<uint16_t>(sim::index_of(kind())),
                       .act = act_,
                       .device = static_cast<int8_t>(device_),
                       .other_device = static_cast<int8_t>(other_),
                       .dtype = static_cast<int8_t>(dtype_),
                       .cube = static_cast<uint8_t>(limits[sim::kCube]),
                       .vector = static_cast<uint8_t>(limits[sim::kVector])});
  }
  Copy(const Copy&) = delete;
  Copy& operator=(const Copy&) = delete;

 private:
  static sim::Kind* kind() {
    static sim::Kind* const one = sim::kind("aten::copy_");
    return one;
  }
  static uint64_t signature_of(const Tensor& to, const Tensor& from) {
    sim::SignatureOf made(sim::index_of(kind()));
    const bool counts = !sim::is_part();
    add_tensor(made, sim::Role::kWritten, to, counts);
    add_tensor(made, sim::Role::kRead, from, counts);
    return sim::number_of(made.made());
  }
  void note_copy(bool waits) const {
    bool back = act_ == sim::Act::kCopyFromCard;
    if (back || waits) note_site(back ? "aten::copy_ to the host" : "aten::copy_ to the card", back, waits);
  }
  void count(sim::Counter& copies, sim::Counter& bytes) const {
    sim::add(copies);
    sim::add(bytes, bytes_);
  }
  sim::Act act_;
  int device_, other_, dtype_;
  uint64_t bytes_;
  uint64_t signature_ = 0;
  int64_t began_ns_;
};

// A cast on the card is an operator of the vendor's, with dtypes of its own.
void check_cast(const Tensor& from, c10::ScalarType to) {
  static sim::Kind* const kind = sim::kind("npu::npu_dtype_cast");
  static const sim::Rules* const rules = sim::rules_of("npu::npu_dtype_cast");
  check_documented(kind, rules, 0, static_cast<int>(from.scalar_type()));
  check_documented(kind, rules, 1, static_cast<int>(to));
  check_dimensions(kind, rules, 0, from.dim());
}

// Between tensors of a card, a copy is a kernel; and so is the part on the card of a copy from or to the host where the
// card's tensor has gaps or another order (CopyKernelOpApi.cpp).
void check_copy_dimensions(const Tensor& to, const Tensor& from) {
  static sim::Kind* const kind = sim::kind("aten::copy_");
  static const sim::Rules* const rules = sim::rules_of("aten::copy_");
  const bool within = to.device() == from.device();
  for (const Tensor* tensor : {&to, &from}) {
    if (!within && !(on_npu(*tensor) && !tensor->is_contiguous())) continue;
    check_dimensions(kind, rules, within && tensor == &from ? 1 : 0, tensor->dim());
  }
}

Tensor& copy_(Tensor& self, const Tensor& src, bool non_blocking) {
  if (self.is_same(src)) return self;
  for (const Tensor* tensor : {&static_cast<const Tensor&>(self), &src}) {
    if (!on_npu(*tensor)) continue;
    check_usable(tensor->device().index());
    wait_for_current_stream(tensor->device().index());
  }
  if (self.scalar_type() != src.scalar_type() && self.device() == src.device()) {
    check_cast(src, self.scalar_type());
  }
  if (self.numel() != 0) check_copy_dimensions(self, src);
  check_host_memory((on_npu(self) ? self : src).device().index(), self);
  if (sim::watching(sim::kUnsafe)) [[unlikely]] {
    if (on_npu(src)) check_safe(src);
    sim::set_safe(self.storage().data());
  }
  Copy copy(self, src, non_blocking);
  Tensor to = on_npu(self) ? host_alias(self) : self;
  const Tensor from = on_npu(src) ? host_alias(src) : src;
  at::_ops::copy_::redispatch(kHostKeys, to, from, non_blocking);
  if (sim::watching(sim::kNumbers) && on_npu(self)) [[unlikely]] {
    const bool from_host = !on_npu(src);  // where the program's data may have brought them
    look_at_numbers(from_host ? "aten::copy_ to the card" : "aten::copy_", from_host ? NotFinite{} : not_finite(from), to);
  }
  return self;
}

Tensor copy_from(const Tensor& self, const Tensor& to, bool non_blocking) {
  Tensor target = to;
  copy_(target, self, non_blocking);
  return to;
}

const Tensor& resize_(const Tensor& self, c10::SymIntArrayRef size, std::optional<c10::MemoryFormat>) {
  c10::DeviceGuard guard(self.device());
  check_usable(self.device().index());
  wait_for_current_stream(self.device().index());
  return at::native::resize_(self, C10_AS_INTARRAYREF_SLOW(size), std::nullopt);  // as torch_npu's ResizeNpu.cpp
}

const Tensor& resize_as_(const Tensor& self, const Tensor& like, std::optional<c10::MemoryFormat> memory_format) {
  c10::MemoryFormat format = memory_format.value_or(c10::MemoryFormat::Preserve);
  if (format != c10::MemoryFormat::Preserve && format != c10::MemoryFormat::Contiguous) {
    raise_unsupported("aten::resize_as_", "NPU only support format is contiguous_format or preserve_format.");
  }
  return self.resize_(like.sizes());
}

Tensor copy_from_and_resize(const Tensor& self, const Tensor& to) {
  resize_(to, self.sym_sizes(), std::nullopt);
  return copy_from(self, to, false);
}

at::Scalar local_scalar_dense(const Tensor& self) {
  sim::add(sim::counters->copies_from_card);
  sim::add(sim::counters->bytes_from_card, self.element_size());
  sim::add(sim::counters->synchronisations);
  note_site("aten::_local_scalar_dense", true, true);
  int64_t began = sim::watching(sim::kTracing) ? sim::now_ns() : 0;
  int device = self.device().index();
  check_usable(device);
  synchronise_current_stream(device);
  at::Scalar value = at::native::_local_scalar_dense_cpu(host_alias(self));
  if (began != 0) {
    sim::write_record({.begin_ns = began, .end_ns = sim::now_ns(), .bytes = static_cast<uint64_t>(self.element_size()),
                       .stream = static_cast<int32_t>(sim::current_stream(device)), .act = sim::Act::kCopyFromCard,
                       .device = static_cast<int8_t>(device), .dtype = static_cast<int8_t>(self.scalar_type())});
  }
  return value;
}

void record_stream(Tensor& self, c10::Stream stream) { allocator()->recordStream(self.storage().data_ptr(), stream); }

// ---- storages

Tensor& set_storage_offset(Tensor& self, c10::Storage source, int64_t offset, IntArrayRef size, IntArrayRef stride) {
  c10::DeviceGuard guard(self.device());
  return at::native::set_storage_cpu_(self, std::move(source), offset, size, stride);
}
Tensor& set_storage(Tensor& self, c10::Storage source) { return at::native::set_(self, std::move(source)); }
Tensor& set_tensor(Tensor& self, const Tensor& source) { return at::native::set_tensor_(self, source); }
Tensor& set_empty(Tensor& self) {
  return set_storage_offset(self, make_storage(allocate(self.device().index(), 0), 0), 0, {0}, {});
}

void release_viewed(void* storage) { delete static_cast<c10::Storage*>(storage); }

// The card's storage that a host view is over; null for a storage that is no host view's.
const c10::Storage* viewed(const Tensor& tensor) {
  if (!tensor.has_storage()) return nullptr;
  const c10::DataPtr& data = tensor.storage().data_ptr();
  return data.get_deleter() == &release_viewed ? static_cast<const c10::Storage*>(data.get_context()) : nullptr;
}

bool is_host_view(const Tensor& tensor) { return viewed(tensor) != nullptr; }

// A host tensor over the card's bytes that keeps them alive: for collectives, kernels and numpy.
Tensor host_view(const Tensor& tensor) {
  check_usable(tensor.device().index());
  wait_for_current_stream(tensor.device().index());
  auto* kept = new c10::Storage(tensor.storage());
  c10::DataPtr data(const_cast<void*>(kept->data()), kept, &release_viewed, c10::Device(c10::kCPU));
  c10::Storage storage(c10::Storage::use_byte_size_t(), kept->nbytes(), std::move(data), nullptr, /*resizable=*/false);
  c10::TensorImpl* from = tensor.unsafeGetTensorImpl();
  Tensor view = at::detail::make_tensor<c10::TensorImpl>(std::move(storage), kHostKeys, from->dtype());
  view.unsafeGetTensorImpl()->set_storage_offset(from->storage_offset());
  view.unsafeGetTensorImpl()->set_sizes_and_strides(from->sizes(), from->strides());
  return view;
}

// Until it is left, what this thread allocates on the host is memory of the card, as inside a host kernel.
int64_t enter_kernel(int64_t device) {
  int index = device_index(npu(static_cast<int>(device)));
  check_usable(index);
  wait_for_current_stream(index);
  sim::add(sim::counters->operators);
  return reinterpret_cast<int64_t>(new sim::KernelScope(index));
}

void leave_kernel(int64_t scope) { delete reinterpret_cast<sim::KernelScope*>(scope); }

// The check of one operand of an operator ("aten::add.Tensor") whose kernel compiled code calls on the host.
void check_operand(std::string_view name, int64_t position, c10::ScalarType dtype) {
  if (!sim::watching(sim::kDocuments | sim::kRefusals)) return;
  std::string full(name);
  sim::Kind* kind = sim::kind(full.substr(0, full.find('.')).c_str());
  check_dtype(kind, sim::rules_of(full), static_cast<int>(position), static_cast<int>(dtype));
}

// Tensors of the card for what host code computed within a kernel: host views get the storage that they are over, other
// results their own bytes without a copy.
std::vector<Tensor> onto_card(std::vector<Tensor> results, int64_t device) {
  c10::SmallVector<std::pair<c10::StorageImpl*, c10::Storage>, 8> known;
  for (Tensor& result : results) {
    if (const c10::Storage* original = viewed(result)) {
      result = device_tensor(*original, result);
      continue;
    }
    c10::StorageImpl* storage = result.storage().unsafeGetStorageImpl();
    auto found = std::find_if(known.begin(), known.end(), [&](const auto& each) { return each.first == storage; });
    if (found == known.end()) {
      size_t bytes = storage->nbytes();
      c10::DataPtr data = storage->set_data_ptr(c10::DataPtr(nullptr, c10::Device(c10::kCPU)));
      storage->set_nbytes(0);
      known.emplace_back(storage, make_storage(into_device(std::move(data), bytes, static_cast<int>(device)), bytes));
      found = known.end() - 1;
    }
    result = device_tensor(found->second, result);
  }
  return results;
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(toprope_sim, m) {
  m.def("host_view(Tensor tensor) -> Tensor");
  m.def("enter_kernel(int device) -> int", &enter_kernel);
  m.def("check_operand(str name, int position, ScalarType dtype) -> ()", &check_operand);
  m.def("leave_kernel(int scope) -> ()", &leave_kernel);
  m.def("is_host_view(Tensor tensor) -> bool", &is_host_view);
  m.def("onto_card(Tensor[] results, int device) -> Tensor[]", &onto_card);
}
TORCH_LIBRARY_IMPL(toprope_sim, PrivateUse1, m) { m.impl("host_view", &host_view); }

TORCH_LIBRARY_IMPL(aten, AutogradPrivateUse1, m) { m.impl("contiguous", &contiguous); }

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("empty.memory_format", &empty);
  m.impl("empty_strided", &empty_strided);
  m.impl("empty_like", &empty_like);
  m.impl("clone", &clone);
  m.impl("_efficientzerotensor", &efficient_zeros);
  m.impl("contiguous", &contiguous);
  m.impl("as_strided", &as_strided);
  m.impl("view", &view);
  m.impl("_reshape_alias", &reshape_alias);
  m.impl("unfold", &unfold);
  m.impl("view_as_real", &at::native::view_as_real);
  m.impl("view_as_complex", &at::native::view_as_complex);
  m.impl("_has_compatible_shallow_copy_type", &has_compatible_shallow_copy_type);
  m.impl("copy_", &copy_);
  m.impl("_copy_from", &copy_from);
  m.impl("_copy_from_and_resize", &copy_from_and_resize);
  m.impl("resize_", &resize_);
  m.impl("resize_as_", &resize_as_);
  m.impl("_local_scalar_dense", &local_scalar_dense);
  m.impl("record_stream", &record_stream);
  m.impl("set_.source_Storage_storage_offset", &set_storage_offset);
  m.impl("set_.source_Storage", &set_storage);
  m.impl("set_.source_Tensor", &set_tensor);
  m.impl("set_", &set_empty);
}

}  // namespace toprope::glue
