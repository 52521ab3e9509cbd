// Basics of the kernels, and decoding; included by few.inl and many.inl. Kernels are written once, over a set of vector
// operations `V`. Each path (portable.cpp, avx2.cpp, avx512*.cpp) includes them in its own translation unit with its
// own V, compiled for its own instruction set; nothing of it is visible outside of that unit. A new operation of V is
// needed in all of them. pages.h gives the order of codes and scales in memory, and decoded bits are those of
// toprope/tiers/quant/codec.py; the order of work is free.
//
// V::L values of fp32 make a vector. Codes of 4 bits are read V::L words of 32 bits at a time, a "chunk" of 8 * V::L
// codes: half-byte k of word l is element 8 * l + k. Shifting the words by 4 * k thus gives one index to each lane, and
// the elements of a chunk come as 8 vectors: place p = k * V::L + l holds element 8 * l + k. Activations are arranged
// the same way once for a call (`pack`), so that nothing is shuffled per row; INT8 is read in order.
//
// A block of scales covers whole words: one vector of scales serves a chunk.
// Tests: tests/tiers/test_pages_kernels.py.

#pragma once

#include <cmath>
#include <cstdlib>
#include <cstring>

#include "pages.h"

namespace pages {
namespace {

using std::int64_t;


inline const int8_t* as_signed(const uint8_t* codes) { return reinterpret_cast<const int8_t*>(codes); }
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
struct Basics {
    using F = typename V::F;
    using I = typename V::I;
    static constexpr int64_t L = V::L, CHUNK = 8 * L;
    static constexpr int64_t NARROW = L, WIDE = 2 * L, TALL = V::TALL;  // of a product with many rows

    static const float* values(const QuantisedTensor& page) { return page.format == NF4 ? NF4_VALUES : E2M1_VALUES; }
    static bool ordered(const QuantisedTensor& page) { return page.format == INT8; }
    static int64_t padded(const QuantisedTensor& page) { return up(page.cols, CHUNK); }
    static int64_t element(int64_t place) {
        int64_t p = place % CHUNK;
        return place - p + 8 * (p % L) + p / L;
    }
    static int64_t row_bytes(const QuantisedTensor& page) { return page.format == INT8 ? page.cols : page.cols / 2; }

    // Scales of a row as fp32, multiplied by the global one, with zeros behind them up to the end of the last vector.
    static void scales_of(const QuantisedTensor& page, int64_t row, float* out) {
        int64_t blocks = page.blocks(), i = 0;
        if (page.format == NVFP4) {
            auto codes = static_cast<const uint8_t*>(page.scales) + row * blocks;
            F global = V::all(page.global_scale());
            for (; i + L <= blocks; i += L) V::store(out + i, V::e4m3(codes + i, global));
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

    static float* scale_buffer(const QuantisedTensor& page, int64_t rows) {
        static thread_local Buffer<float> buffer;
        return buffer.of(rows * scale_stride(page));
    }
    static int64_t scale_stride(const QuantisedTensor& page) { return up(page.blocks(), 16) + 16; }

    // --- decode: in order ---

    static float one(const QuantisedTensor& page, const uint8_t* codes, int64_t at, const float* table) {
        if (page.format == INT8) return static_cast<float>(static_cast<int8_t>(codes[at]));
        return table[(codes[at / 2] >> (4 * (at % 2))) & 15];
    }

    template <class T>
    static void put(T* out, float value) {
        if constexpr (sizeof(T) == 4) *out = value;
        else *out = round_to_bfloat16(value);
    }

    // The CPU's own rounding to bf16 takes subnormal numbers for zero: it is used where there are none.
    static bool far_from_zero(const QuantisedTensor& page, const float* scales, int64_t blocks) {
        if (page.format == NVFP4 && std::fabs(page.global_scale()) > 1e-30f) return true;  // the others are >= 2^-9
        bool near = false;
        for (int64_t b = 0; b < blocks; ++b) near |= (bits_of(scales[b]) & 0x7FFFFFFF) - 1 < 0x03800000;  // 2^-120
        return !near;
    }

    // `count` whole blocks of a row.
    template <class T, bool STREAM, int BLOCK>
    static void decode_blocks(const QuantisedTensor& page, const uint8_t* codes, const float* scales, int64_t count,
                              const typename V::Table& table, T* out) {
        constexpr int64_t VECTORS = BLOCK / L;
        if constexpr (V::PAIRS && sizeof(T) == 2) {
            if (far_from_zero(page, scales, count)) {
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
    static void decode_blocks(const QuantisedTensor& page, const uint8_t* codes, const float* scales, int64_t count,
                              T* out) {
        typename V::Table table = V::table(values(page));
        switch (page.format) {
            case NVFP4: return decode_blocks<T, STREAM, 16>(page, codes, scales, count, table, out);
            case MXFP4: return decode_blocks<T, STREAM, 32>(page, codes, scales, count, table, out);
            default: return decode_blocks<T, STREAM, 64>(page, codes, scales, count, table, out);
        }
    }

    template <class T, bool STREAM>
    static void decode_integers(const uint8_t* codes, float scale, int64_t count, T* out) {
        F scales = V::all(scale);
        for (int64_t at = 0; at < count; at += L)
            V::template write<STREAM>(out + at, V::mul(V::integers(as_signed(codes + at)), scales));
    }

    template <class T>
    static void decode_row(const QuantisedTensor& page, int64_t row, bool stream, T* out) {
        float* scales = scale_buffer(page, 1);
        scales_of(page, row, scales);
        const float* table = values(page);
        int64_t at = 0, first = row * page.cols, block = page.block();
        const uint8_t* codes = page.codes;
        if (page.format == INT8) {
            codes += first;
            at = page.cols / L * L;
            if (stream) decode_integers<T, true>(codes, scales[0], at, out);
            else decode_integers<T, false>(codes, scales[0], at, out);
        } else if (first % 2 == 0) {
            codes += first / 2;
            int64_t whole = page.cols / block;
            if (stream) decode_blocks<T, true>(page, codes, scales, whole, out);
            else decode_blocks<T, false>(page, codes, scales, whole, out);
            at = whole * block;
        }
        bool shifted = page.format != INT8 && first % 2 != 0;
        for (; at < page.cols; ++at)
            put(out + at,
                one(page, shifted ? page.codes : codes, shifted ? first + at : at, table) * scales[at / block]);
    }

    static void decode(const QuantisedTensor& page, void* out, int32_t type, bool stream, int64_t begin, int64_t end) {
        int64_t size = type == FLOAT32 ? 4 : 2;
        stream = stream && reinterpret_cast<uintptr_t>(out) % 64 == 0 && page.cols * size % 64 == 0;
        for (int64_t row = begin; row < end; ++row) {
            if (type == FLOAT32) decode_row(page, row, stream, static_cast<float*>(out) + row * page.cols);
            else decode_row(page, row, stream, static_cast<uint16_t*>(out) + row * page.cols);
        }
        if (stream) V::fence();
    }

    // --- what both kinds of products use ---

    // Vector K of a chunk.
    template <int K>
    static F place(I words, const typename V::Table& table) {
        return V::lookup(V::template shift<4 * K>(words), table);
    }

    // Asks for the scales of a row. Inlined, since g++ drops calls of a function that does nothing but this.
    __attribute__((always_inline)) static inline void fetch_scales(const QuantisedTensor& page, int64_t row) {
        const int64_t bytes = page.blocks() * (page.format == NF4 || page.format == INT8 ? 4 : 1);
        for (int64_t i = 0; i < bytes; i += 64)
            __builtin_prefetch(static_cast<const uint8_t*>(page.scales) + row * bytes + i, 0, 2);
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
};

}  // namespace
}  // namespace pages
