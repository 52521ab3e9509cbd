// Operators that torch_npu has for sparse tensors in coordinate format and in compressed ones; fallback.cpp registers
// them.
//
// Tests: tests/sim/simulated/test_sparse.py.
#pragma once
#include <ATen/core/Tensor.h>
#include <ATen/core/function_schema.h>

#include <string>

namespace toprope::glue {

bool is_sparse_on_card(const c10::FunctionSchema& schema);

bool is_compressed_on_card(const c10::FunctionSchema& schema);

// Operators whose results the host knows without the card: numbers about the shape.
bool asks_for_shape(const std::string& name);

// Copies between host and card, whose operands are of both.
bool copies(const std::string& name);

at::Tensor max_of_sparse(const at::Tensor& self);

}  // namespace toprope::glue
