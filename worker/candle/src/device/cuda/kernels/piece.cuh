// Attention of a piece of a prompt, on tensor cores. A block of threads has 64 rows of a head, a warp 16 of them. The scores are
// computed twice: the first time for each row's largest one and the sum, so that the second time the weights are final, and sums of
// values stay in the registers of the tensor cores, whose layout is not known (Milakov and Gimelshein, 2018, arXiv 1805.02867).
#pragma once
#include "attend.cuh"

#ifndef HOST_KERNELS
#include <mma.h>
#endif

struct AttendPiece {
    // [rows of the step, heads, head_dim], scaled; keys, values and blocks as in AttendRows.
    const void* query;
    const void *keys, *values;
    // The sequence's own blocks.
    const unsigned* blocks;
    const float* sinks;
    // [rows of the step, heads, value_dim]
    void* out;
    float softcap;
    int heads, kv_heads, head_dim, value_dim, value_stride, room, window;
    // The piece's first row in the step, its rows, and the tokens before it.
    int first_row, rows, past;
};

constexpr int PIECE_WARPS = 4;
constexpr int PIECE_THREADS = PIECE_WARPS * WARP;
constexpr int SIDE = 16;
constexpr int PIECE_ROWS = PIECE_WARPS * SIDE;
constexpr int PIECE_KEYS = 64;
// Elements behind each row in shared memory, so that rows begin in different banks.
constexpr int BEHIND = 8;

// Copies rows of a cache to shared memory; zeros in place of keys from `behind` on.
template <typename T>
__device__ void load_tile(const AttendPiece& a, const T* from, int width, int stride, int first, int behind, T* to) {
    constexpr int AT_ONCE = Vector<T>::COUNT;
    const int vectors = width / AT_ONCE;
    for (int at = threadIdx.x; at < PIECE_KEYS * vectors; at += PIECE_THREADS) {
        const int key = at / vectors, d = at % vectors * AT_ONCE, token = first + key;
        uint4 bits = {0, 0, 0, 0};
        if (token < behind) {
            const long place = (long)a.blocks[token / BLOCK_TOKENS] * BLOCK_TOKENS + token % BLOCK_TOKENS;
            bits = *reinterpret_cast<const uint4*>(from + place * stride + d);
        }
        *reinterpret_cast<uint4*>(to + key * (width + BEHIND) + d) = bits;
    }
}

// `FRAGMENTS`: the greatest width of a value in pieces of 16.
template <typename T, int FRAGMENTS> __device__ void attend_piece(const AttendPiece& a) {
    namespace wmma = nvcuda::wmma;
    SHARED_FLOATS(shared);
    const int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP, head = blockIdx.y, dim = a.head_dim, width = a.value_dim;
    const int kv_head = head / (a.heads / a.kv_heads), tile = blockIdx.x * PIECE_ROWS, wide = max(dim, width) + BEHIND;
    constexpr int SCORES = PIECE_KEYS + 4, WEIGHTS = PIECE_KEYS + BEHIND;

    T* query = reinterpret_cast<T*>(shared);
    T* cached = query + PIECE_ROWS * (dim + BEHIND);
    float* scores = reinterpret_cast<float*>(cached + PIECE_KEYS * wide) + warp * SIDE * SCORES;
    T* weights = reinterpret_cast<T*>(reinterpret_cast<float*>(cached + PIECE_KEYS * wide) + PIECE_WARPS * SIDE * SCORES) + warp * SIDE * WEIGHTS;

    const T* all_query = static_cast<const T*>(a.query) + ((long)(a.first_row + tile) * a.heads + head) * dim;
    for (int at = threadIdx.x; at < PIECE_ROWS * dim; at += PIECE_THREADS) {
        const int row = at / dim, d = at % dim;
        T x;
        put(&x, 0.0f);
        if (tile + row < a.rows) x = all_query[(long)row * a.heads * dim + d];
        query[row * (dim + BEHIND) + d] = x;
    }
    const T* keys = static_cast<const T*>(a.keys) + (long)kv_head * a.room * dim;
    const T* values = static_cast<const T*>(a.values) + (long)kv_head * a.room * a.value_stride;

    // Two lanes have a row of scores, each one half of it.
    const int row = lane / 2, half = lane % 2 * (PIECE_KEYS / 2), at_row = tile + warp * SIDE + row;
    const int seen = a.past + at_row + 1, start = a.window > 0 && seen > a.window ? seen - a.window : 0;
    const int behind = a.past + min(a.rows, tile + PIECE_ROWS), first_seen = a.past + tile + 1;
    const int from = a.window > 0 && first_seen > a.window ? (first_seen - a.window) / PIECE_KEYS * PIECE_KEYS : 0;
    const auto score = [&](int base, int at) {
        const int key = base + half + at;
        float x = scores[row * SCORES + half + at];
        if (a.softcap > 0.0f) x = tanhf(x / a.softcap) * a.softcap;
        return key >= start && key < seen ? x : -INFINITY;
    };
    const auto multiply = [&](int base) {
        load_tile(a, keys, dim, dim, base, behind, cached);
        __syncthreads();
#pragma unroll
        for (int column = 0; column < PIECE_KEYS / SIDE; column++) {
            wmma::fragment<wmma::accumulator, SIDE, SIDE, SIDE, float> sum;
            wmma::fill_fragment(sum, 0.0f);
            for (int d = 0; d < dim; d += SIDE) {
                wmma::fragment<wmma::matrix_a, SIDE, SIDE, SIDE, T, wmma::row_major> one;
                wmma::fragment<wmma::matrix_b, SIDE, SIDE, SIDE, T, wmma::col_major> other;
                wmma::load_matrix_sync(one, query + warp * SIDE * (dim + BEHIND) + d, dim + BEHIND);
                wmma::load_matrix_sync(other, cached + column * SIDE * (dim + BEHIND) + d, dim + BEHIND);
                wmma::mma_sync(sum, one, other, sum);
            }
            wmma::store_matrix_sync(scores + column * SIDE, sum, SCORES, wmma::mem_row_major);
        }
        // Also before the next tile comes to the place of this one.
        __syncthreads();
    };

    __syncthreads();
    float largest = -INFINITY, sum = 0.0f;
    for (int base = from; base < behind; base += PIECE_KEYS) {
        multiply(base);
        float most = -INFINITY;
        for (int at = 0; at < PIECE_KEYS / 2; at++) most = fmaxf(most, score(base, at));
        most = fmaxf(most, __shfl_xor_sync(ALL_LANES, most, 1));
        most = fmaxf(most, largest);
        float weight = 0.0f;
        if (most > -INFINITY)
            for (int at = 0; at < PIECE_KEYS / 2; at++) weight += expf(score(base, at) - most);
        weight += __shfl_xor_sync(ALL_LANES, weight, 1);
        sum = (most > -INFINITY ? sum * expf(largest - most) : 0.0f) + weight;
        largest = most;
    }
    if (a.sinks) {
        const float above = fmaxf(largest, a.sinks[head]);
        sum = sum * expf(largest - above) + expf(a.sinks[head] - above);
        largest = above;
    }
    const float factor = 1.0f / sum;

    wmma::fragment<wmma::accumulator, SIDE, SIDE, SIDE, float> mixed[FRAGMENTS];
#pragma unroll
    for (int at = 0; at < FRAGMENTS; at++) wmma::fill_fragment(mixed[at], 0.0f);
    for (int base = from; base < behind; base += PIECE_KEYS) {
        multiply(base);
        for (int at = 0; at < PIECE_KEYS / 2; at++) put(weights + row * WEIGHTS + half + at, expf(score(base, at) - largest) * factor);
        load_tile(a, values, width, a.value_stride, base, behind, cached);
        __syncthreads();
#pragma unroll
        for (int at = 0; at < FRAGMENTS; at++) {
            if (at * SIDE >= width) break;
#pragma unroll
            for (int key = 0; key < PIECE_KEYS; key += SIDE) {
                wmma::fragment<wmma::matrix_a, SIDE, SIDE, SIDE, T, wmma::row_major> one;
                wmma::fragment<wmma::matrix_b, SIDE, SIDE, SIDE, T, wmma::row_major> other;
                wmma::load_matrix_sync(one, weights + key, WEIGHTS);
                wmma::load_matrix_sync(other, cached + key * (width + BEHIND) + at * SIDE, width + BEHIND);
                wmma::mma_sync(mixed[at], one, other, mixed[at]);
            }
        }
        __syncthreads();
    }
    T* out = static_cast<T*>(a.out) + ((long)(a.first_row + tile + warp * SIDE) * a.heads + head) * width;
#pragma unroll
    for (int at = 0; at < FRAGMENTS; at++) {
        if (at * SIDE >= width) break;
        wmma::store_matrix_sync(scores, mixed[at], SCORES, wmma::mem_row_major);
        __syncwarp();
        for (int cell = lane; cell < SIDE * SIDE; cell += WARP) {
            const int of_row = cell / SIDE, d = cell % SIDE;
            if (tile + warp * SIDE + of_row < a.rows) put(out + (long)of_row * a.heads * width + at * SIDE + d, scores[of_row * SCORES + d]);
        }
        __syncwarp();
    }
}
