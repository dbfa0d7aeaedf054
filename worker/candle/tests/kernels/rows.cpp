// Tests of the GPU's kernels on the host, against the definitions in double precision. Prints a line for each fault; its exit code is
// their number.
#include <algorithm>

#define HOST_KERNELS
#define OF_F32
#define OF_F16
#define OF_BF16
#include "rows.cu"

namespace {

int faults = 0;
std::mt19937 random_numbers(7);

template <typename T> struct Numbers {
    std::vector<T> all;
    explicit Numbers(size_t count, float width = 1.0f) {
        std::uniform_real_distribution<float> any(-width, width);
        for (size_t at = 0; at < count; at++) {
            T x;
            put(&x, any(random_numbers));
            all.push_back(x);
        }
        all.reserve(count + 16);
    }
    double operator[](size_t at) const { return number(all[at]); }
    T* data() { return all.data(); }
};

template <typename T> constexpr double rounding() { return sizeof(T) == 4 ? 2e-6 : std::is_same_v<T, __half> ? 1e-3 : 8e-3; }

void check(const char* what, double got, double want, double within) {
    if (std::abs(got - want) <= within * std::max(1.0, std::abs(want))) return;
    if (faults++ < 20) printf("%s: %g in place of %g\n", what, got, want);
}

struct Shape {
    int heads, kv_heads, dim, value_dim, window;
    float softcap;
    bool sinks, in_keys;
};

template <typename T> void attention(const Shape& shape, int together, auto attend, auto join, unsigned seed) {
    const std::vector<int> seen = {1, 33, 0, 300, 70, 513};
    const int rows = seen.size(), table = 20, room = rows * table * BLOCK_TOKENS;
    const int stride = shape.in_keys ? shape.dim : shape.value_dim;
    Numbers<T> query((size_t)rows * shape.heads * shape.dim);
    Numbers<T> keys((size_t)shape.kv_heads * room * shape.dim), values((size_t)shape.kv_heads * room * stride);
    Numbers<float> sinks(shape.heads);
    Numbers<T> out((size_t)rows * shape.heads * shape.value_dim);
    std::vector<unsigned> sequence, sees(seen.begin(), seen.end()), blocks(rows * table);
    for (int at = 0; at < rows * table; at++) blocks[at] = at;
    std::shuffle(blocks.begin(), blocks.end(), random_numbers);
    for (int row = 0; row < rows; row++) sequence.push_back(rows - 1 - row);
    const T* of_values = shape.in_keys ? keys.data() : values.data();
    for (const bool split : {true, false}) {
        AttendRows a{};
        a.query = query.data(), a.keys = keys.data(), a.values = of_values, a.out = out.data();
        a.sequence = sequence.data(), a.seen = sees.data(), a.blocks = blocks.data(), a.sinks = shape.sinks ? sinks.data() : nullptr;
        a.heads = shape.heads, a.kv_heads = shape.kv_heads, a.head_dim = shape.dim, a.value_dim = shape.value_dim;
        a.value_stride = stride, a.room = room, a.table = table, a.window = shape.window, a.softcap = shape.softcap;
        a.splits = split ? 3 : 1;
        std::vector<float> partial((size_t)rows * shape.heads * a.splits * (2 + shape.value_dim), NAN);
        a.partial = split ? partial.data() : nullptr;
        const int heads = together;
        const int parts = (shape.heads / shape.kv_heads + heads - 1) / heads;
        const int floats = std::max(heads * shape.dim + ATTEND_WARPS * heads * WARP, ATTEND_WARPS * heads * shape.value_dim) +
                           2 * ATTEND_WARPS * heads;
        const Index grid{(unsigned)rows, (unsigned)(shape.kv_heads * parts), (unsigned)a.splits};
        host::launch(attend, grid, ATTEND_THREADS, 4 * floats, a, seed);
        if (split) host::launch(join, {(unsigned)rows, (unsigned)shape.heads, 1}, ATTEND_THREADS, 4, a, seed);
        for (int row = 0; row < rows; row++)
            for (int head = 0; head < shape.heads; head++) {
                // One split has the keys of one; longer rows are split.
                if (seen[row] == 0 || (!split && seen[row] > SPLIT)) continue;
                const int kv = head / (shape.heads / shape.kv_heads);
                const int start = shape.window > 0 ? std::max(0, seen[row] - shape.window) : 0;
                std::vector<double> weights;
                double sum = shape.sinks ? std::exp(sinks[head]) : 0.0;
                const auto place = [&](int key) {
                    return (size_t)kv * room + blocks[sequence[row] * table + key / BLOCK_TOKENS] * BLOCK_TOKENS + key % BLOCK_TOKENS;
                };
                for (int key = start; key < seen[row]; key++) {
                    double score = 0.0;
                    for (int d = 0; d < shape.dim; d++)
                        score += query[((size_t)row * shape.heads + head) * shape.dim + d] * keys[place(key) * shape.dim + d];
                    if (shape.softcap > 0) score = std::tanh(score / shape.softcap) * shape.softcap;
                    weights.push_back(std::exp(score));
                    sum += weights.back();
                }
                for (int d = 0; d < shape.value_dim; d++) {
                    double want = 0.0;
                    for (int key = start; key < seen[row]; key++)
                        want += weights[key - start] / sum * number(of_values[place(key) * stride + d]);
                    check("attend", out[((size_t)row * shape.heads + head) * shape.value_dim + d], want, 10 * rounding<T>());
                }
            }
    }
}

template <typename T> void placing(int heads, int kv_heads, int dim, int value_dim, bool norms, bool behind, int planes,
                                               int first, bool halves, auto kernel, unsigned seed) {
    const int rows = 3, room = 64;
    Numbers<T> query(rows * heads * dim), key(rows * kv_heads * dim), value(rows * kv_heads * std::max(1, value_dim));
    Numbers<T> of_query(dim), of_key(dim), cos(rows * planes + 1), sin(rows * planes + 1), out(rows * heads * dim);
    Numbers<T> keys(kv_heads * room * dim), values(kv_heads * room * std::max(1, value_dim));
    const std::vector<unsigned> places = {5, 40, 33};
    PlaceRows a{};
    a.query = query.data(), a.key = key.data(), a.value = value_dim ? value.data() : nullptr;
    a.query_norm = norms ? of_query.data() : nullptr, a.key_norm = norms ? of_key.data() : nullptr;
    a.cos = cos.data(), a.sin = sin.data(), a.places = places.data(), a.query_out = out.data(), a.keys = keys.data(), a.values = values.data();
    a.query_eps = 1e-5f, a.key_eps = 1e-6f, a.scale = 0.25f, a.heads = heads, a.kv_heads = kv_heads, a.head_dim = dim;
    a.value_dim = value_dim, a.planes = planes, a.first = first, a.halves = halves, a.norm_behind = behind, a.room = room;
    const unsigned items = heads + kv_heads * (value_dim ? 2 : 1);
    host::launch(kernel, {(unsigned)rows, (items + PLACE_WARPS - 1) / PLACE_WARPS, 1}, PLACE_WARPS * WARP, 4 * PLACE_WARPS * dim, a, seed);
    const auto wanted = [&](const Numbers<T>& from, const Numbers<T>& weight, double eps, int at, int row) {
        std::vector<double> x;
        for (int d = 0; d < dim; d++) x.push_back(from[(size_t)at * dim + d]);
        const auto norm = [&] {
            double squares = 0;
            for (double one : x) squares += one * one;
            for (int d = 0; d < dim; d++) x[d] *= weight[d] / std::sqrt(squares / dim + eps);
        };
        if (norms && !behind) norm();
        for (int plane = 0; plane < planes; plane++) {
            const int one = first + (halves ? plane : 2 * plane), other = first + (halves ? plane + planes : 2 * plane + 1);
            const double p = x[one], q = x[other], c = cos[row * planes + plane], s = sin[row * planes + plane];
            x[one] = p * c - q * s, x[other] = q * c + p * s;
        }
        if (norms && behind) norm();
        return x;
    };
    for (int row = 0; row < rows; row++) {
        for (int head = 0; head < heads; head++) {
            const auto want = wanted(query, of_query, 1e-5, row * heads + head, row);
            for (int d = 0; d < dim; d++) check("place: query", out[(row * heads + head) * dim + d], want[d] * 0.25, rounding<T>());
        }
        for (int head = 0; head < kv_heads; head++) {
            const auto want = wanted(key, of_key, 1e-6, row * kv_heads + head, row);
            for (int d = 0; d < dim; d++) check("place: key", keys[(head * room + places[row]) * dim + d], want[d], rounding<T>());
            for (int d = 0; d < value_dim; d++)
                check("place: value", values[(head * room + places[row]) * value_dim + d], value[(row * kv_heads + head) * value_dim + d], rounding<T>());
        }
    }
}

template <typename T> void piece(const Shape& shape, int past, int rows, int stages, auto kernel, unsigned seed) {
    const int first = 3, table = 20, room = table * BLOCK_TOKENS, stride = shape.in_keys ? shape.dim : shape.value_dim;
    Numbers<T> query((size_t)(first + rows) * shape.heads * shape.dim, 0.3f), keys((size_t)shape.kv_heads * room * shape.dim);
    Numbers<T> values((size_t)shape.kv_heads * room * stride), out((size_t)(first + rows) * shape.heads * shape.value_dim), before = out;
    Numbers<float> sinks(shape.heads);
    std::vector<unsigned> blocks(table);
    for (int at = 0; at < table; at++) blocks[at] = at;
    std::shuffle(blocks.begin(), blocks.end(), random_numbers);
    const T* of_values = shape.in_keys ? keys.data() : values.data();
    AttendPiece a{};
    a.query = query.data(), a.keys = keys.data(), a.values = of_values, a.blocks = blocks.data(), a.out = out.data();
    a.sinks = shape.sinks ? sinks.data() : nullptr, a.softcap = shape.softcap, a.heads = shape.heads, a.kv_heads = shape.kv_heads;
    a.head_dim = shape.dim, a.value_dim = shape.value_dim, a.value_stride = stride, a.room = room, a.window = shape.window;
    a.first_row = first, a.rows = rows, a.past = past;
    a.stages = stages;
    const int of_key = shape.dim + shape.value_dim + 2 * BEHIND, keys_of_tile = shape.value_dim <= 128 ? 64 : 32;
    const int bytes = sizeof(T) * (PIECE_ROWS * (shape.dim + BEHIND) + stages * keys_of_tile * of_key);
    host::launch(kernel, {(unsigned)((rows + PIECE_ROWS - 1) / PIECE_ROWS), (unsigned)shape.heads, 1}, PIECE_THREADS, bytes, a, seed);
    for (int at = 0; at < first * shape.heads * shape.value_dim; at++) check("piece: before", out[at], before[at], 0);
    for (int row = 0; row < rows; row++)
        for (int head = 0; head < shape.heads; head++) {
            const int kv = head / (shape.heads / shape.kv_heads), seen = past + row + 1;
            const int start = shape.window > 0 ? std::max(0, seen - shape.window) : 0;
            const auto place = [&](int key) { return (size_t)kv * room + blocks[key / BLOCK_TOKENS] * BLOCK_TOKENS + key % BLOCK_TOKENS; };
            const size_t at = (size_t)(first + row) * shape.heads + head;
            std::vector<double> weights;
            double sum = shape.sinks ? std::exp(sinks[head]) : 0.0;
            for (int key = start; key < seen; key++) {
                double score = 0.0;
                for (int d = 0; d < shape.dim; d++) score += query[at * shape.dim + d] * keys[place(key) * shape.dim + d];
                if (shape.softcap > 0) score = std::tanh(score / shape.softcap) * shape.softcap;
                weights.push_back(std::exp(score));
                sum += weights.back();
            }
            for (int d = 0; d < shape.value_dim; d++) {
                double want = 0.0;
                for (int key = start; key < seen; key++) want += weights[key - start] / sum * number(of_values[place(key) * stride + d]);
                check("piece", out[at * shape.value_dim + d], want, 2 * rounding<T>());
            }
        }
}

template <typename T> void softening(int rows, int keys, int past, int window, float softcap, bool sinks, auto kernel, unsigned seed) {
    const int heads = 2;
    Numbers<T> scores((size_t)heads * rows * keys, 4.0f), before = scores;
    Numbers<float> of_sinks(heads);
    SoftenRows a{scores.data(), sinks ? of_sinks.data() : nullptr, softcap, rows, keys, past, window};
    host::launch(kernel, {(unsigned)(heads * rows), 1, 1}, SOFTEN_THREADS, 4 * WARP, a, seed);
    for (int head = 0; head < heads; head++)
        for (int row = 0; row < rows; row++) {
            const size_t at = ((size_t)head * rows + row) * keys;
            const int seen = std::min(keys, past + row + 1), start = window > 0 ? std::max(0, seen - window) : 0;
            const auto weight = [&](int key) {
                const double x = before[at + key];
                return std::exp(softcap > 0 ? std::tanh(x / softcap) * softcap : x);
            };
            double sum = sinks ? std::exp(of_sinks[head]) : 0.0;
            for (int key = start; key < seen; key++) sum += weight(key);
            for (int key = 0; key < keys; key++)
                check("soften", scores[at + key], key >= start && key < seen ? weight(key) / sum : 0.0, rounding<T>());
        }
}

double silu_of_gate(double gate, double up, float limit, float slope) {
    if (limit > 0) gate = std::min<double>(gate, limit), up = std::clamp<double>(up, -limit, limit) + 1;
    return gate / (1 + std::exp(-(limit > 0 ? slope : 1.0) * gate)) * up;
}

// What is done beside a product.
struct Beside {
    bool norm, biases, residual, gated;
    float limit;
};

template <typename T> void multiplying(std::vector<int> outs, int rows, int depth, Beside beside, auto kernel, unsigned seed) {
    Numbers<T> x((size_t)rows * depth), norm(depth), residual((size_t)rows * outs[0]);
    std::vector<Numbers<T>> weights, biases, results;
    MultiplyRows a{};
    a.x = x.data(), a.depth = depth, a.rows = rows, a.eps = 1e-5f, a.limit = beside.limit, a.slope = 1.702f;
    if (beside.norm) a.norm = norm.data();
    if (beside.residual) a.residual = residual.data();
    int all = 0;
    for (size_t at = 0; at < outs.size(); at++) {
        weights.emplace_back((size_t)outs[at] * depth);
        biases.emplace_back((size_t)outs[at]);
        results.emplace_back((size_t)rows * outs[at]);
        a.outs[at] = outs[at], all += outs[at];
    }
    for (size_t at = 0; at < outs.size(); at++) {
        a.weights[at] = weights[at].data(), a.results[at] = results[at].data();
        if (beside.biases) a.biases[at] = biases[at].data();
    }
    // As in products.rs.
    const int of_block = MULTIPLY_WARPS * (rows == 1 && !beside.gated ? 1 : 2);
    host::launch(kernel, {(unsigned)((all + of_block - 1) / of_block), 1, 1}, MULTIPLY_WARPS * WARP, 4, a, seed);
    for (int row = 0; row < rows; row++) {
        double squares = 0;
        for (int d = 0; d < depth; d++) squares += x[(size_t)row * depth + d] * x[(size_t)row * depth + d];
        const double factor = beside.norm ? 1 / std::sqrt(squares / depth + a.eps) : 1;
        const auto product = [&](size_t at, int out) {
            double want = 0;
            for (int d = 0; d < depth; d++) {
                want += x[(size_t)row * depth + d] * (beside.norm ? norm[d] : 1.0) * weights[at][(size_t)out * depth + d];
            }
            return want * factor + (beside.biases ? biases[at][out] : 0.0);
        };
        for (size_t at = 0; at < (beside.gated ? 1 : outs.size()); at++)
            for (int out = 0; out < outs[at]; out++) {
                const size_t place = (size_t)row * outs[at] + out;
                double want = product(at, out) + (beside.residual ? residual[place] : 0.0);
                if (beside.gated) want = silu_of_gate(product(0, out), product(1, out), beside.limit, 1.702f);
                check("multiply", results[at][place], want, 10 * rounding<T>());
            }
    }
}

template <typename T> void streaming(int rows, int width, auto norm, auto gate, unsigned seed) {
    Numbers<T> x((size_t)rows * width), y((size_t)rows * width), weight(width), sum((size_t)rows * width), normed((size_t)rows * width);
    AddNorm a{x.data(), y.data(), weight.data(), sum.data(), normed.data(), 1e-5f, width};
    host::launch(norm, {(unsigned)rows, 1, 1}, ADD_NORM_THREADS, 4 * (WARP + width), a, seed);
    for (int row = 0; row < rows; row++) {
        double squares = 0;
        for (int d = 0; d < width; d++) {
            check("add", sum[row * width + d], x[row * width + d] + y[row * width + d], rounding<T>());
            squares += sum[row * width + d] * sum[row * width + d];
        }
        for (int d = 0; d < width; d++)
            check("norm", normed[row * width + d], sum[row * width + d] / std::sqrt(squares / width + 1e-5) * weight[d], rounding<T>());
    }
    Numbers<T> out((size_t)rows * width);
    for (const float limit : {0.0f, 0.5f}) {
        SiluGate b{x.data(), y.data(), out.data(), (long)rows * width, limit, 1.702f};
        host::launch(gate, {(unsigned)((rows * width + 127) / 128), 1, 1}, 128, 4, b, seed);
        for (int at = 0; at < rows * width; at++) {
            check("gate", out[at], silu_of_gate(x[at], y[at], limit, 1.702f), rounding<T>());
        }
    }
}

}  // namespace

int main() {
    for (unsigned seed = 0; seed < 2; seed++) {
        attention<float>({8, 2, 64, 64, 0, 0.0f, false, false}, TOGETHER<2>, attend_rows_f32_64, join_splits_f32, seed);
        attention<float>({6, 2, 20, 20, 40, 3.0f, true, false}, TOGETHER<2>, attend_rows_f32_64, join_splits_f32, seed);
        attention<__half>({4, 4, 40, 40, 0, 0.0f, true, false}, TOGETHER<2>, attend_rows_f16_64, join_splits_f16, seed);
        attention<__nv_bfloat16>({20, 1, 128, 128, 0, 0.0f, false, false}, TOGETHER<4>, attend_rows_bf16_128, join_splits_bf16, seed);
        attention<__half>({2, 1, 256, 256, 300, 0.0f, false, false}, TOGETHER<8>, attend_rows_f16_256, join_splits_f16, seed);
        attention<float>({10, 1, 288, 272, 0, 0.0f, false, true}, TOGETHER<16>, attend_rows_f32_512, join_splits_f32, seed);
        attention<float>({3, 1, 576, 512, 0, 0.0f, false, true}, TOGETHER<16>, attend_rows_f32_512, join_splits_f32, seed);
        attention<__nv_bfloat16>({6, 2, 64, 64, 40, 0.0f, true, false}, 1, attend_heads_bf16_64, join_splits_bf16, seed);
        attention<float>({3, 3, 128, 128, 0, 2.0f, false, false}, 1, attend_heads_f32_128, join_splits_f32, seed);
        attention<__nv_bfloat16>({6, 2, 64, 64, 40, 0.0f, true, false}, 1, attend_vectors_bf16_64_1, join_splits_bf16, seed);
        attention<float>({4, 1, 64, 64, 0, 0.0f, false, false}, 1, attend_vectors_f32_64_1, join_splits_f32, seed);
        attention<float>({3, 3, 128, 128, 0, 2.0f, false, false}, 1, attend_vectors_f32_128_1, join_splits_f32, seed);
        attention<__half>({4, 2, 128, 128, 100, 0.0f, true, false}, 1, attend_vectors_f16_128_1, join_splits_f16, seed);
        attention<__half>({2, 1, 256, 256, 300, 0.0f, false, false}, 1, attend_vectors_f16_256_1, join_splits_f16, seed);
        attention<__nv_bfloat16>({14, 2, 64, 64, 40, 0.0f, true, false}, 4, attend_vectors_bf16_64_4, join_splits_bf16, seed);
        attention<float>({4, 1, 128, 128, 0, 3.0f, false, false}, 4, attend_vectors_f32_128_4, join_splits_f32, seed);
        attention<__half>({4, 2, 256, 256, 300, 0.0f, false, false}, 4, attend_vectors_f16_256_4, join_splits_f16, seed);
        piece<__nv_bfloat16>({4, 2, 64, 64, 0, 0.0f, false, false}, 0, 130, 2, attend_piece_bf16_64, seed);
        piece<__half>({2, 1, 48, 32, 0, 2.0f, true, false}, 37, 70, 2, attend_piece_f16_64, seed);
        piece<__nv_bfloat16>({2, 2, 128, 128, 50, 0.0f, false, false}, 200, 100, 1, attend_piece_bf16_128, seed);
        piece<__half>({1, 1, 96, 80, 0, 0.0f, false, true}, 5, 9, 2, attend_piece_f16_128, seed);
        piece<__half>({1, 1, 256, 256, 0, 0.0f, false, false}, 64, 64, 2, attend_piece_f16_256, seed);
        placing<float>(4, 2, 64, 64, false, false, 32, 0, true, place_rows_f32, seed);
        placing<__half>(3, 3, 20, 20, true, false, 5, 6, false, place_rows_f16, seed);
        placing<__nv_bfloat16>(6, 1, 128, 128, true, true, 64, 0, true, place_rows_bf16, seed);
        placing<float>(2, 1, 96, 0, false, false, 16, 64, false, place_rows_f32, seed);
        placing<__half>(2, 2, 32, 32, false, false, 0, 0, true, place_rows_f16, seed);
        softening<float>(5, 700, 400, 0, 0.0f, false, soften_rows_f32, seed);
        softening<float>(9, 40, 31, 7, 2.0f, true, soften_rows_f32, seed);
        softening<__nv_bfloat16>(3, 3, 0, 0, 0.0f, false, soften_rows_bf16, seed);
        const Beside nothing{}, all_but_gate{true, true, true, false, 0.0f};
        multiplying<float>({6, 10, 3}, 1, 256, nothing, multiply_f32_1, seed);
        multiplying<float>({7}, 2, 132, nothing, multiply_f32_2, seed);
        multiplying<__nv_bfloat16>({5}, 1, 2304, nothing, multiply_bf16_1, seed);
        multiplying<__half>({16, 4}, 3, 520, nothing, multiply_f16_4, seed);
        multiplying<float>({7}, 1, 2304, all_but_gate, multiply_normed_f32_1, seed);
        multiplying<__nv_bfloat16>({9}, 4, 264, all_but_gate, multiply_normed_bf16_4, seed);
        multiplying<__half>({12}, 2, 64, {false, false, true, false, 0.0f}, multiply_f16_2, seed);
        multiplying<__nv_bfloat16>({6, 2, 4}, 3, 128, {true, true, false, false, 0.0f}, multiply_normed_bf16_4, seed);
        multiplying<float>({5, 5}, 2, 200, {true, false, false, true, 0.0f}, multiply_gated_normed_f32_2, seed);
        multiplying<__nv_bfloat16>({9, 9}, 1, 1032, {true, true, false, true, 0.5f}, multiply_gated_normed_bf16_1, seed);
        multiplying<__half>({8, 8}, 3, 72, {false, true, false, true, 0.0f}, multiply_gated_f16_4, seed);
        streaming<float>(3, 300, add_norm_f32, silu_gate_f32, seed);
        streaming<__nv_bfloat16>(2, 64, add_norm_bf16, silu_gate_bf16, seed);
    }
    printf("%d faults\n", faults);
    return faults > 100 ? 100 : faults;
}
