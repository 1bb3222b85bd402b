/*
 * How C++ programmers do the pass: add, std::nth_element among the magnitudes, then everything
 * above the k-th is taken. On one thread. See peers.h for the command line.
 */
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <string>
#include <sys/mman.h>
#include <vector>

namespace {

struct Task {
    size_t count, fibres, length, stride, k, turns;
    std::vector<float> residual, gradient, magnitude, value;
    std::vector<uint32_t> index;
};

float from_half(uint16_t half)
{
    const int exponent = half >> 10 & 31;
    const float fraction = static_cast<float>(half & 1023) / 1024;
    const float magnitude =
        exponent == 0 ? std::ldexp(fraction, -14) : std::ldexp(1 + fraction, exponent - 15);

    return (half & 0x8000) != 0 ? -magnitude : magnitude;
}

float from_bfloat(uint16_t half)
{
    const uint32_t bits = static_cast<uint32_t>(half) << 16;
    float value;

    std::memcpy(&value, &bits, sizeof(value));
    return value;
}

std::vector<float> read(int file, const std::string &type, size_t count)
{
    const size_t size = count * (type == "f32" ? 4 : 2);
    const void *bytes = mmap(nullptr, size, PROT_READ, MAP_PRIVATE, file, 0);
    std::vector<float> values(count);

    if (bytes == MAP_FAILED) {
        std::perror("adtopk-perf-nth: cannot map");
        std::exit(1);
    }
    for (size_t i = 0; i < count; i++) {
        const uint16_t *half = static_cast<const uint16_t *>(bytes) + i;

        values[i] = type == "f32"   ? static_cast<const float *>(bytes)[i]
                    : type == "f16" ? from_half(*half)
                                    : from_bfloat(*half);
    }
    return values;
}

/* The k largest of the fibre that begins at `first`. */
void select(Task &task, size_t first)
{
    float *acc = task.residual.data() + first;
    float *magnitude = task.magnitude.data();

    for (size_t i = 0; i < task.length; i++) {
        magnitude[i] = std::fabs(acc[i * task.stride]);
    }
    std::nth_element(
        magnitude, magnitude + task.k - 1, magnitude + task.length, std::greater<float>());

    const float least = magnitude[task.k - 1];
    size_t ties = task.k;
    for (size_t i = 0; i < task.k; i++) {
        ties -= magnitude[i] > least ? 1 : 0;
    }
    for (size_t i = 0; i < task.length; i++) {
        float *at = acc + i * task.stride;
        if (std::fabs(*at) > least || (std::fabs(*at) == least && ties > 0)) {
            ties -= std::fabs(*at) == least ? 1 : 0;
            task.index.push_back(static_cast<uint32_t>(first + i * task.stride));
            task.value.push_back(*at);
            *at = 0;
        }
    }
}

double turn(Task &task)
{
    const auto begin = std::chrono::steady_clock::now();

    task.index.clear();
    task.value.clear();
    for (size_t i = 0; i < task.count; i++) {
        task.residual[i] += task.gradient[i];
    }
    for (size_t fibre = 0; fibre < task.fibres; fibre++) {
        select(task, fibre / task.stride * task.length * task.stride + fibre % task.stride);
    }
    return std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - begin)
        .count();
}

} // namespace

int main(int argc, char **argv)
{
    Task task;
    size_t *const fields[] = {
        &task.count, &task.fibres, &task.length, &task.stride, &task.k, &task.turns};

    if (argc != 11) {
        std::fprintf(stderr, "adtopk-perf-nth is started by adtopk-perf select --peers nth\n");
        return 2;
    }
    for (int i = 0; i < 6; i++) {
        *fields[i] = std::strtoull(argv[4 + i], nullptr, 10);
    }
    task.residual = read(std::atoi(argv[1]), "f32", task.count);
    task.gradient = read(std::atoi(argv[2]), argv[3], task.count);
    task.magnitude.resize(task.length);
    for (size_t number = 0; number <= task.turns; number++) {
        const double took = turn(task);

        if (number > 0) {
            std::printf("%.3f\n", took);
        }
        std::rotate(task.gradient.begin(),
            task.gradient.begin() + static_cast<std::ptrdiff_t>(1021 % task.count),
            task.gradient.end());
    }
    return 0;
}
