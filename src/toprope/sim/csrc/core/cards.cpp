// The shared file of a run's cards; see cards.h.
//
// Tests: tests/sim/test_shared_cards.py.
#include "cards.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <mutex>

namespace toprope::sim {

namespace {

Cards* cards_in_memory() {
  void* place = mmap(nullptr, sizeof(Cards), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  return place == MAP_FAILED ? new Cards() : static_cast<Cards*>(place);
}

Cards* shared = cards_in_memory();
ProcessSlot* mine = nullptr;
std::mutex processes_mutex;

// State and start time from /proc/PID/stat; false where there is no such process.
bool look_at(uint64_t pid, char* state, uint64_t* started) {
  char path[48], text[1024];
  snprintf(path, sizeof path, "/proc/%llu/stat", static_cast<unsigned long long>(pid));
  int file = open(path, O_RDONLY | O_CLOEXEC);
  if (file < 0) return false;
  ssize_t length = read(file, text, sizeof text - 1);
  close(file);
  if (length <= 0) return false;
  text[length] = 0;
  const char* after_name = strrchr(text, ')');  // the name may hold blanks and brackets
  unsigned long long start = 0;
  if (after_name == nullptr ||
      sscanf(after_name + 1, " %c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %*u %*u %*d %*d %*d %*d %*d %*d %llu", state,
             &start) != 2) {
    return false;
  }
  *started = start;
  return true;
}

bool is_alive(uint64_t pid, uint64_t started) {
  char state = 0;
  uint64_t start = 0;
  if (!look_at(pid, &state, &start)) return false;
  return start == started && state != 'Z' && state != 'X';
}

// Releases the resources of processes that have ended. Only the process that swaps a slot's number out does it.
void drop_dead() {
  for (ProcessSlot& slot : shared->processes) {
    uint64_t pid = slot.pid.load();
    if (pid == 0 || is_alive(pid, slot.started)) continue;
    constexpr uint64_t kBeingDropped = ~uint64_t{0};
    if (!slot.pid.compare_exchange_strong(pid, kBeingDropped)) continue;
    for (int card = 0; card < kMaxCards; card++) shared->cards[card].reserved -= slot.reserved[card].exchange(0);
    slot.pid = 0;
  }
}

// The slot of this process; a forked child gets one of its own, should it ever take memory.
ProcessSlot* my_slot() {
  std::lock_guard<std::mutex> guard(processes_mutex);
  auto pid = static_cast<uint64_t>(getpid());
  if (mine != nullptr && mine->pid == pid) return mine;
  char state = 0;
  uint64_t started = 0;
  look_at(pid, &state, &started);
  for (int attempt = 0; attempt < 2; attempt++) {
    for (ProcessSlot& slot : shared->processes) {
      uint64_t nobody = 0;
      constexpr uint64_t kBeingFilled = ~uint64_t{0} - 1;
      if (!slot.pid.compare_exchange_strong(nobody, kBeingFilled)) continue;
      slot.started = started;
      prctl(PR_GET_NAME, slot.name);
      slot.pid = pid;
      return mine = &slot;
    }
    drop_dead();
  }
  return nullptr;  // more processes than slots: their memory still counts for the card, but not by process
}

bool try_take(int physical, uint64_t bytes, uint64_t capacity) {
  Counter& reserved = shared->cards[physical].reserved;
  uint64_t seen = reserved.load();
  while (seen + bytes <= capacity) {
    if (reserved.compare_exchange_weak(seen, seen + bytes)) return true;
  }
  return false;
}

}  // namespace

int share_cards(const char* path) {
  int file = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  if (file < 0) return errno;
  int error = ftruncate(file, sizeof(Cards)) == 0 ? 0 : errno;
  if (error == 0) {
    void* place = mmap(nullptr, sizeof(Cards), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (place == MAP_FAILED) {
      error = errno;
    } else {
      shared = static_cast<Cards*>(place);
    }
  }
  close(file);
  return error;
}

bool take_from_card(int physical, uint64_t bytes, uint64_t capacity) {
  ProcessSlot* slot = my_slot();
  if (!try_take(physical, bytes, capacity)) {
    drop_dead();
    if (!try_take(physical, bytes, capacity)) return false;
  }
  if (slot != nullptr) add(slot->reserved[physical], bytes);
  return true;
}

void give_back_to_card(int physical, uint64_t bytes) {
  shared->cards[physical].reserved -= bytes;
  if (ProcessSlot* slot = my_slot()) slot->reserved[physical] -= bytes;
}

uint64_t taken_of_card(int physical) {
  drop_dead();
  return shared->cards[physical].reserved;
}

int health_of_card(int physical) { return static_cast<int>(shared->cards[physical].unhealthy.load()); }
void set_health_of_card(int physical, int code) { shared->cards[physical].unhealthy = static_cast<uint64_t>(code); }

}  // namespace toprope::sim
