#include "counters.h"

#include <fcntl.h>
#include <pthread.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <mutex>
#include <new>

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
  static Counters head;  // the names and the description stay, the figures begin anew
  memcpy(static_cast<void*>(&head), counters, sizeof head);
  leave_parents_file();
  memcpy(counters->magic, head.magic, sizeof head.magic);
  memcpy(counters->chip, head.chip, sizeof head.chip);
  memcpy(counters->torch_version, head.torch_version, sizeof head.torch_version);
  counters->pid = static_cast<uint64_t>(getpid());
  counters->flags = head.flags & 1;
  counters->kind_count = head.kind_count.load();
  for (uint64_t i = 0; i < head.kind_count; i++) memcpy(counters->kinds[i].name, head.kinds[i].name, sizeof(Kind::name));
}

int keep_counters_in(const char* path) {
  int error = map_to(path);
  const char* end = strrchr(path, '/');
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
    // The mapping of the process takes the file's place behind the same address: nobody's pointer goes stale.
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

}  // namespace toprope::sim
