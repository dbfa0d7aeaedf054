// The kernels by their names, for each type that models compute in, and each greatest width of a value.
#include "attend.cuh"
#include "multiply.cuh"
#include "piece.cuh"
#include "place.cuh"
#include "soften.cuh"
#include "stream.cuh"

#define KERNEL(THREADS) extern "C" __global__ void __launch_bounds__(THREADS)
#define BEGIN let_next_begin(), wait_for_previous();
// Of attention the next kernel would take room with weights that it cannot use yet.
#define BEGIN_ALONE wait_for_previous(), let_next_begin();

// Of a single row as many warps at once as registers allow without spills.
#define KERNEL_OF_PRODUCTS(ROWS, BLOCKS) extern "C" __global__ void __launch_bounds__(128, ROWS == 1 ? BLOCKS : 4)

#define KERNELS_OF_PRODUCTS(T, NAME, ROWS)                                                                                              \
    KERNEL_OF_PRODUCTS(ROWS, 5) multiply_##NAME##_##ROWS(MultiplyRows a) { multiply_rows<T, ROWS, false, false>(a); }                   \
    KERNEL_OF_PRODUCTS(ROWS, 6) multiply_normed_##NAME##_##ROWS(MultiplyRows a) { multiply_rows<T, ROWS, true, false>(a); }             \
    KERNEL_OF_PRODUCTS(ROWS, 5) multiply_gated_##NAME##_##ROWS(MultiplyRows a) { multiply_rows<T, ROWS, false, true>(a); }              \
    KERNEL_OF_PRODUCTS(ROWS, 5) multiply_gated_normed_##NAME##_##ROWS(MultiplyRows a) { multiply_rows<T, ROWS, true, true>(a); }

// With several heads two blocks of threads share a multiprocessor.
#define KERNELS_OF_VECTORS(T, NAME, WIDTH)                                                                                                \
    KERNEL(ATTEND_THREADS) attend_vectors_##NAME##_##WIDTH##_1(AttendRows a) { BEGIN_ALONE attend_vectors<T, WIDTH, 1>(a); }              \
    extern "C" __global__ void __launch_bounds__(ATTEND_THREADS, 2) attend_vectors_##NAME##_##WIDTH##_4(AttendRows a) {                   \
        BEGIN_ALONE attend_vectors<T, WIDTH, 4>(a);                                                                                       \
    }

#define KERNELS_OF(T, NAME)                                                                       \
    KERNEL(128) join_splits_##NAME(AttendRows a) { BEGIN join_splits<T>(a); }                           \
    KERNEL(SOFTEN_THREADS) soften_rows_##NAME(SoftenRows a) { BEGIN soften_rows<T>(a); }                \
    KERNEL(ADD_NORM_THREADS) add_norm_##NAME(AddNorm a) { BEGIN add_norm<T>(a); }                       \
    KERNEL(256) silu_gate_##NAME(SiluGate a) { BEGIN silu_gate<T>(a); }                                 \
    KERNELS_OF_PRODUCTS(T, NAME, 1)                                                               \
    KERNELS_OF_PRODUCTS(T, NAME, 2)                                                               \
    KERNELS_OF_PRODUCTS(T, NAME, 4)                                                               \
    KERNEL(128) place_rows_##NAME(PlaceRows a) { BEGIN_ALONE place_rows<T>(a); }                              \
    KERNELS_OF_VECTORS(T, NAME, 64) \
    KERNELS_OF_VECTORS(T, NAME, 128) \
    KERNEL(ATTEND_THREADS) attend_rows_##NAME##_64(AttendRows a) { BEGIN_ALONE attend_rows<T, 2, TOGETHER<2>>(a); } \
    KERNEL(ATTEND_THREADS) attend_heads_##NAME##_64(AttendRows a) { BEGIN_ALONE attend_rows<T, 2, 1>(a); } \
    KERNEL(ATTEND_THREADS) attend_rows_##NAME##_128(AttendRows a) { BEGIN_ALONE attend_rows<T, 4, TOGETHER<4>>(a); } \
    KERNEL(ATTEND_THREADS) attend_heads_##NAME##_128(AttendRows a) { BEGIN_ALONE attend_rows<T, 4, 1>(a); } \
    KERNEL(ATTEND_THREADS) attend_rows_##NAME##_256(AttendRows a) { BEGIN_ALONE attend_rows<T, 8, TOGETHER<8>>(a); } \
    KERNEL(ATTEND_THREADS) attend_heads_##NAME##_256(AttendRows a) { BEGIN_ALONE attend_rows<T, 8, 1>(a); } \
    KERNEL(ATTEND_THREADS) attend_rows_##NAME##_512(AttendRows a) { BEGIN_ALONE attend_rows<T, 16, TOGETHER<16>>(a); } \
    KERNEL(ATTEND_THREADS) attend_heads_##NAME##_512(AttendRows a) { BEGIN_ALONE attend_rows<T, 16, 1>(a); }

#define KERNELS_OF_PIECES(T, NAME)                                                                      \
    KERNELS_OF_VECTORS(T, NAME, 256) \
    KERNEL(PIECE_THREADS) attend_piece_##NAME##_64(AttendPiece a) { BEGIN attend_piece<T, 64>(a); }            \
    KERNEL(PIECE_THREADS) attend_piece_##NAME##_128(AttendPiece a) { BEGIN attend_piece<T, 128>(a); }           \
    KERNEL(PIECE_THREADS) attend_piece_##NAME##_256(AttendPiece a) { BEGIN attend_piece<T, 256>(a); }

// One type at a time, so that a driver translates no more than a model uses: `-DOF_F32` and so on.
#ifdef OF_F32
KERNELS_OF(float, f32)
#endif
#ifdef OF_F16
KERNELS_OF(__half, f16)
KERNELS_OF_PIECES(__half, f16)
#endif
#ifdef OF_BF16
KERNELS_OF(__nv_bfloat16, bf16)
KERNELS_OF_PIECES(__nv_bfloat16, bf16)
#endif
