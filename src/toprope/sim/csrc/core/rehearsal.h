// Record of a rehearsal: holders of each card's memory, by kind and by line of the program, and lines that wait in
// every step. Written by the allocator, by ../torch and by ../../rehearsal/recorder.py; read by
// ../../rehearsal/record_file.py.
//
// After a change of a structure: python scripts/layouts.py, and another last byte of the magic where files of older
// runs would be misread. Tests: tests/sim/simulated/test_rehearsal.py, tests/sim/test_layouts.py.
#pragma once
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "counters.h"

namespace toprope::sim {

constexpr int kMaxLines = 512, kSamples = 256, kHeldKinds = 5;

// Uses of memory. The first is for all that is not known to be another.
enum class Held : uint8_t { kOthers = 0, kWeights, kGradients, kOptimizer, kActivations, kNotCounted = 255 };

// Lines that are no lines of the program: blocks too small for one of their own, and blocks older than the recording.
constexpr uint16_t kSmallBlocks = 0, kBefore = 1, kFirstLine = 2;

struct Line {
  char file[144];  // the end of a longer path; see ../torch/sites.cpp for places that are no file
  uint64_t line;
};

struct Sample {
  int64_t ns;  // of this moment, since the record began; 0 for an empty sample
  uint64_t bytes[kHeldKinds];
};

using ByLine = uint64_t[kMaxLines][kHeldKinds];

// Written under the lock of the card's allocator.
struct CardMemory {
  uint64_t total, peak, is_rising;  // is_rising: the peak is now, and `at_peak` is not filled in yet
  uint64_t peak_born;               // number of the allocation that made the peak
  uint64_t kinds[kHeldKinds];
  uint64_t wanted;       // by the last allocation that failed; 0 for none
  uint64_t wanted_line;
  uint64_t runtime;      // bytes that the runtime takes for itself: buffers of communicators
  uint64_t to_come[2];   // gradients and states of optimizers that did not exist yet when that allocation failed
  int64_t sample_ns;     // width of a sample
  Sample samples[kSamples];  // each is the largest total in its time
  ByLine live, at_peak, at_shortage;
};

enum Step : int { kTraining = 0, kInference, kForward, kStepKinds };

// Steps in which a place of the counters copied back or waited, while all of them are looked up.
struct SiteSteps {
  Counter first[kStepKinds], last[kStepKinds], seen[kStepKinds];
};

// The first operator whose result had a NaN, and the first that overflowed.
enum BadNumber : int { kNan = 0, kOverflow, kBadNumbers };
struct FirstNumber {
  char operation[48];  // empty for none
  uint64_t line;
};

struct Rehearsal {
  char magic[8];
  uint64_t pid;
  uint64_t smallest;  // bytes of the smallest block with a line of its own
  int64_t began_ns;
  Counter line_count;
  Counter steps[kStepKinds];
  Counter looked_up[kStepKinds];  // `steps` at the last event whose place was looked up, while all are
  Line lines[kMaxLines];
  SiteSteps sites[kMaxSites];
  uint64_t lack_lines[kMaxLacks];  // of the counters' lacks, the last such error's
  FirstNumber numbers[kBadNumbers];
  CardMemory cards[kMaxCards];
};

static_assert(sizeof(Line) == 152 && sizeof(Sample) == 48 && sizeof(SiteSteps) == 72);

// Several may be recorded at a time: of a run, in a file; of a test; of a block inside it.
enum Recorder : int { kOfRun = 0, kOfBlock, kOfTest, kRecorders };
TOPROPE_API extern std::atomic<Rehearsal*> rehearsals[kRecorders];
TOPROPE_API extern std::atomic<bool> rehearsing;

// Begins to record, with the blocks that are in use already. Returns 0 or an errno; EBUSY where it is recording.
TOPROPE_API int start_rehearsal(Recorder which, uint64_t smallest, const char* path);
TOPROPE_API Rehearsal* stop_rehearsal(Recorder which);  // what was recorded, readable until the next start

// Where a block comes from and what it is.
struct Origin {
  uint16_t line = kSmallBlocks;
  Held kind = Held::kNotCounted;
  uint64_t born = 0;  // number of the allocation on its card
};

// Gives the origin of a block that is about to be handed out; called without a lock. Set by the torch side.
TOPROPE_API extern std::atomic<Origin (*)(size_t bytes)> origin_of;

// Gives the line of the program that runs. Set by the torch side.
TOPROPE_API extern std::atomic<uint16_t (*)()> line_now;
uint16_t line_of_program();  // kSmallBlocks where nothing is recorded
void note_line_of_lack(int lack, uint16_t line);
TOPROPE_API void note_number(BadNumber kind, const char* operation, uint16_t line);

TOPROPE_API uint16_t line_number(const char* file, uint64_t line);
TOPROPE_API void note_step(Step kind);
TOPROPE_API void note_step_of(const Site* site);
TOPROPE_API void note_runtime_memory(int device, int64_t bytes);
TOPROPE_API void note_shortage(int device, uint64_t wanted, uint16_t line);
TOPROPE_API void note_to_come(int device, uint64_t gradients, uint64_t states);

// Says what the block at this address is. A block that is no card's, or was not recorded, is passed over.
TOPROPE_API void mark_held(const void* data, Held kind);
// The same where the block was taken for an activation: it was copied from the host.
TOPROPE_API void mark_copied(const void* data);

// For the allocator, under its lock.
void take_line(int device, uint64_t bytes, Origin origin);
void give_line(int device, uint64_t bytes, Origin origin);
void move_line(int device, uint64_t bytes, Origin from, Held to);
void keep_shortage(int device, uint64_t wanted, uint16_t line);

}  // namespace toprope::sim
