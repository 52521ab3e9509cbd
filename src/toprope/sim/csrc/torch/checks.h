// Errors of torch_npu and of the kernels of a card for wrong arguments, for call.cpp and fallback.cpp.
//
// Tests: tests/sim/simulated/test_argument_checks.py.
#pragma once
#include <ATen/core/ivalue.h>
#include <c10/util/Exception.h>

#include <string>
#include <vector>

#include "glue.h"

namespace toprope::glue {

// Whether a kernel of the card would go wrong where the host's raised this: it reads an index that no element has.
bool is_failure_in_kernel(const std::string& op, const c10::Error& error);

using Arguments = std::vector<c10::IValue>;

// Arguments that the host's kernel takes and torch_npu's refuses: the text of the refusal, empty where there is none.
struct ArgumentCheck {
  const char* code;
  std::string (*refusal)(const Arguments&);
};

// The check of an operator; null where it has none.
const ArgumentCheck* argument_check(const std::string& op);
void check_arguments(const ArgumentCheck& check, const std::string& op, const Arguments& arguments);

// Raises the error of a host kernel as torch_npu does, with its text and code, where its operator makes that check
// itself; else the error that is being handled.
[[noreturn]] void rethrow_as_vendor(const std::string& op, const c10::Error& error);

}  // namespace toprope::glue
