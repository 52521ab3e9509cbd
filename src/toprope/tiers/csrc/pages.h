// Declarations that the kernels for quantised tensors ("pages") share: the tensor, formats, paths, and the functions of
// a path. toprope/tiers/quant/kernels.py repeats QuantisedTensor (`_Page`, field by field), Type (`_TYPES`) and Path
// (`PATHS`), and toprope/tiers/quant/formats.py repeats Format and the blocks: change both sides. The numbers of Format
// are in stored files and stay; the functions of `Kernels` are between the C++ files alone.
// Tests: tests/tiers/test_pages_kernels.py.
#pragma once

#include <cstdint>

namespace pages {

enum Format : int32_t { NVFP4 = 0, MXFP4 = 1, NF4 = 2, INT8 = 3 };
enum Type : int32_t { FLOAT32 = 0, BFLOAT16 = 1 };
enum Path : int32_t { PORTABLE = 0, AVX2 = 1, AVX512 = 2, AVX512_BF16 = 3, PATHS = 4 };

// A matrix of codes with scales, as ctypes passes it: `codes` holds rows * cols codes without gaps, two to a byte and
// the first in the low half, or one to a byte (INT8); `scales` ceil(cols / block) values for each row.
struct QuantisedTensor {
    const uint8_t* codes;
    const void* scales;
    int64_t rows, cols;
    const void* global;  // one fp32 that multiplies every scale, or null
    int32_t format;

    float global_scale() const {
        float value = 1.0f;
        if (global != nullptr) __builtin_memcpy(&value, global, sizeof value);
        return value;
    }
    int64_t block() const { return format == NVFP4 ? 16 : format == MXFP4 ? 32 : format == NF4 ? 64 : cols; }
    int64_t blocks() const { return cols == 0 ? 0 : (cols + block() - 1) / block(); }
};

// The values of the 16 codes of a format with 4 bits, and of a scale's code.
extern const float E2M1_VALUES[16];
extern const float NF4_VALUES[16];
float e4m3_value(uint8_t code);

inline float quiet(float value) { return value == value ? value : __builtin_nanf(""); }
inline uint32_t bits_of(float value) { return __builtin_bit_cast(uint32_t, value); }
inline float float_of(uint32_t bits) { return __builtin_bit_cast(float, bits); }

inline uint16_t round_to_bfloat16(float value) {
    uint32_t bits = bits_of(quiet(value));
    return static_cast<uint16_t>((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16);
}

// A product out[m][row] = sum over k of x[m][k] * page[row][k], and bias[row]. `packed` is x as `pack` arranges it.
struct Product {
    const QuantisedTensor* page;
    const void* x;
    const void* bias;  // or null; of the type of x
    void* out;         // of the type of x
    int64_t m;
    int32_t type;
    float* packed;
};

// The functions of one path. A path is compiled for one set of instructions and called only if the CPU has them.
struct Kernels {
    // Rows [begin, end) of the page, in order.
    void (*decode)(const QuantisedTensor& page, void* out, int32_t type, bool stream, int64_t begin, int64_t end);
    // Bytes that `pack` needs for m rows of x; the parts that it can be called for, each on its own.
    int64_t (*packed_bytes)(const Product& product);
    int64_t (*packed_parts)(const Product& product);
    void (*pack)(const Product& product, int64_t part);
    // Rows [begin, end) of the page times all rows of x.
    void (*multiply)(const Product& product, int64_t begin, int64_t end);
    int64_t (*rows_of_a_task)(const Product& product, int threads);
};

const Kernels* portable_kernels();
const Kernels* avx2_kernels();
const Kernels* avx512_kernels();
const Kernels* avx512_bf16_kernels();

// Calls body(context, task) for every task below `tasks`, by at most `threads` threads, and returns when all are done.
void run(int threads, int64_t tasks, void (*body)(void*, int64_t), void* context);

// GOMP_parallel of libgomp's ABI, which LLVM's and Intel's OpenMP have too: calls body(data) in each of `threads`
// threads, this one among them, and returns when all have. From then on `run` works in those; null: in its own.
using Parallel = void (*)(void (*body)(void*), void* data, unsigned threads, unsigned flags);
void use_threads_of(Parallel parallel);

}  // namespace pages
