// The C functions of the library of quantised tensors ("pages"), called by toprope/tiers/quant/kernels.py through
// ctypes: their names, arguments and results are repeated there; change both. Also the values of the formats' codes,
// which toprope/tiers/quant/formats.py has a second time: NF4's are those of QLoRA, E4M3's and E2M1's those of OCP's
// formats. Free are the sizes at which work is cut into tasks (BATCH, LITTLE): results do not depend on them.
// Tests: tests/tiers/test_pages_kernels.py.
#include <cmath>
#include <cstdlib>

#include "pages.h"

namespace pages {

const float E2M1_VALUES[16] = {0.0f,  0.5f,  1.0f,  1.5f,  2.0f,  3.0f,  4.0f,  6.0f,
                               -0.0f, -0.5f, -1.0f, -1.5f, -2.0f, -3.0f, -4.0f, -6.0f};

// The quantiles of QLoRA's paper (arXiv 2305.14314, appendix E), as fp32.
const float NF4_VALUES[16] = {-1.0f,
                              -0.6961928009986877f,
                              -0.5250730514526367f,
                              -0.39491748809814453f,
                              -0.28444138169288635f,
                              -0.18477343022823334f,
                              -0.09105003625154495f,
                              0.0f,
                              0.07958029955625534f,
                              0.16093020141124725f,
                              0.24611230194568634f,
                              0.33791524171829224f,
                              0.44070982933044434f,
                              0.5626170039176941f,
                              0.7229568362236023f,
                              1.0f};

namespace {

struct E4m3 {
    float values[256];
    E4m3() {
        for (int code = 0; code < 256; ++code) {
            int exponent = (code >> 3) & 15, mantissa = code & 7;
            float size = exponent == 0 ? std::ldexp(float(mantissa), -9)
                                       : std::ldexp(float(8 + mantissa), exponent - 10);
            if (exponent == 15 && mantissa == 7) size = __builtin_nanf("");
            values[code] = code & 0x80 ? -size : size;
        }
    }
};

}  // namespace

float e4m3_value(uint8_t code) {
    static const E4m3 table;
    return table.values[code];
}

namespace {

const Kernels* kernels_of(int path) {
    switch (path) {
        case PORTABLE: return portable_kernels();
        case AVX2: return avx2_kernels();
        case AVX512: return avx512_kernels();
        case AVX512_BF16: return avx512_bf16_kernels();
        default: return nullptr;
    }
}

bool runs_here(int path) {
    if (kernels_of(path) == nullptr) return false;  // compiled for another kind of CPU
#if defined(__x86_64__)
    bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
    bool avx512 = avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                  __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
    if (path == AVX2) return avx2;
    if (path == AVX512) return avx512;
    if (path == AVX512_BF16)
        return avx512 && __builtin_cpu_supports("avx512bf16") && __builtin_cpu_supports("avx512vbmi");
#endif
    return path == PORTABLE;
}

struct Decoding {
    const Kernels* kernels;
    const QuantisedTensor* page;
    void* out;
    int32_t type;
    bool stream;
    int64_t rows;
};

struct Multiplying {
    const Kernels* kernels;
    Product product;
    int64_t rows;
};

int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }

// The arranged activations of this thread's last call are kept to be written over: fresh memory of this size is
// mapped and unmapped at each call, which takes longer than some products.
struct Scratch {
    float* memory = nullptr;
    int64_t bytes = 0;

    float* of(int64_t wanted) {
        if (wanted > bytes) {
            std::free(memory);
            memory = static_cast<float*>(std::aligned_alloc(64, (wanted + 4095) / 4096 * 4096));
            bytes = memory == nullptr ? 0 : wanted;
        }
        return memory;
    }
    ~Scratch() { std::free(memory); }
};

thread_local Scratch scratch;

constexpr int64_t LITTLE = 16384;  // values of x that one thread arranges sooner than another begins
constexpr int64_t BATCH = 256;  // rows of x at a time: their sums for a few rows of the page stay in the cache

}  // namespace
}  // namespace pages

using namespace pages;

#define EXPORT extern "C" __attribute__((visibility("default")))

// The paths that this CPU can run, one bit each.
EXPORT int tp_paths() {
    int found = 0;
    for (int path = 0; path < PATHS; ++path) found |= runs_here(path) << path;
    return found;
}

// See pages.h; `parallel` may be null.
EXPORT void tp_use_threads_of(void* parallel) { use_threads_of(reinterpret_cast<Parallel>(parallel)); }

// All functions below return 0, or 1 for a path that is not here, 2 without memory.
EXPORT int tp_decode(const QuantisedTensor* page, void* out, int type, int path, int threads, int stream) {
    if (!runs_here(path)) return 1;
    Decoding call{kernels_of(path), page, out, type, stream != 0, 1};
    call.rows = page->cols >= 32768 ? 1 : 32768 / (page->cols + 1) + 1;
    auto body = [](void* context, int64_t task) {
        auto& c = *static_cast<Decoding*>(context);
        c.kernels->decode(*c.page, c.out, c.type, c.stream, task * c.rows, smaller(c.page->rows, (task + 1) * c.rows));
    };
    run(threads, (page->rows + call.rows - 1) / call.rows, body, &call);
    return 0;
}

EXPORT int tp_multiply(const QuantisedTensor* page, const void* x, int64_t m, const void* bias, void* out, int type,
                       int path, int threads) {
    if (!runs_here(path)) return 1;
    int64_t size = type == FLOAT32 ? 4 : 2;
    Multiplying call{kernels_of(path), {page, x, bias, out, 0, type, nullptr}, 1};
    for (int64_t first = 0; first < m; first += BATCH) {
        Product& product = call.product;
        product.m = smaller(BATCH, m - first);
        product.x = static_cast<const char*>(x) + first * page->cols * size;
        product.out = static_cast<char*>(out) + first * page->rows * size;
        product.packed = scratch.of(call.kernels->packed_bytes(product));
        if (product.packed == nullptr) return 2;
        auto pack = [](void* context, int64_t part) {
            auto& c = *static_cast<Multiplying*>(context);
            c.kernels->pack(c.product, part);
        };
        bool little = product.m * page->cols < LITTLE;
        run(little ? 1 : threads, call.kernels->packed_parts(product), pack, &call);
        call.rows = call.kernels->rows_of_a_task(product, threads);
        auto multiply = [](void* context, int64_t task) {
            auto& c = *static_cast<Multiplying*>(context);
            int64_t end = smaller(c.product.page->rows, (task + 1) * c.rows);
            c.kernels->multiply(c.product, task * c.rows, end);
        };
        run(threads, (page->rows + call.rows - 1) / call.rows, multiply, &call);
    }
    return 0;
}
