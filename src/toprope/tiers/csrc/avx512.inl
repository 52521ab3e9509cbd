// Vector operations for CPUs with AVX-512 F, BW, VL and DQ, included by avx512.cpp and avx512_bf16.cpp. The second is
// compiled for bf16 products and VBMI too, which are used here if the compiler has them. What an operation means is
// fixed by portable.cpp: all paths decode to the same bits, in spite of the CPU's own rounding to bf16 (basics.inl).
// Tests: tests/tiers/test_pages_kernels.py, on CPUs that have these instructions.
#include <immintrin.h>

#include "kernels.inl"

namespace pages {
namespace {

struct Avx512 {
    static constexpr int64_t L = 16, TALL = 12;
#if defined(__AVX512BF16__)
    static constexpr bool PAIRS = true;
#else
    static constexpr bool PAIRS = false;
#endif
    using F = __m512;
    using I = __m512i;
    using Table = __m512;

    static F zero() { return _mm512_setzero_ps(); }
    static F all(float value) { return _mm512_set1_ps(value); }
    static F load(const float* from) { return _mm512_loadu_ps(from); }
    static void store(float* to, F a) { _mm512_storeu_ps(to, a); }
    static F mul(F a, F b) { return _mm512_mul_ps(a, b); }
    static F fma(F a, F b, F c) { return _mm512_fmadd_ps(a, b, c); }
    static float sum(F a) { return _mm512_reduce_add_ps(a); }
    static Table table(const float* values) { return load(values); }
    static F lookup(I index, Table table) { return _mm512_permutexvar_ps(index, table); }  // looks at 4 bits
    static I words(const uint8_t* codes) { return _mm512_loadu_si512(codes); }
    static I some_words(const uint8_t* codes, int64_t bytes) {
        return _mm512_maskz_loadu_epi8((uint64_t(1) << bytes) - 1, codes);
    }
    template <int BITS>
    static I shift(I a) {
        return _mm512_srli_epi32(a, BITS);
    }
    static I in_order(const uint8_t* codes) {
#if defined(__AVX512VBMI__)
        // All 8 bytes to each 64 bits, from which one instruction picks half-bytes; `lookup` ignores the rest.
        int64_t eight;
        std::memcpy(&eight, codes, 8);
        const __m512i places = _mm512_add_epi64(
            _mm512_set1_epi64(int64_t(4) << 32),
            _mm512_mullo_epi64(_mm512_setr_epi64(0, 8, 16, 24, 32, 40, 48, 56), _mm512_set1_epi64(0x100000001)));
        return _mm512_multishift_epi64_epi8(places, _mm512_set1_epi64(eight));
#endif
        __m512i bytes = _mm512_cvtepu8_epi64(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(codes)));
        return _mm512_or_si512(bytes, _mm512_slli_epi64(bytes, 28));  // the upper half-byte to the upper word
    }
    static F integers(const int8_t* codes) {
        return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(codes))));
    }
    static F e4m3(const uint8_t* codes, F global) {
        // as fp16, whose exponent has a bias of 15 where E4M3 has 7: 2^8 too small
        __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(codes));
        __m256i wide = _mm256_cvtepu8_epi16(bytes);
        if (_mm_cmpge_epu8_mask(bytes, _mm_set1_epi8(0x7F)) == 0)  // neither NaN nor less than zero, as ever but once
            return _mm512_mul_ps(_mm512_mul_ps(_mm512_cvtph_ps(_mm256_slli_epi16(wide, 7)), _mm512_set1_ps(256.0f)),
                                 global);
        __m256i size = _mm256_and_si256(wide, _mm256_set1_epi16(0x7F));
        __m256i sign = _mm256_and_si256(wide, _mm256_set1_epi16(0x80));
        __m256i half = _mm256_or_si256(_mm256_slli_epi16(size, 7), _mm256_slli_epi16(sign, 8));
        F value = _mm512_mul_ps(_mm512_cvtph_ps(half), _mm512_set1_ps(256.0f));
        __mmask16 none = _mm256_cmpeq_epi16_mask(size, _mm256_set1_epi16(0x7F));
        return _mm512_mul_ps(_mm512_mask_mov_ps(value, none, _mm512_set1_ps(__builtin_nanf(""))), global);
    }
    template <int BLOCK>
    static F spread(const float* scales) {
        constexpr int w = BLOCK / 8;  // words to a scale
        const __m512i index = _mm512_setr_epi32(0, 1 / w, 2 / w, 3 / w, 4 / w, 5 / w, 6 / w, 7 / w, 8 / w, 9 / w,
                                                10 / w, 11 / w, 12 / w, 13 / w, 14 / w, 15 / w);
        return _mm512_permutexvar_ps(index, load(scales));
    }
    template <bool STREAM>
    static void write(float* out, F a) {
        if constexpr (STREAM) _mm512_stream_ps(out, a);
        else _mm512_storeu_ps(out, a);
    }
    template <bool STREAM>
    static void write(uint16_t* out, F a) {
        __m512i bits = _mm512_castps_si512(a);
        __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
        bits = _mm512_srli_epi32(_mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7FFF))), 16);
        __m256i packed = _mm512_cvtepi32_epi16(bits);
        if constexpr (STREAM) _mm256_stream_si256(reinterpret_cast<__m256i*>(out), packed);
        else _mm256_storeu_si256(reinterpret_cast<__m256i*>(out), packed);
    }
    static void fence() { _mm_sfence(); }

#if defined(__AVX512BF16__)
    template <bool STREAM>
    static void write_pair(uint16_t* to, F first, F second) {
        __m512i packed = reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(second, first));
        if constexpr (STREAM) _mm512_stream_si512(reinterpret_cast<__m512i*>(to), packed);
        else _mm512_storeu_si512(to, packed);
    }
    static void store_bfloat16(uint16_t* to, F first, F second) {
        _mm512_storeu_si512(to, reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(second, first)));
    }
    static F fma_pairs(F a, F b, F c) {
        return _mm512_dpbf16_ps(c, reinterpret_cast<__m512bh>(a), reinterpret_cast<__m512bh>(b));
    }
#endif
};

}  // namespace
}  // namespace pages
