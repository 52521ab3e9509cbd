// The sizes in which the caching allocator hands out memory, as PYTORCH_NPU_ALLOC_CONF changes them. Set by
// ../torch/allocator_settings.cpp, read by block.h and heap.h.
//
// Tests: tests/sim/simulated/test_allocator_settings.py; tests/helpers/core_library.py has the values without settings
// again.
#pragma once
#include <array>
#include <cstddef>
#include <cstdint>

#include "device.h"

namespace toprope::sim {

struct MemoryRules {
  size_t medium_piece = size_t{20} << 20;  // blocks up to kMediumBlock share pieces of this size
  size_t segment = 0;                      // larger pieces are multiples of it; 0 for those of kGrain
  size_t max_split = SIZE_MAX;             // blocks of this size on are not split
  size_t max_rounding = size_t{20} << 20;  // most bytes of such a block beyond those asked for
  std::array<size_t, 16> divisions{};      // steps between powers of two that sizes are rounded to, from 1 MiB on
};

TOPROPE_API extern MemoryRules memory_rules;

}  // namespace toprope::sim
