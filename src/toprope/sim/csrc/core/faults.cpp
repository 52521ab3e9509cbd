// Failures on demand; see faults.h.
//
// Tests: tests/sim/simulated/test_faults.py.
#include "faults.h"

#include <chrono>
#include <map>
#include <mutex>
#include <thread>

#include "device.h"
#include "stream.h"
#include "trace.h"

namespace toprope::sim {

uint64_t refused_dtypes[kMaxKinds];

namespace {

struct Failure {
  int code;
  uint64_t left;
};

std::mutex failures_mutex;
std::map<const Kind*, Failure> failures;
std::atomic<int64_t> allocations_left{-1};
std::atomic<double> link_ns_per_byte{0.0};

void update_watch() { watch(kFaults, !failures.empty() || allocations_left >= 0); }

}  // namespace

void fail_operator(const char* name, int code, uint64_t after) {
  Kind* of = kind(name);
  std::lock_guard<std::mutex> guard(failures_mutex);
  if (code == kOk) {
    failures.erase(of);
  } else {
    failures[of] = {code, after};
  }
  update_watch();
}

void fail_allocation(int64_t after) {
  std::lock_guard<std::mutex> guard(failures_mutex);
  allocations_left = after;
  update_watch();
}

void slow_link(double ns_per_byte) {
  link_ns_per_byte = ns_per_byte;
  watch(kTrafficLimits, ns_per_byte > 0);
}

int fault_of_operator(const Kind* kind) {
  std::lock_guard<std::mutex> guard(failures_mutex);
  auto found = failures.find(kind);
  if (found == failures.end()) return kOk;
  if (found->second.left == 0) return found->second.code;
  found->second.left--;
  return kOk;
}

bool fault_of_allocation() {
  std::lock_guard<std::mutex> guard(failures_mutex);
  if (allocations_left < 0) return false;
  allocations_left--;
  update_watch();
  return allocations_left < 0;
}

void wait_for_link(uint64_t bytes, int64_t began_ns) {
  auto until = began_ns + static_cast<int64_t>(static_cast<double>(bytes) * link_ns_per_byte.load());
  int64_t left = until - now_ns();
  if (left > 0) std::this_thread::sleep_for(std::chrono::nanoseconds(left));
}

}  // namespace toprope::sim
