// What the cards did, kept in memory that a file may stand behind (see ../../counters.py, which reads it).
#pragma once
#include <atomic>
#include <cstdint>

#define TOPROPE_API __attribute__((visibility("default")))

namespace toprope::sim {

constexpr int kMaxCards = 16;
constexpr int kMaxKinds = 2048;

using Counter = std::atomic<uint64_t>;

struct CardCounters {
  Counter physical, capacity, allocated, peak_allocated, reserved, peak_reserved, allocations, oom_retries, ooms,
      kernels;
};

struct Kind {
  char name[48];
  Counter undocumented;  // dtypes it ran with that no document of the vendor mentions; bits are c10::ScalarType
  Counter calls;
};

struct Counters {
  char magic[8];
  uint64_t pid;
  char chip[32];
  char torch_version[32];
  uint64_t flags;  // bit 0: the capacity was set by the user; bit 1: ASCEND_RT_VISIBLE_DEVICES was set
  char mask[64];   // its value
  uint64_t card_count;
  Counter copies_to_card, bytes_to_card, copies_from_card, bytes_from_card, copies_between, bytes_between;
  Counter synchronisations, operators;
  CardCounters cards[kMaxCards];
  Counter kind_count;
  Kind kinds[kMaxKinds];
};

static_assert(sizeof(CardCounters) == 80 && sizeof(Kind) == 64);

// Where all figures of this process are kept. Never null.
TOPROPE_API extern Counters* counters;

// Moves the counters to a file. Returns 0 or an errno. A process that is forked later counts for itself, and keeps a
// file of its own in the same folder from its first use of a card on.
TOPROPE_API int keep_counters_in(const char* path);
void count_for_this_process();

// The slot that counts operators of this name; the last slot once all are taken.
TOPROPE_API Kind* kind(const char* name);

inline void add(Counter& counter, uint64_t amount = 1) { counter.fetch_add(amount, std::memory_order_relaxed); }

inline void raise_to(Counter& peak, uint64_t value) {
  uint64_t seen = peak.load(std::memory_order_relaxed);
  while (value > seen && !peak.compare_exchange_weak(seen, value, std::memory_order_relaxed)) {
  }
}

}  // namespace toprope::sim
