// The stream of a layer: a part's result added to it, and the norm behind that; and the gate of a feed-forward part.
#pragma once
#include "numbers.cuh"

struct AddNorm {
    // [rows, width] each; the result is x + y.
    const void *x, *y;
    // [width]
    const void* weight;
    void *sum, *normed;
    float eps;
    int width;
};

constexpr int ADD_NORM_THREADS = 256;

template <typename T> __device__ void add_norm(const AddNorm& a) {
    SHARED_FLOATS(shared);
    float* row = shared + WARP;
    const long first = (long)blockIdx.x * a.width;
    const T *x = static_cast<const T*>(a.x) + first, *y = static_cast<const T*>(a.y) + first, *weight = static_cast<const T*>(a.weight);
    T *sum = static_cast<T*>(a.sum) + first, *normed = static_cast<T*>(a.normed) + first;
    float squares = 0.0f;
    for (int at = threadIdx.x; at < a.width; at += ADD_NORM_THREADS) {
        // Rounded as the stream is, which the norm is of.
        T rounded;
        put(&rounded, number(x[at]) + number(y[at]));
        sum[at] = rounded;
        row[at] = number(rounded);
        squares += row[at] * row[at];
    }
    const float factor = rsqrtf(block_sum(squares, shared) / a.width + a.eps);
    for (int at = threadIdx.x; at < a.width; at += ADD_NORM_THREADS) put(normed + at, row[at] * factor * number(weight[at]));
}

struct SiluGate {
    const void *gate, *up;
    void* out;
    long count;
    // gpt-oss': both are bounded by `limit`, the sigmoid is of `slope` times the gate, and 1 is added to `up`. Without a bound 0.
    float limit, slope;
};

__device__ inline float silu_of(float gate, float up, float limit, float slope) {
    if (limit > 0.0f) {
        gate = fminf(gate, limit);
        up = fminf(fmaxf(up, -limit), limit) + 1.0f;
    } else {
        slope = 1.0f;
    }
    return gate / (1.0f + expf(-slope * gate)) * up;
}

template <typename T> __device__ void silu_gate(const SiluGate& a) {
    const long at = (long)blockIdx.x * blockDim.x + threadIdx.x;
    if (at >= a.count) return;
    const float gate = number(static_cast<const T*>(a.gate)[at]), up = number(static_cast<const T*>(a.up)[at]);
    put(static_cast<T*>(a.out) + at, silu_of(gate, up, a.limit, a.slope));
}
