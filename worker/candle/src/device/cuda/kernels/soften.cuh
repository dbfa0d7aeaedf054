// Softmax of scores of a piece of a prompt, in place: each row over the keys that it sees, with a bound and sinks. One block of
// threads for each row of a head.
#pragma once
#include "numbers.cuh"

struct SoftenRows {
    // [heads, rows, keys]
    void* scores;
    // [heads] or null.
    const float* sinks;
    float softcap;
    // Tokens before the first row, and the window, or 0.
    int rows, keys, past, window;
};

constexpr int SOFTEN_THREADS = 256;

template <typename T> __device__ void soften_rows(const SoftenRows& a) {
    SHARED_FLOATS(shared);
    const long at = blockIdx.x;
    const int row = at % a.rows, head = at / a.rows, seen = min(a.keys, a.past + row + 1);
    const int start = a.window > 0 && seen > a.window ? seen - a.window : 0;
    T* scores = static_cast<T*>(a.scores) + at * a.keys;
    const auto score = [&](int key) {
        const float x = number(scores[key]);
        return a.softcap > 0.0f ? tanhf(x / a.softcap) * a.softcap : x;
    };
    float largest = a.sinks ? a.sinks[head] : -INFINITY;
    for (int key = start + threadIdx.x; key < seen; key += SOFTEN_THREADS) largest = fmaxf(largest, score(key));
    largest = block_max(largest, shared);
    float sum = 0.0f;
    for (int key = start + threadIdx.x; key < seen; key += SOFTEN_THREADS) sum += expf(score(key) - largest);
    sum = block_sum(sum, shared);
    if (a.sinks) sum += expf(a.sinks[head] - largest);
    for (int key = threadIdx.x; key < a.keys; key += SOFTEN_THREADS)
        put(scores + key, key >= start && key < seen ? expf(score(key) - largest) / sum : 0.0f);
}
