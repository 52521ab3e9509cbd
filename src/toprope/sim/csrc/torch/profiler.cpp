// torch.profiler's timers for the card. The clock is the host's: the card's own time is not simulated. Registered with
// torch; nothing here calls it.
//
// Tests: tests/sim/simulated/test_profiler.py.
#include <torch/csrc/profiler/stubs/base.h>

#include "glue.h"

namespace toprope::glue {

namespace {

using torch::profiler::impl::ProfilerVoidEventStub;

int64_t time_of(const ProfilerVoidEventStub& event) { return *static_cast<const int64_t*>(event.get()); }

struct Profiler final : torch::profiler::impl::ProfilerStubs {
  void record(c10::DeviceIndex* device, ProfilerVoidEventStub* event, int64_t* host_ns) const override {
    int64_t now = sim::now_ns();
    if (device != nullptr) *device = static_cast<c10::DeviceIndex>(sim::current_device());
    if (host_ns != nullptr) *host_ns = now;
    *event = std::make_shared<int64_t>(now);
  }
  float elapsed(const ProfilerVoidEventStub* begin, const ProfilerVoidEventStub* end) const override {
    return static_cast<float>(time_of(*end) - time_of(*begin)) / 1000.0f;  // microseconds
  }
  void mark(const char*) const override {}
  void rangePush(const char*) const override {}
  void rangePop() const override {}
  bool enabled() const override { return true; }
  void onEachDevice(std::function<void(int)> operation) const override {
    for (int device = 0; device < sim::device_count(); device++) operation(device);
  }
  void synchronize() const override {
    for (int device = 0; device < sim::device_count(); device++) sim::wait_for_device(device);
  }
};

struct ProfilerRegistration {
  ProfilerRegistration() {
    static Profiler profiler;
    torch::profiler::impl::registerPrivateUse1Methods(&profiler);
  }
} profiler_registration;

}  // namespace
}  // namespace toprope::glue
