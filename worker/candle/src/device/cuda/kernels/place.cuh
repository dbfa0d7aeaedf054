// Heads behind their projections: norms, rotation, and new keys and values put behind those of their sequences. One launch for all
// rows of a step, and one warp for each head of a row.
#pragma once
#include "numbers.cuh"

struct PlaceRows {
    // [rows, heads * head_dim], [rows, kv_heads * head_dim], [rows, kv_heads * value_dim]; no values where they are in the keys.
    const void *query, *key, *value;
    // [head_dim] each, or null.
    const void *query_norm, *key_norm;
    // [rows, planes] each, or null.
    const void *cos, *sin;
    // The place of each row's token in the caches, or NOWHERE: the row is there to fill a step of a recorded form.
    const unsigned* places;
    // [rows, heads, head_dim]
    void* query_out;
    // [kv_heads, room, head_dim] and [kv_heads, room, value_dim]
    void *keys, *values;
    float query_eps, key_eps, scale;
    int heads, kv_heads, head_dim, value_dim, planes, first, halves, norm_behind, room;
};

constexpr int PLACE_WARPS = 4;
constexpr unsigned NOWHERE = 0xffffffffu;

template <typename T> __device__ void norm_head(float* head, const T* weight, float eps, int width, int lane) {
    float squares = 0.0f;
    for (int d = lane; d < width; d += WARP) squares += head[d] * head[d];
    const float factor = rsqrtf(warp_sum(squares) / width + eps);
    for (int d = lane; d < width; d += WARP) head[d] *= factor * number(weight[d]);
    __syncwarp();
}

template <typename T> __device__ void rotate_head(float* head, const T* cos, const T* sin, int planes, int halves, int lane) {
    for (int plane = lane; plane < planes; plane += WARP) {
        const int one = halves ? plane : 2 * plane, other = halves ? plane + planes : 2 * plane + 1;
        const float a = head[one], b = head[other], c = number(cos[plane]), s = number(sin[plane]);
        head[one] = a * c - b * s;
        head[other] = b * c + a * s;
    }
    __syncwarp();
}

template <typename T> __device__ void place_rows(const PlaceRows& a) {
    SHARED_FLOATS(shared);
    const int lane = threadIdx.x % WARP, row = blockIdx.x;
    const int item = blockIdx.y * PLACE_WARPS + threadIdx.x / WARP;
    const int value_heads = a.value ? a.kv_heads : 0;
    if (item >= a.heads + a.kv_heads + value_heads) return;
    const long place = a.places[row];
    if (place == NOWHERE && item >= a.heads) return;
    if (item >= a.heads + a.kv_heads) {
        const int head = item - a.heads - a.kv_heads;
        const T* from = static_cast<const T*>(a.value) + ((long)row * a.kv_heads + head) * a.value_dim;
        T* to = static_cast<T*>(a.values) + ((long)head * a.room + place) * a.value_dim;
        for (int d = lane; d < a.value_dim; d += WARP) put(to + d, number(from[d]));
        return;
    }
    const bool is_query = item < a.heads;
    const int head = is_query ? item : item - a.heads, heads = is_query ? a.heads : a.kv_heads;
    const T* from = static_cast<const T*>(is_query ? a.query : a.key) + ((long)row * heads + head) * a.head_dim;
    const T* weight = static_cast<const T*>(is_query ? a.query_norm : a.key_norm);
    const float eps = is_query ? a.query_eps : a.key_eps;
    float* numbers = shared + threadIdx.x / WARP * a.head_dim;
    for (int d = lane; d < a.head_dim; d += WARP) numbers[d] = number(from[d]);
    __syncwarp();
    if (weight && !a.norm_behind) norm_head(numbers, weight, eps, a.head_dim, lane);
    if (a.planes > 0) {
        const T *cos = static_cast<const T*>(a.cos) + (long)row * a.planes, *sin = static_cast<const T*>(a.sin) + (long)row * a.planes;
        rotate_head(numbers + a.first, cos, sin, a.planes, a.halves, lane);
    }
    if (weight && a.norm_behind) norm_head(numbers, weight, eps, a.head_dim, lane);
    if (is_query) {
        T* to = static_cast<T*>(a.query_out) + ((long)row * heads + head) * a.head_dim;
        for (int d = lane; d < a.head_dim; d += WARP) put(to + d, numbers[d] * a.scale);
    } else {
        T* to = static_cast<T*>(a.keys) + ((long)head * a.room + place) * a.head_dim;
        for (int d = lane; d < a.head_dim; d += WARP) put(to + d, numbers[d]);
    }
}
