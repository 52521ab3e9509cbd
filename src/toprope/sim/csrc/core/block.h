// A piece of device memory as the caching allocator keeps it, and the rules for its size, for heap.h and ledger.h.
//
// The rules are those of torch_npu's allocator; tests/helpers/core_library.py has them again in Python, and
// tests/sim/simulated/test_core.py compares the two. ../../rehearsal/facts.py explains a failed allocation by them.
#pragma once
#include <algorithm>
#include <atomic>
#include <bit>
#include <cstdint>
#include <set>
#include <vector>

#include "address_space.h"
#include "memory.h"
#include "memory_rules.h"
#include "rehearsal.h"
#include "stream.h"

namespace toprope::sim {

// The sizes of torch_npu's caching allocator, as its users measured them: blocks in steps of 512 bytes; up to 1 MiB
// from pieces of 2 MiB, up to 10 MiB from pieces of 20 MiB, above that a piece each in steps of 2 MiB.
constexpr size_t kStep = 512;
constexpr size_t kSmallBlock = size_t{1} << 20;
constexpr size_t kSmallPiece = size_t{2} << 20;
constexpr size_t kMediumBlock = size_t{10} << 20;

struct Use {
  Stream* stream;
  uint64_t ticket;
};

struct Block {
  char* data = nullptr;
  size_t size = 0;
  size_t requested = 0;
  int64_t pool = 0;  // 0: the ordinary one
  int64_t stream = 0;
  Block* before = nullptr;  // neighbours in the piece
  Block* after = nullptr;
  bool small = false;
  bool in_use = false;
  bool free_to_merge = false;  // in the ordered set, not awaited by another stream
  bool counted = true;
  bool adopted = false;
  bool unsafe = false;  // its contents may be damaged: of a card that was restarted
  std::atomic<uint64_t> life{0};  // counts releases: tells a block from its successor behind the same address
  Origin origin;  // counted in rehearsals where its kind is one
  std::vector<Use> uses;
  Context context;  // where it was handed out, while the history is recorded
};

// How the pieces of a pool were cut at a time; they stay as long as the pool is used.
struct PoolState {
  struct Part {
    size_t size, requested;
    bool in_use;
    Origin origin;
  };
  struct Piece {
    const char* data;
    std::vector<Part> parts;
  };
  std::vector<Piece> pieces;
};

struct BySize {
  bool operator()(const Block* a, const Block* b) const {
    if (a->pool != b->pool) return a->pool < b->pool;
    if (a->stream != b->stream) return a->stream < b->stream;
    if (a->size != b->size) return a->size < b->size;
    return a->data < b->data;
  }
};

using FreeBlocks = std::set<Block*, BySize>;

// The number of steps between the powers of two around a size that it is rounded up to.
inline size_t divisions_of(size_t size) {
  const auto& divisions = memory_rules.divisions;
  int place = static_cast<int>(std::bit_width(size)) - 1 - 20;
  return divisions[static_cast<size_t>(std::clamp(place, 0, static_cast<int>(divisions.size()) - 1))];
}

inline size_t block_size(size_t bytes) {
  size_t padded = bytes + machine().padding;
  if (size_t parts = divisions_of(padded); parts > 1 && padded > kStep * parts && padded < SIZE_MAX / 4) {
    if (std::has_single_bit(padded)) return padded;
    size_t step = std::max(std::bit_floor(padded) / parts, kStep);
    return (padded + step - 1) / step * step;
  }
  return std::max(kStep, (padded + kStep - 1) / kStep * kStep);
}

inline size_t piece_size(size_t size) {
  if (size <= kSmallBlock) return kSmallPiece;
  if (size < kMediumBlock) return memory_rules.medium_piece;
  size_t grain = std::max(kGrain, memory_rules.segment);
  return (size + grain - 1) / grain * grain;
}

}  // namespace toprope::sim
