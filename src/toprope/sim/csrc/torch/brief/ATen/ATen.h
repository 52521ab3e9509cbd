// Replaces torch's ATen/ATen.h to save compile time: ATen/autocast_mode.h uses only the tensor of it.
#pragma once
#include <ATen/core/Tensor.h>
