// Generators of the card: their numbers depend on their seed and offset alone. Used by call.cpp for operators that
// draw, by device.cpp for torch's hooks, and by ../../npu/random.py.
//
// Tests: tests/sim/simulated/test_random.py.
#pragma once
#include <ATen/core/Generator.h>

namespace toprope::glue {

const at::Generator& default_generator(int device);
at::Generator new_generator(int device);

// The generator that the host kernel of one operator draws from on behalf of this one, whose offset it advances.
at::Generator draw(const at::Generator& generator);

}  // namespace toprope::glue
