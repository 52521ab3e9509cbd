// Cards and their numbers; see device.h. The rules of the mask are the vendor's; toprope.visible_devices has them in
// Python.
//
// Tests: tests/sim/simulated/test_core.py, tests/base/test_visible_devices.py.
#include "device.h"

#include <pthread.h>

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <vector>

#include "memory.h"

namespace toprope::sim {

namespace {

Machine the_machine;
std::vector<int> visible;
std::atomic<int> visible_count{-1};
std::atomic<bool> in_fork{false};
std::mutex setup;
thread_local int chosen = 0;

// The rules of the vendor's runtime: reading stops at the first character that is neither digit nor comma; an order
// that does not rise leaves no card; the first number that is not there ends the list.
std::vector<int> read_mask(const char* mask, int cards) {
  std::vector<int> ids;
  const char* at = mask;
  while (*at >= '0' && *at <= '9') {
    char* end = nullptr;
    long id = strtol(at, &end, 10);
    if (!ids.empty() && id <= ids.back()) return {};
    if (id >= cards) break;
    ids.push_back(static_cast<int>(id));
    if (*end != ',') break;
    at = end + 1;
  }
  return ids;
}

std::vector<int> seen_now() {
  if (const char* mask = getenv("ASCEND_RT_VISIBLE_DEVICES")) return read_mask(mask, the_machine.cards);
  std::vector<int> all;
  for (int i = 0; i < the_machine.cards; i++) all.push_back(i);
  return all;
}

void initialise() {
  std::lock_guard<std::mutex> guard(setup);
  if (visible_count.load() >= 0) return;
  count_for_this_process();
  if (const char* mask = getenv("ASCEND_RT_VISIBLE_DEVICES")) {
    counters->flags |= 2;
    strncpy(counters->mask, mask, sizeof(Counters::mask) - 1);
  }
  visible = seen_now();
  int count = static_cast<int>(visible.size());
  counters->card_count = count;
  for (int i = 0; i < count; i++) {
    counters->cards[i].physical = visible[i];
    counters->cards[i].capacity = the_machine.capacity;
  }
  pthread_atfork(nullptr, nullptr, [] { in_fork = true; });
  visible_count = count;
}

}  // namespace

int configure(const Machine& machine) {
  std::lock_guard<std::mutex> guard(setup);
  if (visible_count.load() >= 0) return kInvalidParameter;
  if (machine.cards < 1 || machine.cards > kMaxCards || machine.capacity == 0) return kInvalidParameter;
  if (!reserve_address_space(machine.cards, machine.capacity)) return kOutOfMemory;
  the_machine = machine;
  return kOk;
}

const Machine& machine() { return the_machine; }

bool is_initialised() { return visible_count.load(std::memory_order_relaxed) >= 0; }

int device_count() {
  int count = visible_count.load(std::memory_order_acquire);
  if (count >= 0) [[likely]] return count;
  return static_cast<int>(seen_now().size());
}

void use_cards() {
  if (visible_count.load(std::memory_order_acquire) < 0) [[unlikely]] initialise();
}

int physical_id(int device) {
  use_cards();
  return is_device(device) ? visible[device] : -1;
}

int current_device() { return chosen; }

int set_device(int device) {
  use_cards();
  if (!is_device(device)) return kInvalidDevice;
  chosen = device;
  return kOk;
}

int exchange_device(int device) {
  int former = chosen;
  if (is_device(device)) chosen = device;
  return former;
}

bool forked_after_use() { return in_fork.load(std::memory_order_relaxed); }

}  // namespace toprope::sim
