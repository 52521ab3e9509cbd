// The figures of one card's allocator, which torch.npu.memory_stats and the report show. Kept by heap.h.
//
// Tests: tests/sim/simulated/test_memory_figures.py, and test_core.py against the allocator's rules.
#pragma once
#include <algorithm>
#include <cstdint>

#include "block.h"
#include "counters.h"
#include "memory.h"
#include "stream.h"
#include "trace.h"

namespace toprope::sim {

class Ledger {
 public:
  explicit Ledger(int device) : device_(device), counters_(counters->cards[device]) {}

  void handed_out(const Block& block) {
    raise(stats_.allocation, block.small, 1);
    raise(stats_.allocated_bytes, block.small, block.size);
    raise(stats_.requested_bytes, block.small, block.requested);
    raise(stats_.active, block.small, 1);
    raise(stats_.active_bytes, block.small, block.size);
    publish_allocated();
    if (allocated() > counters_.peak_allocated.load(std::memory_order_relaxed)) counters_.peak_allocated = allocated();
    counters_.allocations.store(counters_.allocations.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
    if (block.origin.kind != Held::kNotCounted) [[unlikely]] take_line(device_, block.size, block.origin);
    note(Act::kAllocate, block);
  }

  void freed(const Block& block) { note(Act::kFree, block); }

  // A block no longer counts as a tensor's.
  void discount(const Block& block) {
    lower(stats_.allocation, block.small, 1);
    lower(stats_.allocated_bytes, block.small, block.size);
    lower(stats_.requested_bytes, block.small, block.requested);
    publish_allocated();
    if (block.origin.kind != Held::kNotCounted) [[unlikely]] give_line(device_, block.size, block.origin);
  }

  // No stream uses a block any more.
  void inactive(const Block& block) {
    lower(stats_.active, block.small, 1);
    lower(stats_.active_bytes, block.small, block.size);
  }

  // A free block enters or leaves the free lists; it counts where it is only part of a piece.
  void free_part(const Block& block, bool enters) {
    if (block.before == nullptr && block.after == nullptr) return;
    auto change = enters ? &raise : &lower;
    change(stats_.inactive_split, block.small, 1);
    change(stats_.inactive_split_bytes, block.small, block.size);
  }

  void reserved(bool small, size_t bytes) {
    raise(stats_.segment, small, 1);
    raise(stats_.reserved_bytes, small, bytes);
    publish_reserved();
  }

  void given_back(bool small, size_t bytes) {
    lower(stats_.segment, small, 1);
    lower(stats_.reserved_bytes, small, bytes);
    publish_reserved();
  }

  void retried() {
    stats_.retries++;
    add(counters_.oom_retries);
  }

  void failed() {
    stats_.ooms++;
    add(counters_.ooms);
  }

  int device() const { return device_; }
  uint64_t allocated() const { return static_cast<uint64_t>(stats_.allocated_bytes[kAll].current); }
  const MemoryStats& stats() const { return stats_; }

  void reset_peaks() {
    stats_.each_figure([](Figure& figure) { figure.peak = figure.current; });
  }

  void reset_totals() {
    stats_.each_figure([](Figure& figure) { figure.allocated = figure.freed = 0; });
    stats_.retries = stats_.ooms = 0;
  }

 private:
  static void raise(Figure* group, bool small, size_t amount) {
    for (Figure* figure : {&group[kAll], &group[small ? kSmall : kLarge]}) {
      figure->current += static_cast<int64_t>(amount);
      figure->peak = std::max(figure->peak, figure->current);
      figure->allocated += static_cast<int64_t>(amount);
    }
  }

  static void lower(Figure* group, bool small, size_t amount) {
    for (Figure* figure : {&group[kAll], &group[small ? kSmall : kLarge]}) {
      figure->current -= static_cast<int64_t>(amount);
      figure->freed += static_cast<int64_t>(amount);
    }
  }

  void publish_allocated() { counters_.allocated.store(allocated(), std::memory_order_relaxed); }

  void publish_reserved() {
    auto now = static_cast<uint64_t>(stats_.reserved_bytes[kAll].current);
    counters_.reserved = now;
    raise_to(counters_.peak_reserved, now);
  }

  void note(Act act, const Block& block) const {
    if (!watching(kTracing)) return;
    int64_t now = now_ns();
    write_record({.begin_ns = now,
                  .end_ns = now,
                  .bytes = block.size,
                  .address = reinterpret_cast<uint64_t>(block.data),
                  .stream = static_cast<int32_t>(block.stream),
                  .act = act,
                  .device = static_cast<int8_t>(device_)});
  }

  const int device_;
  CardCounters& counters_;
  MemoryStats stats_;
};

}  // namespace toprope::sim
