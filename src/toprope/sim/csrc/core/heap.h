// The caching allocator of one card.
#pragma once
#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <vector>

#include "address_space.h"
#include "cards.h"
#include "faults.h"
#include "memory.h"
#include "stream.h"
#include "trace.h"

namespace toprope::sim {

// The sizes of torch_npu's caching allocator, as its users measured them: blocks in steps of 512 bytes; up to 1 MiB
// from pieces of 2 MiB, up to 10 MiB from pieces of 20 MiB, above that a piece each in steps of 2 MiB.
constexpr size_t kStep = 512;
constexpr size_t kSmallBlock = size_t{1} << 20;
constexpr size_t kSmallPiece = size_t{2} << 20;
constexpr size_t kMediumBlock = size_t{10} << 20;
constexpr size_t kMediumPiece = size_t{20} << 20;

// Blocks up to this size are kept, once freed, for the next request of exactly their size; no search, no merging.
constexpr size_t kQuickSize = size_t{64} << 10;
constexpr size_t kQuickKept = 64;

struct Use {
  Stream* stream;
  uint64_t ticket;
};

struct Block {
  char* data = nullptr;
  size_t size = 0;
  size_t requested = 0;
  int64_t stream = 0;
  Block* before = nullptr;  // neighbours in the piece
  Block* after = nullptr;
  bool small = false;
  bool in_use = false;
  bool free_to_merge = false;  // in the ordered set, not in a quick list and not awaiting another stream
  bool counted = true;
  bool adopted = false;
  std::atomic<uint64_t> life{0};  // counts releases: tells a block from its successor behind the same address
  std::vector<Use> uses;
};

struct BySize {
  bool operator()(const Block* a, const Block* b) const {
    if (a->stream != b->stream) return a->stream < b->stream;
    if (a->size != b->size) return a->size < b->size;
    return a->data < b->data;
  }
};

using FreeBlocks = std::set<Block*, BySize>;
using Quick = std::array<std::vector<Block*>, kQuickSize / kStep + 1>;

inline void raise(Figure* group, bool small, int64_t amount) {
  for (Figure* figure : {&group[kAll], &group[small ? kSmall : kLarge]}) {
    figure->current += amount;
    figure->peak = std::max(figure->peak, figure->current);
    figure->allocated += amount;
  }
}

inline void lower(Figure* group, bool small, int64_t amount) {
  for (Figure* figure : {&group[kAll], &group[small ? kSmall : kLarge]}) {
    figure->current -= amount;
    figure->freed += amount;
  }
}

inline size_t block_size(size_t bytes) {
  size_t padded = bytes + machine().padding;
  return std::max(kStep, (padded + kStep - 1) / kStep * kStep);
}

inline size_t piece_size(size_t size) {
  if (size <= kSmallBlock) return kSmallPiece;
  if (size < kMediumBlock) return kMediumPiece;
  return (size + kGrain - 1) / kGrain * kGrain;
}

class Heap {
 public:
  explicit Heap(int device)
      : device_(device),
        physical_(physical_id(device)),
        begin_(address_space.base + device * address_space.stride),
        pieces_(begin_, address_space.stride),
        counters_(counters->cards[device]) {
    void* table = mmap(nullptr, address_space.stride / kStep * sizeof(Block*), PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    table_ = table == MAP_FAILED ? nullptr : static_cast<Block**>(table);
  }

  int allocate(int64_t stream, size_t bytes, void** data, Shortage* shortage) {
    size_t size = block_size(bytes);
    std::lock_guard<std::mutex> guard(mutex_);
    bool refused = watching(kFaults) && fault_of_allocation();
    Block* block = refused ? nullptr : quick_block(stream, size);
    if (block == nullptr && !refused) block = fitting_block(stream, size);
    if (block == nullptr && !refused) block = new_piece(stream, size);
    if (block == nullptr) {
      stats_.ooms++;
      add(counters_.ooms);
      *shortage = {machine().capacity, static_cast<uint64_t>(stats_.allocated_bytes[kAll].current), reserved_,
                   taken_of_card(physical_)};
      return kOutOfMemory;
    }
    block->in_use = true;
    block->counted = true;
    block->adopted = false;
    block->requested = bytes;
    account(block);
    note(Act::kAllocate, block);
    *data = block->data;
    return kOk;
  }

  void release(void* data) {
    std::lock_guard<std::mutex> guard(mutex_);
    Block* block = at(data);
    if (block == nullptr || !block->in_use) return;
    note(Act::kFree, block);
    block->in_use = false;
    block->life.fetch_add(1, std::memory_order_relaxed);
    if (block->counted) discount(block);
    if (!block->counted) kept_ -= block->size;
    block->counted = true;
    if (!block->uses.empty()) {
      waiting_.push_back(block);
    } else {
      raise_active(block, false);
      put_aside(block);
    }
  }

  void used_by(void* data, Stream& by) {
    std::lock_guard<std::mutex> guard(mutex_);
    Block* block = at(data);
    if (block == nullptr || block->stream == by.id) return;
    block->uses.push_back({&by, by.submitted.load()});
  }

  // What a host kernel kept for itself after its call no longer counts.
  void stop_counting(void* data, uint64_t life) {
    std::lock_guard<std::mutex> guard(mutex_);
    Block* block = at(data);
    if (block == nullptr || !block->in_use || !block->counted || block->life.load() != life) return;
    discount(block);
    block->counted = false;
    kept_ += block->size;
  }

  void empty_cache() {
    std::lock_guard<std::mutex> guard(mutex_);
    take_back_waiting();
    drop_free_pieces();
  }

  MemoryStats stats() {
    std::lock_guard<std::mutex> guard(mutex_);
    return stats_;
  }

  void reset_peaks() {
    std::lock_guard<std::mutex> guard(mutex_);
    each_figure([](Figure& figure) { figure.peak = figure.current; });
  }

  void reset_totals() {
    std::lock_guard<std::mutex> guard(mutex_);
    each_figure([](Figure& figure) { figure.allocated = figure.freed = 0; });
    stats_.retries = stats_.ooms = 0;
  }

  // The file behind the piece that holds this block, made now where there is none; see sharing.cpp.
  struct SharedPiece {
    char* begin;
    size_t size;
    int file;
    Counter* references;
  };
  SharedPiece* share(void* data);
  SharedPiece* shared_piece_of(const void* data);

  // Addresses of the card for memory that is another process's.
  char* take_addresses(size_t size) {
    std::lock_guard<std::mutex> guard(mutex_);
    return pieces_.take((size + kGrain - 1) / kGrain * kGrain);
  }
  void give_back_addresses(char* data, size_t size) {
    std::lock_guard<std::mutex> guard(mutex_);
    pieces_.give_back(data, (size + kGrain - 1) / kGrain * kGrain);
  }

  Block* at(const void* data) const { return table_[(static_cast<const char*>(data) - begin_) / kStep]; }

  double fraction = 1.0;

 private:
  size_t limit() const { return static_cast<size_t>(static_cast<double>(machine().capacity) * fraction); }

  Quick& quick(int64_t stream) {
    size_t place = static_cast<size_t>(stream);
    if (quick_.size() <= place) quick_.resize(place + 1);
    if (!quick_[place]) quick_[place] = std::make_unique<Quick>();
    return *quick_[place];
  }

  Block* quick_block(int64_t stream, size_t size) {
    if (size > kQuickSize) return nullptr;
    auto& list = quick(stream)[size / kStep];
    if (list.empty()) return nullptr;
    Block* block = list.back();
    list.pop_back();
    return block;
  }

  FreeBlocks& free_blocks(bool small) { return small ? free_small_ : free_large_; }

  Block* fitting_block(int64_t stream, size_t size) {
    if (Block* block = search(stream, size)) return block;
    if (take_back_waiting() | merge_quick(stream)) return search(stream, size);
    return nullptr;
  }

  Block* search(int64_t stream, size_t size) {
    bool small = size <= kSmallBlock;
    FreeBlocks& blocks = free_blocks(small);
    Block key;
    key.stream = stream;
    key.size = size;
    auto found = blocks.lower_bound(&key);
    if (found == blocks.end() || (*found)->stream != stream) return nullptr;
    Block* block = *found;
    blocks.erase(found);
    block->free_to_merge = false;
    leave_inactive(block);
    split(block, size);
    return block;
  }

  Block* new_piece(int64_t stream, size_t size) {
    size_t bytes = piece_size(size);
    char* data = take_piece(bytes);
    if (data == nullptr) {
      stats_.retries++;
      add(counters_.oom_retries);
      take_back_waiting();
      drop_free_pieces();
      data = take_piece(bytes);
    }
    if (data == nullptr) return nullptr;
    reserved_ += bytes;
    bool small = size <= kSmallBlock;
    raise(stats_.segment, small, 1);
    raise(stats_.reserved_bytes, small, static_cast<int64_t>(bytes));
    counters_.reserved = reserved_;
    raise_to(counters_.peak_reserved, reserved_);
    Block* block = make_block(data, bytes, stream, small);
    place(block);
    split(block, size);
    return block;
  }

  // A piece from the card, unless this process would exceed its part or all processes the capacity.
  char* take_piece(size_t bytes) {
    if (reserved_ + bytes > limit() + kept_) return nullptr;
    if (!take_from_card(physical_, bytes, machine().capacity + kept_)) return nullptr;
    char* data = pieces_.take(bytes);
    if (data == nullptr) give_back_to_card(physical_, bytes);
    return data;
  }

  // Blocks are reused, never deleted: `life` may be read while another thread gives the block up.
  Block* make_block(char* data, size_t size, int64_t stream, bool small) {
    Block* block;
    if (spare_.empty()) {
      block = new Block();
    } else {
      block = spare_.back();
      spare_.pop_back();
    }
    block->data = data;
    block->size = size;
    block->stream = stream;
    block->small = small;
    block->before = block->after = nullptr;
    block->in_use = block->free_to_merge = false;
    return block;
  }

  void forget_shared(char* data);

  Block*& slot(const char* data) { return table_[static_cast<size_t>(data - begin_) / kStep]; }
  void place(Block* block) { slot(block->data) = block; }

  // Cuts a block to size; the rest becomes a free block of its own where the vendor's rule finds it worth it.
  void split(Block* block, size_t size) {
    size_t rest = block->size - size;
    if (block->small ? rest < kStep : rest <= kSmallBlock) return;
    Block* remainder = make_block(block->data + size, rest, block->stream, block->small);
    remainder->before = block;
    remainder->after = block->after;
    if (block->after != nullptr) block->after->before = remainder;
    block->after = remainder;
    block->size = size;
    place(remainder);
    enter_free(remainder);
  }

  void enter_free(Block* block) {
    block->free_to_merge = true;
    free_blocks(block->small).insert(block);
    if (block->before != nullptr || block->after != nullptr) {
      raise(stats_.inactive_split, block->small, 1);
      raise(stats_.inactive_split_bytes, block->small, static_cast<int64_t>(block->size));
    }
  }

  void leave_inactive(Block* block) {
    if (block->before == nullptr && block->after == nullptr) return;
    lower(stats_.inactive_split, block->small, 1);
    lower(stats_.inactive_split_bytes, block->small, static_cast<int64_t>(block->size));
  }

  void put_aside(Block* block) {
    if (block->size <= kQuickSize) {
      auto& list = quick(block->stream)[block->size / kStep];
      if (list.size() < kQuickKept) {
        list.push_back(block);
        return;
      }
    }
    merge(block);
  }

  void merge(Block* block) {
    for (Block* other : {block->before, block->after}) {
      if (other == nullptr || !other->free_to_merge) continue;
      free_blocks(other->small).erase(other);
      leave_inactive(other);
      slot(other->data) = nullptr;
      if (other == block->before) {
        block->data = other->data;
        block->before = other->before;
        if (other->before != nullptr) other->before->after = block;
        slot(other->data + other->size) = nullptr;
      } else {
        block->after = other->after;
        if (other->after != nullptr) other->after->before = block;
      }
      block->size += other->size;
      spare_.push_back(other);
    }
    place(block);
    enter_free(block);
  }

  bool merge_quick(int64_t stream) {
    bool any = false;
    for (auto& list : quick(stream)) {
      for (Block* block : list) merge(block);
      any |= !list.empty();
      list.clear();
    }
    return any;
  }

  // Frees blocks whose other streams have done the work that was queued when they were marked.
  bool take_back_waiting() {
    auto is_done = [](const Block* block) {
      return std::all_of(block->uses.begin(), block->uses.end(),
                         [](const Use& use) { return use.stream->done.load() >= use.ticket; });
    };
    size_t before = waiting_.size();
    std::erase_if(waiting_, [&](Block* block) {
      if (!is_done(block)) return false;
      block->uses.clear();
      raise_active(block, false);
      put_aside(block);
      return true;
    });
    return waiting_.size() != before;
  }

  void drop_free_pieces() {
    for (size_t stream = 0; stream < quick_.size(); stream++) {
      if (quick_[stream]) merge_quick(static_cast<int64_t>(stream));
    }
    for (FreeBlocks* blocks : {&free_small_, &free_large_}) {
      std::erase_if(*blocks, [&](Block* block) {
        if (block->before != nullptr || block->after != nullptr) return false;
        slot(block->data) = nullptr;
        forget_shared(block->data);
        pieces_.give_back(block->data, block->size);
        give_back_to_card(physical_, block->size);
        reserved_ -= block->size;
        lower(stats_.segment, block->small, 1);
        lower(stats_.reserved_bytes, block->small, static_cast<int64_t>(block->size));
        spare_.push_back(block);
        return true;
      });
    }
    counters_.reserved = reserved_;
  }

  void account(Block* block) {
    auto size = static_cast<int64_t>(block->size);
    raise(stats_.allocation, block->small, 1);
    raise(stats_.allocated_bytes, block->small, size);
    raise(stats_.requested_bytes, block->small, static_cast<int64_t>(block->requested));
    raise_active(block, true);
    auto now = static_cast<uint64_t>(stats_.allocated_bytes[kAll].current);
    counters_.allocated.store(now, std::memory_order_relaxed);
    if (now > counters_.peak_allocated.load(std::memory_order_relaxed)) counters_.peak_allocated = now;
    counters_.allocations.store(counters_.allocations.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
  }

  void discount(Block* block) {
    lower(stats_.allocation, block->small, 1);
    lower(stats_.allocated_bytes, block->small, static_cast<int64_t>(block->size));
    lower(stats_.requested_bytes, block->small, static_cast<int64_t>(block->requested));
    counters_.allocated.store(static_cast<uint64_t>(stats_.allocated_bytes[kAll].current), std::memory_order_relaxed);
  }

  void note(Act act, const Block* block) const {
    if (!watching(kTracing)) return;
    int64_t now = now_ns();
    write_record({.begin_ns = now, .end_ns = now, .bytes = block->size,
                  .address = reinterpret_cast<uint64_t>(block->data), .stream = static_cast<int32_t>(block->stream),
                  .act = act, .device = static_cast<int8_t>(device_)});
  }

  void raise_active(Block* block, bool up) {
    auto size = static_cast<int64_t>(block->size);
    if (up) {
      raise(stats_.active, block->small, 1);
      raise(stats_.active_bytes, block->small, size);
    } else {
      lower(stats_.active, block->small, 1);
      lower(stats_.active_bytes, block->small, size);
    }
  }

  template <class Change>
  void each_figure(Change change) {
    for (Figure* group : {stats_.allocation, stats_.segment, stats_.active, stats_.inactive_split,
                          stats_.allocated_bytes, stats_.reserved_bytes, stats_.active_bytes,
                          stats_.inactive_split_bytes, stats_.requested_bytes}) {
      for (int i = 0; i < 3; i++) change(group[i]);
    }
  }

  const int device_;
  const int physical_;
  char* const begin_;
  Pieces pieces_;
  CardCounters& counters_;
  Block** table_;
  std::mutex mutex_;
  std::map<char*, SharedPiece> shared_;  // by the piece's address
  std::vector<std::unique_ptr<Quick>> quick_;  // by stream
  FreeBlocks free_small_, free_large_;
  std::vector<Block*> spare_;
  std::vector<Block*> waiting_;  // freed, but another stream still uses them
  size_t reserved_ = 0;
  size_t kept_ = 0;  // bytes that host kernels kept for themselves
  MemoryStats stats_;
};

Heap& heap(int device);

}  // namespace toprope::sim
