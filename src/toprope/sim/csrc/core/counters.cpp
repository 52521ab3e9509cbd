// The counters' memory, its file, and their updates; see counters.h.
//
// Tests: tests/sim/simulated/test_counters_file.py.
#include "counters.h"

#include <fcntl.h>
#include <pthread.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <mutex>
#include <new>

#include "rehearsal.h"

namespace toprope::sim {

static Counters* counters_in_memory() {
  void* place = mmap(nullptr, sizeof(Counters), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  return place == MAP_FAILED ? new Counters() : static_cast<Counters*>(place);
}

Counters* counters = counters_in_memory();

static char folder[4096];  // of the counters' file; empty where there is none
static uint64_t owner = 0;  // the process that the file is of

static int map_to(const char* path);

// In a forked child: the parent's file is not the child's to write.
static void leave_parents_file() {
  mmap(counters, sizeof(Counters), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
}

static void leave_file_with_head() {
  static Counters head;  // the names and the description stay, the figures begin again
  memcpy(static_cast<void*>(&head), counters, sizeof head);
  leave_parents_file();
  memcpy(counters->magic, head.magic, sizeof head.magic);
  memcpy(counters->chip, head.chip, sizeof head.chip);
  memcpy(counters->torch_version, head.torch_version, sizeof head.torch_version);
  counters->pid = static_cast<uint64_t>(getpid());
  counters->flags = head.flags & ~uint64_t{2};
  counters->kind_count = head.kind_count.load();
  for (uint64_t i = 0; i < head.kind_count; i++) memcpy(counters->kinds[i].name, head.kinds[i].name, sizeof(Kind::name));
  counters->site_count = head.site_count.load();
  for (uint64_t i = 0; i < head.site_count; i++) {
    memcpy(static_cast<void*>(&counters->sites[i]), &head.sites[i], offsetof(Site, back));
  }
  counters->host_site_count = head.host_site_count.load();
  for (uint64_t i = 0; i < head.host_site_count; i++) {
    memcpy(static_cast<void*>(&counters->host_sites[i]), &head.host_sites[i], offsetof(HostSite, times));
  }
  memcpy(counters->torch_npu, head.torch_npu, sizeof head.torch_npu);
}

int keep_counters_in(const char* path) {
  int error = map_to(path);
  const char* end = strrchr(path, '/');
  if (error == 0) wants_sites = true;
  if (error == 0 && end != nullptr && static_cast<size_t>(end - path) < sizeof folder) {
    memcpy(folder, path, static_cast<size_t>(end - path));
    owner = static_cast<uint64_t>(getpid());
    pthread_atfork(nullptr, nullptr, &leave_file_with_head);
  }
  return error;
}

void count_for_this_process() {
  auto pid = static_cast<uint64_t>(getpid());
  if (folder[0] == 0 || owner == pid) return;
  owner = pid;
  timespec now{};
  clock_gettime(CLOCK_REALTIME, &now);
  char path[sizeof folder + 64];
  snprintf(path, sizeof path, "%s/%llu-%lld%09ld.counters", folder, static_cast<unsigned long long>(pid),
           static_cast<long long>(now.tv_sec), now.tv_nsec);
  map_to(path);  // where that fails (the run is over), the process counts for itself alone
}

static int map_to(const char* path) {
  int file = open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
  if (file < 0) return errno;
  int error = write(file, counters, sizeof(Counters)) == sizeof(Counters) ? 0 : errno;
  if (error == 0) {
    // The mapping of the process takes the file's place behind the same address: no pointer goes stale.
    void* place = mmap(counters, sizeof(Counters), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, file, 0);
    if (place == MAP_FAILED) error = errno;
  }
  close(file);
  return error;
}

Kind* kind(const char* name) {
  static std::mutex mutex;
  std::lock_guard<std::mutex> guard(mutex);
  uint64_t count = counters->kind_count;
  for (uint64_t i = 0; i < count; i++) {
    if (strncmp(counters->kinds[i].name, name, sizeof(Kind::name) - 1) == 0) return &counters->kinds[i];
  }
  if (count == kMaxKinds) return &counters->kinds[kMaxKinds - 1];
  strncpy(counters->kinds[count].name, name, sizeof(Kind::name) - 1);
  counters->kind_count = count + 1;
  return &counters->kinds[count];
}

std::atomic<bool> wants_sites{false};
std::atomic<uint64_t> exact_events{256};

static void set_exact_events(uint64_t events) {
  exact_events = events;
  counters->flags = (counters->flags & 0xffffffffu) | events << 32;
}

uint64_t look_up(uint64_t more) {
  uint64_t former = exact_events, events = counters->site_events;
  wants_sites = true;
  if (events <= former) set_exact_events(std::max(former, events + more));
  return former;
}

void look_up_as_before(uint64_t events) {
  wants_sites = folder[0] != 0;
  set_exact_events(events);
}

// The entry of a table that counts this place; its last one, "others", once all are taken.
template <class Entry, size_t size>
static Entry* entry(Entry (&entries)[size], Counter& counter, const char* operation, const char* file, uint64_t line) {
  static std::mutex mutex;
  std::lock_guard<std::mutex> guard(mutex);
  size_t length = strlen(file);
  if (length >= sizeof(Entry::file)) file += length - (sizeof(Entry::file) - 1);
  uint64_t count = counter;
  for (uint64_t i = 0; i < count; i++) {
    Entry& known = entries[i];
    if (known.line == line && strncmp(known.operation, operation, sizeof(Entry::operation) - 1) == 0 &&
        strcmp(known.file, file) == 0) {
      return &known;
    }
  }
  if (count == size) return &entries[size - 1];
  Entry& added = entries[count];
  bool last = count == size - 1;
  strncpy(added.operation, last ? "others" : operation, sizeof(Entry::operation) - 1);
  strncpy(added.file, last ? "" : file, sizeof(Entry::file) - 1);
  added.line = last ? 0 : line;
  counter = count + 1;
  return &added;
}

Site* site(const char* operation, const char* file, uint64_t line) {
  return entry(counters->sites, counters->site_count, operation, file, line);
}

HostSite* host_site(const char* operation, const char* file, uint64_t line) {
  return entry(counters->host_sites, counters->host_site_count, operation, file, line);
}

void note_assumed(const Kind* kind, int position, int dtype) {
  static std::mutex mutex;
  std::lock_guard<std::mutex> guard(mutex);
  uint64_t count = counters->assumed_count;
  if (count == kMaxAssumed) return;
  counters->assumed[count] = {static_cast<uint32_t>(kind - counters->kinds), static_cast<int16_t>(position),
                              static_cast<int16_t>(dtype)};
  counters->assumed_count = count + 1;
}

void note_lack(Lack lack, const char* name, int dtype, const char* text) {
  uint16_t line = line_of_program();
  static std::mutex mutex;
  std::lock_guard<std::mutex> guard(mutex);
  uint64_t count = counters->lack_count, place = 0, oldest = 0;
  auto is_same = [&](const LackRecord& known) {
    return known.lack == lack && known.dtype == dtype && strncmp(known.name, name, sizeof(LackRecord::name) - 1) == 0;
  };
  for (; place < count && !is_same(counters->lacks[place]); place++) {
    if (counters->lacks[place].last_ns < counters->lacks[oldest].last_ns) oldest = place;
  }
  if (place == kMaxLacks) place = oldest;
  LackRecord& record = counters->lacks[place];
  if (!is_same(record)) record.times = 0;
  record.lack = lack;
  record.dtype = dtype;
  timespec now{};
  clock_gettime(CLOCK_REALTIME, &now);
  record.last_ns = static_cast<uint64_t>(now.tv_sec) * 1000000000u + static_cast<uint64_t>(now.tv_nsec);
  // strncpy fills the rest with zeros, so that nothing of an earlier text stays
  strncpy(record.name, name, sizeof(LackRecord::name) - 1);
  strncpy(record.text, text, sizeof(LackRecord::text) - 1);
  add(record.times);
  note_line_of_lack(static_cast<int>(place), line);
  if (place == count) counters->lack_count = count + 1;
}

}  // namespace toprope::sim
