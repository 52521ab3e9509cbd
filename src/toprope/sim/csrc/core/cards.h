// The cards of one run, shared by its processes through a small file: memory that each holds, and cards that are
// unhealthy. Used by the allocator (heap.h), and by ../torch for a card's free memory and health; read by
// ../../metrics/cards.py for npu-smi.
//
// A file of zeros is a valid beginning, so no process has to create its contents. Without a run the same structure is
// in private memory and the process has the cards to itself.
//
// After a change of a structure: python scripts/layouts.py. Tests: tests/sim/test_shared_cards.py,
// tests/sim/test_layouts.py.
#pragma once
#include <cstdint>

#include "counters.h"

namespace toprope::sim {

constexpr int kMaxProcesses = 256;

struct SharedCard {
  Counter reserved;   // bytes taken by all processes
  Counter unhealthy;  // 0, or the code with which the card fails
  Counter spare[6];
};

struct ProcessSlot {
  Counter pid;      // 0: the slot is free
  Counter started;  // start of the process in clock ticks since boot: tells it from a later one with its number
  char name[32];
  Counter reserved[kMaxCards];  // by physical card
};

struct Cards {
  SharedCard cards[kMaxCards];
  ProcessSlot processes[kMaxProcesses];
};

static_assert(sizeof(SharedCard) == 64 && sizeof(ProcessSlot) == 176);

// Shares the cards with the other users of this file. Returns 0 or an errno. Only before memory is taken.
TOPROPE_API int share_cards(const char* path);

// Takes bytes from a physical card; false where all processes together would hold more than the capacity.
bool take_from_card(int physical, uint64_t bytes, uint64_t capacity);
void give_back_to_card(int physical, uint64_t bytes);

// Bytes of a physical card taken by all living processes.
TOPROPE_API uint64_t taken_of_card(int physical);

// The code with which a physical card fails, 0 while it is well.
TOPROPE_API int health_of_card(int physical);
TOPROPE_API void set_health_of_card(int physical, int code);

}  // namespace toprope::sim
