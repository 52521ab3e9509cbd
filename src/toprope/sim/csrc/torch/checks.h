// What torch_npu and the kernels of a card make of wrong arguments.
#pragma once
#include <ATen/core/ivalue.h>
#include <c10/util/Exception.h>

#include <string>
#include <vector>

#include "glue.h"

namespace toprope::glue {

// Whether a kernel of the card would go wrong where the host's raised this: it reads an index that no element has.
bool is_failure_in_kernel(const std::string& op, const c10::Error& error);

// Refuses arguments that the host's kernel takes and torch_npu's does not.
void check_arguments(const std::string& op, const std::vector<c10::IValue>& arguments);
bool has_argument_checks(const std::string& op);

// Raises the error of a host kernel as torch_npu does, with its text and code, where its operator makes that check
// itself; else the error that is being handled.
[[noreturn]] void rethrow_as_vendor(const std::string& op, const c10::Error& error);

}  // namespace toprope::glue
