// Writing of the trace; see trace.h.
//
// Tests: tests/sim/simulated/test_trace.py.
#include "trace.h"

#include <fcntl.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <mutex>

#include "faults.h"
#include "signatures.h"
#include "stream.h"

namespace toprope::sim {

std::atomic<uint32_t> watched{0};

namespace {

std::mutex trace_mutex;
std::atomic<Trace*> current{nullptr};
Trace* retired = nullptr;  // the place of a past trace: kept, since a late writer may still reach it
size_t retired_bytes = 0, current_bytes = 0;
bool in_file = false;

Record* records(Trace* trace) { return reinterpret_cast<Record*>(trace + 1); }

int64_t wall_clock_ns() {
  timespec now{};
  clock_gettime(CLOCK_REALTIME, &now);
  return static_cast<int64_t>(now.tv_sec) * 1000000000 + now.tv_nsec;
}

}  // namespace

void watch(uint32_t what, bool on) {
  if (on) {
    watched.fetch_or(what);
  } else {
    watched.fetch_and(~what);
  }
}

int start_trace(uint64_t capacity, const char* path) {
  std::lock_guard<std::mutex> guard(trace_mutex);
  if (current != nullptr) return EBUSY;
  if (path == nullptr) {
    if (int error = keep_signatures(nullptr)) return error;
  }
  size_t bytes = sizeof(Trace) + capacity * sizeof(Record);
  void* place = MAP_FAILED;
  if (path != nullptr) {
    int file = open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (file < 0) return errno;
    int error = ftruncate(file, static_cast<off_t>(bytes)) == 0 ? 0 : errno;
    if (error == 0) place = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    close(file);
    if (error != 0) return error;
  } else if (retired != nullptr && retired_bytes == bytes) {
    place = retired;
    retired = nullptr;
  } else {
    place = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  }
  if (place == MAP_FAILED) return errno;
  auto* trace = static_cast<Trace*>(place);
  trace->capacity = capacity;
  trace->written = 0;
  trace->began_ns = now_ns();
  trace->wall_ns = wall_clock_ns();
  trace->pid = static_cast<uint64_t>(getpid());
  memcpy(trace->magic, "TRTRACE\x01", sizeof trace->magic);
  // A child that is forked meanwhile does not write into its parent's trace.
  [[maybe_unused]] static int once = pthread_atfork(nullptr, nullptr, [] {
    watched &= ~static_cast<uint32_t>(kTracing);
    current = nullptr;
  });
  current = trace;
  current_bytes = bytes;
  in_file = path != nullptr;
  forget_touched();  // what ran before it is not known
  watch(kTracing, true);
  return 0;
}

const Trace* stop_trace() {
  watch(kTracing, false);
  return current;
}

void forget_trace() {
  std::lock_guard<std::mutex> guard(trace_mutex);
  watch(kTracing, false);
  Trace* trace = current.exchange(nullptr);
  if (trace == nullptr || in_file) return;
  madvise(trace, current_bytes, MADV_DONTNEED);
  retired = trace;
  retired_bytes = current_bytes;
}

const Trace* running_trace() { return watching(kTracing) ? current.load() : nullptr; }

uint64_t collective_address(const char* communicator, int rank, int ranks, uint64_t sequence) {
  char name[sizeof(Kind::name)];
  int length = snprintf(name, sizeof name, "hcom:%s:%d/%d", communicator, rank, ranks);
  if (length < 0 || static_cast<size_t>(length) >= sizeof name) return kNoCommunicator;
  return static_cast<uint64_t>(index_of(kind(name))) << 48 | (sequence & ((uint64_t{1} << 48) - 1));
}

void write_record(Record record) {
  static thread_local uint32_t thread = static_cast<uint32_t>(syscall(SYS_gettid));
  Trace* trace = current.load(std::memory_order_acquire);
  if (trace == nullptr || trace->capacity == 0) return;
  record.thread = thread;
  uint64_t place = trace->written.fetch_add(1, std::memory_order_relaxed);
  records(trace)[place % trace->capacity] = record;
}

}  // namespace toprope::sim
