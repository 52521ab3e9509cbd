// Stands for all of ATen, of which ATen/autocast_mode.h uses the tensor alone.
#pragma once
#include <ATen/core/Tensor.h>
