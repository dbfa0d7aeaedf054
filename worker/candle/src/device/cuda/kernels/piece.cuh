// Attention of a piece of a prompt, on tensor cores. A block of threads has 64 rows of a head, a warp 16 of them. Scores and weights stay
// in registers, and the running softmax of Milakov and Gimelshein (2018, arXiv 1805.02867) scales what was mixed before (Dao, 2023,
// "FlashAttention-2", arXiv 2307.08691). The next keys and values are on the way to shared memory beside the products of those before.
#pragma once
#include "attend.cuh"
#include "tensor_cores.cuh"

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
    // Tiles of keys and values in shared memory: two, or one where two have no room.
    int stages;
};

constexpr int PIECE_WARPS = 4;
constexpr int PIECE_THREADS = PIECE_WARPS * WARP;
constexpr int PIECE_ROWS = PIECE_WARPS * 16;
// Keys of a tile: as many as registers have room for beside values of this width.
template <int WIDTH> constexpr int PIECE_KEYS = WIDTH <= 128 ? 64 : 32;
// Elements behind each row in shared memory, so that rows begin in different banks.
constexpr int BEHIND = 8;
constexpr float LOG2_E = 1.44269504f;

// Rows of a tile of keys or values, on their way to shared memory; zeros in place of those from `behind` on.
template <typename T, int KEYS>
__device__ inline void copy_tile(const AttendPiece& a, const T* from, int width, int stride, int first, int behind, T* to) {
    constexpr int AT_ONCE = Vector<T>::COUNT;
    const int vectors = width / AT_ONCE;
    int key = threadIdx.x / vectors, vector = threadIdx.x % vectors;
    while (key < KEYS) {
        const int token = min(first + key, behind - 1);
        const long place = (long)a.blocks[token / BLOCK_TOKENS] * BLOCK_TOKENS + token % BLOCK_TOKENS;
        copy_async(to + key * (width + BEHIND) + vector * AT_ONCE, from + place * stride + vector * AT_ONCE, first + key < behind ? 16 : 0);
        key += PIECE_THREADS / vectors, vector += PIECE_THREADS % vectors;
        if (vector >= vectors) vector -= vectors, key++;
    }
}

// `WIDTH`: the greatest width of a value.
template <typename T, int WIDTH> __device__ void attend_piece(const AttendPiece& a) {
    constexpr int KEYS = PIECE_KEYS<WIDTH>, AT_ONCE = Vector<T>::COUNT;
    SHARED_FLOATS(shared);
    const int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP, head = blockIdx.y, dim = a.head_dim, width = a.value_dim;
    // Of tiles of operands: the tile that this lane names a row of, and the row.
    const int named = lane / 8, of_named = lane % 8;
    // The last rows see the most keys, so they begin first.
    const int kv_head = head / (a.heads / a.kv_heads), tile = (gridDim.x - 1 - blockIdx.x) * PIECE_ROWS;
    const int key_room = dim + BEHIND, value_room = width + BEHIND;

    // [PIECE_ROWS, key_room], and for each stage [KEYS, key_room] and [KEYS, value_room].
    T* query = reinterpret_cast<T*>(shared);
    T* staged = query + PIECE_ROWS * key_room;
    const T* all_query = static_cast<const T*>(a.query) + ((long)(a.first_row + tile) * a.heads + head) * dim;
    for (int at = threadIdx.x; at < PIECE_ROWS * (dim / AT_ONCE); at += PIECE_THREADS) {
        const int row = at / (dim / AT_ONCE), d = at % (dim / AT_ONCE) * AT_ONCE;
        const bool is_there = tile + row < a.rows;
        copy_async(query + row * key_room + d, all_query + (is_there ? (long)row * a.heads * dim : 0) + d, is_there ? 16 : 0);
    }
    const T* keys = static_cast<const T*>(a.keys) + (long)kv_head * a.room * dim;
    const T* values = static_cast<const T*>(a.values) + (long)kv_head * a.room * a.value_stride;

    // A lane has of two rows every fourth pair of columns.
    const int pair = lane % 4 * 2, first_row = tile + warp * 16 + lane / 4;
    int seen[2], start[2];
    for (int half = 0; half < 2; half++) {
        seen[half] = a.past + first_row + 8 * half + 1;
        start[half] = a.window > 0 && seen[half] > a.window ? seen[half] - a.window : 0;
    }
    const int least_seen = a.past + tile + warp * 16 + 1, most_seen = least_seen + 15;
    const int most_start = a.window > 0 && most_seen > a.window ? most_seen - a.window : 0;
    const int behind = a.past + min(a.rows, tile + PIECE_ROWS), first_seen = a.past + tile + 1;
    const int from = a.window > 0 && first_seen > a.window ? (first_seen - a.window) / KEYS * KEYS : 0;

    const auto copy = [&](int base, int stage) {
        T* to = staged + stage * KEYS * (key_room + value_room);
        copy_tile<T, KEYS>(a, keys, dim, dim, base, behind, to);
        copy_tile<T, KEYS>(a, values, width, a.value_stride, base, behind, to + KEYS * key_room);
    };
    copy(from, 0);
    end_of_copies();

    float largest[2] = {-INFINITY, -INFINITY}, sums[2] = {}, mixed[WIDTH / 8][4];
#pragma unroll
    for (int at = 0; at < WIDTH / 8; at++) mixed[at][0] = mixed[at][1] = mixed[at][2] = mixed[at][3] = 0.0f;
    for (int base = from, stage = 0; base < behind; base += KEYS) {
        if (a.stages == 1 && base > from) {
            __syncthreads();
            copy(base, 0);
            end_of_copies();
        }
        wait_for_copies<0>();
        __syncthreads();
        const T* of_keys = staged + stage * KEYS * (key_room + value_room);
        const T* of_values = of_keys + KEYS * key_room;
        if (a.stages == 2) {
            stage = 1 - stage;
            if (base + KEYS < behind) copy(base + KEYS, stage);
            end_of_copies();
        }
        // All rows of this warp are before these keys.
        if (base >= most_seen) continue;

        float scores[KEYS / 8][4];
#pragma unroll
        for (int at = 0; at < KEYS / 8; at++) scores[at][0] = scores[at][1] = scores[at][2] = scores[at][3] = 0.0f;
        for (int d = 0; d < dim; d += 16) {
            unsigned of_rows[4];
            load_tiles(of_rows, query + (warp * 16 + named % 2 * 8 + of_named) * key_room + d + named / 2 * 8);
#pragma unroll
            for (int at = 0; at < KEYS / 16; at++) {
                unsigned two[4];
                load_tiles(two, of_keys + (at * 16 + named / 2 * 8 + of_named) * key_room + d + named % 2 * 8);
                multiply_tile_of<T>(scores[2 * at], of_rows, two[0], two[1]);
                multiply_tile_of<T>(scores[2 * at + 1], of_rows, two[2], two[3]);
            }
        }
        if (a.softcap > 0.0f) {
#pragma unroll
            for (int at = 0; at < KEYS / 8; at++)
                for (int cell = 0; cell < 4; cell++) scores[at][cell] = tanhf(scores[at][cell] / a.softcap) * a.softcap;
        }
        if (base + KEYS > least_seen || base < most_start) {
#pragma unroll
            for (int at = 0; at < KEYS / 8; at++)
                for (int cell = 0; cell < 4; cell++) {
                    const int key = base + at * 8 + pair + cell % 2;
                    if (key < start[cell / 2] || key >= seen[cell / 2]) scores[at][cell] = -INFINITY;
                }
        }
        float origin[2];
#pragma unroll
        for (int half = 0; half < 2; half++) {
            float above = largest[half];
#pragma unroll
            for (int at = 0; at < KEYS / 8; at++) above = fmaxf(above, fmaxf(scores[at][2 * half], scores[at][2 * half + 1]));
            above = fmaxf(above, __shfl_xor_sync(ALL_LANES, above, 1));
            above = fmaxf(above, __shfl_xor_sync(ALL_LANES, above, 2));
            // Of a row that sees none of the keys so far all weights are zero.
            origin[half] = above > -INFINITY ? above * LOG2_E : 0.0f;
            const float factor = exp2f(largest[half] * LOG2_E - origin[half]);
            largest[half] = above;
            sums[half] *= factor;
#pragma unroll
            for (int at = 0; at < WIDTH / 8; at++) mixed[at][2 * half] *= factor, mixed[at][2 * half + 1] *= factor;
        }
#pragma unroll
        for (int at = 0; at < KEYS / 8; at++)
#pragma unroll
            for (int cell = 0; cell < 4; cell++) {
                scores[at][cell] = exp2f(scores[at][cell] * LOG2_E - origin[cell / 2]);
                sums[cell / 2] += scores[at][cell];
            }
#pragma unroll
        for (int key = 0; key < KEYS / 16; key++) {
            unsigned weights[4];
#pragma unroll
            for (int at = 0; at < 4; at++) {
                const float* two = scores[2 * key + at / 2] + at % 2 * 2;
                weights[at] = word_of(two[0], two[1], T());
            }
#pragma unroll
            for (int at = 0; at < WIDTH / 16; at++) {
                if (at * 16 >= width) break;
                unsigned two[4];
                load_transposed_tiles(two, of_values + (key * 16 + named % 2 * 8 + of_named) * value_room + at * 16 + named / 2 * 8);
                multiply_tile_of<T>(mixed[2 * at], weights, two[0], two[1]);
                multiply_tile_of<T>(mixed[2 * at + 1], weights, two[2], two[3]);
            }
        }
    }

#pragma unroll
    for (int half = 0; half < 2; half++) {
        float sum = sums[half];
        sum += __shfl_xor_sync(ALL_LANES, sum, 1);
        sum += __shfl_xor_sync(ALL_LANES, sum, 2);
        const float factor = with_sink(a.sinks, head, largest[half], sum) / sum;
        const int row = first_row + 8 * half;
        if (row >= a.rows) continue;
        T* out = static_cast<T*>(a.out) + ((long)(a.first_row + row) * a.heads + head) * width + pair;
#pragma unroll
        for (int at = 0; at < WIDTH / 8; at++) {
            if (at * 8 >= width) break;
            *reinterpret_cast<unsigned*>(out + at * 8) = word_of(mixed[at][2 * half] * factor, mixed[at][2 * half + 1] * factor, T());
        }
    }
}
