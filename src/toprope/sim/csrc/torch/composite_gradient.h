// The gradient of an operator that is composed of others here: recorded as the one kernel that it is on a card. Used by
// ops_nn.cpp, and by ../../composites.py through torch.ops.toprope_sim.record_gradient, which packs the tensors.
//
// Tests: tests/sim/simulated/test_timing.py.
#pragma once
#include <ATen/SequenceNumber.h>
#include <ATen/core/Tensor.h>

#include <string>
#include <vector>

#include "../core/signatures.h"

namespace toprope::glue {

// Records the gradient of these results as one operator of this name whenever it is computed; the operators that
// compute it are its parts. It has been made of autograd's nodes from number `first` on (at::sequence_number::peek()).
void record_gradient(const std::vector<at::Tensor>& results, uint64_t first, const std::string& name, int device,
                     const sim::Signature& signature);

}  // namespace toprope::glue
