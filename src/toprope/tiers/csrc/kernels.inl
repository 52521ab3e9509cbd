// All kernels of a path (`Kernels` of pages.h): arranges activations, and chooses the product with few rows (few.inl)
// or many (many.inl). Included by portable.cpp, avx2.cpp and avx512.inl. How activations are arranged (`pack`) is
// between this file, few.inl and many.inl alone: change it in all three. FEW and PART are measured choices.
// Tests: tests/tiers/test_pages_kernels.py.
#pragma once

#include "few.inl"
#include "many.inl"

namespace pages {
namespace {

constexpr int64_t FEW = 8;     // rows of activations up to which codes are decoded in registers
constexpr int64_t PART = 256;  // columns of activations that are arranged at once

template <class V>
struct Kernel : Basics<V> {
    using B = Basics<V>;
    using B::NARROW;
    using B::TALL;
    using B::WIDE;
    using B::decode;
    using B::element;
    using B::ordered;
    using B::padded;

    static bool pairs(const Product& p) { return V::PAIRS && p.type == BFLOAT16; }
    static bool few(const Product& p) { return p.m <= FEW; }

    static int64_t packed_bytes(const Product& p) {
        return (few(p) ? p.m : up(p.m, NARROW)) * padded(*p.page) * (few(p) || !pairs(p) ? 4 : 2) + 64;
    }

    static float activation(const Product& p, int64_t m, int64_t k) {
        if (m >= p.m || k >= p.page->cols) return 0.0f;
        int64_t at = m * p.page->cols + k;
        if (p.type == FLOAT32) return static_cast<const float*>(p.x)[at];
        return float_of(uint32_t(static_cast<const uint16_t*>(p.x)[at]) << 16);
    }

    static int64_t packed_parts(const Product& p) { return up(padded(*p.page), PART) / PART; }

    // Part `part` of the columns, of all rows of x.
    static void pack(const Product& p, int64_t part) {
        const QuantisedTensor& page = *p.page;
        const int64_t columns = padded(page), begin = part * PART;
        const int64_t end = begin + PART < columns ? begin + PART : columns;
        const bool in_order = ordered(page), paired = pairs(p) && !few(p);
        int64_t width = few(p) ? p.m : up(p.m, NARROW);
        for (int64_t first = 0; first < width;) {
            int64_t group = few(p) ? 1 : width - first >= WIDE ? WIDE : NARROW;
            for (int64_t m = first; m < first + group; ++m)
                for (int64_t k = begin; k < end; ++k) {
                    float value = activation(p, m, in_order ? k : element(k));
                    if (paired) {
                        auto out = reinterpret_cast<uint16_t*>(p.packed);
                        out[first * columns + (k / 2 * group + m - first) * 2 + k % 2] = uint16_t(bits_of(value) >> 16);
                    } else {
                        p.packed[first * columns + k * group + m - first] = value;
                    }
                }
            first += group;
        }
    }

    static void multiply(const Product& p, int64_t begin, int64_t end) {
        if (few(p)) return Few<V>::multiply_few(p, begin, end);
        if constexpr (V::PAIRS) {
            if (pairs(p)) return Many<V>::template multiply_many<true>(p, begin, end);
        }
        Many<V>::template multiply_many<false>(p, begin, end);
    }

    // With few tasks a thread uses what it has prefetched itself; with many, threads that are delayed take fewer.
    static int64_t rows_of_a_task(const Product& p, int threads) {
        if (!few(p)) return 4 * TALL;
        int64_t share = p.page->rows / (8 * threads);
        return share < 32 ? 32 : share > 128 ? 128 : share / 2 * 2;
    }

    static const Kernels* kernels() {
        static const Kernels these = {decode, packed_bytes, packed_parts, pack, multiply, rows_of_a_task};
        return &these;
    }
};

}  // namespace
}  // namespace pages
