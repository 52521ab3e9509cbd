// Devices, streams and events, and torch's hooks for them (the device guard of PrivateUse1). torch calls it for
// torch.npu's devices, streams and events alike.
//
// Tests: tests/sim/simulated/test_devices.py and test_streams.py.
#include <ATen/core/CachingHostAllocator.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

#include <dlfcn.h>

#include <cstring>

#include "../core/cards.h"
#include "glue.h"
#include "random.h"

namespace toprope::glue {

at::HostAllocator* pinned_allocator();
bool is_pinned(const void* data);
void register_memory();

int device_index(c10::Device device) {
  int index = device.has_index() ? device.index() : sim::current_device();
  if (!sim::is_device(index)) [[unlikely]] {
    raise_status(sim::kInvalidDevice, "SetDevice", "c10_npu::SetDevice(device)");
  }
  return index;
}

void check_usable(int device) {
  if (sim::forked_after_use()) [[unlikely]] raise_forked();
  int health = sim::health_of_card(sim::physical_id(device));
  if (health != sim::kOk) [[unlikely]] raise_status(health, "SetDevice", "c10_npu::SetDevice(device)");
  if (sim::state_of_device(device) != sim::kOk) [[unlikely]] raise_status(sim::kStopped, "SetDevice", "FORCE STOP");
}

namespace {

// Python's functions, found where the process has them: this library is not linked with Python.
template <class Function>
Function* python(const char* name) {
  return reinterpret_cast<Function*>(dlsym(RTLD_DEFAULT, name));
}

std::atomic<int> sync_debug_mode{0};

}  // namespace

WithoutInterpreter::WithoutInterpreter() {
  static auto* const holds = python<int()>("PyGILState_Check");
  static auto* const initialised = python<int()>("Py_IsInitialized");
  static auto* const save = python<void*()>("PyEval_SaveThread");
  if (holds != nullptr && initialised != nullptr && save != nullptr && initialised() && holds()) state_ = save();
}

WithoutInterpreter::~WithoutInterpreter() {
  static auto* const restore = python<void(void*)>("PyEval_RestoreThread");
  if (state_ != nullptr) restore(state_);
}

void note_hidden_wait() {
  switch (sync_debug_mode.load(std::memory_order_relaxed)) {
    case 0:
      return;
    case 1:
      TORCH_WARN("called a synchronizing NPU operation");
      return;
    default:
      TORCH_CHECK(false, "called a synchronizing NPU operation");
  }
}

void wait_for_stream_slowly(sim::Stream& stream) {
  int status;
  {
    WithoutInterpreter waiting;
    status = stream.wait();
  }
  check(status, "synchronize", "aclrtSynchronizeStream(stream)");
}

namespace {

// Raises for a number that no card has, and not for a card that is stopped or unhealthy: torch's own threads switch the
// device where nothing catches an error, and the process would end. Any later use of the card raises.
void choose(int device, const char* function) {
  if (sim::forked_after_use()) [[unlikely]] raise_forked();
  check(sim::set_device(device), function, "c10_npu::SetDevice(device)");
}

int exchange(int device) {
  int former = sim::current_device();
  if (device >= 0 && device != former) choose(device, "exchangeDevice");
  return former;
}

// Counts a wait of the host, and records it while a trace is written.
class Wait {
 public:
  explicit Wait(const char* call, int device, int64_t stream = -1)
      : began_(sim::watching(sim::kTracing) ? sim::now_ns() : 0), device_(device), stream_(stream) {
    sim::add(sim::counters->synchronisations);
    note_site(call, false, true);
  }
  ~Wait() {
    if (began_ == 0) return;
    sim::write_record({.begin_ns = began_, .end_ns = sim::now_ns(), .stream = static_cast<int32_t>(stream_),
                       .act = sim::Act::kSynchronise, .device = static_cast<int8_t>(device_)});
  }
  Wait(const Wait&) = delete;
  Wait& operator=(const Wait&) = delete;

 private:
  int64_t began_;
  int device_;
  int64_t stream_;
};

void note_event(sim::Act act, const sim::EventPointer& event, const c10::Stream& stream) {
  if (!sim::watching(sim::kTracing)) return;
  int64_t now = sim::now_ns();
  sim::write_record({.begin_ns = now, .end_ns = now, .address = reinterpret_cast<uint64_t>(event.get()),
                     .stream = static_cast<int32_t>(stream.id()), .act = act,
                     .device = static_cast<int8_t>(stream.device_index())});
}

c10::Stream to_torch(int device, int64_t id) { return c10::Stream(c10::Stream::UNSAFE, npu(device), id); }
sim::Stream& to_core(const c10::Stream& stream) {
  if (!sim::is_stream(stream.id())) raise_status(sim::kInvalidStream, "stream", "aclrtStream");
  return sim::stream(device_index(stream.device()), stream.id());
}

sim::EventPointer& to_event(void* event) { return *static_cast<sim::EventPointer*>(event); }

class Guard final : public c10::impl::DeviceGuardImplInterface {
 public:
  static constexpr c10::DeviceType static_type = kNpu;
  Guard() = default;
  explicit Guard(c10::DeviceType) {}

  c10::DeviceType type() const override { return kNpu; }
  c10::Device exchangeDevice(c10::Device device) const override { return npu(exchange(device.index())); }
  c10::Device getDevice() const override { return npu(sim::current_device()); }
  void setDevice(c10::Device device) const override { choose(device.index(), "setDevice"); }
  void uncheckedSetDevice(c10::Device device) const noexcept override { sim::exchange_device(device.index()); }
  c10::DeviceIndex deviceCount() const noexcept override { return static_cast<c10::DeviceIndex>(sim::device_count()); }
  c10::DeviceCapability getDeviceCapability(c10::Device) const override { return {}; }

  c10::Stream getStream(c10::Device device) const override {
    int index = device_index(device);
    return to_torch(index, sim::current_stream(index));
  }
  c10::Stream getDefaultStream(c10::Device device) const override {
    return to_torch(device_index(device), sim::kDefaultStream);
  }
  c10::Stream getStreamFromGlobalPool(c10::Device device, bool high_priority) const override {
    int index = device_index(device);
    return to_torch(index, sim::stream_from_pool(index, high_priority));
  }
  c10::Stream getNewStream(c10::Device device, int priority) const override {
    return getStreamFromGlobalPool(device, priority < 0);
  }
  c10::Stream exchangeStream(c10::Stream stream) const override {
    const sim::Stream& chosen = to_core(stream);
    return to_torch(chosen.device, sim::exchange_stream(chosen.device, chosen.id));
  }
  void* getStreamNativeHandle(const c10::Stream stream) const override { return &to_core(stream); }
  bool queryStream(const c10::Stream& stream) const override { return to_core(stream).is_idle(); }
  void synchronizeStream(const c10::Stream& stream) const override {
    Wait wait("Stream.synchronize", stream.device_index(), stream.id());
    if (capturing) raise_status(kStreamCaptured, "synchronize", "aclrtSynchronizeStream(stream)");
    wait_for_stream_slowly(to_core(stream));
  }
  void synchronizeDevice(const c10::DeviceIndex device) const override {
    int index = device_index(npu(device < 0 ? sim::current_device() : device));
    Wait wait("torch.npu.synchronize", index);
    if (capturing) raise_status(kCaptureNotSupported, "synchronize", "aclrtSynchronizeDevice()");
    check_usable(index);
    int status;
    {
      WithoutInterpreter waiting;
      status = sim::wait_for_device(index);
    }
    check(status, "synchronize", "aclrtSynchronizeDevice()");
  }
  void recordDataPtrOnStream(const c10::DataPtr& data, const c10::Stream& stream) const override {
    allocator()->recordStream(data, stream);
  }

  void destroyEvent(void* event, const c10::DeviceIndex) const noexcept override {
    delete static_cast<sim::EventPointer*>(event);
  }
  void record(void** event, const c10::Stream& stream, const c10::DeviceIndex, const c10::EventFlag) const override {
    if (*event == nullptr) *event = new sim::EventPointer(std::make_shared<sim::Event>());
    note_event(sim::Act::kEventRecord, to_event(*event), stream);
    sim::record(to_event(*event), to_core(stream));
  }
  void block(void* event, const c10::Stream& stream) const override {
    if (event == nullptr) return;
    note_event(sim::Act::kEventWait, to_event(event), stream);
    sim::wait_for(to_event(event), to_core(stream));
  }
  bool queryEvent(void* event) const override { return event == nullptr || sim::has_passed(to_event(event)); }
  void synchronizeEvent(void* event) const override {
    Wait wait("Event.synchronize", sim::current_device());
    if (event == nullptr) return;
    if (capturing) raise_status(kEventCaptured, "synchronize", "aclrtSynchronizeEvent(event)");
    int status;
    {
      WithoutInterpreter waiting;
      status = sim::wait_for(to_event(event));
    }
    check(status, "synchronize", "aclrtSynchronizeEvent(event)");
  }
  double elapsedTime(void* begin, void* end, const c10::DeviceIndex) const override {
    TORCH_CHECK(begin != nullptr && end != nullptr, "Both events must be recorded before calculating elapsed time.");
    TORCH_CHECK(queryEvent(begin) && queryEvent(end), "Both events must be completed before calculating elapsed time.");
    return static_cast<double>(to_event(end)->time_ns - to_event(begin)->time_ns) / 1e6;
  }
};

class Hooks final : public at::PrivateUse1HooksInterface {
 public:
  void init() const override {
    if (sim::forked_after_use()) raise_forked();
    sim::use_cards();
  }
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return sim::device_count() > 0; }
  bool hasPrimaryContext(c10::DeviceIndex device) const override {
    return sim::is_initialised() && sim::is_device(device);
  }
  c10::DeviceIndex deviceCount() const override { return static_cast<c10::DeviceIndex>(sim::device_count()); }
  void setCurrentDevice(c10::DeviceIndex device) const override { choose(device, "setDevice"); }
  c10::DeviceIndex getCurrentDevice() const override { return static_cast<c10::DeviceIndex>(sim::current_device()); }
  c10::DeviceIndex exchangeDevice(c10::DeviceIndex device) const override {
    return static_cast<c10::DeviceIndex>(exchange(device));
  }
  c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex device) const override {
    return static_cast<c10::DeviceIndex>(sim::is_device(device) ? exchange(device) : sim::current_device());
  }
  bool isPinnedPtr(const void* data) const override { return is_pinned(data); }
  c10::Allocator* getPinnedMemoryAllocator() const override { return pinned_allocator(); }
  c10::Device getDeviceFromPtr(void* data) const override {
    int device = sim::device_of(data);
    TORCH_CHECK(device >= 0, "The address ", data, " is not in the memory of an NPU.");
    return npu(device);
  }
  const at::Generator& getDefaultGenerator(c10::DeviceIndex device) const override {
    return default_generator(device_index(npu(device < 0 ? sim::current_device() : device)));
  }
  at::Generator getNewGenerator(c10::DeviceIndex device) const override {
    return new_generator(device_index(npu(device < 0 ? sim::current_device() : device)));
  }
  void resizePrivateUse1Bytes(const c10::Storage& storage, size_t bytes) const override {
    c10::StorageImpl* impl = storage.unsafeGetStorageImpl();
    wait_for_current_stream(impl->device().index());
    c10::DataPtr data = allocate(impl->device().index(), bytes);
    if (size_t kept = std::min(bytes, impl->nbytes()); kept > 0) memcpy(data.get(), impl->data(), kept);
    impl->set_data_ptr_noswap(std::move(data));
    impl->set_nbytes(bytes);
  }
};

C10_REGISTER_GUARD_IMPL(PrivateUse1, Guard);

struct Registration {
  Registration() {
    register_memory();
    at::RegisterPrivateUse1HooksInterface(new Hooks());
  }
} registration;

}  // namespace
}  // namespace toprope::glue

// Milliseconds between two events. torch's own elapsed_time refuses subclasses of torch.Event.
extern "C" TOPROPE_API double tsg_elapsed_ms(void* begin, void* end) {
  using toprope::sim::EventPointer;
  return static_cast<double>((*static_cast<EventPointer*>(end))->time_ns -
                             (*static_cast<EventPointer*>(begin))->time_ns) / 1e6;
}

extern "C" TOPROPE_API void tsg_set_sync_debug_mode(int mode) { toprope::glue::sync_debug_mode = mode; }
