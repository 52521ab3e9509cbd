// The vendor's documents about operators, their dtypes and dimensions, for one chip. Asked by ../torch/call.cpp for
// each operand.
//
// Written by ../../installation/documents.py from ../../../support/refusals.toml into a file that can be read quickly
// at every start: a change of its form is made on both sides, with another `_FORM` there. Tests:
// tests/sim/simulated/test_refused_dtypes.py, tests/sim/test_documents.py.
#pragma once
#include <cstdint>
#include <string>

#include "counters.h"

namespace toprope::sim {

constexpr int kPositions = 8;  // arguments of an operator that are looked at; later ones never are

struct Rules {
  // By position of the argument; bits are c10::ScalarType. What a document does not mention is in neither.
  uint64_t refused[kPositions] = {};
  uint64_t known[kPositions] = {};
  std::string kernel;               // the vendor's interface
  std::string sentence[kPositions];  // of the refusal, with a \x01 where the dtype goes
  int64_t dimensions[kPositions];    // the most that a tensor may have
  std::string larger[kPositions];    // the sentence for a tensor with more
};

// Reads the documents. Returns 0 or an errno. Only before operators run.
TOPROPE_API int load_documents(const char* path);

// The rules of an operator ("aten::add.Tensor"), null where no document mentions it.
TOPROPE_API const Rules* rules_of(const std::string& name);

// The vendor's name of a dtype, "DT_DOUBLE".
TOPROPE_API const char* vendor_dtype(int dtype);

}  // namespace toprope::sim
