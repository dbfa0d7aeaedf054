// Numbers of the types that models have, as floats and back, and sums and maxima over a warp and a block.
//
// The files of this folder are compiled for GPUs by build.rs, and for the host by tests/kernels (there `HOST_KERNELS` is defined and
// the host's own header stands in for CUDA's).
#pragma once

#ifdef HOST_KERNELS
#include "host.h"
#else
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#define SHARED_FLOATS(name) extern __shared__ float name[]
#endif

constexpr int WARP = 32;
constexpr unsigned ALL_LANES = 0xffffffffu;

__device__ inline float number(float x) { return x; }
__device__ inline float number(__half x) { return __half2float(x); }
__device__ inline float number(__nv_bfloat16 x) { return __bfloat162float(x); }

__device__ inline void put(float* to, float x) { *to = x; }
// Beyond the range of f16 numbers stay at its end, as they do on the CPU.
__device__ inline void put(__half* to, float x) { *to = __float2half(fminf(fmaxf(x, -65504.0f), 65504.0f)); }
__device__ inline void put(__nv_bfloat16* to, float x) { *to = __float2bfloat16(x); }

__device__ inline float warp_sum(float x) {
    for (int distance = WARP / 2; distance > 0; distance /= 2) x += __shfl_xor_sync(ALL_LANES, x, distance);
    return x;
}

__device__ inline float warp_max(float x) {
    for (int distance = WARP / 2; distance > 0; distance /= 2) x = fmaxf(x, __shfl_xor_sync(ALL_LANES, x, distance));
    return x;
}

// The sum over all threads of a block; `of_warps` has room for 32 numbers, and every thread gets the sum.
__device__ inline float block_sum(float x, float* of_warps) {
    x = warp_sum(x);
    if (threadIdx.x % WARP == 0) of_warps[threadIdx.x / WARP] = x;
    __syncthreads();
    const int warps = blockDim.x / WARP, lane = threadIdx.x % WARP;
    x = warp_sum(lane < warps ? of_warps[lane] : 0.0f);
    __syncthreads();
    return x;
}

__device__ inline float block_max(float x, float* of_warps) {
    x = warp_max(x);
    if (threadIdx.x % WARP == 0) of_warps[threadIdx.x / WARP] = x;
    __syncthreads();
    const int warps = blockDim.x / WARP, lane = threadIdx.x % WARP;
    x = warp_max(lane < warps ? of_warps[lane] : -INFINITY);
    __syncthreads();
    return x;
}

// A kernel of a recorded step may begin while the one before it runs. Before it reads what others wrote, or writes itself, each thread
// waits for the other's end.
__device__ inline void let_next_begin() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;");
#endif
}

__device__ inline void wait_for_previous() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// Sixteen bytes of numbers.
template <typename T> struct Vector {
    static constexpr int COUNT = 16 / sizeof(T);
    T numbers[COUNT];
};

// The same numbers, of which the compiler knows nothing any more: it would keep them as floats for all heads, in registers.
template <typename T> __device__ inline Vector<T> forgotten(Vector<T> x) {
#if defined(__CUDA_ARCH__)
    uint4& bits = reinterpret_cast<uint4&>(x);
    asm volatile("" : "+r"(bits.x), "+r"(bits.y), "+r"(bits.z), "+r"(bits.w));
#endif
    return x;
}

template <typename T> __device__ inline Vector<T> load(const T* from) {
    const uint4 bits = *reinterpret_cast<const uint4*>(from);
    return *reinterpret_cast<const Vector<T>*>(&bits);
}
