// Which operators ran, each with the dtypes and shapes of its tensors: kept while somebody traces. A record of an
// operator names one of them, so that its cost is computed later (../../signatures.py, which reads this layout).
#pragma once
#include <cstdint>

#include "counters.h"

namespace toprope::sim {

constexpr int kMaxSignatures = 8192, kMaxTensors = 8, kMaxDimensions = 6;

enum class Role : uint8_t { kRead = 0, kWritten, kResult };

struct TensorShape {
  int8_t dtype = -1;  // c10::ScalarType
  uint8_t dimensions = 0;
  Role role = Role::kRead;
  uint8_t strided = 0;  // whether its elements do not lie one after the other
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
  void add(Role role, int dtype, bool strided, uint64_t bytes, const int64_t* sizes, int64_t dimensions);
  const Signature& made() const { return made_; }

 private:
  Signature made_;
};

// Composite operators that this thread computes by others, and graphs that it replays.
TOPROPE_API extern thread_local int in_composite, in_graph;
// What a record of an operator says of it: -1, or 1 for a part of a composite, plus 2 for one of a graph, plus 4 for one
// that runs on the host.
inline int8_t part_of(bool on_host = false) {
  const int parts = (in_composite > 0 ? 1 : 0) | (in_graph > 0 ? 2 : 0) | (on_host ? 4 : 0);
  return static_cast<int8_t>(parts == 0 ? -1 : parts);
}

// Its number, counted from 1, and one call more of it; 0 where nothing is kept, for a part of a composite, and where no
// place is left.
TOPROPE_API uint64_t number_of(const Signature& signature);

// Begins to keep them, in a file where a path is given. Returns 0 or an errno. They stay until the process ends.
int keep_signatures(const char* path);
TOPROPE_API const Signatures* all_signatures();  // null where none were ever kept

}  // namespace toprope::sim
