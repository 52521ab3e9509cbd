// A product with few rows of activations, such as one token: codes are decoded in registers, and are never in memory as
// numbers. kernels.inl chooses between this and many.inl. The order of the sum may change: the tests compare within the
// rounding of fp32. Speed is measured by toprope/tiers/quant/measure.py.
// Tests: tests/tiers/test_pages_kernels.py.
#pragma once

#include "basics.inl"

namespace pages {
namespace {

constexpr int64_t GROUP = 4;  // rows of activations that `dot` takes at once

// Distance in bytes of the prefetch of codes, into the second-level cache: with the first level, a product that finds
// nothing cached was measured to take a fifth longer.
constexpr int64_t AHEAD = 8192;

template <class V>
struct Few : Basics<V> {
    using B = Basics<V>;
    using typename B::F;
    using typename B::I;
    using B::CHUNK;
    using B::L;
    using B::fetch_scales;
    using B::padded;
    using B::row_bytes;
    using B::scale_buffer;
    using B::scale_stride;
    using B::scales_of;
    using B::values;
    using B::write;

    template <int R, int M, int BLOCK>
    static void dot(const QuantisedTensor& page, int64_t row, const float* scales, const float* x, int64_t stride,
                    float* sums) {
        typename V::Table table = V::table(values(page));
        const int64_t bytes = row_bytes(page), step = scale_stride(page), chunks = padded(page) / CHUNK;
        const uint8_t* codes = page.codes + row * bytes;
        F total[R][M];
        for (int r = 0; r < R; ++r)
            for (int m = 0; m < M; ++m) total[r][m] = V::zero();
        for (int64_t c = 0; c < chunks; ++c) {
            int64_t left = bytes - c * 4 * L;
            I words[R];
            for (int r = 0; r < R; ++r) __builtin_prefetch(codes + r * bytes + c * 4 * L + AHEAD, 0, 2);
            for (int r = 0; r < R; ++r)
                words[r] = left >= 4 * L ? V::words(codes + r * bytes + c * 4 * L)
                                         : V::some_words(codes + r * bytes + c * 4 * L, left);
            F part[R][M];
            for (int r = 0; r < R; ++r)
                for (int m = 0; m < M; ++m) part[r][m] = V::zero();
            const float* at = x + c * CHUNK;
#define TP_PLACE(K)                                                                                \
    for (int r = 0; r < R; ++r) {                                                                  \
        F value = B::template place<K>(words[r], table);                                                       \
        for (int m = 0; m < M; ++m) part[r][m] = V::fma(value, V::load(at + m * stride + K * L), part[r][m]); \
    }
            TP_PLACE(0) TP_PLACE(1) TP_PLACE(2) TP_PLACE(3) TP_PLACE(4) TP_PLACE(5) TP_PLACE(6) TP_PLACE(7)
#undef TP_PLACE
            for (int r = 0; r < R; ++r) {
                F scale = V::template spread<BLOCK>(scales + r * step + c * CHUNK / BLOCK);
                for (int m = 0; m < M; ++m) total[r][m] = V::fma(part[r][m], scale, total[r][m]);
            }
        }
        for (int r = 0; r < R; ++r)
            for (int m = 0; m < M; ++m) sums[r * GROUP + m] = V::sum(total[r][m]);
    }

    template <int R, int M>
    static void dot_integers(const QuantisedTensor& page, int64_t row, const float* scales, const float* x,
                             int64_t stride, float* sums) {
        auto codes = reinterpret_cast<const int8_t*>(page.codes) + row * page.cols;
        F total[R][M];
        for (int r = 0; r < R; ++r)
            for (int m = 0; m < M; ++m) total[r][m] = V::zero();
        int64_t at = 0;
        for (; at + L <= page.cols; at += L)
            for (int r = 0; r < R; ++r) {
                F value = V::integers(codes + r * page.cols + at);
                for (int m = 0; m < M; ++m) total[r][m] = V::fma(value, V::load(x + m * stride + at), total[r][m]);
            }
        for (int r = 0; r < R; ++r)
            for (int m = 0; m < M; ++m) {
                float sum = V::sum(total[r][m]);
                for (int64_t i = at; i < page.cols; ++i) sum += float(codes[r * page.cols + i]) * x[m * stride + i];
                sums[r * GROUP + m] = sum * scales[r * scale_stride(page)];
            }
    }

    template <int R, int M>
    static void dots(const QuantisedTensor& page, int64_t row, const float* scales, const float* x, int64_t stride,
                     float* sums) {
        switch (page.format) {
            case NVFP4: return dot<R, M, 16>(page, row, scales, x, stride, sums);
            case MXFP4: return dot<R, M, 32>(page, row, scales, x, stride, sums);
            case NF4: return dot<R, M, 64>(page, row, scales, x, stride, sums);
            default: return dot_integers<R, M>(page, row, scales, x, stride, sums);
        }
    }

    // Up to 2 rows of the page with up to GROUP rows of activations; returns how many of these were taken.
    static int64_t some_dots(const QuantisedTensor& page, int64_t row, int64_t rows, const float* scales,
                             const float* x, int64_t m, float* sums) {
        const int64_t stride = padded(page);
        if (rows == 1) return dots<1, 1>(page, row, scales, x, stride, sums), 1;
        if (m >= 4) return dots<2, 4>(page, row, scales, x, stride, sums), 4;
        if (m >= 2) return dots<2, 2>(page, row, scales, x, stride, sums), 2;
        return dots<2, 1>(page, row, scales, x, stride, sums), 1;
    }

    static void multiply_few(const Product& p, int64_t begin, int64_t end) {
        const QuantisedTensor& page = *p.page;
        float sums[2 * GROUP];
        float* scales = scale_buffer(page, 2);
        for (int64_t row = begin; row < end;) {
            int64_t rows = end - row >= 2 ? 2 : 1;
            for (int64_t r = 0; r < rows; ++r) {
                scales_of(page, row + r, scales + r * scale_stride(page));
                fetch_scales(page, row + rows + r);
            }
            for (int64_t first = 0; first < p.m;) {
                const float* x = p.packed + first * padded(page);
                int64_t count = some_dots(page, row, rows, scales, x, p.m - first, sums);
                for (int64_t r = 0; r < rows; ++r)
                    for (int64_t m = 0; m < count; ++m) write(p, first + m, row + r, sums[r * GROUP + m]);
                first += count;
            }
            row += rows;
        }
    }
};

}  // namespace
}  // namespace pages
