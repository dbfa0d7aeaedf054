// Attention of single rows over keys and values in blocks. One launch for all rows of a step. The query heads that share a key head
// share its reads. A warp has 32 keys at a time, with the running softmax of Milakov and Gimelshein (2018, arXiv 1805.02867), and the
// warps of a block meet at the end. A row's keys are split among blocks of threads at fixed places, so that its result does not depend
// on the rows beside it (split-K: Dao et al., 2023, "Flash-Decoding").
#pragma once
#include "numbers.cuh"

// Tokens of a block of keys and values: the engine's BLOCK_TOKENS. A warp's keys are those of one block.
constexpr int BLOCK_TOKENS = 32;
constexpr int ATTEND_WARPS = 8;
constexpr int ATTEND_THREADS = ATTEND_WARPS * WARP;
// Keys of one block of threads.
constexpr int SPLIT = ATTEND_WARPS * BLOCK_TOKENS;
// Values of a query head that a lane has, times query heads of one block of threads.
constexpr int SUMS_OF_LANE = 32;

struct AttendRows {
    // [rows, heads, head_dim], scaled.
    const void* query;
    // [kv_heads, room, head_dim] and [kv_heads, room, value_stride]
    const void *keys, *values;
    // Of each row: its sequence, and how many tokens it sees. Rows that see none are left out.
    const unsigned *sequence, *seen;
    // [sequences, table]: the numbers of each sequence's blocks.
    const unsigned* blocks;
    // [heads]: scores of no value, or null.
    const float* sinks;
    // [rows, heads, value_dim]
    void* out;
    // [rows, heads, splits, 2 + value_dim]: the largest score, the sum of weights, and the sum of weighted values. Null for one split.
    float* partial;
    float softcap;
    int heads, kv_heads, head_dim, value_dim, value_stride, room, table, window, splits;
};

// A row's result, from the sums of its splits and the sink beside them.
__device__ inline float with_sink(const float* sinks, int head, float largest, float& sum) {
    if (!sinks) return 1.0f;
    const float above = fmaxf(largest, sinks[head]), factor = expf(largest - above);
    sum = sum * factor + expf(sinks[head] - above);
    return factor;
}

// The products of a key with the queries of some heads, `[heads, dim]` in shared memory.
template <typename T, int HEADS> __device__ void scores_of(const float* query, const T* key, int dim, int heads, float (&scores)[HEADS]) {
    // A single head leaves registers for more reads at once.
    constexpr int AT_ONCE = Vector<T>::COUNT, READS = HEADS == 1 ? 8 : 4;
#pragma unroll
    for (int head = 0; head < HEADS; head++) scores[head] = 0.0f;
    if (dim % AT_ONCE == 0) {
#pragma unroll READS
        for (int first = 0; first < dim; first += AT_ONCE) {
            const Vector<T> numbers = load(key + first);
#pragma unroll
            for (int head = 0; head < HEADS; head++) {
                if (head >= heads) break;
                const float* of_head = query + head * dim + first;
#pragma unroll
                for (int d = 0; d < AT_ONCE; d++) scores[head] += of_head[d] * number(numbers.numbers[d]);
            }
        }
    } else {
        for (int d = 0; d < dim; d++) {
            const float x = number(key[d]);
#pragma unroll
            for (int head = 0; head < HEADS; head++)
                if (head < heads) scores[head] += query[head * dim + d] * x;
        }
    }
}

// The result of some heads of a row, or of one split of its keys, from the sums of the warps: `[ATTEND_WARPS, together, width]`, and the
// largest score and sum of weights of each.
template <typename T>
__device__ void join_warps(const AttendRows& a, const float* of_warps, const float* met, int together, int heads, int first_head) {
    const int row = blockIdx.x, width = a.value_dim;
    for (int at = threadIdx.x; at < heads * width; at += ATTEND_THREADS) {
        const int head = at / width, d = at % width;
        float most = -INFINITY, sum = 0.0f, value = 0.0f;
        for (int other = 0; other < ATTEND_WARPS; other++) most = fmaxf(most, met[2 * (other * together + head)]);
        if (most > -INFINITY) {
            for (int other = 0; other < ATTEND_WARPS; other++) {
                const float factor = expf(met[2 * (other * together + head)] - most);
                sum += met[2 * (other * together + head) + 1] * factor;
                value += of_warps[(other * together + head) * width + d] * factor;
            }
        }
        const long at_head = (long)row * a.heads + first_head + head;
        if (a.partial) {
            float* to = a.partial + (at_head * a.splits + blockIdx.z) * (2 + width);
            if (d == 0) {
                to[0] = most;
                to[1] = sum;
            }
            to[2 + d] = value;
        } else {
            const float factor = with_sink(a.sinks, first_head + head, most, sum);
            put(static_cast<T*>(a.out) + at_head * width + d, value * factor / sum);
        }
    }
}

// Query heads that a block of threads has together, so that it reads a key for all of them.
template <int VALUES> constexpr int TOGETHER = SUMS_OF_LANE / VALUES < 8 ? SUMS_OF_LANE / VALUES : 8;

// `VALUES`: the elements of a value that a lane has. `HEADS`: as many as are together, or one where that employs more of the GPU.
template <typename T, int VALUES, int HEADS> __device__ void attend_rows(const AttendRows& a) {
    constexpr int READS = HEADS == 1 ? 8 : 4;
    SHARED_FLOATS(shared);
    const int row = blockIdx.x, thread = threadIdx.x, lane = thread % WARP, warp = thread / WARP;
    const int seen = a.seen[row], start = a.window > 0 && seen > a.window ? seen - a.window : 0;
    if (seen == 0) return;
    const int group = a.heads / a.kv_heads, parts = (group + HEADS - 1) / HEADS;
    const int kv_head = blockIdx.y / parts, first_of_group = blockIdx.y % parts * HEADS;
    const int first_head = kv_head * group + first_of_group, heads = min(HEADS, group - first_of_group);
    const int width = a.value_dim, dim = a.head_dim;

    // [HEADS, dim], [ATTEND_WARPS, HEADS, WARP], [ATTEND_WARPS, HEADS, 2], and over the first two [ATTEND_WARPS, HEADS, width].
    float* query = shared;
    float* weights = query + HEADS * dim + warp * HEADS * WARP;
    float* met = shared + max(HEADS * dim + ATTEND_WARPS * HEADS * WARP, ATTEND_WARPS * HEADS * width);

    const T* of_row = static_cast<const T*>(a.query) + ((long)row * a.heads + first_head) * dim;
    for (int at = thread; at < heads * dim; at += ATTEND_THREADS) query[at] = number(of_row[at]);
    __syncthreads();

    float largest[HEADS], sums[HEADS], mixed[HEADS][VALUES];
#pragma unroll
    for (int head = 0; head < HEADS; head++) {
        largest[head] = -INFINITY;
        sums[head] = 0.0f;
#pragma unroll
        for (int at = 0; at < VALUES; at++) mixed[head][at] = 0.0f;
    }
    const int base = blockIdx.z * SPLIT + warp * BLOCK_TOKENS;
    if (base < seen && base + BLOCK_TOKENS > start) {
        const long block = a.blocks[(long)a.sequence[row] * a.table + base / BLOCK_TOKENS];
        const long place = ((long)kv_head * a.room + block * BLOCK_TOKENS);
        const int first = max(start - base, 0), behind = min(seen - base, BLOCK_TOKENS);
        float scores[HEADS];
        // Lanes of keys that are not seen compute with those of the first.
        const bool sees = lane >= first && lane < behind;
        scores_of<T, HEADS>(query, static_cast<const T*>(a.keys) + (place + (sees ? lane : first)) * dim, dim, heads, scores);
#pragma unroll
        for (int head = 0; head < HEADS; head++) {
            if (head >= heads) break;
            float score = scores[head];
            if (a.softcap > 0.0f) score = tanhf(score / a.softcap) * a.softcap;
            if (!sees) score = -INFINITY;
            largest[head] = warp_max(score);
            const float weight = expf(score - largest[head]);
            sums[head] = warp_sum(weight);
            weights[head * WARP + lane] = weight;
        }
        __syncwarp();
        const T* values = static_cast<const T*>(a.values) + place * a.value_stride;
#pragma unroll READS
        for (int key = first; key < behind; key++) {
            const T* value = values + (long)key * a.value_stride;
#pragma unroll
            for (int at = 0; at < VALUES; at++) {
                const int d = lane + at * WARP;
                const float x = d < width ? number(value[d]) : 0.0f;
#pragma unroll
                for (int head = 0; head < HEADS; head++)
                    if (head < heads) mixed[head][at] += weights[head * WARP + key] * x;
            }
        }
    }
    __syncthreads();

    // The warps' sums come together.
    float* of_warps = shared;
#pragma unroll
    for (int head = 0; head < HEADS; head++) {
        if (head >= heads) break;
        const int at_head = warp * HEADS + head;
        if (lane == 0) {
            met[2 * at_head] = largest[head];
            met[2 * at_head + 1] = sums[head];
        }
#pragma unroll
        for (int at = 0; at < VALUES; at++) {
            const int d = lane + at * WARP;
            if (d < width) of_warps[at_head * width + d] = mixed[head][at];
        }
    }
    __syncthreads();
    join_warps<T>(a, of_warps, met, HEADS, heads, first_head);
}

// Attention where keys and values have `WIDTH` elements each. Lanes take a key together, as many as it has vectors, and then its value.
// All keys and values of a warp are asked for at once, because the time until they come is most of the kernel's. `HEADS`: query heads that
// share keys, and a block of threads.
template <typename T, int WIDTH, int HEADS> __device__ void attend_vectors(const AttendRows& a) {
    constexpr int COUNT = Vector<T>::COUNT, LANES = WIDTH / COUNT, KEYS = WARP / LANES;
    // A warp's keys take as many reads as a key has lanes. More at once need more registers than there are.
    constexpr int MOST = HEADS == 1 ? 16 : LANES <= 8 ? 8 : 4, READS = LANES < MOST ? LANES : MOST;
    SHARED_FLOATS(shared);
    const int row = blockIdx.x, lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    const int part = lane % LANES, of_load = lane / LANES, base = blockIdx.z * SPLIT + warp * BLOCK_TOKENS;
    const int group = a.heads / a.kv_heads, parts = (group + HEADS - 1) / HEADS;
    const int kv_head = blockIdx.y / parts, first_of_group = blockIdx.y % parts * HEADS;
    const int first_head = kv_head * group + first_of_group, heads = min(HEADS, group - first_of_group);
    const int seen = a.seen[row];
    const long sequence = a.sequence[row];
    Vector<T> query[HEADS];
#pragma unroll
    for (int head = 0; head < HEADS; head++) {
        const long at_head = (long)row * a.heads + first_head + min(head, heads - 1);
        query[head] = load(static_cast<const T*>(a.query) + at_head * WIDTH + part * COUNT);
    }
    if (seen == 0) return;
    const int start = a.window > 0 && seen > a.window ? seen - a.window : 0;

    // [ATTEND_WARPS, HEADS, WIDTH], [ATTEND_WARPS, HEADS, 2]
    float* met = shared + ATTEND_WARPS * HEADS * WIDTH;
    float largest[HEADS], sums[HEADS], mixed[HEADS][COUNT];
#pragma unroll
    for (int head = 0; head < HEADS; head++) {
        largest[head] = -INFINITY, sums[head] = 0.0f;
#pragma unroll
        for (int d = 0; d < COUNT; d++) mixed[head][d] = 0.0f;
    }
    if (base < seen && base + BLOCK_TOKENS > start) {
        const long block = a.blocks[sequence * a.table + base / BLOCK_TOKENS];
        const long place = (long)kv_head * a.room + block * BLOCK_TOKENS;
        const T* keys = static_cast<const T*>(a.keys) + place * WIDTH + part * COUNT;
        const T* values = static_cast<const T*>(a.values) + place * a.value_stride + part * COUNT;
        const int first = max(start - base, 0), behind = min(seen - base, BLOCK_TOKENS);
        for (int from = 0; from < behind; from += READS * KEYS) {
            Vector<T> of_keys[READS], of_values[READS];
            // In place of keys that are not seen one that is: the memory of the others may hold anything.
            const auto at = [&](int read) { return min(max(from + read * KEYS + of_load, first), behind - 1); };
#pragma unroll
            for (int read = 0; read < READS; read++) of_keys[read] = load(keys + at(read) * WIDTH);
#pragma unroll
            for (int read = 0; read < READS; read++) of_values[read] = load(values + (long)at(read) * a.value_stride);
#pragma unroll
            for (int head = 0; head < HEADS; head++) {
                float scores[READS], above = largest[head];
#pragma unroll
                for (int read = 0; read < READS; read++) {
                    float score = 0.0f;
                    const Vector<T> key_numbers = HEADS > 1 ? forgotten(of_keys[read]) : of_keys[read];
#pragma unroll
                    for (int d = 0; d < COUNT; d++) score += number(query[head].numbers[d]) * number(key_numbers.numbers[d]);
#pragma unroll
                    for (int distance = 1; distance < LANES; distance *= 2) score += __shfl_xor_sync(ALL_LANES, score, distance);
                    if (a.softcap > 0.0f) score = tanhf(score / a.softcap) * a.softcap;
                    const int key = from + read * KEYS + of_load;
                    scores[read] = key >= first && key < behind ? score : -INFINITY;
                    above = fmaxf(above, scores[read]);
                }
#pragma unroll
                for (int distance = LANES; distance < WARP; distance *= 2) above = fmaxf(above, __shfl_xor_sync(ALL_LANES, above, distance));
                if (above == -INFINITY) continue;
                const float factor = expf(largest[head] - above);
                largest[head] = above;
                sums[head] *= factor;
#pragma unroll
                for (int d = 0; d < COUNT; d++) mixed[head][d] *= factor;
#pragma unroll
                for (int read = 0; read < READS; read++) {
                    const float weight = expf(scores[read] - above);
                    sums[head] += weight;
                    const Vector<T> value = HEADS > 1 ? forgotten(of_values[read]) : of_values[read];
#pragma unroll
                    for (int d = 0; d < COUNT; d++) mixed[head][d] += weight * number(value.numbers[d]);
                }
            }
        }
#pragma unroll
        for (int head = 0; head < HEADS; head++) {
#pragma unroll
            for (int distance = LANES; distance < WARP; distance *= 2) {
                sums[head] += __shfl_xor_sync(ALL_LANES, sums[head], distance);
#pragma unroll
                for (int d = 0; d < COUNT; d++) mixed[head][d] += __shfl_xor_sync(ALL_LANES, mixed[head][d], distance);
            }
        }
    }
#pragma unroll
    for (int head = 0; head < HEADS; head++) {
        const int at_head = warp * HEADS + head;
        if (lane == 0) met[2 * at_head] = largest[head], met[2 * at_head + 1] = sums[head];
        if (of_load > 0) continue;
#pragma unroll
        for (int d = 0; d < COUNT; d++) shared[at_head * WIDTH + part * COUNT + d] = mixed[head][d];
    }
    __syncthreads();
    join_warps<T>(a, shared, met, HEADS, heads, first_head);
}

// Brings the splits of each head of a row together.
template <typename T> __device__ void join_splits(const AttendRows& a) {
    const int row = blockIdx.x, head = blockIdx.y, width = a.value_dim;
    if (a.seen[row] == 0) return;
    const long at_head = (long)row * a.heads + head;
    const float* from = a.partial + at_head * a.splits * (2 + width);
    float largest = -INFINITY;
    for (int split = 0; split < a.splits; split++) largest = fmaxf(largest, from[split * (2 + width)]);
    float sum = 0.0f;
    for (int split = 0; split < a.splits; split++) sum += from[split * (2 + width) + 1] * expf(from[split * (2 + width)] - largest);
    const float factor = with_sink(a.sinks, head, largest, sum);
    T* to = static_cast<T*>(a.out) + at_head * width;
    for (int d = threadIdx.x; d < width; d += blockDim.x) {
        float mixed = 0.0f;
        for (int split = 0; split < a.splits; split++) mixed += from[split * (2 + width) + 2 + d] * expf(from[split * (2 + width)] - largest);
        put(to + d, mixed * factor / sum);
    }
}
