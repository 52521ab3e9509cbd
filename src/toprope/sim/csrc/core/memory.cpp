// Device memory by card and by address, on the caching allocators of heap.h; see memory.h.
//
// Tests: tests/sim/simulated/test_core.py and test_memory_figures.py.
#include "memory.h"

#include <algorithm>
#include <memory>
#include <vector>

#include "address_space.h"
#include "heap.h"

namespace toprope::sim {

MemoryRules memory_rules;

// Never destroyed: tensors may be freed after static destruction has begun.
Heap& heap(int device) {
  static auto* heaps = [] {
    auto* all = new std::vector<std::unique_ptr<Heap>>();
    for (int i = 0; i < device_count(); i++) all->push_back(std::make_unique<Heap>(i));
    return all;
  }();
  return *(*heaps)[device];
}

namespace {

struct KernelBlock {
  void* data;
  uint64_t life;
};

thread_local std::vector<KernelBlock> kernel_blocks;

std::atomic<Context (*)()> gather_context{nullptr};

Context gathered() {
  auto gather = gather_context.load(std::memory_order_relaxed);
  return gather == nullptr ? nullptr : gather();
}

}  // namespace

thread_local int kernel_device = kNoDevice;

int allocate(int device, int64_t stream, size_t bytes, void** data, Shortage* shortage) {
  *data = nullptr;
  use_cards();
  if (!is_device(device)) return kInvalidDevice;
  if (bytes == 0) return kOk;
  if (bytes > machine().capacity) bytes = std::min(bytes, SIZE_MAX / 2);  // no overflow while it is rounded up
  Origin origin;
  if (rehearsing.load(std::memory_order_relaxed)) [[unlikely]] {
    auto find = origin_of.load(std::memory_order_relaxed);
    if (find != nullptr) origin = find(bytes);
  }
  return heap(device).allocate(stream, bytes, data, shortage, gathered(), origin);
}

int device_of(const void* data) { return address_space.card_of(data); }

size_t size_of(const void* data) {
  int device = device_of(data);
  const Block* block = device < 0 ? nullptr : heap(device).at(data);
  return block == nullptr ? 0 : block->size;
}

void release(void* data) {
  int device = device_of(data);
  if (device < 0 || forked_after_use()) return;  // in a forked child the locks may be held by threads that are gone
  heap(device).release(data, gathered());
}

void used_by_stream(void* data, int64_t id) {
  int device = device_of(data);
  if (device >= 0 && !forked_after_use()) heap(device).used_by(data, stream(device, id));
}

void unused_by_stream(void* data, int64_t id) {
  int device = device_of(data);
  if (device >= 0 && !forked_after_use()) heap(device).unused_by(data, stream(device, id), current_stream(device));
}

void mark_all_unsafe(int device) {
  use_cards();
  if (is_device(device)) heap(device).mark_all_unsafe();
}

bool is_safe(const void* data) {
  int device = device_of(data);
  const Block* block = device < 0 ? nullptr : heap(device).at(data);
  return block == nullptr || !block->unsafe;
}

void set_safe(const void* data) {
  int device = device_of(data);
  if (Block* block = device < 0 ? nullptr : heap(device).at(data)) block->unsafe = false;
}

void empty_cache(int device) {
  if (!is_initialised() || forked_after_use()) return;
  for (int i = 0; i < device_count(); i++) {
    if (device < 0 || device == i) heap(i).empty_cache();
  }
}

MemoryStats memory_stats(int device) {
  return is_initialised() && is_device(device) ? heap(device).stats() : MemoryStats();
}

std::vector<int64_t> memory_snapshot(int device) {
  return is_initialised() && is_device(device) ? heap(device).snapshot() : std::vector<int64_t>();
}

void reset_peaks(int device) {
  if (is_initialised() && is_device(device)) heap(device).reset_peaks();
}

void reset_totals(int device) {
  if (is_initialised() && is_device(device)) heap(device).reset_totals();
}

void set_fraction(int device, double value) {
  use_cards();
  if (is_device(device)) heap(device).fraction = value;
}

double fraction(int device) {
  use_cards();
  return is_device(device) ? heap(device).fraction : 0.0;
}

void use_pool(int device, int64_t pool) {
  use_cards();
  if (is_device(device)) heap(device).use_pool(pool);
}

void set_pool(int device, int64_t pool, bool used_when_full, bool unsplit) {
  if (is_initialised() && is_device(device) && !forked_after_use()) heap(device).set_pool(pool, used_when_full, unsplit);
}

int pool_users(int device, int64_t pool) {
  return is_initialised() && is_device(device) ? heap(device).pool_users(pool) : 0;
}

void open_pool(int device, int64_t pool, bool every_thread) {
  use_cards();
  if (is_device(device)) heap(device).open_pool(pool, every_thread);
}

void close_pool(int device, int64_t pool) {
  if (is_initialised() && is_device(device)) heap(device).close_pool(pool);
}

void release_pool(int device, int64_t pool) {
  if (is_initialised() && is_device(device) && !forked_after_use()) heap(device).release_pool(pool);
}

int64_t pool_of(const void* data) {
  int device = device_of(data);
  if (device < 0) return 0;
  const Block* block = heap(device).at(data);
  return block == nullptr ? 0 : block->pool;
}

PoolState* pool_state(int device, int64_t pool) { return new PoolState(heap(device).pool_state(pool)); }

bool restore_pool(int device, int64_t pool, const PoolState* state) {
  return heap(device).restore_pool(pool, *state, gathered());
}

void forget_pool_state(PoolState* state) { delete state; }

bool pool_uses_only(int device, int64_t pool, const std::set<const void*>& data) {
  return heap(device).uses_only(pool, data);
}

void record_history(size_t room, Context (*gather)()) {
  use_cards();
  gather_context = room == 0 ? nullptr : gather;
  for (int i = 0; i < device_count(); i++) heap(i).record_history(room);
}

std::vector<HistoryEvent> history(int device) {
  return is_initialised() && is_device(device) ? heap(device).history() : std::vector<HistoryEvent>();
}

Context context_of(const void* data) {
  int device = device_of(data);
  if (device < 0) return nullptr;
  const Block* block = heap(device).at(data);
  return block == nullptr ? nullptr : block->context;
}

void* allocate_for_kernel(size_t bytes, int* status, Shortage* shortage) {
  void* data = nullptr;
  *status = allocate(kernel_device, current_stream(kernel_device), bytes, &data, shortage);
  if (data != nullptr) kernel_blocks.push_back({data, heap(kernel_device).at(data)->life.load(std::memory_order_relaxed)});
  return data;
}

void adopt(void* data) {
  int device = device_of(data);
  if (device >= 0) heap(device).at(data)->adopted = true;
}

KernelScope::KernelScope(int device) : former_device_(kernel_device), former_mark_(kernel_blocks.size()) {
  kernel_device = device;
}

KernelScope::~KernelScope() {
  for (size_t i = former_mark_; i < kernel_blocks.size(); i++) {
    const KernelBlock& kept = kernel_blocks[i];
    Heap& owner = heap(device_of(kept.data));
    Block* block = owner.at(kept.data);
    if (block == nullptr || block->adopted || block->life.load(std::memory_order_relaxed) != kept.life) continue;
    owner.stop_counting(kept.data, kept.life);
  }
  kernel_blocks.resize(former_mark_);
  kernel_device = former_device_;
}

}  // namespace toprope::sim
