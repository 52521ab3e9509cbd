// The core's functions for callers that speak C: Python through ctypes, tools without torch.
#include <algorithm>
#include <cstring>

#include <unistd.h>

#include "cards.h"
#include "counters.h"
#include "device.h"
#include "documents.h"
#include "faults.h"
#include "memory.h"
#include "sharing.h"
#include "stream.h"
#include "trace.h"

using namespace toprope::sim;

#define EXPORT extern "C" TOPROPE_API

EXPORT const char* ts_torch_version() { return TOPROPE_TORCH_VERSION; }

EXPORT int ts_configure(int cards, uint64_t capacity, uint64_t padding) {
  return configure({cards, capacity, padding});
}

EXPORT void ts_describe(const char* chip, const char* torch_version, int capacity_by_user) {
  counters->pid = static_cast<uint64_t>(getpid());
  strncpy(counters->chip, chip, sizeof(Counters::chip) - 1);
  strncpy(counters->torch_version, torch_version, sizeof(Counters::torch_version) - 1);
  counters->flags |= capacity_by_user ? 1 : 0;
  memcpy(counters->magic, "TOPROPE\x01", sizeof(Counters::magic));
}

EXPORT int ts_keep_counters_in(const char* path) { return keep_counters_in(path); }
EXPORT const void* ts_counters() { return counters; }

EXPORT int ts_device_count() { return device_count(); }
EXPORT void ts_use_cards() { use_cards(); }
EXPORT int ts_is_initialised() { return is_initialised(); }
EXPORT int ts_physical_id(int device) { return physical_id(device); }
EXPORT int ts_current_device() { return current_device(); }
EXPORT int ts_set_device(int device) { return set_device(device); }
EXPORT int ts_exchange_device(int device) { return exchange_device(device); }
EXPORT int ts_forked_after_use() { return forked_after_use(); }

EXPORT int ts_allocate(int device, int64_t stream, uint64_t bytes, void** data) {
  *data = nullptr;
  if (!is_stream(stream)) return kInvalidStream;
  Shortage shortage;
  return allocate(device, stream, bytes, data, &shortage);
}
EXPORT void ts_release(void* data) { release(data); }
EXPORT int ts_device_of(const void* data) { return device_of(data); }
EXPORT void ts_empty_cache(int device) { empty_cache(device); }
EXPORT void ts_reset_peaks(int device) { reset_peaks(device); }
EXPORT void ts_reset_totals(int device) { reset_totals(device); }
EXPORT void ts_set_fraction(int device, double value) { set_fraction(device, value); }
EXPORT double ts_fraction(int device) { return fraction(device); }

// 9 groups (in the order of MemoryStats) x 3 (all, small, large) x 4 (current, peak, allocated, freed), then the
// number of retries and of failures.
EXPORT void ts_memory_stats(int device, int64_t* out) {
  MemoryStats stats = memory_stats(device);
  for (const Figure* group :
       {stats.allocation, stats.segment, stats.active, stats.inactive_split, stats.allocated_bytes,
        stats.reserved_bytes, stats.active_bytes, stats.inactive_split_bytes, stats.requested_bytes}) {
    for (int i = 0; i < 3; i++) {
      *out++ = group[i].current;
      *out++ = group[i].peak;
      *out++ = group[i].allocated;
      *out++ = group[i].freed;
    }
  }
  *out++ = stats.retries;
  *out++ = stats.ooms;
}

// Queues a function on a stream; what it returns is the status of the work (0, or the code of its failure).
EXPORT int ts_launch(int device, int64_t id, int (*function)(void*), void* argument) {
  if (!is_device(device)) return kInvalidDevice;
  if (!is_stream(id)) return kInvalidStream;
  stream(device, id).push([function, argument] { return function(argument); });
  return kOk;
}

// Numbers of the snapshot that fit into `room`; returns how many there are.
EXPORT size_t ts_memory_snapshot(int device, int64_t* out, size_t room) {
  std::vector<int64_t> numbers = memory_snapshot(device);
  if (out != nullptr) std::copy_n(numbers.begin(), std::min(room, numbers.size()), out);
  return numbers.size();
}

EXPORT void ts_set_wait_limit_ms(uint32_t limit) { wait_limit_ms = limit; }
EXPORT void ts_stop_device(int device) { stop_device(device); }
EXPORT void ts_restart_device(int device) { restart_device(device); }

// ---- cards of a run

EXPORT int ts_share_cards(const char* path) { return share_cards(path); }
EXPORT uint64_t ts_taken_of_card(int physical) { return taken_of_card(physical); }
EXPORT int ts_health_of_card(int physical) { return health_of_card(physical); }
EXPORT void ts_set_health_of_card(int physical, int code) { set_health_of_card(physical, code); }

// ---- trace

EXPORT int ts_start_trace(uint64_t capacity, const char* path) { return start_trace(capacity, path); }
EXPORT const void* ts_stop_trace() { return stop_trace(); }
EXPORT void ts_forget_trace() { forget_trace(); }
EXPORT int64_t ts_now_ns() { return now_ns(); }
EXPORT void ts_note(int act, const char* name, int device, int64_t begin_ns, uint64_t bytes) {
  if (!watching(kTracing)) return;
  write_record({.begin_ns = begin_ns, .end_ns = now_ns(), .bytes = bytes,
                .stream = static_cast<int32_t>(current_stream(device)),
                .kind = static_cast<uint16_t>(index_of(kind(name))), .act = static_cast<Act>(act),
                .device = static_cast<int8_t>(device)});
}

// ---- faults and refusals

EXPORT void ts_fail_operator(const char* name, int code, uint64_t after) { fail_operator(name, code, after); }
EXPORT void ts_fail_allocation(int64_t after) { fail_allocation(after); }
EXPORT void ts_slow_link(double ns_per_byte) { slow_link(ns_per_byte); }
EXPORT void ts_clear_faults() { clear_faults(); }
EXPORT void ts_refuse_dtypes(const char* name, uint64_t dtypes) {
  refused_dtypes[index_of(kind(name))] = dtypes;
  bool any = false;
  for (uint64_t refused : refused_dtypes) any |= refused != 0;
  watch(kRefusals, any);
}
EXPORT uint64_t ts_refused_dtypes(const char* name) { return refused_dtypes[index_of(kind(name))]; }
EXPORT int ts_load_documents(const char* path) { return load_documents(path); }
EXPORT void ts_obey_documents(int on) { watch(kDocuments, on != 0); }

// ---- memory shared between processes

EXPORT int ts_share(void* data, int* file, uint64_t* bytes, uint64_t* offset) {
  Share made;
  int error = share(data, &made);
  *file = made.file;
  *bytes = made.bytes;
  *offset = made.offset;
  return error;
}
EXPORT uint64_t ts_references(const void* data) { return references(data); }
