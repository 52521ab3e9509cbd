// Operators that run on the host in the release of torch_npu that this card stands for. Asked by call.h and
// fallback.cpp when an operator is called first.
//
// Written by ../../installation/host_operators.py from ../../../support/operators_by_release.toml: a change of the
// file's form is made on both sides, with another `_FORM` there. Tests: tests/sim/simulated/test_operators_on_host.py.
#pragma once
#include <atomic>
#include <cstdint>
#include <string>

namespace toprope::glue {

struct HostOperator {
  std::string name;         // what counts, and the vendor's warning says: "aten::isin.Tensor_Tensor_out"
  uint64_t dtypes = 0;      // only where the first operand has one of these (bits are c10::ScalarType); 0: always
  bool registered = false;  // the release has a kernel, which computes on the host
  std::atomic<bool> warned{false};
};

// The entry of an operator ("aten::isin.Tensor_Tensor"); null where it runs on the card. An operator of another library
// has one from its first use on. Entries stay where they are.
HostOperator* host_operator(const std::string& full);

// What torch_npu does before it runs an operator on the host: it warns once of each, or refuses all.
void announce_host_operator(HostOperator& op);

// The same of an operator of compressed tensors that torch_npu itself computes on the host.
void announce_compressed_on_host(const std::string& full);

// Counts a run on the host, with the bytes that went there and came back, for the line of the program.
void count_on_host(const HostOperator& op, uint64_t bytes_to_host, uint64_t bytes_back);

}  // namespace toprope::glue
