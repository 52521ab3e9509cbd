// Replaces torch's ATen/ATen.h to save compile time: ATen/autocast_mode.h uses only the tensor of it. A torch whose
// header needs more does not compile ../../../autocast.cpp: include here what it names.
//
// Tests: tests/sim/simulated/test_amp.py.
#pragma once
#include <ATen/core/Tensor.h>
