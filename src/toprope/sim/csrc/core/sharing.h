// Device memory shared between processes: a piece of memory moves into a file without a name, which others map. Used by
// ../../sharing.py, and through ../torch/sharing.cpp by the edges of toprope.flow.
//
// Tests: tests/sim/simulated/test_sharing.py.
#pragma once
#include <cstdint>

#include "device.h"

namespace toprope::sim {

struct Share {
  int file = -1;        // stays the owner's; to be duplicated for another process
  uint64_t bytes = 0;   // of the piece
  uint64_t offset = 0;  // of the memory in the piece
};

// Shares the memory at an address of a card. The host must have waited for work on it. Returns 0 or an errno.
// Counts one reference, which `let_go` of some process gives up.
TOPROPE_API int share(void* data, Share* share);

// References that other processes hold, or are still to take up, to the shared memory at an address.
TOPROPE_API uint64_t references(const void* data);

// Maps shared memory of another process into the addresses of a card; null and errno where that fails.
TOPROPE_API void* map_share(int device, const Share& share);
TOPROPE_API void let_go(int device, void* data);

}  // namespace toprope::sim
