// The path for CPUs with AVX-512 but without its products of bf16: avx512.inl, compiled with flags of its own
// (toprope/tiers/quant/kernels.py) and chosen by api.cpp. Nothing else belongs here. All paths decode to the same bits.
// Tests: tests/tiers/test_pages_kernels.py, on CPUs that have these instructions.
#if defined(__AVX512F__)
#include "avx512.inl"

namespace pages {
const Kernels* avx512_kernels() { return Kernel<Avx512>::kernels(); }
}  // namespace pages

#else
#include "pages.h"

namespace pages {
const Kernels* avx512_kernels() { return nullptr; }
}  // namespace pages

#endif
