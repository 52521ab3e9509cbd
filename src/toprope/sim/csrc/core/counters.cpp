#include "counters.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <mutex>
#include <new>

namespace toprope::sim {

static Counters* in_memory() {
  void* place = mmap(nullptr, sizeof(Counters), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  return place == MAP_FAILED ? new Counters() : static_cast<Counters*>(place);
}

Counters* counters = in_memory();

int keep_counters_in(const char* path) {
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
