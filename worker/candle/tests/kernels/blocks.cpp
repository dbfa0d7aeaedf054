// Tests of the kernels of quantised blocks on the host. Each argument is a file: a type's name, its rows and depth as 32-bit numbers,
// the blocks, and what they stand for in f32.
#define HOST_KERNELS
#include "multiply_blocks.cuh"

#include <algorithm>
#include <fstream>
#include <string>

namespace {

typedef __nv_bfloat16 T;
int faults = 0;
std::mt19937 random_numbers(11);

struct Matrix {
    unsigned outs, depth;
    std::vector<Byte> bytes;
    std::vector<float> floats;
    double at(size_t out, size_t d) const { return floats[out * depth + d]; }
};

std::vector<T> numbers(size_t count) {
    std::uniform_real_distribution<float> any(-1.0f, 1.0f);
    std::vector<T> all(count);
    for (T& one : all) put(&one, any(random_numbers));
    return all;
}

void check(const std::string& what, double got, double want, double within) {
    if (std::abs(got - want) <= within) return;
    if (faults++ < 20) printf("%s: %g in place of %g\n", what.c_str(), got, want);
}

template <typename B, typename To> void widening(const std::string& name, const Matrix& matrix, bool chosen, double rounding) {
    const std::vector<unsigned> all = {3, 0, matrix.outs - 1};
    const int count = chosen ? all.size() : matrix.outs;
    std::vector<To> out((size_t)count * matrix.depth);
    WidenBlocks a{matrix.bytes.data(), chosen ? all.data() : nullptr, out.data(), (int)matrix.depth, count};
    const unsigned threads = (count * matrix.depth / 8 + WIDEN_THREADS - 1) / WIDEN_THREADS;
    host::launch(widen_blocks<B, To>, {threads, 1, 1}, WIDEN_THREADS, 4, a, 1);
    for (int row = 0; row < count; row++)
        for (size_t d = 0; d < matrix.depth; d++) {
            const double want = matrix.at(chosen ? all[row] : row, d);
            check(name + " widened", number(out[row * matrix.depth + d]), want, rounding * std::abs(want));
        }
}

double silu_of_gate(double gate, double up) { return gate / (1 + std::exp(-gate)) * up; }

// `beside`: biases and, of a single matrix, what is added.
template <typename B, int TILES, bool NORMED, bool GATED>
void multiplying(const std::string& name, const Matrix& matrix, int matrices, int rows, int warps, int threads, bool beside, unsigned seed) {
    const size_t outs = matrix.outs, depth = matrix.depth;
    auto x = numbers(rows * depth), norm = numbers(depth), residual = numbers(rows * outs);
    std::vector<std::vector<T>> biases, results;
    MultiplyRows a{};
    a.x = x.data(), a.norm = norm.data(), a.eps = 1e-5f, a.depth = depth, a.rows = rows;
    if (beside && matrices == 1) a.residual = residual.data();
    // Matrices of different sizes, from the front of one.
    for (int at = 0; at < matrices; at++) {
        a.outs[at] = GATED ? outs : outs - 3 * at;
        biases.push_back(numbers(outs)), results.push_back(numbers(rows * outs));
    }
    int tiles = 0;
    for (int at = 0; at < matrices; at++) {
        a.weights[at] = matrix.bytes.data(), a.results[at] = results[at].data();
        if (beside) a.biases[at] = biases[at].data();
        const int of_tile = GATED ? 8 : 16;
        if (!GATED || at == 0) tiles += (a.outs[at] + of_tile - 1) / of_tile;
    }
    // As in blocks.rs, but of few blocks of threads.
    const int floats = SUM_BUFFERS<TILES> * TILES * SUMS * WARP + TILE_ROWS;
    const int bytes = warps * (4 * floats + STAGES<B> * TILE_OUTS * ROOM_OF_ROW<B>);
    host::launch(multiply_blocks<B, TILES, NORMED, GATED>, {(unsigned)std::min(threads, tiles), 1, 1}, warps * WARP, bytes, a, seed);
    for (int row = 0; row < rows; row++) {
        double squares = 0;
        for (size_t d = 0; d < depth; d++) squares += std::pow(number(x[row * depth + d]), 2);
        const double factor = NORMED ? 1 / std::sqrt(squares / depth + 1e-5) : 1;
        // The product and the size of its terms.
        const auto product = [&](int at, size_t out) {
            double sum = 0, terms = 0;
            for (size_t d = 0; d < depth; d++) {
                const double term = number(x[row * depth + d]) * (NORMED ? number(norm[d]) : 1.0) * matrix.at(out, d) * factor;
                sum += term, terms += term * term;
            }
            return std::pair(sum + (beside ? number(biases[at][out]) : 0.0), std::sqrt(terms));
        };
        for (int at = 0; at < (GATED ? 1 : matrices); at++)
            for (int out = 0; out < a.outs[at]; out++) {
                auto [want, terms] = product(at, out);
                if (GATED) {
                    const auto [passes, others] = product(1, out);
                    terms = terms * std::abs(passes) + others * std::abs(want);
                    want = silu_of_gate(want, passes);
                }
                if (a.residual) want += number(residual[row * outs + out]);
                check(name + " product", number(results[at][(size_t)row * a.outs[at] + out]), want, 6e-3 * (std::abs(want) + terms) + 1e-3);
            }
    }
}

template <> void widening<BF16, float>(const std::string&, const Matrix&, bool, double) {}
template <> void widening<BF16, T>(const std::string&, const Matrix&, bool, double) {}

template <typename B> void blocks(const std::string& name, const Matrix& matrix) {
    widening<B, float>(name, matrix, true, 1e-6);
    widening<B, T>(name, matrix, false, 5e-3);
    for (unsigned seed = 0; seed < 2; seed++) {
        multiplying<B, 1, true, false>(name, matrix, 3, 1 + seed * 6, 2, 2, true, seed);
        multiplying<B, 1, true, true>(name, matrix, 2, 2, 3, 2, true, seed);
        multiplying<B, 1, false, false>(name, matrix, 1, 3, 1, 1, true, seed);
        multiplying<B, 2, false, true>(name, matrix, 2, 11, 3, 9, false, seed);
        multiplying<B, 4, false, false>(name, matrix, 2, 27, 2, 1, true, seed);
    }
}

}  // namespace

int main(int count, char** files) {
    for (int at = 1; at < count; at++) {
        std::ifstream file(files[at], std::ios::binary);
        std::string name;
        std::getline(file, name);
        Matrix matrix;
        unsigned bytes;
        for (unsigned* field : {&matrix.outs, &matrix.depth, &bytes}) file.read(reinterpret_cast<char*>(field), 4);
        // Kernels read up to fifteen bytes behind the last block.
        matrix.bytes.resize(bytes + 64), matrix.floats.resize((size_t)matrix.outs * matrix.depth);
        file.read(reinterpret_cast<char*>(matrix.bytes.data()), bytes);
        file.read(reinterpret_cast<char*>(matrix.floats.data()), 4 * matrix.floats.size());
        const int before = faults;
#define OF(B) \
    if (name == #B) blocks<B>(name, matrix);
        OF(Q4_0) OF(Q4_1) OF(Q5_0) OF(Q5_1) OF(Q8_0) OF(IQ4_NL) OF(MXFP4) OF(Q2_K) OF(Q3_K) OF(Q4_K) OF(Q5_K) OF(Q6_K) OF(IQ4_XS) OF(BF16)
        printf("%s: %d faults\n", name.c_str(), faults - before);
    }
    return faults > 100 ? 100 : faults;
}
