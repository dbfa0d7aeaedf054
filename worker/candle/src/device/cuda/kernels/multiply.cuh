// Products of few rows with matrices that share their input, y = x Wᵀ, and what a decoder does before and behind them. Each weight is
// read once. A warp has two outputs of all rows, or one of a single row: then most of a small matrix is asked for at once.
#pragma once
#include "numbers.cuh"
#include "stream.cuh"

constexpr int MATRICES = 3;
constexpr int MULTIPLY_WARPS = 4;

struct MultiplyRows {
    // [rows, depth]
    const void* x;
    // [outs, depth] each, [outs] each or null, and [rows, outs] each.
    const void* weights[MATRICES];
    const void* biases[MATRICES];
    void* results[MATRICES];
    // [depth]: the weight of a root-mean-square norm that x passes first; for kernels with NORMED.
    const void* norm;
    // [rows, outs] of the only matrix: is added to the result. Or null.
    const void* residual;
    float eps;
    // As in SiluGate.
    float limit, slope;
    // An even number each, or only one matrix, or a single row.
    int outs[MATRICES];
    int depth, rows;
};

// `GATED`: the first matrix makes the gate of the second, and the first result is what passes.
template <typename T, int ROWS, bool NORMED, bool GATED> __device__ void multiply_rows(const MultiplyRows& a) {
    // Rows of weights that a warp reads.
    constexpr int AT_ONCE = Vector<T>::COUNT, OUTS = ROWS == 1 && !GATED ? 1 : 2;
    const int lane = threadIdx.x % WARP, warp = blockIdx.x * MULTIPLY_WARPS + threadIdx.x / WARP;
    // The matrix of this warp, and the output within it. An index that is no constant would put all arguments into local memory.
    int out = GATED ? warp : warp * OUTS;
    const bool behind_first = !GATED && out >= a.outs[0], behind_second = behind_first && out - a.outs[0] >= a.outs[1];
    const auto mine = [&](const auto& of) { return behind_second ? of[2] : behind_first ? of[1] : of[0]; };
    const void *matrix = mine(a.weights), *biases = mine(a.biases);
    void* result = mine(a.results);
    const int outs = mine(a.outs);
    out -= (behind_first ? a.outs[0] : 0) + (behind_second ? a.outs[1] : 0);
    let_next_begin();
    if (out >= outs) {
        wait_for_previous();
        return;
    }
    const bool both = OUTS == 2 && (GATED || out + 1 < outs);
    const T* weights[OUTS];
    weights[0] = static_cast<const T*>(matrix) + (long)out * a.depth;
    if (OUTS == 2) {
        const T* of_gated = static_cast<const T*>(a.weights[1]) + (long)out * a.depth;
        weights[OUTS - 1] = GATED ? of_gated : both ? weights[0] + a.depth : weights[0];
    }
    const T *x = static_cast<const T*>(a.x), *norm = static_cast<const T*>(a.norm);
    float sums[ROWS][OUTS] = {}, squares[ROWS] = {};
    // Eight reads are under way before the first is used.
    constexpr int STEPS = 8 / OUTS, STEP = WARP * AT_ONCE, CHUNK = STEPS * STEP;
    const auto add = [&](const Vector<T> (&of_weights)[OUTS], int first) {
        Vector<T> of_norm;
        if (NORMED) of_norm = load(norm + first);
#pragma unroll
        for (int row = 0; row < ROWS; row++) {
            if (row >= a.rows) break;
            const Vector<T> of_row = load(x + (long)row * a.depth + first);
#pragma unroll
            for (int d = 0; d < AT_ONCE; d++) {
                float factor = number(of_row.numbers[d]);
                if (NORMED) {
                    squares[row] += factor * factor;
                    factor *= number(of_norm.numbers[d]);
                }
#pragma unroll
                for (int o = 0; o < OUTS; o++) sums[row][o] += factor * number(of_weights[o].numbers[d]);
            }
        }
    };
    const auto fetch = [&](Vector<T> (&chunk)[STEPS][OUTS], int first) {
#pragma unroll
        for (int step = 0; step < STEPS; step++) {
#pragma unroll
            for (int o = 0; o < OUTS; o++) chunk[step][o] = load(weights[o] + first + step * STEP);
        }
    };
    const auto add_chunk = [&](const Vector<T> (&chunk)[STEPS][OUTS], int first) {
#pragma unroll
        for (int step = 0; step < STEPS; step++) add(chunk[step], first + step * STEP);
    };
    int first = lane * AT_ONCE;
    const auto is_whole = [&] { return first + CHUNK - STEP < a.depth; };
    if (is_whole()) {
        // Weights do not depend on the kernel before: the first ones are on their way while it ends.
        Vector<T> chunk[STEPS][OUTS];
        fetch(chunk, first);
        wait_for_previous();
        add_chunk(chunk, first);
        first += CHUNK;
    } else {
        wait_for_previous();
    }
    for (; is_whole(); first += CHUNK) {
        Vector<T> chunk[STEPS][OUTS];
        fetch(chunk, first);
        add_chunk(chunk, first);
    }
    for (; first < a.depth; first += STEP) {
        Vector<T> of_weights[OUTS];
#pragma unroll
        for (int o = 0; o < OUTS; o++) of_weights[o] = load(weights[o] + first);
        add(of_weights, first);
    }
    const auto bias = [](const void* biases, int out) { return biases ? number(static_cast<const T*>(biases)[out]) : 0.0f; };
#pragma unroll
    for (int row = 0; row < ROWS; row++) {
        if (row >= a.rows) break;
        float first = warp_sum(sums[row][0]), second = OUTS == 2 ? warp_sum(sums[row][OUTS - 1]) : 0.0f;
        if (NORMED) {
            const float factor = rsqrtf(warp_sum(squares[row]) / a.depth + a.eps);
            first *= factor, second *= factor;
        }
        if (lane > 0) continue;
        const long at = (long)row * outs + out;
        T* to = static_cast<T*>(result) + at;
        if (GATED) {
            put(to, silu_of(first + bias(biases, out), second + bias(a.biases[1], out), a.limit, a.slope));
            continue;
        }
        first += bias(biases, out), second += both ? bias(biases, out + 1) : 0.0f;
        if (a.residual) {
            const T* residual = static_cast<const T*>(a.residual) + at;
            first += number(residual[0]), second += both ? number(residual[1]) : 0.0f;
        }
        put(to, first);
        if (both) put(to + 1, second);
    }
}
