// Queued kernels: work of a stream that takes cores of its card before it runs, and collectives whose members end
// together. The scheduler knows which work waits for which, and a wait that can never end is an error at once. Used by
// ../../launching.py, which has the disciplines in the same order and takes the lines of list_kernels apart.
//
// Tests: tests/sim/simulated/test_kernels.py and test_kernels_alone.py. A new discipline needs the same one in
// toprope.cores.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "core_limits.h"

namespace toprope::sim {

// How a card hands out idle cores to kernels that wait. What real cards do is not documented.
enum class Discipline : int {
  kD0,   // block by block in turn; what was handed out is kept
  kD0b,  // first come, first served: as many as are idle, up to what is needed; what was handed out is kept
  kD1,   // all or nothing; the first that does not fit keeps the idle cores from all others
  kD2,   // all or nothing; one that fits goes before one that does not
};

struct Launch {
  std::string name;
  Cores cores;                // after its limit; with both kinds, a block has both in this ratio
  bool sync_all = false;      // all of its blocks need their cores at the same time
  int communicator = 0;       // of the collective that it is a member of; 0: none
  double microseconds = 0;    // its least duration
  // The work. It runs once, with `run` 1, or is forgotten, with `run` 0. Null: there is none.
  int (*body)(uint64_t key, int run) = nullptr;
  uint64_t key = 0;
};

// Queues a kernel. Members of a collective are matched by the order of their launches on each card.
TOPROPE_API int launch_kernel(int device, int64_t stream, Launch launch);

// A group of cards that run collectives together; its number.
TOPROPE_API int make_communicator(const std::string& name, const std::vector<int>& cards);
TOPROPE_API void forget_communicator(int number);

TOPROPE_API void set_discipline(Discipline discipline);

// Every kernel that was launched and has not ended, in the order of their launches, a line each; fields apart by tabs:
// card, stream, name, cube and vector cores wanted, cube and vector cores held, state, what it waits for.
TOPROPE_API std::string list_kernels();

// Kernels of a card that was stopped do not wait any longer.
void drop_kernels(int device);

// Fails the streams whose work can never go on, where there are any.
void look_for_deadlock();

}  // namespace toprope::sim
