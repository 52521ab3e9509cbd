// Kind and line of each block of memory, which the core asks for while a rehearsal is recorded.
// ../../rehearsal/recorder.py says when a forward pass or a step begins.
//
// Tests: tests/sim/simulated/test_rehearsal.py.
#include <c10/core/GradMode.h>

#include <algorithm>

#include "glue.h"

namespace toprope::glue {

namespace {

// A module's forward pass has begun with gradients, and no backward pass after it.
std::atomic<bool> in_forward{false};
// An optimizer makes a step.
std::atomic<bool> in_step{false};

std::atomic<void (*)()> before_shortage{nullptr};

sim::Held kind_here() {
  if (c10::GradMode::is_enabled()) {
    // in a backward pass it is a part of the forward pass that is computed again
    return in_forward || is_backward_thread() ? sim::Held::kActivations : sim::Held::kOthers;
  }
  if (is_backward_thread()) {
    in_forward = false;
    return sim::Held::kOthers;
  }
  return in_step ? sim::Held::kOptimizer : sim::Held::kOthers;
}

uint64_t smallest_with_a_line() {
  uint64_t smallest = UINT64_MAX;
  for (auto& slot : sim::rehearsals) {
    if (sim::Rehearsal* one = slot) smallest = std::min(smallest, one->smallest);
  }
  return smallest;
}

sim::Origin origin_of(size_t bytes) {
  return {bytes < smallest_with_a_line() ? sim::kSmallBlocks : line_here(), kind_here()};
}

}  // namespace

void note_shortage(int device, size_t bytes) {
  if (!sim::rehearsing) return;
  if (auto ask = before_shortage.load()) ask();
  sim::note_shortage(device, bytes, line_here());
}

}  // namespace toprope::glue

extern "C" TOPROPE_API void tsg_watch_forward(int begins) { toprope::glue::in_forward = begins != 0; }
extern "C" TOPROPE_API void tsg_watch_step(int begins) { toprope::glue::in_step = begins != 0; }

// Has this called before an allocation fails, to say what the blocks in use are; null to have nothing called.
extern "C" TOPROPE_API void tsg_watch_memory(void (*ask)()) {
  toprope::glue::before_shortage = ask;
  toprope::sim::origin_of = &toprope::glue::origin_of;
  toprope::sim::line_now = &toprope::glue::line_here;
}
