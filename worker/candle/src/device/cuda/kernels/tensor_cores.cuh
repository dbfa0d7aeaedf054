// Instructions of GPUs that C++ has no words for: products of small tiles, arithmetic on two numbers of bf16 in a word, and copies to
// shared memory that run beside a thread. Those of NVIDIA's "PTX ISA", for compute capability 8.0 and later.
#pragma once
#include "numbers.cuh"

#include <type_traits>

// The lower and the upper of two numbers of bf16.
__device__ inline float low_of(unsigned two) { return __uint_as_float(two << 16); }
__device__ inline float high_of(unsigned two) { return __uint_as_float(two & 0xffff0000u); }

#ifndef HOST_KERNELS
// `x y + z` of two numbers of bf16 each, rounded once.
__device__ inline unsigned multiply_add(unsigned x, unsigned y, unsigned z) {
    unsigned result;
    asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(result) : "r"(x), "r"(y), "r"(z));
    return result;
}

// `bits & mask | more` in one instruction, which has room for one constant: the other is kept in a register by `kept`.
__device__ inline unsigned masked(unsigned bits, unsigned mask, unsigned more) {
    unsigned result;
    asm("lop3.b32 %0, %1, %2, %3, 0xEA;" : "=r"(result) : "r"(bits), "r"(mask), "r"(more));
    return result;
}
__device__ inline unsigned kept(unsigned constant) {
    unsigned result;
    asm("mov.b32 %0, %1;" : "=r"(result) : "r"(constant));
    return result;
}

// Adds a product of tiles [16, 16] and [16, 8] of bf16. A lane has of the first the rows `lane / 4` and that plus 8, in turn, of the
// columns `lane % 4 * 2` and the next, then of those plus 8; of the second these columns as rows, of the column `lane / 4`; of the sums
// the rows of the first, one after the other, each of the columns `lane % 4 * 2` and the next.
__device__ inline void multiply_tile(float (&sums)[4], const unsigned (&first)[4], const unsigned (&second)[2]) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
        : "r"(first[0]), "r"(first[1]), "r"(first[2]), "r"(first[3]), "r"(second[0]), "r"(second[1]));
}

// The same with numbers of a type, and the second tile in two words.
template <typename T> __device__ inline void multiply_tile_of(float (&sums)[4], const unsigned (&first)[4], unsigned low, unsigned high) {
    if (std::is_same<T, __half>::value) {
        asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
            : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
            : "r"(first[0]), "r"(first[1]), "r"(first[2]), "r"(first[3]), "r"(low), "r"(high));
    } else {
        const unsigned second[2] = {low, high};
        multiply_tile(sums, first, second);
    }
}

// Four tiles [8, 8] of numbers of two bytes from shared memory. Lanes 8 m to 8 m + 7 name the rows of tile m, of sixteen bytes each. A
// lane gets of each tile the row `lane / 4`, columns `lane % 4 * 2` and the next; of transposed tiles the columns' and rows' roles change.
__device__ inline void load_tiles(unsigned (&of)[4], const void* row) {
    const unsigned shared = __cvta_generic_to_shared(row);
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(of[0]), "=r"(of[1]), "=r"(of[2]), "=r"(of[3])
                 : "r"(shared)
                 : "memory");
}
__device__ inline void load_transposed_tiles(unsigned (&of)[4], const void* row) {
    const unsigned shared = __cvta_generic_to_shared(row);
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(of[0]), "=r"(of[1]), "=r"(of[2]), "=r"(of[3])
                 : "r"(shared)
                 : "memory");
}

// Two numbers in a word, the first in its lower half.
__device__ inline unsigned word_of(float low, float high, __half) {
    const __half2 two = __floats2half2_rn(low, high);
    return *reinterpret_cast<const unsigned*>(&two);
}
__device__ inline unsigned word_of(float low, float high, __nv_bfloat16) {
    const __nv_bfloat162 two = __floats2bfloat162_rn(low, high);
    return *reinterpret_cast<const unsigned*>(&two);
}

// Copies so many bytes from global to sixteen of shared memory beside the thread's work, and zeros behind them.
__device__ inline void copy_async(void* to, const void* from, int bytes) {
    const unsigned shared = __cvta_generic_to_shared(to);
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared), "l"(from), "r"(bytes) : "memory");
}

// The copies since the last call end together.
__device__ inline void end_of_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }

// Waits for all of the thread's copies but those of the last `LEFT` calls of `end_of_copies`.
template <int LEFT> __device__ inline void wait_for_copies() { asm volatile("cp.async.wait_group %0;" ::"n"(LEFT) : "memory"); }
#endif
