// Memory of the host that simulates the cards. A card may promise more memory than the host has free;
// ../torch/memory.cpp asks here before large ranges are written, and raises.
//
// Tests: tests/sim/simulated/test_allocator_settings.py (a size that the host does not have).
#pragma once
#include <cstddef>

#include "device.h"

namespace toprope::sim {

// Ranges of this size and more are checked before they are written.
constexpr size_t kMuchMemory = size_t{1} << 30;

// Bytes that the host can give without ending a process; SIZE_MAX where nothing tells.
TOPROPE_API size_t host_memory_left();

// Bytes of a range that no memory is behind yet.
TOPROPE_API size_t bytes_without_memory(const void* data, size_t bytes);

}  // namespace toprope::sim
