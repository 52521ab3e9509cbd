// The path for CPUs with AVX2, FMA and F16C: the vector operations from which kernels.inl makes the kernels. Compiled
// with flags of its own (toprope/tiers/quant/kernels.py), and called only on CPUs that have these instructions. api.cpp
// chooses the path. All paths decode to the same bits; a new operation in kernels.inl is needed in each of them, and an
// operation keeps its meaning in all. How it is computed here is free.
// Tests: tests/tiers/test_pages_kernels.py.
#include "kernels.inl"

#if defined(__AVX2__)
#include <immintrin.h>

namespace pages {
namespace {

struct Avx2 {
    static constexpr int64_t L = 8, TALL = 6;
    static constexpr bool PAIRS = false;
    using F = __m256;
    using I = __m256i;
    struct Table {
        __m256 low, high;  // values of codes 0 to 7, and of 8 to 15
    };

    static F zero() { return _mm256_setzero_ps(); }
    static F all(float value) { return _mm256_set1_ps(value); }
    static F load(const float* from) { return _mm256_loadu_ps(from); }
    static void store(float* to, F a) { _mm256_storeu_ps(to, a); }
    static F mul(F a, F b) { return _mm256_mul_ps(a, b); }
    static F fma(F a, F b, F c) { return _mm256_fmadd_ps(a, b, c); }
    static float sum(F a) {
        __m128 half = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
        half = _mm_add_ps(half, _mm_movehl_ps(half, half));
        return _mm_cvtss_f32(_mm_add_ss(half, _mm_movehdup_ps(half)));
    }
    static Table table(const float* values) { return {load(values), load(values + 8)}; }
    static F lookup(I index, const Table& table) {
        // permutevar looks at the lowest 3 bits; bit 3 chooses the half of the table
        return _mm256_blendv_ps(_mm256_permutevar8x32_ps(table.low, index), _mm256_permutevar8x32_ps(table.high, index),
                                _mm256_castsi256_ps(_mm256_slli_epi32(index, 28)));
    }
    static I words(const uint8_t* codes) { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(codes)); }
    static I some_words(const uint8_t* codes, int64_t bytes) {
        uint8_t copy[32] = {};
        std::memcpy(copy, codes, static_cast<size_t>(bytes));
        return words(copy);
    }
    template <int BITS>
    static I shift(I a) {
        return _mm256_srli_epi32(a, BITS);
    }
    static I in_order(const uint8_t* codes) {
        uint32_t four;
        std::memcpy(&four, codes, 4);
        __m256i bytes = _mm256_cvtepu8_epi64(_mm_cvtsi32_si128(int(four)));
        return _mm256_or_si256(bytes, _mm256_slli_epi64(bytes, 28));  // the upper half-byte to the upper word
    }
    static F integers(const int8_t* codes) {
        return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(codes))));
    }
    static F e4m3(const uint8_t* codes, F global) {
        // as fp16, whose exponent has a bias of 15 where E4M3 has 7: 2^8 too small
        __m128i wide = _mm_cvtepu8_epi16(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(codes)));
        __m128i size = _mm_and_si128(wide, _mm_set1_epi16(0x7F)), sign = _mm_and_si128(wide, _mm_set1_epi16(0x80));
        __m128i half = _mm_or_si128(_mm_slli_epi16(size, 7), _mm_slli_epi16(sign, 8));
        F value = _mm256_mul_ps(_mm256_cvtph_ps(half), _mm256_set1_ps(256.0f));
        __m256i none = _mm256_cvtepi16_epi32(_mm_cmpeq_epi16(size, _mm_set1_epi16(0x7F)));
        value = _mm256_blendv_ps(value, _mm256_set1_ps(__builtin_nanf("")), _mm256_castsi256_ps(none));
        return _mm256_mul_ps(value, global);
    }
    template <int BLOCK>
    static F spread(const float* scales) {
        constexpr int w = BLOCK / 8;  // words to a scale
        return _mm256_permutevar8x32_ps(
            load(scales), _mm256_setr_epi32(0, 1 / w, 2 / w, 3 / w, 4 / w, 5 / w, 6 / w, 7 / w));
    }
    template <bool STREAM>
    static void write(float* out, F a) {
        if constexpr (STREAM) _mm256_stream_ps(out, a);
        else _mm256_storeu_ps(out, a);
    }
    template <bool STREAM>
    static void write(uint16_t* out, F a) {
        __m256i bits = _mm256_castps_si256(a);
        __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
        bits = _mm256_srli_epi32(_mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7FFF))), 16);
        __m128i packed = _mm_packus_epi32(_mm256_castsi256_si128(bits), _mm256_extracti128_si256(bits, 1));
        if constexpr (STREAM) _mm_stream_si128(reinterpret_cast<__m128i*>(out), packed);
        else _mm_storeu_si128(reinterpret_cast<__m128i*>(out), packed);
    }
    static void fence() { _mm_sfence(); }
};

}  // namespace

const Kernels* avx2_kernels() { return Kernel<Avx2>::kernels(); }

}  // namespace pages

#else

namespace pages {
const Kernels* avx2_kernels() { return nullptr; }
}  // namespace pages

#endif
