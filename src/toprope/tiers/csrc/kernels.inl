// The kernels, written once over a set of vector operations `V`. Each path includes this file in its own translation
// unit with its own V, compiled for its own instructions; everything here stays inside of that unit.
//
// V::L values of fp32 make a vector. Codes of 4 bits are read V::L words of 32 bits at a time, a "chunk" of 8 * V::L
// codes: half-byte k of word l is element 8 * l + k. Shifting the words by 4 * k thus gives one index to each lane, and
// the elements of a chunk come as 8 vectors: place p = k * V::L + l holds element 8 * l + k. Activations are arranged
// the same way once for a call (`pack`), so that nothing is shuffled per row; INT8 is read in order.
//
// A block of scales covers whole words: one vector of scales serves a chunk.

#include <cstdlib>
#include <cstring>

#include "pages.h"

namespace pages {
namespace {

using std::int64_t;

constexpr int64_t PLACES = 256;   // columns of a panel: it, and its share of the activations, stay in the L1 cache
constexpr int64_t FEW = 8;        // rows of activations up to which `dot` is taken
constexpr int64_t GROUP = 4;      // rows of activations that `dot` takes at once

inline int64_t up(int64_t value, int64_t step) { return (value + step - 1) / step * step; }

// Memory of this thread for scales and panels, 64-byte aligned.
template <class T>
struct Buffer {
    T* memory = nullptr;
    int64_t count = 0;
    T* of(int64_t wanted) {
        if (wanted > count) {
            std::free(memory);
            memory = static_cast<T*>(std::aligned_alloc(64, up(wanted * int64_t(sizeof(T)), 64)));
            if (memory == nullptr) std::abort();
            count = wanted;
        }
        return memory;
    }
    ~Buffer() { std::free(memory); }
};

template <class V>
struct Kernel {
    using F = typename V::F;
    using I = typename V::I;
    static constexpr int64_t L = V::L, CHUNK = 8 * L;

    static const float* values(const Page& page) { return page.format == NF4 ? NF4_VALUES : E2M1_VALUES; }
    static bool ordered(const Page& page) { return page.format == INT8; }
    static int64_t padded(const Page& page) { return up(page.cols, CHUNK); }
    static int64_t element(int64_t place) {
        int64_t p = place % CHUNK;
        return place - p + 8 * (p % L) + p / L;
    }
    static int64_t row_bytes(const Page& page) { return page.format == INT8 ? page.cols : page.cols / 2; }

    // Scales of a row as fp32, the global one in them, and zeros up to where a whole vector may be read.
    static void scales_of(const Page& page, int64_t row, float* out) {
        int64_t blocks = page.blocks(), i = 0;
        if (page.format == NVFP4) {
            auto codes = static_cast<const uint8_t*>(page.scales) + row * blocks;
            F global = V::all(page.global_scale());
            for (; i + L <= blocks; i += L) V::store(out + i, V::mul(V::e4m3(codes + i), global));
            for (; i < blocks; ++i) out[i] = e4m3_value(codes[i]) * page.global_scale();
        } else if (page.format == MXFP4) {
            auto codes = static_cast<const uint8_t*>(page.scales) + row * blocks;
            for (; i < blocks; ++i) out[i] = codes[i] == 255 ? quiet(__builtin_nanf(""))
                                                             : float_of(codes[i] == 0 ? 0x400000u : codes[i] << 23);
        } else {
            auto scales = static_cast<const float*>(page.scales) + row * blocks;
            for (; i < blocks; ++i) out[i] = quiet(scales[i]);
        }
        for (int64_t end = up(blocks, 16) + 16; i < end; ++i) out[i] = 0.0f;
    }

    static float* scale_buffer(const Page& page, int64_t rows) {
        static thread_local Buffer<float> buffer;
        return buffer.of(rows * scale_stride(page));
    }
    static int64_t scale_stride(const Page& page) { return up(page.blocks(), 16) + 16; }

    // --- decode: in order ---

    static float one(const Page& page, const uint8_t* codes, int64_t at, const float* table) {
        if (page.format == INT8) return static_cast<float>(static_cast<int8_t>(codes[at]));
        return table[(codes[at / 2] >> (4 * (at % 2))) & 15];
    }

    template <class T>
    static void put(T* out, float value) {
        if constexpr (sizeof(T) == 4) *out = value;
        else *out = round_to_bfloat16(value);
    }

    // The CPU's own rounding to bf16 takes subnormal numbers for zero: it is used where there are none.
    static bool far_from_zero(const float* scales, int64_t blocks) {
        bool near = false;
        for (int64_t b = 0; b < blocks; ++b) near |= (bits_of(scales[b]) & 0x7FFFFFFF) - 1 < 0x03800000;  // 2^-120
        return !near;
    }

    // `count` whole blocks of a row.
    template <class T, bool STREAM, int BLOCK>
    static void decode_blocks(const uint8_t* codes, const float* scales, int64_t count, const typename V::Table& table,
                              T* out) {
        constexpr int64_t VECTORS = BLOCK / L;
        if constexpr (V::PAIRS && sizeof(T) == 2) {
            if (far_from_zero(scales, count)) {
                const int64_t pairs = count * VECTORS / 2;
                for (int64_t i = 0; i < 2 * pairs; i += 2, codes += L, out += 2 * L) {
                    F first = V::mul(V::lookup(V::in_order(codes), table), V::all(scales[i / VECTORS]));
                    F second = V::mul(V::lookup(V::in_order(codes + L / 2), table), V::all(scales[(i + 1) / VECTORS]));
                    V::template write_pair<STREAM>(out, first, second);
                }
                scales += 2 * pairs / VECTORS;
                count -= 2 * pairs / VECTORS;  // one block of one vector may be left
            }
        }
        for (int64_t b = 0; b < count; ++b) {
            F scale = V::all(scales[b]);
            for (int64_t i = 0; i < VECTORS; ++i, codes += L / 2, out += L)
                V::template write<STREAM>(out, V::mul(V::lookup(V::in_order(codes), table), scale));
        }
    }

    template <class T, bool STREAM>
    static void decode_blocks(const Page& page, const uint8_t* codes, const float* scales, int64_t count, T* out) {
        typename V::Table table = V::table(values(page));
        switch (page.format) {
            case NVFP4: return decode_blocks<T, STREAM, 16>(codes, scales, count, table, out);
            case MXFP4: return decode_blocks<T, STREAM, 32>(codes, scales, count, table, out);
            default: return decode_blocks<T, STREAM, 64>(codes, scales, count, table, out);
        }
    }

    template <class T>
    static void decode_row(const Page& page, int64_t row, bool stream, T* out) {
        float* scales = scale_buffer(page, 1);
        scales_of(page, row, scales);
        const float* table = values(page);
        int64_t at = 0, first = row * page.cols, block = page.block();
        const uint8_t* codes = page.codes;
        if (page.format == INT8) {
            codes += first;
            F scale = V::all(scales[0]);
            for (; at + L <= page.cols; at += L)
                V::template write<false>(out + at, V::mul(V::integers(reinterpret_cast<const int8_t*>(codes + at)), scale));
        } else if (first % 2 == 0) {
            codes += first / 2;
            int64_t whole = page.cols / block;
            if (stream) decode_blocks<T, true>(page, codes, scales, whole, out);
            else decode_blocks<T, false>(page, codes, scales, whole, out);
            at = whole * block;
        }
        bool shifted = page.format != INT8 && first % 2 != 0;
        for (; at < page.cols; ++at)
            put(out + at, one(page, shifted ? page.codes : codes, shifted ? first + at : at, table) * scales[at / block]);
    }

    static void decode(const Page& page, void* out, int32_t type, bool stream, int64_t begin, int64_t end) {
        int64_t size = type == FLOAT32 ? 4 : 2;
        stream = stream && reinterpret_cast<uintptr_t>(out) % 64 == 0 && page.cols * size % 64 == 0;
        for (int64_t row = begin; row < end; ++row) {
            if (type == FLOAT32) decode_row(page, row, stream, static_cast<float*>(out) + row * page.cols);
            else decode_row(page, row, stream, static_cast<uint16_t*>(out) + row * page.cols);
        }
        if (stream) V::fence();
    }

    // --- a product with few rows of activations: codes are decoded in registers ---

    // Places of one chunk of a row, from `left` bytes of codes (more than a chunk has, but in the last one).
    template <int K>
    static F place(I words, const typename V::Table& table) {
        return V::lookup(V::template shift<4 * K>(words), table);
    }

    template <int R, int M, int BLOCK>
    static void dot(const Page& page, int64_t row, const float* scales, const float* x, int64_t stride, float* sums) {
        typename V::Table table = V::table(values(page));
        const int64_t bytes = row_bytes(page), step = scale_stride(page), chunks = padded(page) / CHUNK;
        const uint8_t* codes = page.codes + row * bytes;
        F total[R][M];
        for (int r = 0; r < R; ++r)
            for (int m = 0; m < M; ++m) total[r][m] = V::zero();
        for (int64_t c = 0; c < chunks; ++c) {
            int64_t left = bytes - c * 4 * L;
            I words[R];
            for (int r = 0; r < R; ++r)
                words[r] = left >= 4 * L ? V::words(codes + r * bytes + c * 4 * L)
                                         : V::some_words(codes + r * bytes + c * 4 * L, left);
            F part[R][M];
            for (int r = 0; r < R; ++r)
                for (int m = 0; m < M; ++m) part[r][m] = V::zero();
            const float* at = x + c * CHUNK;
#define TP_PLACE(K)                                                                                \
    for (int r = 0; r < R; ++r) {                                                                  \
        F value = place<K>(words[r], table);                                                       \
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
    static void dot_integers(const Page& page, int64_t row, const float* scales, const float* x, int64_t stride,
                             float* sums) {
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
    static void dots(const Page& page, int64_t row, const float* scales, const float* x, int64_t stride, float* sums) {
        switch (page.format) {
            case NVFP4: return dot<R, M, 16>(page, row, scales, x, stride, sums);
            case MXFP4: return dot<R, M, 32>(page, row, scales, x, stride, sums);
            case NF4: return dot<R, M, 64>(page, row, scales, x, stride, sums);
            default: return dot_integers<R, M>(page, row, scales, x, stride, sums);
        }
    }

    static void write(const Product& p, int64_t m, int64_t row, float sum) {
        int64_t at = m * p.page->rows + row;
        if (p.type == FLOAT32) {
            if (p.bias != nullptr) sum += static_cast<const float*>(p.bias)[row];
            static_cast<float*>(p.out)[at] = sum;
        } else {
            if (p.bias != nullptr) sum += float_of(uint32_t(static_cast<const uint16_t*>(p.bias)[row]) << 16);
            static_cast<uint16_t*>(p.out)[at] = round_to_bfloat16(sum);
        }
    }

    // Up to 2 rows of the page with up to GROUP rows of activations; returns how many of these were taken.
    static int64_t some_dots(const Page& page, int64_t row, int64_t rows, const float* scales, const float* x, int64_t m,
                             float* sums) {
        const int64_t stride = padded(page);
        if (rows == 1) return dots<1, 1>(page, row, scales, x, stride, sums), 1;
        if (m >= 4) return dots<2, 4>(page, row, scales, x, stride, sums), 4;
        if (m >= 2) return dots<2, 2>(page, row, scales, x, stride, sums), 2;
        return dots<2, 1>(page, row, scales, x, stride, sums), 1;
    }

    static void multiply_few(const Product& p, int64_t begin, int64_t end) {
        const Page& page = *p.page;
        float sums[2 * GROUP];
        float* scales = scale_buffer(page, 2);
        for (int64_t row = begin; row < end;) {
            int64_t rows = end - row >= 2 ? 2 : 1;
            for (int64_t r = 0; r < rows; ++r) scales_of(page, row + r, scales + r * scale_stride(page));
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

    // --- a product with many: rows are decoded into a panel in the cache, which all activations pass ---
    //
    // Activations lie as groups of WIDE (the last of NARROW where that is enough) rows side by side: the lanes of an
    // accumulator are rows of activations, and a weight is broadcast to them. With bf16 products, two places are one
    // lane of 32 bits.

    static constexpr int64_t NARROW = L, WIDE = 2 * L, TALL = V::TALL;

    static bool pairs(const Product& p) { return V::PAIRS && p.type == BFLOAT16; }
    static bool few(const Product& p) { return p.m <= FEW; }

    template <int BLOCK, bool PAIRED>
    static void panel(const Page& page, int64_t row, int64_t from, int64_t count, const float* scales, void* out) {
        typename V::Table table = V::table(values(page));
        const int64_t bytes = row_bytes(page);
        for (int64_t c = from / CHUNK; c < (from + count) / CHUNK; ++c) {
            const uint8_t* at = page.codes + row * bytes + c * 4 * L;
            int64_t left = bytes - c * 4 * L;
            I words = left >= 4 * L ? V::words(at) : V::some_words(at, left);
            F scale = V::template spread<BLOCK>(scales + c * CHUNK / BLOCK);
#define TP_PAIR(K) store_pair<PAIRED>(out, c * CHUNK - from + 2 * K * L, V::mul(place<2 * K>(words, table), scale), \
                                      V::mul(place<2 * K + 1>(words, table), scale));
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
    static void panel_integers(const Page& page, int64_t row, int64_t from, int64_t count, float scale, void* out) {
        auto codes = reinterpret_cast<const int8_t*>(page.codes) + row * page.cols;
        F scales = V::all(scale);
        for (int64_t at = from; at < from + count; at += 2 * L) {
            int8_t copy[2 * L] = {};
            const int8_t* source = codes + at;
            if (at + 2 * L > page.cols) {
                if (at < page.cols) std::memcpy(copy, source, static_cast<size_t>(page.cols - at));
                source = copy;
            }
            store_pair<PAIRED>(out, at - from, V::mul(V::integers(source), scales), V::mul(V::integers(source + L), scales));
        }
    }

    template <bool PAIRED>
    static void panels(const Page& page, int64_t row, int64_t from, int64_t count, const float* scales, void* out) {
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
        constexpr int64_t ROW = PAIRED ? PLACES / 2 : PLACES;
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

    // Asks for what the next rows will need while these are worked on: some bytes of each of several rows are not what
    // the CPU foresees by itself. Inlined, since g++ drops calls of a function that does nothing but this.
    __attribute__((always_inline)) static inline void fetch(const Page& page, int64_t row, int64_t rows, int64_t from) {
        const int64_t half = page.format == INT8 ? 1 : 2, bytes = row_bytes(page);
        const int64_t first = from / half, last = first + PLACES / half < bytes ? first + PLACES / half : bytes;
        const int64_t scale_bytes = page.blocks() * (page.format == NF4 || page.format == INT8 ? 4 : 1);
        for (int64_t r = row; r < row + rows; ++r) {
            for (int64_t i = first; i < last; i += 64) __builtin_prefetch(page.codes + r * bytes + i, 0, 2);
            auto scales = static_cast<const uint8_t*>(page.scales) + r * scale_bytes;
            for (int64_t i = 0; from == 0 && i < scale_bytes; i += 64) __builtin_prefetch(scales + i, 0, 2);
        }
    }

    template <bool PAIRED>
    static void multiply_many(const Product& p, int64_t begin, int64_t end) {
        const Page& page = *p.page;
        const int64_t width = up(p.m, NARROW), columns = padded(page), words = PAIRED ? 2 : 1;
        static thread_local Buffer<float> panel_memory, sum_memory;
        float* panel = panel_memory.of(TALL * PLACES);
        float* sums = sum_memory.of(TALL * up(p.m, WIDE));
        float* scales = scale_buffer(page, TALL);
        for (int64_t row = begin; row < end; row += TALL) {
            int64_t rows = end - row < TALL ? end - row : TALL;
            for (int64_t r = 0; r < rows; ++r) scales_of(page, row + r, scales + r * scale_stride(page));
            std::memset(sums, 0, static_cast<size_t>(TALL * width) * sizeof(float));
            for (int64_t from = 0; from < columns; from += PLACES) {
                int64_t count = columns - from < PLACES ? columns - from : PLACES;
                fetch(page, row + rows, end - row - rows < TALL ? end - row - rows : TALL, from);
                for (int64_t r = 0; r < rows; ++r)
                    panels<PAIRED>(page, row + r, from, count, scales + r * scale_stride(page), panel + r * PLACES / words);
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

    // --- activations ---

    static int64_t packed_bytes(const Product& p) {
        return (few(p) ? p.m : up(p.m, NARROW)) * padded(*p.page) * (few(p) || !pairs(p) ? 4 : 2) + 64;
    }

    static float activation(const Product& p, int64_t m, int64_t k) {
        if (m >= p.m || k >= p.page->cols) return 0.0f;
        int64_t at = m * p.page->cols + k;
        if (p.type == FLOAT32) return static_cast<const float*>(p.x)[at];
        return float_of(uint32_t(static_cast<const uint16_t*>(p.x)[at]) << 16);
    }

    static int64_t packed_parts(const Product& p) { return up(padded(*p.page), PLACES) / PLACES; }

    // Part `part` of the columns, of all rows of x.
    static void pack(const Product& p, int64_t part) {
        const Page& page = *p.page;
        const int64_t columns = padded(page), begin = part * PLACES;
        const int64_t end = begin + PLACES < columns ? begin + PLACES : columns;
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
        if (few(p)) return multiply_few(p, begin, end);
        if constexpr (V::PAIRS) {
            if (pairs(p)) return multiply_many<true>(p, begin, end);
        }
        multiply_many<false>(p, begin, end);
    }

    static int64_t rows_of_a_task(const Product& p) { return few(p) ? 32 : 4 * TALL; }

    static const Kernels* kernels() {
        static const Kernels these = {decode, packed_bytes, packed_parts, pack, multiply, rows_of_a_task};
        return &these;
    }
};

}  // namespace
}  // namespace pages
