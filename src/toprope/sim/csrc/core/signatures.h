// Signatures of the operators that ran, each with the dtypes and shapes of its tensors, kept while a trace is written.
// A record of an operator names one of them, so that its cost is computed later. Read by ../../tracing/signatures.py.
//
// After a change of a structure: python scripts/layouts.py, and another last byte of the magic where files of older
// runs would be misread. Tests: tests/sim/simulated/test_timing.py, tests/sim/test_layouts.py.
#pragma once
#include <cstdint>

#include "counters.h"

namespace toprope::sim {

constexpr int kMaxSignatures = 8192, kMaxTensors = 8, kMaxDimensions = 6;

enum class Role : uint8_t { kRead = 0, kWritten, kResult };

// Bits of a tensor's form: its elements do not lie one after the other; it is read, and was not touched for so long that
// the level-2 cache does not hold it any more.
constexpr uint8_t kStrided = 1, kCold = 2;

struct TensorShape {
  int8_t dtype = -1;  // c10::ScalarType
  uint8_t dimensions = 0;
  Role role = Role::kRead;
  uint8_t form = 0;  // kStrided, kCold
  uint8_t spare[4] = {};
  uint64_t bytes = 0;  // fewer than the shape says where it is expanded
  int64_t sizes[kMaxDimensions] = {};
};

struct Signature {
  uint16_t kind = 0;     // index of the operator's name in the counters
  uint16_t tensors = 0;  // shapes that follow
  uint32_t spare = 0;
  uint64_t operations = 0;  // multiplications and additions, where shapes alone do not say; 0 for those
  uint64_t more_read = 0, more_written = 0;  // bytes of the tensors after the first kMaxTensors
  TensorShape shapes[kMaxTensors];
};

struct Signatures {
  char magic[8];
  Counter count;
  Signature signatures[kMaxSignatures];
  Counter calls[kMaxSignatures];
};

static_assert(sizeof(TensorShape) == 64 && sizeof(Signature) == 544);

// A signature that is filled in tensor by tensor.
class TOPROPE_API SignatureOf {
 public:
  explicit SignatureOf(int kind) { made_.kind = static_cast<uint16_t>(kind); }
  void set_operations(uint64_t number) { made_.operations = number; }
  void add(Role role, int dtype, uint8_t form, uint64_t bytes, const int64_t* sizes, int64_t dimensions);
  const Signature& made() const { return made_; }

 private:
  Signature made_;
};

// Composite operators that this thread computes by others, and graphs that it replays.
TOPROPE_API extern thread_local int in_composite, in_graph;
// Whether this thread computes a part of a composite's gradient: asked of the glue, which knows autograd.
TOPROPE_API extern bool (*in_part_of_gradient)();
inline bool is_part() { return in_composite > 0 || in_part_of_gradient(); }

// Notes that an operator touches a block of memory; returns whether the level-2 cache does not hold it any more: since it
// was touched, operators have touched more bytes of this card than fit. A block that was never seen is not there.
TOPROPE_API bool touch(int device, const void* block, uint64_t bytes);
void forget_touched();
// Bytes of the level-2 cache; 0 where they are not known, and then nothing is called cold.
void set_cache(uint64_t bytes);
// What a record of an operator says of it: -1, or 1 for a part of a composite, plus 2 for one of a graph, plus 4 for one
// that runs on the host.
inline int8_t part_of(bool on_host = false) {
  const int parts = (is_part() ? 1 : 0) | (in_graph > 0 ? 2 : 0) | (on_host ? 4 : 0);
  return static_cast<int8_t>(parts == 0 ? -1 : parts);
}

// Number of a signature, counted from 1; counts one more call of it. 0 where nothing is kept, for a part of a composite,
// and where no place is left.
TOPROPE_API uint64_t number_of(const Signature& signature);

// Begins to keep signatures, in a file where a path is given. Returns 0 or an errno. They stay until the process ends.
int keep_signatures(const char* path);
TOPROPE_API const Signatures* all_signatures();  // null where none were ever kept

}  // namespace toprope::sim
