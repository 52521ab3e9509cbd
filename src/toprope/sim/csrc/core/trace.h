// The record of what a program did to the cards: a ring buffer that new entries overwrite, written while a trace is
// asked for. Read by ../../tracing/records.py, which also names the acts.
//
// After a change of a structure or an act: python scripts/layouts.py, and another last byte of the magic where files of
// older runs would be misread. Tests: tests/sim/simulated/test_trace.py, tests/sim/test_records.py,
// tests/sim/test_layouts.py.
#pragma once
#include <cstdint>

#include "counters.h"

namespace toprope::sim {

enum class Act : uint8_t {
  kOperator = 1,
  kCopyToCard,
  kCopyFromCard,
  kCopyBetween,
  kAllocate,
  kFree,
  kEventRecord,
  kEventWait,
  kSynchronise,
  kTask,
  kCollective,
  kKernel,  // its run; its launch is an act of its own, so that a stream's acts stand in the order of the queue
  kLaunch,
  kComposite,  // an operator of the vendor's that is computed by others, which are recorded too
  kStep,       // of a rehearsal: it has ended
};

struct Record {
  int64_t begin_ns = 0, end_ns = 0;  // steady clock
  uint64_t bytes = 0;                // of copies, allocations, collectives; of operators on the host, both ways
  uint64_t address = 0;              // of allocations; the event's of events; the signature's number of operators and
                                     // composites; see collective_address
  uint32_t thread = 0;
  int32_t stream = 0;
  uint16_t kind = 0xffff;            // index of the operator's name
  Act act = Act::kOperator;
  int8_t device = -1;
  int8_t other_device = -1;          // of copies between cards; of kernels, whether all blocks run at the same time; of
                                     // operators see part_of
  int8_t dtype = -1;                 // c10::ScalarType of an operator's first tensor
  uint8_t cube = 0, vector = 0;      // of operators and collectives, the limits in force; of kernels, their cores
};

constexpr uint16_t kNoKind = 0xffff;
constexpr uint64_t kNoCommunicator = uint64_t{kNoKind} << 48;

// Which collective a record is of: in the upper 16 bits the index of the name "hcom:NAME:RANK/RANKS" (the communicator,
// and this member's rank in it), below them the number of the collective in the communicator. Takes a name's place in
// the counters; kNoCommunicator where the name is too long.
TOPROPE_API uint64_t collective_address(const char* communicator, int rank, int ranks, uint64_t sequence);

static_assert(sizeof(Record) == 48);

struct Trace {
  char magic[8];
  uint64_t capacity;
  Counter written;  // records ever written; record i lies at i % capacity
  int64_t began_ns;
  uint64_t pid;
  int64_t wall_ns;  // wall clock at began_ns, to lay traces of several processes side by side
  uint64_t spare[2];
};

// Extra checks that operators make. All bits are off in an ordinary run.
enum Watch : uint32_t { kTracing = 1, kFaults = 2, kRefusals = 4, kTrafficLimits = 8, kDocuments = 16, kUnsafe = 32, kNumbers = 64 };
TOPROPE_API extern std::atomic<uint32_t> watched;
inline bool watching(uint32_t what) { return (watched.load(std::memory_order_relaxed) & what) != 0; }
TOPROPE_API void watch(uint32_t what, bool on);

// Begins a trace of `capacity` records, in a file if a path is given. Returns 0, an errno, or EBUSY while another runs.
TOPROPE_API int start_trace(uint64_t capacity, const char* path);
// Ends it. The records stay readable at the address until `forget_trace`.
TOPROPE_API const Trace* stop_trace();
TOPROPE_API void forget_trace();
TOPROPE_API const Trace* running_trace();  // null where there is none

TOPROPE_API void write_record(Record record);  // fills in the thread

}  // namespace toprope::sim
