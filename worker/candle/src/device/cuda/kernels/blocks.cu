// The kernels of matrices in quantised blocks, of one type at a time, `-DOF_BLOCKS=Q4_K`, so that a driver translates no more than a
// model uses.
#include "multiply_blocks.cuh"

#define KERNEL(THREADS, BLOCKS) extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS)
// The second number is of blocks of threads that a multiprocessor should have room for. Rows of more than one tile are normed before.
#define KERNELS_OF_TILES(B, TILES)                                                                                       \
    KERNEL(512, 1) multiply_##B##_##TILES(MultiplyRows a) { multiply_blocks<B, TILES, false, false>(a); }                 \
    KERNEL(512, 1) multiply_gated_##B##_##TILES(MultiplyRows a) { multiply_blocks<B, TILES, false, true>(a); }

#define BEGIN let_next_begin(), wait_for_previous();
#define KERNELS_OF_BLOCKS(B)                                                                                             \
    KERNELS_OF_TILES(B, 1)                                                                                               \
    KERNELS_OF_TILES(B, 2)                                                                                               \
    KERNELS_OF_TILES(B, 4)                                                                                               \
    KERNEL(512, 1) multiply_normed_##B##_1(MultiplyRows a) { multiply_blocks<B, 1, true, false>(a); }                     \
    KERNEL(512, 1) multiply_gated_normed_##B##_1(MultiplyRows a) { multiply_blocks<B, 1, true, true>(a); }

#define KERNELS_OF_FLOATS(B)                                                                                             \
    KERNEL(WIDEN_THREADS, 1) widen_##B##_f32(WidenBlocks a) { BEGIN widen_blocks<B, float>(a); }                         \
    KERNEL(WIDEN_THREADS, 1) widen_##B##_bf16(WidenBlocks a) { BEGIN widen_blocks<B, __nv_bfloat16>(a); }

#define KERNELS_OF(B) KERNELS_OF_BLOCKS(B)
KERNELS_OF(OF_BLOCKS)
#ifndef OF_PLAIN
#define FLOATS_OF(B) KERNELS_OF_FLOATS(B)
FLOATS_OF(OF_BLOCKS)
#endif
