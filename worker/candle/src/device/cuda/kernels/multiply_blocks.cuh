// Products of up to sixteen rows of bf16 with matrices in quantised blocks, y = x Wᵀ, and what is done beside them, on tensor cores. A
// block of threads has sixteen outputs, and its warps divide the depth. Each warp has its own chunks on the way to shared memory, as the
// file has them. Weights become whole numbers in bf16, which are exact, and sums over a scale's weights are multiplied by it in f32.
#pragma once
#include "blocks.cuh"
#include "multiply.cuh"
#include "tensor_cores.cuh"

constexpr int TILE_OUTS = 16, TILE_ROWS = 8, BLOCK_WARPS = 8;

// Bytes of one row of a chunk in shared memory: it begins up to 15 bytes behind a multiple of 16.
template <typename B> constexpr int ROOM_OF_ROW = (CHUNK_BYTES<B> + 30) / 16 * 16;

// Four bytes as numbers of bf16: those of the first and third byte, and those of the second and fourth.
template <typename B> __device__ inline void pairs(unsigned bytes, unsigned (&of)[2]) {
    // 128 + n, as n is below 128.
    constexpr unsigned ONES = 0x3f803f80u, MINUS_ONES = 0xbf80bf80u, BASE = 0x43004300u;
    // 128 + ZERO, which bf16 has exactly, below zero.
    constexpr unsigned ZERO = 0xc300u + B::ZERO;
    for (int at = 0; at < 2; at++) {
        const unsigned two = bytes >> 8 * at;
        if (B::SIGNED) {
            // A sign is worth -128.
            of[at] = multiply_add((two & 0x00800080u) | BASE, MINUS_ONES, (two & 0x007f007fu) | BASE);
        } else {
            of[at] = multiply_add((two & 0x00ff00ffu) | BASE, ONES, ZERO | ZERO << 16);
        }
    }
}

// `TILES` of eight rows. `GATED`: a tile has eight outputs of the gate and the same of what passes it.
template <typename B, int TILES, bool NORMED, bool GATED> __device__ void multiply_blocks(const MultiplyRows& a) {
    typedef __nv_bfloat16 T;
    constexpr int SUMS = 4;
    const int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP, warps = blockDim.x / WARP;
    const int group = lane / LANES_OF_STEP, t = lane % LANES_OF_STEP;
    // The matrix of this tile, and the first output within it.
    constexpr int OUTS = GATED ? TILE_OUTS / 2 : TILE_OUTS;
    const auto tiles = [](int outs) { return (outs + OUTS - 1) / OUTS; };
    int tile = blockIdx.x;
    const bool behind_first = !GATED && tile >= tiles(a.outs[0]);
    if (behind_first) tile -= tiles(a.outs[0]);
    const bool behind_second = behind_first && tile >= tiles(a.outs[1]);
    if (behind_second) tile -= tiles(a.outs[1]);
    const auto mine = [&](const auto& of) { return behind_second ? of[2] : behind_first ? of[1] : of[0]; };
    const Byte* matrix = static_cast<const Byte*>(mine(a.weights));
    const Byte* of_gated = static_cast<const Byte*>(a.weights[1]);
    const int outs = mine(a.outs), first = tile * OUTS;
    const long row_bytes = (long)(a.depth / B::WEIGHTS) * B::BYTES;
    const int chunks = (a.depth + CHUNK - 1) / CHUNK, stages = chunks > warps ? 2 : 1;
    let_next_begin();

    SHARED_FLOATS(shared);
    float* of_warps = shared;
    float* squares_of_warps = shared + warps * TILES * SUMS * WARP;
    Byte* staged = reinterpret_cast<Byte*>(squares_of_warps + warps * TILES * TILE_ROWS) + (long)warp * stages * TILE_OUTS * ROOM_OF_ROW<B>;
    const auto row_of = [&](int row) {
        const bool gated = GATED && row >= OUTS;
        const int out = min(first + (gated ? row - OUTS : row), outs - 1);
        return (gated ? of_gated : matrix) + out * row_bytes;
    };
    const auto steps_of = [&](int chunk) { return min(CHUNK_STEPS, (a.depth - chunk * CHUNK) / STEP); };
    const auto fetch = [&](int chunk, int stage) {
        constexpr int PIECES = ROOM_OF_ROW<B> / 16;
        const int bytes = B::WEIGHTS == CHUNK ? B::BYTES : steps_of(chunk) * B::BYTES;
        for (int at = lane; at < TILE_OUTS * PIECES; at += WARP) {
            const int row = at / PIECES, piece = at % PIECES;
            const unsigned long long start = reinterpret_cast<unsigned long long>(row_of(row) + (long)chunk * CHUNK_BYTES<B>);
            const unsigned long long from = start / 16 * 16 + 16 * piece;
            if (from < start + bytes) {
                copy_async(staged + (stage * TILE_OUTS + row) * ROOM_OF_ROW<B> + 16 * piece, reinterpret_cast<const Byte*>(from));
            }
        }
        end_of_copies();
    };
    // Weights do not depend on the kernel before.
    if (warp < chunks) fetch(warp, 0);
    wait_for_previous();

    float sums[TILES][SUMS] = {}, squares[TILES] = {};
    int stage = 0;
    for (int chunk = warp; chunk < chunks; chunk += warps) {
        const bool more = chunk + warps < chunks;
        if (more) {
            fetch(chunk + warps, 1 - stage);
            wait_for_copies<1>();
        } else {
            wait_for_copies<0>();
        }
        __syncwarp();
        const Byte* rows[2];
        for (int half = 0; half < 2; half++) {
            const int row = group + half * TILE_OUTS / 2;
            const int behind = reinterpret_cast<unsigned long long>(row_of(row) + (long)chunk * CHUNK_BYTES<B>) % 16;
            rows[half] = staged + (stage * TILE_OUTS + row) * ROOM_OF_ROW<B> + behind;
        }
        const int steps = steps_of(chunk);
#pragma unroll
        for (int step = 0; step < CHUNK_STEPS; step++) {
            if (step >= steps) break;
            // Of both products of a step the weights.
            unsigned weights[2][4];
            for (int row = 0; row < 2; row++) {
                unsigned words[2];
                B::words(rows[row], step, t, words);
                for (int half = 0; half < 2; half++) {
                    unsigned two[2];
                    pairs<B>(words[half], two);
                    weights[half][row] = two[0], weights[half][2 + row] = two[1];
                }
            }
            float scales[2][2], least[2][2];
            for (int half = 0; half < (B::OF_16 ? 2 : 1); half++) {
                for (int row = 0; row < 2; row++) {
                    scales[half][row] = B::scale(rows[row], step, half);
                    if (B::LEAST) least[half][row] = B::least(rows[row], step, half);
                }
            }
            const long column = chunk * CHUNK + step * STEP + 4 * t;
            uint2 of_norm[2];
            if (NORMED) {
                for (int half = 0; half < 2; half++) {
                    of_norm[half] = *reinterpret_cast<const uint2*>(static_cast<const T*>(a.norm) + column + 16 * half);
                }
            }
#pragma unroll
            for (int tile = 0; tile < TILES; tile++) {
                const int row = tile * TILE_ROWS + group;
                const T* x = static_cast<const T*>(a.x) + (long)row * a.depth + column;
                float part[SUMS] = {}, ones[SUMS] = {};
                for (int half = 0; half < 2; half++) {
                    uint2 four = {0, 0};
                    if (row < a.rows) four = *reinterpret_cast<const uint2*>(x + 16 * half);
                    if (NORMED) {
                        squares[tile] += low_of(four.x) * low_of(four.x) + high_of(four.x) * high_of(four.x);
                        squares[tile] += low_of(four.y) * low_of(four.y) + high_of(four.y) * high_of(four.y);
                        four.x = multiply_add(four.x, of_norm[half].x, 0x80008000u);
                        four.y = multiply_add(four.y, of_norm[half].y, 0x80008000u);
                    }
                    const unsigned of_rows[2] = {__byte_perm(four.x, four.y, 0x5410), __byte_perm(four.x, four.y, 0x7632)};
                    multiply_tile(part, weights[half], of_rows);
                    if (B::LEAST) {
                        constexpr unsigned ALL[4] = {0x3f803f80u, 0x3f803f80u, 0x3f803f80u, 0x3f803f80u};
                        multiply_tile(ones, ALL, of_rows);
                    }
                    if (!B::OF_16 && half == 0) continue;
                    const int of = B::OF_16 ? half : 0;
                    for (int sum = 0; sum < SUMS; sum++) {
                        sums[tile][sum] += scales[of][sum / 2] * part[sum];
                        if (B::LEAST) sums[tile][sum] -= least[of][sum / 2] * ones[sum];
                        part[sum] = ones[sum] = 0.0f;
                    }
                }
            }
        }
        // The next chunk but one takes this one's place.
        __syncwarp();
        stage = 1 - stage;
    }

#pragma unroll
    for (int tile = 0; tile < TILES; tile++) {
        for (int sum = 0; sum < SUMS; sum++) of_warps[((warp * TILES + tile) * SUMS + sum) * WARP + lane] = sums[tile][sum];
        if (!NORMED) continue;
        for (int distance = 1; distance < LANES_OF_STEP; distance *= 2) {
            squares[tile] += __shfl_xor_sync(ALL_LANES, squares[tile], distance);
        }
        if (t == 0) squares_of_warps[(warp * TILES + tile) * TILE_ROWS + group] = squares[tile];
    }
    __syncthreads();
    // Of each tile the even and the odd rows.
    for (int item = warp; item < 2 * TILES; item += warps) {
        const int tile = item / 2, of_tile = 2 * t + item % 2, row = tile * TILE_ROWS + of_tile;
        if (row >= a.rows) continue;
        float both[2] = {}, all_squares = 0.0f;
        for (int of = 0; of < warps; of++) {
            for (int half = 0; half < 2; half++) {
                both[half] += of_warps[((of * TILES + tile) * SUMS + 2 * half + item % 2) * WARP + lane];
            }
            if (NORMED) all_squares += squares_of_warps[(of * TILES + tile) * TILE_ROWS + of_tile];
        }
        const float factor = NORMED ? rsqrtf(all_squares / a.depth + a.eps) : 1.0f;
        const auto bias = [](const void* biases, int out) { return biases ? number(static_cast<const T*>(biases)[out]) : 0.0f; };
        T* result = static_cast<T*>(mine(a.results)) + (long)row * outs;
        if (GATED) {
            const int out = first + group;
            if (out >= outs) continue;
            const float gate = both[0] * factor + bias(a.biases[0], out), passes = both[1] * factor + bias(a.biases[1], out);
            put(result + out, silu_of(gate, passes, a.limit, a.slope));
            continue;
        }
        for (int half = 0; half < 2; half++) {
            const int out = first + group + half * TILE_OUTS / 2;
            if (out >= outs) continue;
            float x = both[half] * factor + bias(mine(a.biases), out);
            if (a.residual) x += number(static_cast<const T*>(a.residual)[(long)row * outs + out]);
            put(result + out, x);
        }
    }
}
