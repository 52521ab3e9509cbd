// Limits of the cores for work: stored numbers, which are read when work is launched. A stream's limit takes precedence
// over the process's limit, and that one over the chip's number of cores, separately for each kind of core. Set by
// torch.npu (../../npu/limits.py, which numbers the kinds of cores in the same order); kernels.cpp and the records of
// the trace read them.
//
// Tests: tests/sim/simulated/test_core_limits.py.
#pragma once
#include <cstdint>

#include "device.h"

namespace toprope::sim {

enum Core { kCube = 0, kVector = 1 };  // as the vendor numbers them
constexpr int kKindsOfCores = 2;

struct Cores {
  int of[kKindsOfCores] = {0, 0};

  int& operator[](int core) { return of[core]; }
  int operator[](int core) const { return of[core]; }
};

// The cores of each card. Only before cards are used.
TOPROPE_API void set_cores(const Cores& cores);
TOPROPE_API Cores cores();

constexpr int kNoLimit = -1;
constexpr int64_t kProcess = -1;  // in the place of a stream: the limits of the process

// Limits one kind of core for a stream, or for the process; kNoLimit takes the limit away.
TOPROPE_API void set_limit(int device, int64_t stream, Core core, int limit);

// The limits that count for work on a stream, or on a card for a stream without limits of its own.
TOPROPE_API Cores limits(int device, int64_t stream);

// Those that count for work of the calling thread: a thread that never chose a stream has the limits of the process.
TOPROPE_API Cores limits_here(int device);

}  // namespace toprope::sim
