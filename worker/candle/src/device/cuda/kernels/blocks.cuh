// Quantised blocks as GGUF has them (ggml's names; sizes and places within a block are those of its file format). A kernel takes 256
// weights at a time, a chunk, in eight steps of 32. Of a step each lane of four has the weights 4 t … 4 t + 3 and the same 16 behind,
// one word of bytes each, so that both words have one scale even where a scale is of 16 weights. A weight is
// `scale * (byte - ZERO) - least`.
#pragma once
#include "numbers.cuh"

constexpr int CHUNK = 256, STEP = 32, CHUNK_STEPS = CHUNK / STEP, LANES_OF_STEP = 4;
typedef unsigned char Byte;

// Four bytes from an address of any alignment that is a multiple of `ALIGNMENT`.
template <int ALIGNMENT> __device__ inline unsigned word(const Byte* from) {
    if (ALIGNMENT == 4) return *reinterpret_cast<const unsigned*>(from);
    if (ALIGNMENT == 2) {
        const unsigned short* halves = reinterpret_cast<const unsigned short*>(from);
        return halves[0] | (unsigned)halves[1] << 16;
    }
    return from[0] | from[1] << 8 | from[2] << 16 | (unsigned)from[3] << 24;
}

// A number of f16 at an even address.
__device__ inline float half_at(const Byte* from) { return number(*reinterpret_cast<const __half*>(from)); }

// The low or the high halves of bytes.
__device__ inline unsigned nibbles(unsigned bytes, int high) { return bytes >> 4 * high & 0x0f0f0f0fu; }
// The same, with other bits above.
__device__ inline unsigned low_nibbles(unsigned bytes, int high) { return bytes >> 4 * high; }

// Four bits, each as the lowest of a byte.
__device__ inline unsigned spread(unsigned bits) { return (bits & 0xfu) * 0x00204081u & 0x01010101u; }

// The bytes of a table of sixteen, by four numbers below 16 in a word's bytes.
__device__ inline unsigned looked_up(unsigned numbers, unsigned first, unsigned second, unsigned third, unsigned fourth) {
    const unsigned packed = __byte_perm(numbers | numbers >> 4, 0, 0x4420) & 0x7777u;
    const unsigned in_upper = (numbers & 0x08080808u) / 8 * 0xffu;
    return (__byte_perm(first, second, packed) & ~in_upper) | (__byte_perm(third, fourth, packed) & in_upper);
}

// What blocks of a type have unless they say otherwise.
struct BlockForm {
    static constexpr int ZERO = 0;
    // The bits of a byte that count.
    static constexpr unsigned BITS = 0xff;
    // Bytes have a sign, and no `ZERO` then; else they are below 128.
    static constexpr bool SIGNED = false;
    // Scales are of 16 weights.
    static constexpr bool OF_16 = false;
    static constexpr bool LEAST = false;
    // Numbers of bf16, which have no scale.
    static constexpr bool PLAIN = false;
    __device__ static float least(const Byte*, int, int) { return 0.0f; }
};

struct Q4_0 : BlockForm {
    static constexpr unsigned BITS = 0x0f;
    static constexpr int WEIGHTS = 32, BYTES = 18, ZERO = 8;
    __device__ static void words(const Byte* chunk, int step, int t, unsigned (&of)[2]) {
        const unsigned both = word<2>(chunk + step * BYTES + 2 + 4 * t);
        of[0] = low_nibbles(both, 0), of[1] = low_nibbles(both, 1);
    }
    __device__ static float scale(const Byte* chunk, int step, int) { return half_at(chunk + step * BYTES); }
};

struct Q4_1 : BlockForm {
    static constexpr unsigned BITS = 0x0f;
    static constexpr int WEIGHTS = 32, BYTES = 20;
    static constexpr bool LEAST = true;
    __device__ static void words(const Byte* chunk, int step, int t, unsigned (&of)[2]) {
        const unsigned both = word<4>(chunk + step * BYTES + 4 + 4 * t);
        of[0] = low_nibbles(both, 0), of[1] = low_nibbles(both, 1);
    }
    __device__ static float scale(const Byte* chunk, int step, int) { return half_at(chunk + step * BYTES); }
    __device__ static float least(const Byte* chunk, int step, int) { return -half_at(chunk + step * BYTES + 2); }
};

struct Q5_0 : BlockForm {
    static constexpr int WEIGHTS = 32, BYTES = 22, ZERO = 16;
    __device__ static void words(const Byte* chunk, int step, int t, unsigned (&of)[2]) {
        const Byte* block = chunk + step * BYTES;
        const unsigned both = word<2>(block + 6 + 4 * t), fifth = word<2>(block + 2) >> 4 * t;
        of[0] = nibbles(both, 0) | spread(fifth) << 4, of[1] = nibbles(both, 1) | spread(fifth >> 16) << 4;
    }
    __device__ static float scale(const Byte* chunk, int step, int) { return half_at(chunk + step * BYTES); }
};

struct Q5_1 : BlockForm {
    static constexpr int WEIGHTS = 32, BYTES = 24;
    static constexpr bool LEAST = true;
    __device__ static void words(const Byte* chunk, int step, int t, unsigned (&of)[2]) {
        const Byte* block = chunk + step * BYTES;
        const unsigned both = word<4>(block + 8 + 4 * t), fifth = word<4>(block + 4) >> 4 * t;
        of[0] = nibbles(both, 0) | spread(fifth) << 4, of[1] = nibbles(both, 1) | spread(fifth >> 16) << 4;
    }
    __device__ static float scale(const Byte* chunk, int step, int) { return half_at(chunk + step * BYTES); }
    __device__ static float least(const Byte* chunk, int step, int) { return -half_at(chunk + step * BYTES + 2); }
};

struct Q8_0 : BlockForm {
    static constexpr int WEIGHTS = 32, BYTES = 34;
    static constexpr bool SIGNED = true;
    __device__ static void words(const Byte* chunk, int step, int t, unsigned (&of)[2]) {
        const Byte* bytes = chunk + step * BYTES + 2 + 4 * t;
        of[0] = word<2>(bytes), of[1] = word<2>(bytes + 16);
    }
    __device__ static float scale(const Byte* chunk, int step, int) { return half_at(chunk + step * BYTES); }
};

struct IQ4_NL : BlockForm {
    static constexpr int WEIGHTS = 32, BYTES = 18;
    static constexpr bool SIGNED = true;
    // -127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113
    __device__ static unsigned values(unsigned numbers) {
        return looked_up(numbers, 0xbfad9881u, 0xf6eaddcfu, 0x26190d01u, 0x71594535u);
    }
    __device__ static void words(const Byte* chunk, int step, int t, unsigned (&of)[2]) {
        const unsigned both = word<2>(chunk + step * BYTES + 2 + 4 * t);
        of[0] = values(nibbles(both, 0)), of[1] = values(nibbles(both, 1));
    }
    __device__ static float scale(const Byte* chunk, int step, int) { return half_at(chunk + step * BYTES); }
};

// Sixteen numbers of OCP's E2M1, doubled so that they are whole, behind an exponent of two.
struct MXFP4 : BlockForm {
    static constexpr int WEIGHTS = 32, BYTES = 17;
    static constexpr bool SIGNED = true;
    // 0, 1, 2, 3, 4, 6, 8, 12, and the same below zero
    __device__ static unsigned values(unsigned numbers) {
        return looked_up(numbers, 0x03020100u, 0x0c080604u, 0xfdfeff00u, 0xf4f8fafcu);
    }
    __device__ static void words(const Byte* chunk, int step, int t, unsigned (&of)[2]) {
        const unsigned both = word<1>(chunk + step * BYTES + 1 + 4 * t);
        of[0] = values(nibbles(both, 0)), of[1] = values(nibbles(both, 1));
    }
    // 2^(e - 127) / 2
    __device__ static float scale(const Byte* chunk, int step, int) { return exp2f((float)chunk[step * BYTES] - 128.0f); }
};

struct Q2_K : BlockForm {
    static constexpr int WEIGHTS = 256, BYTES = 84;
    static constexpr bool OF_16 = true, LEAST = true;
    __device__ static void words(const Byte* chunk, int step, int t, unsigned (&of)[2]) {
        const Byte* bytes = chunk + 16 + step / 4 * 32 + 4 * t;
        for (int half = 0; half < 2; half++) of[half] = word<4>(bytes + 16 * half) >> 2 * (step % 4) & 0x03030303u;
    }
    __device__ static float scale(const Byte* chunk, int step, int half) { return half_at(chunk + 80) * (chunk[2 * step + half] & 15); }
    __device__ static float least(const Byte* chunk, int step, int half) { return half_at(chunk + 82) * (chunk[2 * step + half] >> 4); }
};

struct Q3_K : BlockForm {
    static constexpr int WEIGHTS = 256, BYTES = 110, ZERO = 4;
    static constexpr bool OF_16 = true;
    __device__ static void words(const Byte* chunk, int step, int t, unsigned (&of)[2]) {
        for (int half = 0; half < 2; half++) {
            const Byte* bytes = chunk + 16 * half + 4 * t;
            const unsigned low = word<2>(bytes + 32 + step / 4 * 32) >> 2 * (step % 4) & 0x03030303u;
            of[half] = low | (word<2>(bytes) >> step & 0x01010101u) << 2;
        }
    }
    // Six bits of each scale: four in one place, two in another.
    __device__ static float scale(const Byte* chunk, int step, int half) {
        const int at = 2 * step + half;
        const int low = chunk[96 + at % 8] >> (at < 8 ? 0 : 4) & 15, high = chunk[104 + at % 4] >> 2 * (at / 4) & 3;
        return half_at(chunk + 108) * ((low | high << 4) - 32);
    }
};

// The scales and least weights of Q4_K and Q5_K, six bits each, of 32 weights.
struct FormK : BlockForm {
    static constexpr bool LEAST = true;
    __device__ static unsigned six(unsigned low, unsigned high, unsigned last, int step, int last_shift) {
        if (step < 4) return low >> 8 * step & 63;
        step -= 4;
        return (last >> (8 * step + last_shift) & 15) | (high >> (8 * step + 6) & 3) << 4;
    }
    __device__ static float scale(const Byte* chunk, int step, int) {
        const unsigned scales = word<4>(chunk + 4), last = word<4>(chunk + 12);
        return half_at(chunk) * (float)six(scales, scales, last, step, 0);
    }
    __device__ static float least(const Byte* chunk, int step, int) {
        const unsigned least = word<4>(chunk + 8), last = word<4>(chunk + 12);
        return half_at(chunk + 2) * (float)six(least, least, last, step, 4);
    }
};

struct Q4_K : FormK {
    static constexpr unsigned BITS = 0x0f;
    static constexpr int WEIGHTS = 256, BYTES = 144;
    __device__ static void words(const Byte* chunk, int step, int t, unsigned (&of)[2]) {
        const Byte* bytes = chunk + 16 + step / 2 * 32 + 4 * t;
        for (int half = 0; half < 2; half++) of[half] = low_nibbles(word<4>(bytes + 16 * half), step % 2);
    }
};

struct Q5_K : FormK {
    static constexpr int WEIGHTS = 256, BYTES = 176;
    __device__ static void words(const Byte* chunk, int step, int t, unsigned (&of)[2]) {
        for (int half = 0; half < 2; half++) {
            const Byte* bytes = chunk + 16 + 16 * half + 4 * t;
            const unsigned fifth = word<4>(bytes) >> step & 0x01010101u;
            of[half] = nibbles(word<4>(bytes + 32 + step / 2 * 32), step % 2) | fifth << 4;
        }
    }
};

struct Q6_K : BlockForm {
    static constexpr int WEIGHTS = 256, BYTES = 210, ZERO = 32;
    static constexpr bool OF_16 = true;
    __device__ static void words(const Byte* chunk, int step, int t, unsigned (&of)[2]) {
        const int part = step / 4, row = step % 4;
        for (int half = 0; half < 2; half++) {
            const Byte* bytes = chunk + 16 * half + 4 * t;
            const unsigned upper = word<2>(bytes + 128 + 32 * part) >> 2 * row & 0x03030303u;
            of[half] = nibbles(word<2>(bytes + 64 * part + row % 2 * 32), row / 2) | upper << 4;
        }
    }
    __device__ static float scale(const Byte* chunk, int step, int half) {
        return half_at(chunk + 208) * (signed char)chunk[192 + 2 * step + half];
    }
};

struct IQ4_XS : BlockForm {
    static constexpr int WEIGHTS = 256, BYTES = 136;
    static constexpr bool SIGNED = true;
    __device__ static void words(const Byte* chunk, int step, int t, unsigned (&of)[2]) {
        const unsigned both = word<4>(chunk + 8 + 16 * step + 4 * t);
        of[0] = IQ4_NL::values(nibbles(both, 0)), of[1] = IQ4_NL::values(nibbles(both, 1));
    }
    __device__ static float scale(const Byte* chunk, int step, int) {
        const int low = chunk[4 + step / 2] >> 4 * (step % 2) & 15, high = word<4>(chunk) >> (16 + 2 * step) & 3;
        return half_at(chunk) * ((low | high << 4) - 32);
    }
};

// A matrix that is not in blocks at all, of bf16, which the same products serve.
struct BF16 : BlockForm {
    static constexpr int WEIGHTS = 32, BYTES = 64;
    static constexpr bool PLAIN = true;
    __device__ static void words(const Byte*, int, int, unsigned (&)[2]) {}
    __device__ static float scale(const Byte*, int, int) { return 1.0f; }
};

template <typename B> constexpr int CHUNK_BYTES = CHUNK / B::WEIGHTS * B::BYTES;

// The byte of this number without its scale.
template <typename B> __device__ inline int whole(unsigned word, int number) {
    const unsigned byte = word >> 8 * number & B::BITS;
    return B::SIGNED ? (int)(signed char)byte : (int)byte - B::ZERO;
}

struct WidenBlocks {
    // [rows, depth] in blocks.
    const Byte* weights;
    // [count]: the rows that are wanted; null where these are `count` from the first.
    const unsigned* numbers;
    // [count, depth]
    void* out;
    int depth, count;
};

constexpr int WIDEN_THREADS = 256;

// Weights as floats: four lanes have a step of a row.
template <typename B, typename T> __device__ void widen_blocks(const WidenBlocks& a) {
    const long at = (long)blockIdx.x * WIDEN_THREADS + threadIdx.x, of_row = a.depth / STEP * LANES_OF_STEP;
    const long row = at / of_row;
    const int t = at % LANES_OF_STEP, step = at % of_row / LANES_OF_STEP;
    if (row >= a.count) return;
    const long from = a.numbers ? a.numbers[row] : row;
    const Byte* chunk = a.weights + from * (a.depth / B::WEIGHTS) * B::BYTES + (long)(step / CHUNK_STEPS) * CHUNK_BYTES<B>;
    unsigned words[2];
    B::words(chunk, step % CHUNK_STEPS, t, words);
    T* out = static_cast<T*>(a.out) + row * a.depth + step * STEP + 4 * t;
    for (int half = 0; half < 2; half++) {
        const float scale = B::scale(chunk, step % CHUNK_STEPS, half);
        const float least = B::LEAST ? B::least(chunk, step % CHUNK_STEPS, half) : 0.0f;
        struct alignas(4 * sizeof(T)) { T numbers[4]; } four;
        for (int d = 0; d < 4; d++) put(&four.numbers[d], scale * whole<B>(words[half], d) - least);
        *reinterpret_cast<decltype(four)*>(out + 16 * half) = four;
    }
}
