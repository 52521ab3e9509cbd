// Allocators and storages: torch's device allocator over the core's memory, the redirection of the host allocator while
// a host kernel runs for a card, and pinned host memory. The C functions at its end are those of
// ../../npu/host_memory.py and ../../npu/graph_trees/allocator.py.
//
// Tests: tests/sim/simulated/test_memory_figures.py and test_memory_leaks.py; test_data_loading.py for pinned memory,
// test_graph_trees.py for graph trees.
#include <ATen/core/CachingHostAllocator.h>
#include <c10/core/CPUAllocator.h>
#include <sys/mman.h>

#include <bit>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <vector>

#include "../core/cards.h"
#include "glue.h"

namespace toprope::glue {

namespace {

// Frees by owner, whichever allocator is current: blocks move between torch's allocators and the card's.
c10::DeleterFnPtr host_free = nullptr;

// Tells torch's profiler of a block that was handed out, or is about to be freed.
void report(void* data, bool is_freed) {
  int device = sim::device_of(data);
  if (device < 0) return;
  const int64_t size = static_cast<int64_t>(sim::size_of(data));
  const sim::MemoryStats stats = sim::memory_stats(device);
  c10::reportMemoryUsageToProfiler(data, is_freed ? -size : size,
                                   static_cast<size_t>(stats.allocated_bytes[sim::kAll].current - (is_freed ? size : 0)),
                                   static_cast<size_t>(stats.reserved_bytes[sim::kAll].current), npu(device));
}

void free_block(void* data) {
  if (c10::memoryProfilingEnabled()) [[unlikely]] report(data, true);
  sim::release(data);
}

void free_by_owner(void* data) {
  if (data == nullptr) return;
  if (sim::device_of(data) >= 0) {
    free_block(data);
  } else {
    host_free(data);
  }
}

c10::CachingAllocator::Stat to_stat(const sim::Figure& figure) {
  c10::CachingAllocator::Stat stat;
  stat.current = figure.current;
  stat.peak = figure.peak;
  stat.allocated = figure.allocated;
  stat.freed = figure.freed;
  return stat;
}

void fill(c10::CachingAllocator::StatArray& out, const sim::Figure* group) {
  for (size_t i = 0; i < 3; i++) out[i] = to_stat(group[i]);
}

class DeviceAllocator final : public c10::DeviceAllocator {
 public:
  c10::DataPtr allocate(size_t bytes) override { return glue::allocate(sim::current_device(), bytes); }
  c10::DeleterFnPtr raw_deleter() const override { return &free_block; }
  void copy_data(void* to, const void* from, size_t bytes) const override { memcpy(to, from, bytes); }
  bool initialized() override { return sim::is_initialised(); }
  void emptyCache(c10::MempoolId_t) override { sim::empty_cache(-1); }
  void recordStream(const c10::DataPtr& data, c10::Stream stream) override {
    if (!sim::is_stream(stream.id())) raise_status(sim::kInvalidStream, "recordStream", "aclrtStream");
    if (data.get() != nullptr) sim::used_by_stream(data.get(), stream.id());
  }
  c10::CachingDeviceAllocator::DeviceStats getDeviceStats(c10::DeviceIndex device) override {
    sim::MemoryStats from = sim::memory_stats(device_index(npu(device)));
    c10::CachingDeviceAllocator::DeviceStats stats;
    fill(stats.allocation, from.allocation);
    fill(stats.segment, from.segment);
    fill(stats.active, from.active);
    fill(stats.inactive_split, from.inactive_split);
    fill(stats.allocated_bytes, from.allocated_bytes);
    fill(stats.reserved_bytes, from.reserved_bytes);
    fill(stats.active_bytes, from.active_bytes);
    fill(stats.inactive_split_bytes, from.inactive_split_bytes);
    fill(stats.requested_bytes, from.requested_bytes);
    stats.num_alloc_retries = from.retries;
    stats.num_ooms = from.ooms;
    stats.num_device_alloc = from.segment[sim::kAll].allocated;
    stats.num_device_free = from.segment[sim::kAll].freed;
    stats.max_split_size = -1;  // any block may be split
    return stats;
  }
  void resetAccumulatedStats(c10::DeviceIndex device) override { sim::reset_totals(device); }
  void resetPeakStats(c10::DeviceIndex device) override { sim::reset_peaks(device); }
  std::pair<size_t, size_t> getMemoryInfo(c10::DeviceIndex device) override {
    size_t total = sim::machine().capacity;
    size_t taken = sim::taken_of_card(sim::physical_id(device_index(npu(device))));
    return {total - std::min(total, taken), total};
  }
};

// Wraps torch's host allocator: while a host kernel runs for a card, its memory comes from that card.
class Redirect final : public c10::Allocator {
 public:
  explicit Redirect(c10::Allocator* host) : host_(host) {}
  c10::DataPtr allocate(size_t bytes) override {
    if (sim::kernel_device == sim::kNoDevice) [[likely]] return host_->allocate(bytes);
    int status = sim::kOk;
    sim::Shortage shortage;
    void* data = sim::allocate_for_kernel(bytes, &status, &shortage);
    if (status != sim::kOk) raise_out_of_memory(sim::kernel_device, bytes, shortage);
    c10::DataPtr block(data, data, &free_block, c10::Device(c10::kCPU));
    check_host_memory(sim::kernel_device, data, bytes);
    if (c10::memoryProfilingEnabled()) [[unlikely]] report(data, false);
    return block;
  }
  c10::DeleterFnPtr raw_deleter() const override { return &free_by_owner; }
  void copy_data(void* to, const void* from, size_t bytes) const override { memcpy(to, from, bytes); }

 private:
  c10::Allocator* host_;
};

constexpr size_t kPage = 4096;
constexpr size_t kGivesPagesBack = size_t{1} << 20;  // kept blocks from this size on hold addresses, but no memory

// Page-locked memory is ordinary memory here; what counts is that torch knows it as pinned. As torch's allocator of it
// (ATen/core/CachingHostAllocator.h): sizes are powers of two, and a block that was freed is kept for the next one of its
// size. That may be at once: a copy has read or written all it will when it returns, and a graph keeps its tensors.
class PinnedAllocator final : public at::HostAllocator {
 public:
  static PinnedAllocator& get() {
    static auto* allocator = new PinnedAllocator();
    return *allocator;
  }
  c10::DataPtr allocate(size_t bytes) override {
    void* data = nullptr;
    if (bytes > 0) {
      std::lock_guard<std::mutex> guard(mutex_);
      size_t size = bytes > SIZE_MAX / 2 ? bytes : std::bit_ceil(bytes);
      if (auto kept = kept_.find(size); kept != kept_.end() && !kept->second.empty()) {
        data = kept->second.back();
        kept->second.pop_back();
      } else {
        data = fresh(bytes, &size);
      }
      live_[data] = size;
      raise(requests_, 1);
      raise(requested_bytes_, static_cast<int64_t>(size));
    }
    return {data, data, &free_pinned, c10::Device(c10::kCPU)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &free_pinned; }
  void copy_data(void* to, const void* from, size_t bytes) const override { memcpy(to, from, bytes); }
  bool record_event(void*, void*, c10::Stream) override { return true; }
  void empty_cache() override {
    std::lock_guard<std::mutex> guard(mutex_);
    drop_kept();
  }
  at::HostStats get_stats() override {
    std::lock_guard<std::mutex> guard(mutex_);
    at::HostStats stats;
    stats.allocations = to_stat(blocks_);
    stats.allocated_bytes = to_stat(bytes_);
    stats.active_requests = to_stat(requests_);
    stats.active_bytes = to_stat(requested_bytes_);
    stats.num_host_alloc = blocks_.allocated;
    stats.num_host_free = blocks_.freed;
    return stats;
  }
  void reset_accumulated_stats() override {
    std::lock_guard<std::mutex> guard(mutex_);
    for (sim::Figure* figure : {&blocks_, &bytes_, &requests_, &requested_bytes_}) figure->allocated = figure->freed = 0;
  }
  void reset_peak_stats() override {
    std::lock_guard<std::mutex> guard(mutex_);
    for (sim::Figure* figure : {&blocks_, &bytes_, &requests_, &requested_bytes_}) figure->peak = figure->current;
  }

  bool owns(const void* data) {
    std::lock_guard<std::mutex> guard(mutex_);
    auto after = live_.upper_bound(data);
    if (after == live_.begin()) return false;
    auto [begin, bytes] = *std::prev(after);
    return static_cast<const char*>(data) < static_cast<const char*>(begin) + bytes;
  }

 private:
  static void free_pinned(void* data) {
    if (data != nullptr) get().take_back(data);
  }
  void take_back(void* data) {
    std::lock_guard<std::mutex> guard(mutex_);
    auto block = live_.find(data);
    if (block == live_.end()) return free(data);
    size_t size = block->second;
    live_.erase(block);
    lower(requests_, 1);
    lower(requested_bytes_, static_cast<int64_t>(size));
    keep(data, size);
  }
  void keep(void* data, size_t size) {
    if (!std::has_single_bit(size)) return give_back(data, size);
    if (size >= kGivesPagesBack) madvise(data, size, MADV_DONTNEED);
    kept_[size].push_back(data);
  }
  void drop_kept() {
    for (auto& [size, blocks] : kept_) {
      for (void* data : blocks) give_back(data, size);
    }
    kept_.clear();
  }
  void* fresh(size_t bytes, size_t* size) {
    void* data = nullptr;
    if (posix_memalign(&data, kPage, *size) != 0) {
      drop_kept();
      *size = bytes;
      TORCH_CHECK_WITH(OutOfMemoryError, posix_memalign(&data, kPage, *size) == 0, "The host has no memory left for ",
                       bytes, " pinned bytes.");
    }
    raise(blocks_, 1);
    raise(bytes_, static_cast<int64_t>(*size));
    return data;
  }
  void give_back(void* data, size_t size) {
    free(data);
    lower(blocks_, 1);
    lower(bytes_, static_cast<int64_t>(size));
  }
  static void raise(sim::Figure& figure, int64_t amount) {
    figure.current += amount;
    figure.peak = std::max(figure.peak, figure.current);
    figure.allocated += amount;
  }
  static void lower(sim::Figure& figure, int64_t amount) {
    figure.current -= amount;
    figure.freed += amount;
  }

  std::mutex mutex_;
  std::map<const void*, size_t> live_;
  std::map<size_t, std::vector<void*>> kept_;  // free blocks by size
  sim::Figure blocks_, bytes_, requests_, requested_bytes_;  // all there are; those in use
};

c10::intrusive_ptr<c10::StorageImpl> create_storage(c10::StorageImpl::use_byte_size_t kind, c10::SymInt bytes,
                                                    c10::DataPtr data, c10::Allocator* allocator, bool resizable) {
  if (!data && allocator != nullptr) data = allocator->allocate(static_cast<size_t>(bytes.expect_int()));
  return c10::make_intrusive<NpuStorage>(kind, std::move(bytes), std::move(data), allocator, resizable);
}

}  // namespace

c10::DeviceAllocator* allocator() {
  static auto* one = new DeviceAllocator();
  return one;
}

at::HostAllocator* pinned_allocator() { return &PinnedAllocator::get(); }
bool is_pinned(const void* data) { return PinnedAllocator::get().owns(data); }

c10::DataPtr allocate(int device, size_t bytes) {
  check_usable(device);
  read_allocator_settings();
  TORCH_CHECK_WITH(OutOfMemoryError, bytes < uint64_t{1} << 60,
                   "NPU out of memory. Tried to allocate more than 1EB memory.");
  void* data = nullptr;
  sim::Shortage shortage;
  int status = sim::allocate(device, sim::current_stream(device), bytes, &data, &shortage);
  if (status == sim::kOutOfMemory) raise_out_of_memory(device, bytes, shortage);
  check(status, "allocate", "c10_npu::SetDevice(device)");
  if (c10::memoryProfilingEnabled()) [[unlikely]] report(data, false);
  return {data, data, &free_block, npu(device)};
}

void check_host_memory_slowly(int device, const void* data, size_t bytes) {
  size_t missing = sim::bytes_without_memory(data, bytes), left = sim::host_memory_left();
  if (missing > left) raise_host_out_of_memory(device, bytes, left);
}

c10::DataPtr into_device(c10::DataPtr data, size_t bytes, int device) {
  if (data.get() != nullptr && sim::device_of(data.get()) == device && data.get_context() == data.get()) {
    sim::adopt(data.get());
    data.unsafe_set_device(npu(device));
    return data;
  }
  c10::DataPtr copy = allocate(device, bytes);
  if (bytes > 0 && data.get() != nullptr) memcpy(copy.get(), data.get(), bytes);
  return copy;
}

c10::Storage make_storage(c10::DataPtr data, size_t bytes) {
  return c10::Storage(c10::make_intrusive<NpuStorage>(c10::StorageImpl::use_byte_size_t(), bytes, std::move(data),
                                                      allocator(), /*resizable=*/true));
}

// ---- NpuStorage

c10::Storage NpuStorage::shadow() {
  void* bytes = const_cast<void*>(data());
  c10::StorageImpl* shadow = shadow_.load(std::memory_order_acquire);
  if (shadow == nullptr) [[unlikely]] {
    auto made = c10::make_intrusive<c10::StorageImpl>(c10::StorageImpl::use_byte_size_t(), nbytes(),
                                                      c10::DataPtr(bytes, c10::Device(c10::kCPU)),
                                                      c10::GetCPUAllocator(), /*resizable=*/true);
    c10::StorageImpl* mine = made.release();
    if (shadow_.compare_exchange_strong(shadow, mine, std::memory_order_acq_rel)) {
      shadow = mine;
    } else {
      c10::raw::intrusive_ptr::decref(mine);
    }
  }
  if (shadow->data() != bytes || shadow->nbytes() != nbytes()) [[unlikely]] {
    shadow->set_data_ptr_noswap(c10::DataPtr(bytes, c10::Device(c10::kCPU)));
    shadow->set_nbytes(nbytes());
  }
  return c10::Storage(c10::intrusive_ptr<c10::StorageImpl>::reclaim_copy(shadow));
}

void NpuStorage::release_resources() {
  if (c10::StorageImpl* shadow = shadow_.exchange(nullptr)) c10::raw::intrusive_ptr::decref(shadow);
  c10::StorageImpl::release_resources();
}

NpuStorage::~NpuStorage() {
  if (c10::StorageImpl* shadow = shadow_.exchange(nullptr)) c10::raw::intrusive_ptr::decref(shadow);
}

void register_memory() {
  c10::SetAllocator(kNpu, allocator());
  c10::SetStorageImplCreate(kNpu, &create_storage);
  at::setHostAllocator(kNpu, &PinnedAllocator::get());
  c10::Allocator* host = c10::GetCPUAllocator();
  host_free = host->raw_deleter();
  c10::SetCPUAllocator(new Redirect(host), /*priority=*/255);
}

}  // namespace toprope::glue

// Pinned blocks and their bytes, then those in use: each current, peak, allocated, freed.
extern "C" TOPROPE_API void tsg_host_memory_stats(int64_t* out) {
  at::HostStats stats = toprope::glue::pinned_allocator()->get_stats();
  for (const c10::CachingAllocator::Stat* stat :
       {&stats.allocations, &stats.allocated_bytes, &stats.active_requests, &stats.active_bytes}) {
    *out++ = stat->current;
    *out++ = stat->peak;
    *out++ = stat->allocated;
    *out++ = stat->freed;
  }
}

extern "C" TOPROPE_API void tsg_reset_host_memory_stats(int peaks) {
  at::HostAllocator* pinned = toprope::glue::pinned_allocator();
  if (peaks) {
    pinned->reset_peak_stats();
  } else {
    pinned->reset_accumulated_stats();
  }
}

// As torch_npu's: a tensor may stay larger than the storage it was moved to.
extern "C" TOPROPE_API void tsg_shrink_storage(void* storage, uint64_t bytes) {
  static_cast<c10::StorageImpl*>(storage)->set_nbytes(bytes);
}

// ---- memory of graph trees, whose tensors come and go in a pool that keeps its layout. Storages and tensors are given by
// their addresses, as torch's own functions for CUDA take them.

namespace {
bool is_freed_by_allocator(const c10::DataPtr& data) {
  return data.get_deleter() == &toprope::glue::free_block || data.get_deleter() == &toprope::glue::free_by_owner;
}
}  // namespace

extern "C" TOPROPE_API int tsg_owns_memory(void* storage) {
  return is_freed_by_allocator(static_cast<c10::StorageImpl*>(storage)->_mutable_data_ptr_no_checks());
}

// The storage keeps its address; its memory is the allocator's again.
extern "C" TOPROPE_API void tsg_give_up_memory(void* storage) {
  c10::DataPtr& data = static_cast<c10::StorageImpl*>(storage)->_mutable_data_ptr_no_checks();
  if (!is_freed_by_allocator(data)) return;
  void* block = data.release_context();
  data = c10::DataPtr(block, data.device());
  toprope::glue::free_by_owner(block);
}

// The opposite: the allocator counts the memory at the storage's address as in use, and the storage frees it.
extern "C" TOPROPE_API void tsg_take_memory(void* storage) {
  c10::DataPtr& data = static_cast<c10::StorageImpl*>(storage)->_mutable_data_ptr_no_checks();
  data = c10::DataPtr(data.get(), data.get(), &toprope::glue::free_block, data.device());
}

// Any later use of the data raises an error with this text.
extern "C" TOPROPE_API void tsg_refuse_storage(void* storage, const char* text) {
  static_cast<c10::StorageImpl*>(storage)->release_data_and_set_meta_custom_data_ptr_error_msg_(std::string(text));
}
extern "C" TOPROPE_API void tsg_refuse_tensor(void* tensor, const char* text) {
  static_cast<c10::TensorImpl*>(tensor)->release_storage_and_set_meta_custom_data_ptr_error_msg_(std::string(text));
}
