// The path for any CPU, among them ARM: vectors are arrays, which the compiler maps to the base instruction set. It
// says what an operation means: the other paths must decode to the same bits as this one.
// Tests: tests/tiers/test_pages_kernels.py.
#include "kernels.inl"

namespace pages {
namespace {

struct Portable {
    static constexpr int64_t L = 8, TALL = 2;
    static constexpr bool PAIRS = false;
    struct F {
        float v[L];
    };
    struct I {
        uint32_t v[L];
    };
    struct Table {
        const float* values;
    };

    template <class Body>
    static F each(Body body) {
        F out;
        for (int64_t i = 0; i < L; ++i) out.v[i] = body(i);
        return out;
    }
    static F zero() { return all(0.0f); }
    static F all(float value) {
        return each([=](int64_t) { return value; });
    }
    static F load(const float* from) {
        return each([=](int64_t i) { return from[i]; });
    }
    static void store(float* to, const F& a) { std::memcpy(to, a.v, sizeof a.v); }
    static F mul(const F& a, const F& b) {
        return each([&](int64_t i) { return a.v[i] * b.v[i]; });
    }
    static F fma(const F& a, const F& b, const F& c) {
        return each([&](int64_t i) { return a.v[i] * b.v[i] + c.v[i]; });
    }
    static float sum(const F& a) {
        return ((a.v[0] + a.v[4]) + (a.v[2] + a.v[6])) + ((a.v[1] + a.v[5]) + (a.v[3] + a.v[7]));
    }
    static Table table(const float* values) { return {values}; }
    static F lookup(const I& index, const Table& table) {
        return each([&](int64_t i) { return table.values[index.v[i] & 15]; });
    }
    static I words(const uint8_t* codes) { return some_words(codes, 4 * L); }
    static I some_words(const uint8_t* codes, int64_t bytes) {
        I out = {};
        for (int64_t i = 0; i < bytes; ++i) out.v[i / 4] |= uint32_t(codes[i]) << (8 * (i % 4));
        return out;
    }
    template <int BITS>
    static I shift(const I& a) {
        I out;
        for (int64_t i = 0; i < L; ++i) out.v[i] = a.v[i] >> BITS;
        return out;
    }
    static I in_order(const uint8_t* codes) {
        I out;
        for (int64_t i = 0; i < L; ++i) out.v[i] = uint32_t(codes[i / 2]) >> (4 * (i % 2));
        return out;
    }
    static F integers(const int8_t* codes) {
        return each([=](int64_t i) { return float(codes[i]); });
    }
    static F e4m3(const uint8_t* codes, const F& global) {
        return each([&](int64_t i) { return e4m3_value(codes[i]) * global.v[i]; });
    }
    template <int BLOCK>
    static F spread(const float* scales) {
        return each([=](int64_t i) { return scales[8 * i / BLOCK]; });
    }
    template <bool STREAM>
    static void write(float* out, const F& a) {
        store(out, a);
    }
    template <bool STREAM>
    static void write(uint16_t* out, const F& a) {
        for (int64_t i = 0; i < L; ++i) out[i] = round_to_bfloat16(a.v[i]);
    }
    static void fence() {}
};

}  // namespace

const Kernels* portable_kernels() { return Kernel<Portable>::kernels(); }

}  // namespace pages
