// A piece of device memory as the allocator keeps it, and the rules for its size.
#pragma once
#include <algorithm>
#include <atomic>
#include <cstdint>
#include <set>
#include <vector>

#include "address_space.h"
#include "memory.h"
#include "stream.h"

namespace toprope::sim {

// The sizes of torch_npu's caching allocator, as its users measured them: blocks in steps of 512 bytes; up to 1 MiB
// from pieces of 2 MiB, up to 10 MiB from pieces of 20 MiB, above that a piece each in steps of 2 MiB.
constexpr size_t kStep = 512;
constexpr size_t kSmallBlock = size_t{1} << 20;
constexpr size_t kSmallPiece = size_t{2} << 20;
constexpr size_t kMediumBlock = size_t{10} << 20;
constexpr size_t kMediumPiece = size_t{20} << 20;

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
  std::atomic<uint64_t> life{0};  // counts releases: tells a block from its successor behind the same address
  std::vector<Use> uses;
  Context context;  // where it was handed out, while the history is recorded
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

inline size_t block_size(size_t bytes) {
  size_t padded = bytes + machine().padding;
  return std::max(kStep, (padded + kStep - 1) / kStep * kStep);
}

inline size_t piece_size(size_t size) {
  if (size <= kSmallBlock) return kSmallPiece;
  if (size < kMediumBlock) return kMediumPiece;
  return (size + kGrain - 1) / kGrain * kGrain;
}

}  // namespace toprope::sim
