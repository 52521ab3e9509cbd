// Generators of the card: each keeps a host twin that draws for it.
#pragma once
#include <ATen/core/Generator.h>

namespace toprope::glue {

const at::Generator& default_generator(int device);
at::Generator new_generator(int device);

// The generator that a host kernel draws from on behalf of this one.
at::Generator host_twin(const at::Generator& generator);

}  // namespace toprope::glue
