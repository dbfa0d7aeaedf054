// Products of few rows with matrices that share their input: y = x Wᵀ. Each weight is read once, and a warp has two outputs of all
// rows.
#pragma once
#include "numbers.cuh"

constexpr int MATRICES = 3;
constexpr int MULTIPLY_WARPS = 4;
constexpr int OUTS_OF_WARP = 2;

struct MultiplyRows {
    // [rows, depth]
    const void* x;
    // [outs, depth] each, and [rows, outs] each.
    const void* weights[MATRICES];
    void* results[MATRICES];
    // An even number each, or only one matrix.
    int outs[MATRICES];
    int depth, rows;
};

template <typename T, int ROWS> __device__ void multiply_rows(const MultiplyRows& a) {
    constexpr int AT_ONCE = Vector<T>::COUNT;
    const int lane = threadIdx.x % WARP;
    int out = (blockIdx.x * MULTIPLY_WARPS + threadIdx.x / WARP) * OUTS_OF_WARP, matrix = 0;
    while (matrix < MATRICES && out >= a.outs[matrix]) out -= a.outs[matrix++];
    if (matrix == MATRICES) return;
    const bool both = out + 1 < a.outs[matrix];
    const T* one = static_cast<const T*>(a.weights[matrix]) + (long)out * a.depth;
    const T* other = both ? one + a.depth : one;
    const T* x = static_cast<const T*>(a.x);
    float sums[ROWS][OUTS_OF_WARP] = {};
    // Several reads are under way before the first is used.
    constexpr int STEPS = ROWS > 4 ? 2 : 4, STEP = WARP * AT_ONCE;
    const auto add = [&](const Vector<T>& of_one, const Vector<T>& of_other, int first) {
#pragma unroll
        for (int row = 0; row < ROWS; row++) {
            if (row >= a.rows) break;
            const Vector<T> of_row = load(x + (long)row * a.depth + first);
#pragma unroll
            for (int d = 0; d < AT_ONCE; d++) {
                const float factor = number(of_row.numbers[d]);
                sums[row][0] += factor * number(of_one.numbers[d]);
                sums[row][1] += factor * number(of_other.numbers[d]);
            }
        }
    };
    int first = lane * AT_ONCE;
    for (; first + (STEPS - 1) * STEP < a.depth; first += STEPS * STEP) {
        Vector<T> of_one[STEPS], of_other[STEPS];
#pragma unroll
        for (int step = 0; step < STEPS; step++) of_one[step] = load(one + first + step * STEP), of_other[step] = load(other + first + step * STEP);
#pragma unroll
        for (int step = 0; step < STEPS; step++) add(of_one[step], of_other[step], first + step * STEP);
    }
    for (; first < a.depth; first += STEP) add(load(one + first), load(other + first), first);
#pragma unroll
    for (int row = 0; row < ROWS; row++) {
        if (row >= a.rows) break;
        const float first = warp_sum(sums[row][0]), second = warp_sum(sums[row][1]);
        if (lane == 0) {
            T* to = static_cast<T*>(a.results[matrix]) + (long)row * a.outs[matrix] + out;
            put(to, first);
            if (both) put(to + 1, second);
        }
    }
}
