// Failures on demand: operators, allocations and links that a test wants to fail or to be slow, and dtypes that it
// wants to be refused. Asked for by ../../faults.py; the allocator, ../torch/call.cpp and the copies of
// ../torch/ops_memory.cpp ask whether they are to fail.
//
// Tests: tests/sim/simulated/test_faults.py.
#pragma once
#include <cstddef>
#include <cstdint>

#include "counters.h"

namespace toprope::sim {

// Makes an operator fail with a code after `after` calls that succeed, and in every later call. Code 0 ends this.
TOPROPE_API void fail_operator(const char* name, int code, uint64_t after);

// Makes one allocation fail, after `after` allocations that succeed; a negative number ends this.
TOPROPE_API void fail_allocation(int64_t after);

// Copies between host and card take at least this long for a byte; 0 takes it back.
TOPROPE_API void slow_link(double ns_per_byte);

// ---- asked by operators, only while `watching(kFaults)` or `watching(kTrafficLimits)`

TOPROPE_API int fault_of_operator(const Kind* kind);  // kOk, or the code to fail with
bool fault_of_allocation();
TOPROPE_API void wait_for_link(uint64_t bytes, int64_t began_ns);

// ---- asked only while `watching(kRefusals)`

// Dtypes that an operator refuses because a test wants it; bits are c10::ScalarType.
TOPROPE_API extern uint64_t refused_dtypes[kMaxKinds];

inline int index_of(const Kind* kind) { return static_cast<int>(kind - counters->kinds); }

}  // namespace toprope::sim
