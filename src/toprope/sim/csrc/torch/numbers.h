// The first NaN and the first overflow of a program, by operator and line; searched by call.cpp and ops_memory.cpp
// while a rehearsal asks for it (../../rehearsal/recorder.py).
//
// Tests: tests/sim/simulated/test_numbers.py.
#pragma once

#include <ATen/core/Tensor.h>

#include "glue.h"

namespace toprope::glue {

struct NotFinite {
  bool nan = false, infinite = false;
};

// Whether a host tensor holds such numbers.
NotFinite not_finite(const at::Tensor& host);

// Notes an operator whose result has such numbers while its operands have none.
void look_at_numbers(const char* name, const NotFinite& operands, const at::Tensor& result);

}  // namespace toprope::glue
