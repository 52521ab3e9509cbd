// A product with many rows of activations, such as a prompt or a training batch: some rows of the page are decoded into
// a panel in the cache, and all activations are multiplied with it. kernels.inl chooses between this and few.inl.
//
// Activations are arranged in groups of WIDE rows (the last of NARROW if that is enough): the lanes of an accumulator
// are rows of activations, and a weight is broadcast to them. With bf16 products, two columns are one lane of 32 bits.
// The arrangement is made by `pack` in kernels.inl; sizes of panels are free, and the order of the sum within fp32's
// rounding.
// Tests: tests/tiers/test_pages_kernels.py.
#pragma once

#include "basics.inl"

namespace pages {
namespace {

// Columns of a panel: it, and its share of the activations, stay in the nearest caches.
template <bool PAIRED>
constexpr int64_t PLACES = PAIRED ? 512 : 256;

template <class V>
struct Many : Basics<V> {
    using B = Basics<V>;
    using typename B::F;
    using typename B::I;
    using B::CHUNK;
    using B::L;
    using B::NARROW;
    using B::TALL;
    using B::WIDE;
    using B::fetch_scales;
    using B::row_bytes;
    using B::padded;
    using B::scale_buffer;
    using B::scale_stride;
    using B::scales_of;
    using B::values;
    using B::write;

    template <int BLOCK, bool PAIRED>
    static void panel(const QuantisedTensor& page, int64_t row, int64_t from, int64_t count, const float* scales,
                      void* out) {
        typename V::Table table = V::table(values(page));
        const int64_t bytes = row_bytes(page);
        for (int64_t c = from / CHUNK; c < (from + count) / CHUNK; ++c) {
            const uint8_t* at = page.codes + row * bytes + c * 4 * L;
            int64_t left = bytes - c * 4 * L;
            I words = left >= 4 * L ? V::words(at) : V::some_words(at, left);
            F scale = V::template spread<BLOCK>(scales + c * CHUNK / BLOCK);
#define TP_PAIR(K)                                                                                  \
    store_pair<PAIRED>(out, c * CHUNK - from + 2 * K * L,                                           \
                       V::mul(B::template place<2 * K>(words, table), scale),                       \
                       V::mul(B::template place<2 * K + 1>(words, table), scale));
            TP_PAIR(0) TP_PAIR(1) TP_PAIR(2) TP_PAIR(3)
#undef TP_PAIR
        }
    }

    template <bool PAIRED>
    static void store_pair(void* out, int64_t at, F first, F second) {
        if constexpr (PAIRED) {
            V::store_bfloat16(static_cast<uint16_t*>(out) + at, first, second);
        } else {
            V::store(static_cast<float*>(out) + at, first);
            V::store(static_cast<float*>(out) + at + L, second);
        }
    }

    template <bool PAIRED>
    static void panel_integers(const QuantisedTensor& page, int64_t row, int64_t from, int64_t count, float scale,
                               void* out) {
        auto codes = reinterpret_cast<const int8_t*>(page.codes) + row * page.cols;
        F scales = V::all(scale);
        for (int64_t at = from; at < from + count; at += 2 * L) {
            int8_t copy[2 * L] = {};
            const int8_t* source = codes + at;
            if (at + 2 * L > page.cols) {
                if (at < page.cols) std::memcpy(copy, source, static_cast<size_t>(page.cols - at));
                source = copy;
            }
            store_pair<PAIRED>(out, at - from, V::mul(V::integers(source), scales),
                               V::mul(V::integers(source + L), scales));
        }
    }

    template <bool PAIRED>
    static void panels(const QuantisedTensor& page, int64_t row, int64_t from, int64_t count, const float* scales,
                       void* out) {
        switch (page.format) {
            case NVFP4: return panel<16, PAIRED>(page, row, from, count, scales, out);
            case MXFP4: return panel<32, PAIRED>(page, row, from, count, scales, out);
            case NF4: return panel<64, PAIRED>(page, row, from, count, scales, out);
            default: return panel_integers<PAIRED>(page, row, from, count, scales[0], out);
        }
    }

    template <bool PAIRED, int WIDTH>  // WIDTH vectors of activations
    static void multiply_panel(const float* panel, const float* x, int64_t steps, float* sums) {
        // `panel` has PLACES / (PAIRED ? 2 : 1) words to a row
        constexpr int64_t ROW = PLACES<PAIRED> / (PAIRED ? 2 : 1);
        F total[TALL][WIDTH];
        for (int n = 0; n < TALL; ++n)
            for (int w = 0; w < WIDTH; ++w) total[n][w] = V::load(sums + (n * WIDTH + w) * L);
        for (int64_t k = 0; k < steps; ++k) {
            F values[WIDTH];
            for (int w = 0; w < WIDTH; ++w) values[w] = V::load(x + (k * WIDTH + w) * L);
            for (int n = 0; n < TALL; ++n) {
                F weight = V::all(panel[n * ROW + k]);
                for (int w = 0; w < WIDTH; ++w) {
                    if constexpr (PAIRED) total[n][w] = V::fma_pairs(weight, values[w], total[n][w]);
                    else total[n][w] = V::fma(weight, values[w], total[n][w]);
                }
            }
        }
        for (int n = 0; n < TALL; ++n)
            for (int w = 0; w < WIDTH; ++w) V::store(sums + (n * WIDTH + w) * L, total[n][w]);
    }

    // Prefetches the codes of the next rows while these are worked on: the CPU does not predict reads of some bytes of
    // each of several rows. Inlined, since g++ drops calls of a function that does nothing but prefetch.
    __attribute__((always_inline)) static inline void fetch(const QuantisedTensor& page, int64_t row, int64_t rows,
                                                            int64_t from, int64_t places) {
        const int64_t half = page.format == INT8 ? 1 : 2, bytes = row_bytes(page);
        const int64_t first = from / half, last = first + places / half < bytes ? first + places / half : bytes;
        for (int64_t r = row; r < row + rows; ++r)
            for (int64_t i = first; i < last; i += 64) __builtin_prefetch(page.codes + r * bytes + i, 0, 2);
        // scales of a few rows at each panel, as a CPU has a limited number of outstanding requests
        const int64_t panels = up(page.cols, places) / places;
        for (int64_t r = row + from / places; r < row + rows; r += panels) fetch_scales(page, r);
    }

    template <bool PAIRED>
    static void multiply_many(const Product& p, int64_t begin, int64_t end) {
        const QuantisedTensor& page = *p.page;
        constexpr int64_t places = PLACES<PAIRED>, words = PAIRED ? 2 : 1;
        const int64_t width = up(p.m, NARROW), columns = padded(page);
        static thread_local Buffer<float> panel_memory, sum_memory;
        float* panel = panel_memory.of(TALL * places / words);
        float* sums = sum_memory.of(TALL * up(p.m, WIDE));
        float* scales = scale_buffer(page, TALL);
        for (int64_t row = begin; row < end; row += TALL) {
            int64_t rows = end - row < TALL ? end - row : TALL;
            for (int64_t r = 0; r < rows; ++r) scales_of(page, row + r, scales + r * scale_stride(page));
            std::memset(sums, 0, static_cast<size_t>(TALL * width) * sizeof(float));
            for (int64_t from = 0; from < columns; from += places) {
                int64_t count = columns - from < places ? columns - from : places;
                fetch(page, row + rows, end - row - rows < TALL ? end - row - rows : TALL, from, places);
                for (int64_t r = 0; r < rows; ++r)
                    panels<PAIRED>(page, row + r, from, count, scales + r * scale_stride(page),
                                   panel + r * places / words);
                for (int64_t m = 0; m < width;) {
                    const float* x = p.packed + (m * columns + (width - m >= WIDE ? WIDE : NARROW) * from) / words;
                    if (width - m >= WIDE) {
                        multiply_panel<PAIRED, 2>(panel, x, count / words, sums + m * TALL);
                        m += WIDE;
                    } else {
                        multiply_panel<PAIRED, 1>(panel, x, count / words, sums + m * TALL);
                        m += NARROW;
                    }
                }
            }
            write_sums(p, sums, row, rows, width);
        }
    }

    static void write_sums(const Product& p, const float* sums, int64_t row, int64_t rows, int64_t width) {
        for (int64_t first = 0; first < width;) {
            int64_t group = width - first >= WIDE ? WIDE : NARROW;
            for (int64_t m = first; m < first + group && m < p.m; ++m)
                for (int64_t r = 0; r < rows; ++r) write(p, m, row + r, sums[first * TALL + r * group + m - first]);
            first += group;
        }
    }
};

}  // namespace
}  // namespace pages
