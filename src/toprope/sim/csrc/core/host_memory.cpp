// Free memory of the host; see host_memory.h.
//
// Tests: tests/sim/simulated/test_allocator_settings.py.
#include "host_memory.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <fstream>
#include <string>
#include <vector>

namespace toprope::sim {

namespace {

constexpr size_t kUnknown = SIZE_MAX;

// The number behind a name in a file of lines "name number"; kUnknown where there is none.
size_t number_of(const char* path, const std::string& name) {
  std::ifstream file(path);
  std::string word;
  size_t number;
  while (file >> word) {
    if (word == name) return file >> number ? number : kUnknown;
  }
  return kUnknown;
}

size_t number_in(const char* path) {
  std::ifstream file(path);
  size_t number;
  return file >> number ? number : kUnknown;  // "max" is no number
}

// What a control group may still take; what it keeps of files only can be taken from it.
size_t left_of_group(const char* limit, const char* usage, const char* details, const char* files) {
  size_t most = number_in(limit), used = number_in(usage);
  if (most == kUnknown || used == kUnknown || most > kUnknown / 2) return kUnknown;
  size_t reclaimable = number_of(details, files);
  if (reclaimable != kUnknown) used -= std::min(used, reclaimable);
  return most - std::min(most, used);
}

}  // namespace

size_t host_memory_left() {
  size_t kilobytes = number_of("/proc/meminfo", "MemAvailable:");
  return std::min({kilobytes == kUnknown ? kUnknown : kilobytes * 1024,
                   left_of_group("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current",
                                 "/sys/fs/cgroup/memory.stat", "inactive_file"),
                   left_of_group("/sys/fs/cgroup/memory/memory.limit_in_bytes",
                                 "/sys/fs/cgroup/memory/memory.usage_in_bytes", "/sys/fs/cgroup/memory/memory.stat",
                                 "total_inactive_file")});
}

size_t bytes_without_memory(const void* data, size_t bytes) {
  auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  auto begin = reinterpret_cast<uintptr_t>(data) / page * page;
  size_t pages = (reinterpret_cast<uintptr_t>(data) + bytes - begin + page - 1) / page;
  std::vector<unsigned char> present(pages);
  if (mincore(reinterpret_cast<void*>(begin), pages * page, present.data()) != 0) return 0;
  size_t missing = 0;
  for (unsigned char each : present) missing += (each & 1) == 0;
  return missing * page;
}

}  // namespace toprope::sim
