// Limits of cores for work; see core_limits.h.
//
// Tests: tests/sim/simulated/test_core_limits.py.
#include "core_limits.h"

#include <atomic>

#include "stream.h"

namespace toprope::sim {

namespace {

// Holds the limit plus one, so that memory of zeros means no limit.
using Limit = std::atomic<int>;

struct CardLimits {
  Limit of_process[kKindsOfCores];
  Limit of_stream[kStreams][kKindsOfCores];
};

CardLimits limits_of_cards[kMaxCards];
Cores of_chip;

}  // namespace

void set_cores(const Cores& cores) { of_chip = cores; }
Cores cores() { return of_chip; }

void set_limit(int device, int64_t stream, Core core, int limit) {
  CardLimits& card = limits_of_cards[device];
  (stream == kProcess ? card.of_process[core] : card.of_stream[stream][core]) = limit + 1;
}

Cores limits(int device, int64_t stream) {
  const CardLimits& card = limits_of_cards[device];
  Cores found = of_chip;
  for (int core = 0; core < kKindsOfCores; core++) {
    int limit = stream == kProcess ? 0 : card.of_stream[stream][core].load(std::memory_order_relaxed);
    if (limit == 0) limit = card.of_process[core].load(std::memory_order_relaxed);
    if (limit != 0) found[core] = limit - 1;
  }
  return found;
}

Cores limits_here(int device) { return limits(device, has_chosen_stream(device) ? current_stream(device) : kProcess); }

}  // namespace toprope::sim
