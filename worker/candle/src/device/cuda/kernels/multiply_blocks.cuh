// Products of up to 32 rows of bf16 with matrices in quantised blocks, y = x Wᵀ, and what is done beside them, on tensor cores. A block of
// threads makes sixteen outputs at a time, and its warps divide the depth. Each warp has its next chunks of weights on the way to shared
// memory, as the file has them. Weights become whole numbers in bf16, which are exact, and sums over a scale's weights are multiplied by
// it in f32.
#pragma once
#include "blocks.cuh"
#include "multiply.cuh"
#include "tensor_cores.cuh"

constexpr int TILE_OUTS = 16, TILE_ROWS = 8, SUMS = 4;

// Bytes of one row of a chunk in shared memory: it begins up to 15 bytes behind a multiple of 16.
template <typename B> constexpr int ROOM_OF_ROW = (CHUNK_BYTES<B> + 30) / 16 * 16;
// Chunks of a warp in shared memory at once.
template <typename B> constexpr int STAGES = ROOM_OF_ROW<B> <= 192 ? 3 : 2;
// Sums of a tile are read while those of the next are written, or not.
template <int TILES> constexpr int SUM_BUFFERS = TILES == 1 ? 2 : 1;

// Four bytes as numbers of bf16: those of the first and third byte, and those of the second and fourth. They are 128 more in types with a
// least weight, which takes that away again.
template <typename B> __device__ inline void pairs(unsigned bytes, unsigned base, unsigned (&of)[2]) {
    constexpr unsigned ONES = 0x3f803f80u, MINUS_ONES = 0xbf80bf80u;
    // 128 + ZERO, which bf16 has exactly, below zero.
    constexpr unsigned ZERO = 0xc300u + B::ZERO;
    for (int at = 0; at < 2; at++) {
        const unsigned two = bytes >> 8 * at;
        if (B::SIGNED) {
            // A sign is worth -128.
            of[at] = multiply_add(masked(two, 0x00800080u, base), MINUS_ONES, masked(two, 0x007f007fu, base));
        } else if (B::LEAST) {
            of[at] = masked(two, B::BITS * 0x10001u, base);
        } else {
            of[at] = multiply_add(masked(two, B::BITS * 0x10001u, base), ONES, ZERO | ZERO << 16);
        }
    }
}

// The weights of a step, two words for each half.
template <typename B> __device__ inline void weights_of(const Byte* chunk, int step, int t, unsigned base, unsigned (&of)[2][2]) {
    if (B::PLAIN) {
        for (int half = 0; half < 2; half++) {
            const uint2 four = *reinterpret_cast<const uint2*>(chunk + step * B::BYTES + 32 * half + 8 * t);
            of[half][0] = __byte_perm(four.x, four.y, 0x5410), of[half][1] = __byte_perm(four.x, four.y, 0x7632);
        }
    } else {
        unsigned words[2];
        B::words(chunk, step, t, words);
        for (int half = 0; half < 2; half++) pairs<B>(words[half], base, of[half]);
    }
}

// The matrix of a tile, and the tile's first output.
struct TilePlace {
    const Byte* matrix;
    const void* biases;
    void* result;
    int outs, first;
};

template <int OUTS, bool GATED> __device__ inline TilePlace place_of(const MultiplyRows& a, int tile) {
    const auto tiles = [](int outs) { return (outs + OUTS - 1) / OUTS; };
    // An index that is no constant would put all arguments into local memory.
    const bool behind_first = !GATED && tile >= tiles(a.outs[0]);
    if (behind_first) tile -= tiles(a.outs[0]);
    const bool behind_second = behind_first && tile >= tiles(a.outs[1]);
    if (behind_second) tile -= tiles(a.outs[1]);
    const auto mine = [&](const auto& of) { return behind_second ? of[2] : behind_first ? of[1] : of[0]; };
    return {static_cast<const Byte*>(mine(a.weights)), mine(a.biases), mine(a.results), mine(a.outs), tile * OUTS};
}

// `TILES` of eight rows. `GATED`: a tile has eight outputs of the gate and the same of what passes it.
template <typename B, int TILES, bool NORMED, bool GATED> __device__ void multiply_blocks(const MultiplyRows& a) {
    typedef __nv_bfloat16 T;
    constexpr int OUTS = GATED ? TILE_OUTS / 2 : TILE_OUTS;
    const int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP, warps = blockDim.x / WARP;
    const int group = lane / LANES_OF_STEP, t = lane % LANES_OF_STEP;
    const long row_bytes = (long)(a.depth / B::WEIGHTS) * B::BYTES;
    const int chunks = (a.depth + CHUNK - 1) / CHUNK;
    const auto tiles_of = [](int outs) { return (outs + OUTS - 1) / OUTS; };
    const int tiles = tiles_of(a.outs[0]) + (GATED ? 0 : tiles_of(a.outs[1]) + tiles_of(a.outs[2]));
    let_next_begin();

    SHARED_FLOATS(shared);
    float* squares_of_warps = shared + SUM_BUFFERS<TILES> * warps * TILES * SUMS * WARP;
    Byte* staged = reinterpret_cast<Byte*>(squares_of_warps + warps * TILE_ROWS) + (long)warp * STAGES<B> * TILE_OUTS * ROOM_OF_ROW<B>;
    // The first byte of one of the lane's two rows of a tile, `group` and that plus eight.
    const auto row_of = [&](const TilePlace& place, int half) {
        const int out = min(place.first + group + (GATED ? 0 : half * TILE_OUTS / 2), place.outs - 1);
        return (GATED && half == 1 ? static_cast<const Byte*>(a.weights[1]) : place.matrix) + out * row_bytes;
    };
    // Behind the last block of a row there are zeros.
    constexpr bool WHOLE = B::WEIGHTS == CHUNK;
    const auto bytes_of = [&](int chunk) { return WHOLE ? B::BYTES : min(CHUNK, a.depth - chunk * CHUNK) / B::WEIGHTS * B::BYTES; };

    // The bytes of an address behind a multiple of sixteen. A matrix begins at such a multiple.
    const auto behind_multiple = [](const Byte* at) {
        constexpr bool NEVER = WHOLE && B::BYTES % 16 == 0;
        return NEVER ? 0 : (int)(reinterpret_cast<unsigned long long>(at) % 16);
    };

    // What this warp fetches next.
    int next_tile = blockIdx.x, next_chunk = warp, next_stage = 0;
    const auto fetch_next = [&] {
        if (next_tile < tiles) {
            // Each of four lanes has every fourth piece of a row.
            constexpr int PIECES = ROOM_OF_ROW<B> / 16;
            const TilePlace place = place_of<OUTS, GATED>(a, next_tile);
            for (int half = 0; half < 2; half++) {
                const Byte* start = row_of(place, half) + (long)next_chunk * CHUNK_BYTES<B>;
                const int behind = behind_multiple(start), end = behind + bytes_of(next_chunk);
                Byte* to = staged + (next_stage * TILE_OUTS + group + half * TILE_OUTS / 2) * ROOM_OF_ROW<B>;
#pragma unroll
                for (int first = 0; first < 16 * PIECES; first += 16 * LANES_OF_STEP) {
                    const int at = first + 16 * t, left = end - at;
                    if (at < 16 * PIECES && (!WHOLE || left > 0)) copy_async(to + at, start - behind + at, max(0, min(16, left)));
                }
            }
            next_chunk += warps;
            if (next_chunk >= chunks) next_chunk = warp, next_tile += gridDim.x;
            next_stage = next_stage + 1 == STAGES<B> ? 0 : next_stage + 1;
        }
        end_of_copies();
    };
    // Weights do not depend on the kernel before.
    for (int stage = 0; stage + 1 < STAGES<B>; stage++) fetch_next();
    wait_for_previous();

    // One tile's rows of the warp's chunk are in registers: there are as many warps as chunks, or the cache has the rest.
    constexpr bool AHEAD = TILES == 1;
    // With more tiles more steps at once would need more registers than there are.
    constexpr int UNROLLED = CHUNK_STEPS / TILES;
    unsigned ahead[AHEAD ? CHUNK_STEPS : 1][2][2];
    float squares = 0.0f;
    // Of a step the rows of one tile, in the order of the weights.
    const auto rows_of = [&](int tile, long column, int half, bool first, unsigned (&of)[2]) {
        const int row = tile * TILE_ROWS + group;
        uint2 four = {0, 0};
        const bool is_there = WHOLE || column < a.depth;
        const T* x = static_cast<const T*>(a.x) + (long)row * a.depth + column + 16 * half;
        if (row < a.rows && is_there) four = *reinterpret_cast<const uint2*>(x);
        if (NORMED) {
            uint2 of_norm = {0, 0};
            if (is_there) of_norm = *reinterpret_cast<const uint2*>(static_cast<const T*>(a.norm) + column + 16 * half);
            if (first) {
                squares += low_of(four.x) * low_of(four.x) + high_of(four.x) * high_of(four.x);
                squares += low_of(four.y) * low_of(four.y) + high_of(four.y) * high_of(four.y);
            }
            four.x = multiply_add(four.x, of_norm.x, 0x80008000u);
            four.y = multiply_add(four.y, of_norm.y, 0x80008000u);
        }
        of[0] = __byte_perm(four.x, four.y, 0x5410), of[1] = __byte_perm(four.x, four.y, 0x7632);
    };

    // 128 twice, which becomes 128 + n where n is below 128.
    const unsigned base = kept(0x43004300u);
    int stage = 0, buffer = 0;
    for (int tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
        const TilePlace place = place_of<OUTS, GATED>(a, tile);
        const bool first = tile == blockIdx.x;
        float sums[TILES][SUMS] = {};
        for (int chunk = warp; chunk < chunks; chunk += warps) {
            if (AHEAD && (first || chunks > warps)) {
#pragma unroll
                for (int step = 0; step < CHUNK_STEPS; step++) {
                    for (int half = 0; half < 2; half++) {
                        rows_of(0, chunk * CHUNK + step * STEP + 4 * t, half, first, ahead[AHEAD ? step : 0][half]);
                    }
                }
            }
            fetch_next();
            wait_for_copies<STAGES<B> - 1>();
            __syncwarp();
            const Byte* rows[2];
            for (int half = 0; half < 2; half++) {
                const int behind = behind_multiple(row_of(place, half) + (long)chunk * CHUNK_BYTES<B>);
                rows[half] = staged + (stage * TILE_OUTS + group + half * TILE_OUTS / 2) * ROOM_OF_ROW<B> + behind;
            }
#pragma unroll UNROLLED
            for (int step = 0; step < CHUNK_STEPS; step++) {
                // Of both products of a step the weights.
                unsigned weights[2][4];
                for (int row = 0; row < 2; row++) {
                    unsigned of_row[2][2];
                    weights_of<B>(rows[row], step, t, base, of_row);
                    for (int half = 0; half < 2; half++) weights[half][row] = of_row[half][0], weights[half][2 + row] = of_row[half][1];
                }
                float scales[2][2], least[2][2];
                for (int half = 0; half < (B::PLAIN ? 0 : B::OF_16 ? 2 : 1); half++) {
                    for (int row = 0; row < 2; row++) {
                        scales[half][row] = B::scale(rows[row], step, half);
                        // Bytes are 128 more in products.
                        if (B::LEAST) least[half][row] = B::least(rows[row], step, half) + 128.0f * scales[half][row];
                    }
                }
#pragma unroll
                for (int of_rows = 0; of_rows < TILES; of_rows++) {
                    float part[SUMS] = {}, ones[SUMS] = {};
                    for (int half = 0; half < 2; half++) {
                        unsigned two[2];
                        if (AHEAD) {
                            two[0] = ahead[AHEAD ? step : 0][half][0], two[1] = ahead[AHEAD ? step : 0][half][1];
                        } else {
                            rows_of(of_rows, chunk * CHUNK + step * STEP + 4 * t, half, first, two);
                        }
                        multiply_tile(B::PLAIN ? sums[of_rows] : part, weights[half], two);
                        if (B::PLAIN) continue;
                        if (B::LEAST) {
                            constexpr unsigned ALL[4] = {0x3f803f80u, 0x3f803f80u, 0x3f803f80u, 0x3f803f80u};
                            multiply_tile(ones, ALL, two);
                        }
                        if (!B::OF_16 && half == 0) continue;
                        const int of = B::OF_16 ? half : 0;
                        for (int sum = 0; sum < SUMS; sum++) {
                            sums[of_rows][sum] += scales[of][sum / 2] * part[sum];
                            if (B::LEAST) sums[of_rows][sum] -= least[of][sum / 2] * ones[sum];
                            part[sum] = ones[sum] = 0.0f;
                        }
                    }
                }
            }
            // A later chunk takes this one's place.
            __syncwarp();
            stage = stage + 1 == STAGES<B> ? 0 : stage + 1;
        }

        float* of_warps = shared + buffer * warps * TILES * SUMS * WARP;
#pragma unroll
        for (int of_rows = 0; of_rows < TILES; of_rows++) {
            for (int sum = 0; sum < SUMS; sum++) of_warps[((warp * TILES + of_rows) * SUMS + sum) * WARP + lane] = sums[of_rows][sum];
        }
        if (NORMED && first) {
            for (int distance = 1; distance < LANES_OF_STEP; distance *= 2) squares += __shfl_xor_sync(ALL_LANES, squares, distance);
            if (t == 0) squares_of_warps[warp * TILE_ROWS + group] = squares;
        }
        __syncthreads();
        // Of eight rows the even and the odd ones.
        for (int item = warp; item < 2 * TILES; item += warps) {
            const int of_rows = item / 2, of_tile = 2 * t + item % 2, row = of_rows * TILE_ROWS + of_tile;
            if (row >= a.rows) continue;
            float both[2] = {}, all_squares = 0.0f;
            for (int of = 0; of < warps; of++) {
                for (int half = 0; half < 2; half++) {
                    both[half] += of_warps[((of * TILES + of_rows) * SUMS + 2 * half + item % 2) * WARP + lane];
                }
                if (NORMED) all_squares += squares_of_warps[of * TILE_ROWS + of_tile];
            }
            const float factor = NORMED ? rsqrtf(all_squares / a.depth + a.eps) : 1.0f;
            const auto bias = [](const void* biases, int out) { return biases ? number(static_cast<const T*>(biases)[out]) : 0.0f; };
            T* result = static_cast<T*>(place.result) + (long)row * place.outs;
            if (GATED) {
                const int out = place.first + group;
                if (out >= place.outs) continue;
                const float gate = both[0] * factor + bias(a.biases[0], out), passes = both[1] * factor + bias(a.biases[1], out);
                put(result + out, silu_of(gate, passes, a.limit, a.slope));
                continue;
            }
            for (int half = 0; half < 2; half++) {
                const int out = place.first + group + half * TILE_OUTS / 2;
                if (out >= place.outs) continue;
                float x = both[half] * factor + bias(place.biases, out);
                if (a.residual) x += number(static_cast<const T*>(a.residual)[(long)row * place.outs + out]);
                put(result + out, x);
            }
        }
        if (SUM_BUFFERS<TILES> == 2) {
            buffer = 1 - buffer;
        } else {
            __syncthreads();
        }
    }
}
