// From values to codes and scales; `Kernels.encode` in toprope/tiers/quant/kernels.py calls it. It repeats
// toprope/tiers/quant/codec.py (which stays in use for odd shapes, for cards, and without a compiler): the same
// operations of fp32 in the same order, so that the bytes are the same; change both. Only sums of errors, which choose
// between scales, may differ in their last bits. tp_encode's arguments are repeated in kernels.py.
//
// Loops over a block have a fixed length and no branches: the compiler makes vectors of them, for several sets of
// instructions where it can choose among them when the library is loaded.
// Tests: tests/tiers/test_pages_formats.py, which compares with codec.py.
#include <cmath>
#include <cstring>
#include <vector>

#include "pages.h"

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#define TP_CLONES __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define TP_CLONES
#endif

namespace pages {
namespace {

constexpr float SMALLEST = 1.17549435e-38f;  // the smallest normal number
constexpr int LANES = 16;

struct Encoding {
    const void* values;
    int32_t type, format, search;
    int64_t blocks, blocks_of_a_task;
    float global;
    uint8_t* codes;
    void* scales;
    float* largest;  // of each task
};

// A scale to try: as stored, the factor for values (MXFP4: the divisor), and the number that a code is multiplied with.
struct Scale {
    uint32_t stored;
    float factor, real;
};

inline float to_even(float value) { return (value + 12582912.0f) - 12582912.0f; }  // below 2^22
inline float smaller(float a, float b) { return a < b ? a : b; }
inline float larger(float a, float b) { return a > b ? a : b; }

template <int BLOCK>
inline void read(const Encoding& e, int64_t block, float* out) {
    if (e.type == FLOAT32) {
        std::memcpy(out, static_cast<const float*>(e.values) + block * BLOCK, BLOCK * sizeof(float));
    } else {
        auto values = static_cast<const uint16_t*>(e.values) + block * BLOCK;
        for (int i = 0; i < BLOCK; ++i) out[i] = float_of(uint32_t(values[i]) << 16);
    }
}

// The largest size, as bits, which order as the numbers do; infinity and NaN are from 0x7F800000 on.
template <int BLOCK>
inline uint32_t size_of(const float* values) {
    uint32_t size = 0;
    for (int i = 0; i < BLOCK; ++i) {
        uint32_t bits = bits_of(values[i]) & 0x7FFFFFFF;
        size = bits > size ? bits : size;
    }
    return size;
}

template <int BLOCK>
inline float sum_of(const float* values) {
    float lanes[LANES] = {};
    for (int i = 0; i < BLOCK; i += LANES)
        for (int lane = 0; lane < LANES; ++lane) lanes[lane] += values[i + lane];
    for (int half = LANES / 2; half > 0; half /= 2)
        for (int lane = 0; lane < half; ++lane) lanes[lane] += lanes[lane + half];
    return lanes[0];
}

// Codes of a block under a scale, and the sum of squared errors.
template <int BLOCK, int FORMAT>
inline float round_block(const float* values, const Scale& scale, uint8_t* codes) {
    float losses[BLOCK];
    if constexpr (FORMAT == NF4) {
        int32_t counts[BLOCK] = {};
        float scaled[BLOCK];
        for (int i = 0; i < BLOCK; ++i) scaled[i] = values[i] * scale.factor;
        for (int k = 0; k < 15; ++k) {
            float edge = float((double(NF4_VALUES[k]) + double(NF4_VALUES[k + 1])) / 2);
            for (int i = 0; i < BLOCK; ++i) counts[i] += scaled[i] > edge;
        }
        for (int i = 0; i < BLOCK; ++i) {
            codes[i] = uint8_t(counts[i]);
            float loss = NF4_VALUES[counts[i]] * scale.real - values[i];
            losses[i] = loss * loss;
        }
    } else {
        for (int i = 0; i < BLOCK; ++i) {
            float scaled = FORMAT == MXFP4 ? values[i] / scale.factor : values[i] * scale.factor;
            if (FORMAT == NVFP4 && values[i] == 0.0f) scaled = values[i];  // the factor may be infinite
            float size = smaller(std::fabs(scaled), 6.0f);
            float code = smaller(to_even(size * 2), smaller(to_even(size) + 2, to_even(size * 0.5f) + 4));
            float value = larger(code * 0.5f, larger(code - 2, code * 2 - 8));
            float loss = value * scale.real - std::fabs(values[i]);
            losses[i] = loss * loss;
            codes[i] = uint8_t(int32_t(code) | int32_t(bits_of(scaled) >> 31 << 3));
        }
    }
    return sum_of<BLOCK>(losses);
}

template <int FORMAT>
inline Scale scale_of(float size, int number, float global) {
    if constexpr (FORMAT == NVFP4) {
        float scale = size / (number == 0 ? 6.0f : 4.0f) / global;
        scale = smaller(larger(scale, 0.015625f), 448.0f);
        uint32_t bits = bits_of(scale);
        uint32_t code = ((bits + 0x7FFFF + ((bits >> 20) & 1)) >> 20) - (120 << 3);
        float wide = e4m3_value(uint8_t(code));
        return {code, (1.0f / global) / wide, global * wide};
    } else if constexpr (FORMAT == MXFP4) {
        int step = number == 0 ? 0 : number == 1 ? 1 : -1;
        int exponent = int(bits_of(size) >> 23) - 2 + step;
        exponent = exponent < 0 ? 0 : exponent > 254 ? 254 : exponent;
        float power = float_of(uint32_t(exponent) << 23);
        return {uint32_t(exponent), larger(power, SMALLEST), exponent == 0 ? float_of(1u << 22) : power};
    } else {
        const float fractions[4] = {1.0f, 0.96f, 0.92f, 0.88f};
        float scale = size * fractions[number];
        return {bits_of(scale), scale > SMALLEST ? 1.0f / scale : 0.0f, scale};
    }
}

template <int BLOCK, int FORMAT>
inline void encode_blocks(const Encoding& e, int64_t begin, int64_t end) {
    const int count = !e.search ? 1 : FORMAT == NVFP4 ? 2 : FORMAT == MXFP4 ? 3 : 4;
    for (int64_t block = begin; block < end; ++block) {
        float values[BLOCK];
        uint8_t tried[4][BLOCK];
        read<BLOCK>(e, block, values);
        uint32_t bits = size_of<BLOCK>(values);
        const bool spoilt = bits >= 0x7F800000;
        if (spoilt) {
            bits = 0;
            for (int i = 0; i < BLOCK; ++i) values[i] = 0.0f;
        }
        Scale scales[4];
        int best = 0;
        float least = 0.0f;
        for (int number = 0; number < count; ++number) {
            scales[number] = scale_of<FORMAT>(float_of(bits), number, e.global);
            float loss = round_block<BLOCK, FORMAT>(values, scales[number], tried[number]);
            if (number == 0 || loss < least) best = number, least = loss;
        }
        for (int i = 0; i < BLOCK / 2; ++i)
            e.codes[block * BLOCK / 2 + i] = uint8_t(tried[best][2 * i] | tried[best][2 * i + 1] << 4);
        if constexpr (FORMAT == NF4) {
            static_cast<float*>(e.scales)[block] = spoilt ? __builtin_nanf("") : float_of(scales[best].stored);
        } else {
            uint8_t none = FORMAT == NVFP4 ? 0x7F : 0xFF;
            static_cast<uint8_t*>(e.scales)[block] = spoilt ? none : uint8_t(scales[best].stored);
        }
    }
}

TP_CLONES void encode_task(const Encoding& e, int64_t begin, int64_t end) {
    switch (e.format) {
        case NVFP4: return encode_blocks<16, NVFP4>(e, begin, end);
        case MXFP4: return encode_blocks<32, MXFP4>(e, begin, end);
        default: return encode_blocks<64, NF4>(e, begin, end);
    }
}

// The largest size among blocks of 16 without infinity and NaN.
TP_CLONES float largest_of_task(const Encoding& e, int64_t begin, int64_t end) {
    uint32_t largest = 0;
    for (int64_t block = begin; block < end; ++block) {
        float values[16];
        read<16>(e, block, values);
        uint32_t size = size_of<16>(values);
        if (size < 0x7F800000 && size > largest) largest = size;
    }
    return float_of(largest);
}

int64_t end_of(const Encoding& e, int64_t task) {
    int64_t end = (task + 1) * e.blocks_of_a_task;
    return end < e.blocks ? end : e.blocks;
}

}  // namespace
}  // namespace pages

using namespace pages;

// Encodes `blocks` whole blocks of one of the formats of 4 bits; `global` is written for NVFP4. Returns 0.
extern "C" __attribute__((visibility("default"))) int tp_encode(const void* values, int type, int64_t blocks,
                                                                int format, int search, uint8_t* codes, void* scales,
                                                                void* global, int threads) {
    const int64_t step = 65536 / (format == NVFP4 ? 16 : format == MXFP4 ? 32 : 64), tasks = (blocks + step - 1) / step;
    Encoding e{values, type, format, search, blocks, step, 1.0f, codes, scales, nullptr};
    if (format == NVFP4) {
        std::vector<float> largest(size_t(tasks), 0.0f);
        e.largest = largest.data();
        run(threads, tasks, [](void* context, int64_t task) {
            auto& e = *static_cast<Encoding*>(context);
            e.largest[task] = largest_of_task(e, task * e.blocks_of_a_task, end_of(e, task));
        }, &e);
        float size = 0.0f;
        for (float each : largest) size = larger(size, each);
        e.global = size > 0.0f ? larger(size / 2688.0f, SMALLEST) : 1.0f;
        std::memcpy(global, &e.global, sizeof e.global);
    }
    run(threads, tasks, [](void* context, int64_t task) {
        auto& e = *static_cast<Encoding*>(context);
        encode_task(e, task * e.blocks_of_a_task, end_of(e, task));
    }, &e);
    return 0;
}
