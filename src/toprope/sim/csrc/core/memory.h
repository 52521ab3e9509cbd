// Device memory: one range of addresses for each card, handed out by a caching allocator with the vendor's block rules.
// Used by the torch side (../torch/memory.cpp) and by api.cpp.
//
// Numbers of the snapshot are taken apart by ../../npu/memory_pieces.py, those of Happened are named by
// ../../npu/history.py, figures are named in their order by ../../npu/memory.py. Tests:
// tests/sim/simulated/test_core.py and test_memory_figures.py; for pools test_graphs.py and test_graph_trees.py.
#pragma once
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <set>
#include <vector>

#include "device.h"

namespace toprope::sim {

struct Figure {
  int64_t current = 0, peak = 0, allocated = 0, freed = 0;
};

enum Group { kAll = 0, kSmall = 1, kLarge = 2 };

// The figures that torch.npu.memory_stats shows; each for all blocks, the small ones and the large ones.
struct MemoryStats {
  Figure allocation[3], segment[3], active[3], inactive_split[3];
  Figure allocated_bytes[3], reserved_bytes[3], active_bytes[3], inactive_split_bytes[3], requested_bytes[3];
  int64_t retries = 0, ooms = 0;

  // Visits every figure: the groups in the order above, in each those for all blocks, the small and the large ones.
  template <class Visit>
  void each_figure(Visit visit) {
    for (Figure* group : {allocation, segment, active, inactive_split, allocated_bytes, reserved_bytes, active_bytes,
                          inactive_split_bytes, requested_bytes}) {
      for (int i = 0; i < 3; i++) visit(group[i]);
    }
  }
};

struct Block;

// What a failed allocation found, in bytes.
struct Shortage {
  uint64_t capacity = 0, allocated = 0, reserved = 0;
  uint64_t taken = 0;    // by all processes
  uint64_t wanted = 0;   // the piece that was asked of the card
  uint64_t allowed = 0;  // to this process, where that is less than the capacity
};

// Reserves the addresses of all cards; called by the device layer. A second call, before use, takes the place of the first.
bool reserve_address_space(int cards, uint64_t capacity);

// Memory of a card for work on one of its streams. kOk, kInvalidDevice or kOutOfMemory (then `shortage` says why).
// Zero bytes give a null pointer.
TOPROPE_API int allocate(int device, int64_t stream, size_t bytes, void** data, Shortage* shortage);
TOPROPE_API void release(void* data);

// The card that an address belongs to, -1 for host memory.
TOPROPE_API int device_of(const void* data);

// Bytes of the block at this address; 0 where there is none.
TOPROPE_API size_t size_of(const void* data);

// Keeps a block from reuse, once it is freed, until the work that was queued on that stream before is done.
TOPROPE_API void used_by_stream(void* data, int64_t stream);
// Takes that back, where the current stream is the one that the memory was taken on.
TOPROPE_API void unused_by_stream(void* data, int64_t stream);

// Marks all memory in use as perhaps damaged, as after a card was started again. Then: whether a block is free of the
// mark, and its removal.
TOPROPE_API void mark_all_unsafe(int device);
TOPROPE_API bool is_safe(const void* data);
TOPROPE_API void set_safe(const void* data);

// Gives cached memory back to the card. A negative device means all.
TOPROPE_API void empty_cache(int device);

TOPROPE_API MemoryStats memory_stats(int device);
// Every piece and its blocks, as numbers: for each piece address, bytes, stream, whether it is for large blocks, its pool,
// number of blocks; for each of its blocks bytes, bytes asked for, state (0 free, 1 in use, 2 freed but awaited by a stream).
TOPROPE_API std::vector<int64_t> memory_snapshot(int device);
TOPROPE_API void reset_peaks(int device);
TOPROPE_API void reset_totals(int device);
TOPROPE_API void set_fraction(int device, double fraction);
TOPROPE_API double fraction(int device);

// ---- private pools
//
// A pool is used from its opening by a user until the last of them releases it. While it is open on a card, what the card
// hands out comes from it: to every thread (a graph is captured), or to the thread that opened it. Its free memory is
// never given back while it is used. Numbers are torch's MempoolId_t, 0 is the ordinary pool.

TOPROPE_API void use_pool(int device, int64_t pool);
// Whether the ordinary pool takes free blocks of this one when the card is full, and whether its pieces stay whole.
TOPROPE_API void set_pool(int device, int64_t pool, bool used_when_full, bool unsplit);
TOPROPE_API int pool_users(int device, int64_t pool);
TOPROPE_API void open_pool(int device, int64_t pool, bool every_thread);
TOPROPE_API void close_pool(int device, int64_t pool);
TOPROPE_API void release_pool(int device, int64_t pool);
TOPROPE_API int64_t pool_of(const void* data);  // of the block at this address; 0 for memory that is no card's

// A graph that was captured before goes on in a new capture: its pool is made what it was at the end of the first. To be
// given to `forget_pool_state`; see `restore_pool` of heap.h for false.
struct PoolState;
TOPROPE_API PoolState* pool_state(int device, int64_t pool);
TOPROPE_API bool restore_pool(int device, int64_t pool, const PoolState* state);
TOPROPE_API void forget_pool_state(PoolState* state);
TOPROPE_API bool pool_uses_only(int device, int64_t pool, const std::set<const void*>& data);

// ---- history: what the allocator did, and where the program asked for it

using Context = std::shared_ptr<void>;

enum class Happened : int64_t { kAlloc, kFreeRequested, kFreeCompleted, kSegmentAlloc, kSegmentFree, kOutOfMemory, kSnapshot };

struct HistoryEvent {
  Happened what;
  int64_t address, size, stream, pool, time_us;
  Context context;
};

// Records up to `room` events of every card, none with 0; `gather` gives the place in the program that runs, and may be
// null. It is called without a lock.
TOPROPE_API void record_history(size_t room, Context (*gather)());
TOPROPE_API std::vector<HistoryEvent> history(int device);
TOPROPE_API Context context_of(const void* data);

// ---- memory that host kernels take on behalf of a card
//
// While a kernel runs for a card, what it allocates comes from that card. What it keeps for itself after the call
// (scratch memory of a library, say) is no tensor of the program: it stays where it is and no longer counts.

constexpr int kNoDevice = -1;
TOPROPE_API extern thread_local int kernel_device;

TOPROPE_API void* allocate_for_kernel(size_t bytes, int* status, Shortage* shortage);
TOPROPE_API void adopt(void* data);  // the block became a tensor's

class TOPROPE_API KernelScope {
 public:
  explicit KernelScope(int device);
  ~KernelScope();
  KernelScope(const KernelScope&) = delete;
  KernelScope& operator=(const KernelScope&) = delete;

 private:
  int former_device_;
  size_t former_mark_;
};

}  // namespace toprope::sim
