// The core's C functions, for Python through ctypes and for tools without torch. A function that is added or changed
// must be declared with its types in ../../native.py. The numbers of ts_memory_stats and ts_memory_snapshot are read in
// their order by ../../npu/memory.py and memory_pieces.py, the tensors of ts_end_composite are packed by
// ../../composites.py.
//
// Tests: tests/sim/simulated/test_core.py calls it without torch (with types of its own:
// tests/helpers/core_library.py).
#include <algorithm>
#include <cstring>

#include <unistd.h>

#include "cards.h"
#include "counters.h"
#include "device.h"
#include "documents.h"
#include "faults.h"
#include "kernels.h"
#include "core_limits.h"
#include "memory.h"
#include "rehearsal.h"
#include "sharing.h"
#include "stream.h"
#include "signatures.h"
#include "trace.h"

using namespace toprope::sim;

#define EXPORT extern "C" TOPROPE_API

EXPORT int ts_configure(int cards, uint64_t capacity, uint64_t padding) {
  return configure({cards, capacity, padding});
}

EXPORT void ts_describe(const char* chip, const char* torch_version, int capacity_by_user, const char* torch_npu) {
  counters->pid = static_cast<uint64_t>(getpid());
  strncpy(counters->chip, chip, sizeof(Counters::chip) - 1);
  strncpy(counters->torch_version, torch_version, sizeof(Counters::torch_version) - 1);
  strncpy(counters->torch_npu, torch_npu, sizeof(Counters::torch_npu) - 1);
  counters->flags |= capacity_by_user ? 1 : 0;
  memcpy(counters->magic, "TOPROPE\x01", sizeof(Counters::magic));
}

EXPORT int ts_keep_counters_in(const char* path) { return keep_counters_in(path); }
EXPORT const void* ts_counters() { return counters; }

EXPORT int ts_start_rehearsal(int which, uint64_t smallest, const char* path) {
  return start_rehearsal(static_cast<Recorder>(which), smallest, path);
}
EXPORT const void* ts_stop_rehearsal(int which) { return stop_rehearsal(static_cast<Recorder>(which)); }
EXPORT const void* ts_rehearsal(int which) { return rehearsals[which]; }
EXPORT void ts_note_to_come(int device, uint64_t gradients, uint64_t states) {
  note_to_come(device, gradients, states);
}
EXPORT void ts_mark_held(const void* data, int kind) { mark_held(data, static_cast<Held>(kind)); }
EXPORT void ts_note_step(int kind) { note_step(static_cast<Step>(kind)); }
EXPORT void ts_note_runtime_memory(int device, int64_t bytes) { note_runtime_memory(device, bytes); }
EXPORT uint64_t ts_look_up(uint64_t more) { return look_up(more); }
EXPORT void ts_look_up_as_before(uint64_t events) { look_up_as_before(events); }

EXPORT void ts_note_lack(int lack, const char* name, int dtype, const char* text) {
  note_lack(static_cast<Lack>(lack), name, dtype, text);
}

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
EXPORT void ts_erase_stream(void* data, int64_t stream) {
  if (is_stream(stream)) unused_by_stream(data, stream);
}
EXPORT int ts_device_of(const void* data) { return device_of(data); }
EXPORT void ts_mark_all_unsafe(int device) { mark_all_unsafe(device); }
EXPORT int ts_is_safe(const void* data) { return is_safe(data); }
EXPORT void ts_set_safe(const void* data) { set_safe(data); }
EXPORT void ts_check_unsafe(int on) { watch(kUnsafe, on != 0); }
EXPORT int ts_checks_unsafe() { return watching(kUnsafe); }
EXPORT void ts_empty_cache(int device) { empty_cache(device); }
EXPORT void ts_reset_peaks(int device) { reset_peaks(device); }
EXPORT void ts_reset_totals(int device) { reset_totals(device); }
EXPORT void ts_set_fraction(int device, double value) { set_fraction(device, value); }
EXPORT double ts_fraction(int device) { return fraction(device); }

// The figures in the order of MemoryStats, each as current, peak, allocated, freed; then the numbers of retries and of
// failures.
EXPORT void ts_memory_stats(int device, int64_t* out) {
  MemoryStats stats = memory_stats(device);
  stats.each_figure([&out](const Figure& figure) {
    for (int64_t value : {figure.current, figure.peak, figure.allocated, figure.freed}) *out++ = value;
  });
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

EXPORT void ts_use_pool(int device, int64_t pool) { use_pool(device, pool); }
EXPORT void ts_set_pool(int device, int64_t pool, int used_when_full, int unsplit) {
  set_pool(device, pool, used_when_full != 0, unsplit != 0);
}
EXPORT int ts_pool_users(int device, int64_t pool) { return pool_users(device, pool); }
EXPORT void ts_open_pool(int device, int64_t pool, int every_thread) { open_pool(device, pool, every_thread != 0); }
EXPORT void ts_close_pool(int device, int64_t pool) { close_pool(device, pool); }
EXPORT void ts_release_pool(int device, int64_t pool) { release_pool(device, pool); }
EXPORT PoolState* ts_pool_state(int device, int64_t pool) {
  return is_initialised() && is_device(device) ? pool_state(device, pool) : nullptr;
}
EXPORT int ts_restore_pool(int device, int64_t pool, const PoolState* state) { return restore_pool(device, pool, state); }
EXPORT void ts_forget_pool_state(PoolState* state) { forget_pool_state(state); }
EXPORT int ts_pool_uses_only(int device, int64_t pool, const uint64_t* data, size_t count) {
  std::set<const void*> addresses;
  for (size_t i = 0; i < count; i++) addresses.insert(reinterpret_cast<const void*>(data[i]));
  return is_initialised() && is_device(device) ? pool_uses_only(device, pool, addresses) : count == 0;
}
EXPORT int64_t ts_pool_of(const void* data) { return pool_of(data); }

// Details of the failure with which the calling task is about to end.
EXPORT void ts_explain_failure(const char* text) { explain_failure(text); }

// ---- cores: limits (2 numbers, cube and vector; a negative stream means the process) and queued kernels

EXPORT void ts_set_cores(int cube, int vector) { set_cores({{cube, vector}}); }
EXPORT int ts_set_limit(int device, int64_t stream, int core, int limit) {
  if (!is_device(device)) return kInvalidDevice;
  if (stream != kProcess && !is_stream(stream)) return kInvalidStream;
  if (core < 0 || core >= kKindsOfCores || limit < kNoLimit) return kInvalidParameter;
  set_limit(device, stream, static_cast<Core>(core), limit);
  return kOk;
}
EXPORT int ts_limits(int device, int64_t stream, int* out) {
  if (!is_device(device)) return kInvalidDevice;
  if (stream != kProcess && !is_stream(stream)) return kInvalidStream;
  Cores found = limits(device, stream);
  std::copy_n(found.of, kKindsOfCores, out);
  return kOk;
}
EXPORT int ts_limits_here(int device, int* out) {
  if (!is_device(device)) return kInvalidDevice;
  Cores found = limits_here(device);
  std::copy_n(found.of, kKindsOfCores, out);
  return kOk;
}

EXPORT int ts_make_communicator(const char* name, const int* cards, int count) {
  return make_communicator(name, std::vector<int>(cards, cards + count));
}
EXPORT void ts_forget_communicator(int number) { forget_communicator(number); }
EXPORT int ts_launch_kernel(int device, int64_t stream, const char* name, int cube, int vector, int sync_all,
                            int communicator, double microseconds, int (*body)(uint64_t, int), uint64_t key) {
  int code =
      launch_kernel(device, stream, {name, {{cube, vector}}, sync_all != 0, communicator, microseconds, body, key});
  if (code == kOk) add(counters->cards[device].kernels);
  return code;
}
EXPORT void ts_set_discipline(int discipline) { set_discipline(static_cast<Discipline>(discipline)); }
// The list of kernels, as much as fits into `room` bytes; returns how many bytes it has.
EXPORT size_t ts_kernels(char* out, size_t room) {
  std::string list = list_kernels();
  if (out != nullptr) std::copy_n(list.data(), std::min(room, list.size()), out);
  return list.size();
}

EXPORT void ts_set_wait_limit_ms(uint32_t limit) { wait_limit_ms = limit; }
EXPORT void ts_stop_device(int device) { stop_device(device); }
EXPORT void ts_restart_device(int device) { restart_device(device); }

// ---- cards of a run

EXPORT int ts_share_cards(const char* path) { return share_cards(path); }
EXPORT uint64_t ts_taken_of_card(int physical) { return taken_of_card(physical); }
EXPORT int ts_state_of_device(int device) { return is_device(device) ? state_of_device(device) : kInvalidDevice; }
EXPORT int ts_health_of_card(int physical) { return health_of_card(physical); }
EXPORT void ts_set_health_of_card(int physical, int code) { set_health_of_card(physical, code); }

// ---- trace

EXPORT int ts_start_trace(uint64_t capacity, const char* path) { return start_trace(capacity, path); }
EXPORT const void* ts_stop_trace() { return stop_trace(); }
EXPORT void ts_forget_trace() { forget_trace(); }
EXPORT const void* ts_trace() { return running_trace(); }
EXPORT int ts_keep_signatures(const char* path) { return keep_signatures(path); }
EXPORT const void* ts_signatures() { return all_signatures(); }
EXPORT int ts_is_tracing() { return watching(kTracing); }
// Begins or ends the replay of a graph by this thread.
EXPORT void ts_replay_graph(int begins) { in_graph += begins != 0 ? 1 : -1; }
// Begins an operator of the vendor's that is computed by others; returns the time. `ts_end_composite` has to follow.
EXPORT int64_t ts_begin_composite() {
  in_composite++;
  return now_ns();
}
// Whether this thread computes a part of another operator, so that what it touches does not count.
EXPORT int ts_is_part() { return is_part(); }
EXPORT int ts_touch(int device, const void* block, uint64_t bytes) { return touch(device, block, bytes); }
EXPORT void ts_set_cache(uint64_t bytes) { set_cache(bytes); }
// Ends and records it with its tensors: for each its role, dtype, form, bytes, number of dimensions, and these.
EXPORT void ts_end_composite(const char* name, int device, int64_t begin_ns, uint64_t operations,
                              const int64_t* tensors, int count) {
  in_composite--;
  if (!watching(kTracing) || count == 0) return;
  Kind* of = kind(name);
  SignatureOf signature(index_of(of));
  signature.set_operations(operations);
  for (int i = 0; i < count; i++) {
    signature.add(static_cast<Role>(tensors[0]), static_cast<int>(tensors[1]), static_cast<uint8_t>(tensors[2]),
                  static_cast<uint64_t>(tensors[3]), tensors + 5, tensors[4]);
    tensors += 5 + tensors[4];
  }
  write_record({.begin_ns = begin_ns, .end_ns = now_ns(), .address = number_of(signature.made()),
                .stream = static_cast<int32_t>(current_stream(device)), .kind = static_cast<uint16_t>(index_of(of)),
                .act = Act::kComposite, .device = static_cast<int8_t>(device),
                .other_device = part_of()});
}
EXPORT int64_t ts_now_ns() { return now_ns(); }
EXPORT int64_t ts_current_stream(int device) { return current_stream(device); }

// Records a collective that began at a time, on a stream and with limits that were read then. A negative rank: it is of
// no communicator.
EXPORT void ts_note_collective(const char* name, int device, int64_t stream, int64_t begin_ns, uint64_t bytes, int cube,
                               int vector, const char* communicator, int rank, int ranks, uint64_t sequence) {
  if (!watching(kTracing)) return;
  write_record({.begin_ns = begin_ns, .end_ns = now_ns(), .bytes = bytes,
                .address = rank < 0 ? kNoCommunicator : collective_address(communicator, rank, ranks, sequence),
                .stream = static_cast<int32_t>(stream),
                .kind = static_cast<uint16_t>(index_of(kind(name))), .act = Act::kCollective,
                .device = static_cast<int8_t>(device), .cube = static_cast<uint8_t>(cube),
                .vector = static_cast<uint8_t>(vector)});
}

// Records that the current stream waits for a collective.
EXPORT void ts_note_collective_wait(int device, const char* communicator, int rank, int ranks, uint64_t sequence) {
  if (!watching(kTracing) || rank < 0) return;
  int64_t now = now_ns();
  write_record({.begin_ns = now, .end_ns = now, .address = collective_address(communicator, rank, ranks, sequence),
                .stream = static_cast<int32_t>(current_stream(device)), .act = Act::kEventWait,
                .device = static_cast<int8_t>(device)});
}

// ---- faults and refusals

EXPORT void ts_fail_operator(const char* name, int code, uint64_t after) { fail_operator(name, code, after); }
EXPORT void ts_fail_allocation(int64_t after) { fail_allocation(after); }
EXPORT void ts_slow_link(double ns_per_byte) { slow_link(ns_per_byte); }
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
