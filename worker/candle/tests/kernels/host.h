// A GPU's threads on the host, so that kernels can be tested without one: each thread of a block is a context of its own, and they
// run in an order that changes with a seed. A barrier that is missing therefore gives wrong numbers with some seed.
#pragma once
#include <ucontext.h>

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <random>
#include <vector>

using std::max;
using std::min;

#define __device__
#define __global__
#define __launch_bounds__(...)
#define SHARED_FLOATS(name) float* name = host::block->shared.data()

struct uint4 {
    unsigned x, y, z, w;
};
struct uint2 {
    unsigned x, y;
};
struct Index {
    unsigned x = 0, y = 0, z = 0;
};
inline Index threadIdx, blockIdx, blockDim, gridDim;

struct __half {
    _Float16 value;
};
inline float __half2float(__half x) { return (float)x.value; }
inline __half __float2half(float x) { return {(_Float16)x}; }

struct __nv_bfloat16 {
    uint16_t bits;
};
inline float __bfloat162float(__nv_bfloat16 x) {
    const uint32_t bits = (uint32_t)x.bits << 16;
    float value;
    memcpy(&value, &bits, 4);
    return value;
}
inline __nv_bfloat16 __float2bfloat16(float x) {
    uint32_t bits;
    memcpy(&bits, &x, 4);
    return {(uint16_t)((bits + 0x7fff + ((bits >> 16) & 1)) >> 16)};
}
inline float __uint_as_float(unsigned bits) {
    float value;
    memcpy(&value, &bits, 4);
    return value;
}
inline unsigned __byte_perm(unsigned low, unsigned high, unsigned selector) {
    const uint64_t both = (uint64_t)high << 32 | low;
    unsigned result = 0;
    for (int at = 0; at < 4; at++) result |= (unsigned)(both >> 8 * (selector >> 4 * at & 7) & 0xff) << 8 * at;
    return result;
}
inline float rsqrtf(float x) { return 1.0f / std::sqrt(x); }

namespace host {

constexpr int WARP = 32;
constexpr size_t STACK = 64 << 10;

struct Meeting {
    int waiting = 0, alive = 0, round = 0;
    void leave() {
        alive--;
        open_if_all();
    }
    void open_if_all() {
        if (waiting == alive) {
            waiting = 0;
            round++;
        }
    }
};

struct Block;
inline Block* block;

struct Block {
    std::vector<float> shared;
    std::vector<Meeting> warps;
    Meeting all;
    std::vector<float> given;
    // The operands of the matrix product that each warp is at.
    std::vector<std::vector<float>> operands;
    // The rows of tiles that each thread names.
    std::vector<const uint16_t*> rows;
    std::vector<ucontext_t> threads;
    std::vector<std::unique_ptr<char[]>> stacks;
    std::vector<bool> done;
    ucontext_t main;
    int current = 0;
    std::function<void()> kernel;
    // The copies of each thread that may still be under way, and those that end together.
    struct Copy {
        void* to;
        const void* from;
        int bytes;
    };
    std::vector<std::vector<std::vector<Copy>>> copies;

    void meet(Meeting& meeting) {
        const int round = meeting.round;
        meeting.waiting++;
        meeting.open_if_all();
        while (meeting.round == round) swapcontext(&threads[current], &main);
        threadIdx.x = current;
    }

    static void start() {
        Block& own = *block;
        threadIdx.x = own.current;
        own.kernel();
        own.done[own.current] = true;
        own.all.leave();
        own.warps[own.current / WARP].leave();
        swapcontext(&own.threads[own.current], &own.main);
    }

    void run(int count, std::mt19937& random) {
        all.alive = count;
        warps.resize(count / WARP);
        for (Meeting& warp : warps) warp.alive = WARP;
        given.resize(count);
        rows.resize(count);
        copies.assign(count, {{}});
        operands.assign(2 * count / WARP, std::vector<float>(256));
        threads.resize(count);
        done.assign(count, false);
        for (int thread = 0; thread < count; thread++) {
            stacks.emplace_back(new char[STACK]);
            getcontext(&threads[thread]);
            threads[thread].uc_stack = {stacks.back().get(), 0, STACK};
            threads[thread].uc_link = nullptr;
            makecontext(&threads[thread], start, 0);
        }
        std::vector<int> order(count);
        for (int at = 0; at < count; at++) order[at] = at;
        for (bool left = true; left;) {
            std::shuffle(order.begin(), order.end(), random);
            left = false;
            for (int thread : order) {
                if (done[thread]) continue;
                left = true;
                current = thread;
                threadIdx.x = thread;
                swapcontext(&main, &threads[thread]);
            }
        }
    }
};

// Runs a kernel for every block of a grid. Shared memory is full of what is no number, as what a kernel has not written may be.
template <typename Kernel, typename Arguments>
void launch(Kernel kernel, Index grid, int threads, int shared_bytes, const Arguments& arguments, unsigned seed) {
    std::mt19937 random(seed);
    gridDim = grid;
    blockDim = {(unsigned)threads, 1, 1};
    for (unsigned z = 0; z < grid.z; z++)
        for (unsigned y = 0; y < grid.y; y++)
            for (unsigned x = 0; x < grid.x; x++) {
                Block own;
                block = &own;
                blockIdx = {x, y, z};
                own.shared.assign(shared_bytes / sizeof(float), NAN);
                own.kernel = [&] { kernel(arguments); };
                own.run(threads, random);
            }
}

}  // namespace host

#ifdef WITHOUT_BARRIERS
inline void __syncthreads() {}
#else
inline void __syncthreads() { host::block->meet(host::block->all); }
#endif
inline void __syncwarp() { host::block->meet(host::block->warps[host::block->current / host::WARP]); }
inline float __shfl_xor_sync(unsigned, float x, int distance) {
    host::Block& block = *host::block;
    const int thread = block.current;
    block.given[thread] = x;
    __syncwarp();
    const float other = block.given[thread ^ distance];
    __syncwarp();
    return other;
}

inline unsigned masked(unsigned bits, unsigned mask, unsigned more) { return (bits & mask) | more; }
inline unsigned kept(unsigned constant) { return constant; }
inline unsigned multiply_add(unsigned x, unsigned y, unsigned z) {
    unsigned result = 0;
    for (int half = 0; half < 2; half++) {
        const auto of = [&](unsigned two) { return __bfloat162float({(uint16_t)(two >> 16 * half)}); };
        result |= (unsigned)__float2bfloat16(std::fma(of(x), of(y), of(z))).bits << 16 * half;
    }
    return result;
}
inline void multiply_tile(float (&sums)[4], const unsigned (&first)[4], const unsigned (&second)[2]) {
    const int warp = host::block->current / host::WARP, lane = host::block->current % host::WARP, row = lane / 4, pair = lane % 4 * 2;
    std::vector<float>&a = host::block->operands[2 * warp], &b = host::block->operands[2 * warp + 1];
    const auto of = [](unsigned two, int half) { return __bfloat162float({(uint16_t)(two >> 16 * half)}); };
    for (int half = 0; half < 2; half++) {
        for (int at = 0; at < 4; at++) a[(row + at % 2 * 8) * 16 + pair + at / 2 * 8 + half] = of(first[at], half);
        for (int at = 0; at < 2; at++) b[(pair + at * 8 + half) * 8 + row] = of(second[at], half);
    }
    __syncwarp();
    for (int at = 0; at < 4; at++)
        for (int k = 0; k < 16; k++) sums[at] += a[(row + at / 2 * 8) * 16 + k] * b[k * 8 + pair + at % 2];
    __syncwarp();
}
// As in tensor_cores.cuh, of each type.
template <typename T> void multiply_tile_of(float (&sums)[4], const unsigned (&first)[4], unsigned low, unsigned high) {
    const int warp = host::block->current / host::WARP, lane = host::block->current % host::WARP, row = lane / 4, pair = lane % 4 * 2;
    std::vector<float>&a = host::block->operands[2 * warp], &b = host::block->operands[2 * warp + 1];
    const auto of = [](unsigned two, int half) {
        T x;
        const uint16_t bits = two >> 16 * half;
        memcpy(&x, &bits, 2);
        return number(x);
    };
    for (int half = 0; half < 2; half++) {
        for (int at = 0; at < 4; at++) a[(row + at % 2 * 8) * 16 + pair + at / 2 * 8 + half] = of(first[at], half);
        for (int at = 0; at < 2; at++) b[(pair + at * 8 + half) * 8 + row] = of(at ? high : low, half);
    }
    __syncwarp();
    for (int at = 0; at < 4; at++)
        for (int k = 0; k < 16; k++) sums[at] += a[(row + at / 2 * 8) * 16 + k] * b[k * 8 + pair + at % 2];
    __syncwarp();
}
inline void load_any_tiles(unsigned (&of)[4], const void* row, bool transposed) {
    host::Block& block = *host::block;
    const int lane = block.current % host::WARP, first = block.current - lane;
    block.rows[block.current] = static_cast<const uint16_t*>(row);
    __syncwarp();
    for (int tile = 0; tile < 4; tile++) {
        of[tile] = 0;
        for (int half = 0; half < 2; half++) {
            const int one = lane / 4, other = lane % 4 * 2 + half;
            const uint16_t* from = block.rows[first + tile * 8 + (transposed ? other : one)];
            of[tile] |= (unsigned)from[transposed ? one : other] << 16 * half;
        }
    }
    __syncwarp();
}
inline void load_tiles(unsigned (&of)[4], const void* row) { load_any_tiles(of, row, false); }
inline void load_transposed_tiles(unsigned (&of)[4], const void* row) { load_any_tiles(of, row, true); }
template <typename T> unsigned word_of(float low, float high, T) {
    T two[2];
    put(&two[0], low), put(&two[1], high);
    unsigned word;
    memcpy(&word, two, 4);
    return word;
}
// Copies are made when they are waited for, the latest that may be.
inline void copy_async(void* to, const void* from, int bytes) { host::block->copies[host::block->current].back().push_back({to, from, bytes}); }
inline void end_of_copies() { host::block->copies[host::block->current].push_back({}); }
template <int LEFT> void wait_for_copies() {
    auto& groups = host::block->copies[host::block->current];
    while (groups.size() > LEFT + 1) {
        for (const auto& copy : groups.front()) memset(copy.to, 0, 16), memcpy(copy.to, copy.from, copy.bytes);
        groups.erase(groups.begin());
    }
}
