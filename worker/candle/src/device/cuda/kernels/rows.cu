// The kernels by their names, for each type that models compute in, and each greatest width of a value.
#include "attend.cuh"
#include "multiply.cuh"
#include "piece.cuh"
#include "place.cuh"
#include "soften.cuh"
#include "stream.cuh"

#define KERNEL(THREADS) extern "C" __global__ void __launch_bounds__(THREADS)

#define KERNELS_OF(T, NAME)                                                                       \
    KERNEL(128) join_splits_##NAME(AttendRows a) { join_splits<T>(a); }                           \
    KERNEL(SOFTEN_THREADS) soften_rows_##NAME(SoftenRows a) { soften_rows<T>(a); }                \
    KERNEL(ADD_NORM_THREADS) add_norm_##NAME(AddNorm a) { add_norm<T>(a); }                       \
    KERNEL(256) silu_gate_##NAME(SiluGate a) { silu_gate<T>(a); }                                 \
    KERNEL(128) multiply_##NAME##_1(MultiplyRows a) { multiply_rows<T, 1>(a); }                     \
    KERNEL(128) multiply_##NAME##_2(MultiplyRows a) { multiply_rows<T, 2>(a); }                     \
    KERNEL(128) multiply_##NAME##_4(MultiplyRows a) { multiply_rows<T, 4>(a); }                     \
    KERNEL(128) multiply_##NAME##_8(MultiplyRows a) { multiply_rows<T, 8>(a); }                     \
    KERNEL(128) place_rows_##NAME(PlaceRows a) { place_rows<T>(a); }                              \
    KERNEL(ATTEND_THREADS) attend_rows_##NAME##_64(AttendRows a) { attend_rows<T, 2>(a); }        \
    KERNEL(ATTEND_THREADS) attend_rows_##NAME##_128(AttendRows a) { attend_rows<T, 4>(a); }       \
    KERNEL(ATTEND_THREADS) attend_rows_##NAME##_256(AttendRows a) { attend_rows<T, 8>(a); }       \
    KERNEL(ATTEND_THREADS) attend_rows_##NAME##_512(AttendRows a) { attend_rows<T, 16>(a); }

#define KERNELS_OF_PIECES(T, NAME)                                                                      \
    KERNEL(PIECE_THREADS) attend_piece_##NAME##_64(AttendPiece a) { attend_piece<T, 4>(a); }            \
    KERNEL(PIECE_THREADS) attend_piece_##NAME##_128(AttendPiece a) { attend_piece<T, 8>(a); }           \
    KERNEL(PIECE_THREADS) attend_piece_##NAME##_256(AttendPiece a) { attend_piece<T, 16>(a); }

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
