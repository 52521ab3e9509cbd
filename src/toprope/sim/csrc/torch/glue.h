// The torch side of the simulated card: declarations that every file of this folder needs, by the file that defines
// them.
//
// A C function (tsg_...) that any file here adds must be declared with its types in ../../native.py. A new .cpp file is
// compiled as it is; ../../build.py names the ones that are optimised more. Tests: tests/sim/test_simulated.py runs
// those of the whole card, tests/sim/test_sim_build.py holds the build.
#pragma once
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/Device.h>
#include <c10/core/Storage.h>

#include <atomic>
#include <string>

#include "../core/counters.h"
#include "../core/device.h"
#include "../core/documents.h"
#include "../core/faults.h"
#include "../core/host_memory.h"
#include "../core/core_limits.h"
#include "../core/memory.h"
#include "../core/rehearsal.h"
#include "../core/signatures.h"
#include "../core/stream.h"
#include "../core/trace.h"

namespace toprope::glue {

constexpr c10::DeviceType kNpu = c10::DeviceType::PrivateUse1;

// ---- graph.cpp

// A graph is captured: what waits for the card, or gives a generator another seed, fails.
extern std::atomic<bool> capturing;
constexpr int kStreamCaptured = 107027, kEventCaptured = 107028, kCaptureNotSupported = 107030;

// ---- errors.cpp: the vendor's texts

// Raises what torch_npu raises when a call of the runtime returns this code.
[[noreturn]] void raise_status(int status, const char* function, const char* call);
[[noreturn]] void raise_out_of_memory(int device, size_t bytes, const sim::Shortage& shortage);
[[noreturn]] void raise_host_out_of_memory(int device, size_t bytes, size_t left);
[[noreturn]] void raise_forked();
// The end of a text of torch_npu's, with a code such as "ERR01007 OPS feature not supported".
std::string trailer(const char* code);
// Raises a text of torch_npu's own, with such a code.
[[noreturn]] void raise_coded(const std::string& text, const char* code);
// The same with ERR01007, "feature not supported": noted for the report, with the operator.
[[noreturn]] void raise_unsupported(const std::string& name, const std::string& text);
// Writes a warning of torch_npu's to stderr, past Python's warnings, as it does: on the first rank alone, and never with
// TORCH_NPU_WARNING_DISABLE=1.
bool warn(const char* text, const char* function = "warn");
[[noreturn]] void raise_refused(const sim::Kind* kind, int dtype);  // as a test wants it
[[noreturn]] void raise_undocumented(const sim::Kind* kind, const sim::Rules& rules, int position, int dtype);
[[noreturn]] void raise_too_many_dimensions(const sim::Kind* kind, const sim::Rules& rules, int position);

inline void check(int status, const char* function, const char* call) {
  if (status != sim::kOk) [[unlikely]] raise_status(status, function, call);
}

// Raises the error of an operator that cannot run here, and keeps it for the report of the run.
[[noreturn]] void raise_lack(sim::Lack lack, const std::string& name, int dtype, const std::string& text);

// ---- sites.cpp

void count_site(const char* operation, bool back, bool waits, uint64_t weight);
// The line of the program that runs, as the rehearsals number them.
uint16_t line_here();
bool is_backward_thread();

// Counts the line of the program that copies from the card, or makes the host wait for it. The text of the operation
// must stay where it is.
inline void note_site(const char* operation, bool back, bool waits) {
  if (!sim::wants_sites.load(std::memory_order_relaxed)) return;
  uint64_t weight = sim::weight_of(sim::counters->site_events.fetch_add(1, std::memory_order_relaxed));
  if (weight != 0) count_site(operation, back, waits, weight);
}

// ---- rehearsal.cpp

// Where a rehearsal is recorded, keeps what holds the memory now: an allocation is about to fail.
void note_shortage(int device, size_t bytes);

// ---- memory.cpp

c10::DataPtr allocate(int device, size_t bytes);
c10::DeviceAllocator* allocator();

// allocator_settings.cpp: reads PYTORCH_NPU_ALLOC_CONF, once; raises where it is wrong.
void read_allocator_settings();

// Raises OutOfMemoryError where memory that is about to be written is more than the host can give: the system would end
// the process instead. Asked for large ranges only.
void check_host_memory_slowly(int device, const void* data, size_t bytes);
inline void check_host_memory(int device, const void* data, size_t bytes) {
  if (bytes >= sim::kMuchMemory) [[unlikely]] check_host_memory_slowly(device, data, bytes);
}

// Makes memory that a host kernel allocated the card's own; copies it there where it lies elsewhere.
c10::DataPtr into_device(c10::DataPtr data, size_t bytes, int device);

// Storage of a device tensor. Host kernels see the same bytes through its shadow, a host storage that owns nothing.
class NpuStorage final : public c10::StorageImpl {
 public:
  using c10::StorageImpl::StorageImpl;
  ~NpuStorage() override;
  c10::Storage shadow();
  void release_resources() override;

 private:
  std::atomic<c10::StorageImpl*> shadow_{nullptr};
};

c10::Storage make_storage(c10::DataPtr data, size_t bytes);

// ---- device.cpp

// The card that a device argument names; 107001 where there is none.
int device_index(c10::Device device);

inline c10::Device npu(int index) { return {kNpu, static_cast<c10::DeviceIndex>(index)}; }

// Host waits for the work queued on the card's current stream, so that a host kernel may touch its memory.
void wait_for_stream_slowly(sim::Stream& stream);
inline void wait_for_current_stream(int device) {
  sim::Stream& stream = sim::stream(device, sim::current_stream(device));
  if (!stream.is_idle()) [[unlikely]] wait_for_stream_slowly(stream);
}

// Frees Python's lock, where this thread holds it, for the time of a wait: queued work may be Python's.
class WithoutInterpreter {
 public:
  WithoutInterpreter();
  ~WithoutInterpreter();
  WithoutInterpreter(const WithoutInterpreter&) = delete;
  WithoutInterpreter& operator=(const WithoutInterpreter&) = delete;

 private:
  void* state_ = nullptr;
};

// Warns or raises, as set by torch.npu.set_sync_debug_mode, when the host waits for the card implicitly.
void note_hidden_wait();

// As above, and reports what failed on the stream: where the host learns something from the card.
inline void synchronise_current_stream(int device) {
  note_hidden_wait();
  sim::Stream& stream = sim::stream(device, sim::current_stream(device));
  if (!stream.is_idle()) [[unlikely]] wait_for_stream_slowly(stream);
  check(stream.take_failure(), "synchronize", "aclrtSynchronizeStream(stream)");
}

// Raises the error of a card that is ill, or of a process that cannot use one.
void check_usable(int device);

}  // namespace toprope::glue
