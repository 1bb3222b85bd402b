/*
 * The fused pass (journal and ledger on) against bare `r[i] += g[i]` loops on the same buffers.
 *
 * usage: bench_fused [REPEATS]
 *
 * Every repeat runs all loops and the pass one after the other; the ratio of a repeat is the pass
 * over that loop whose median is the smallest. Selected entries leave the residual between two
 * repeats, as in training, so that its mass gathers below the threshold.
 */
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#ifdef __x86_64__
#include <immintrin.h>
#endif

#include "kernels/cpu/chunk.h"
#include "kernels/cpu/fused.h"

enum { MAX_REPEATS = 999, FLOORS = 4 };

static double now(void)
{
    struct timespec t;
    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* Shared memory, as residuals and gradients are. */
static void *map(size_t bytes)
{
    void *memory =
        mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
    if (memory == MAP_FAILED) {
        perror("mmap");
        exit(1);
    }
    return memory;
}

/* ---- the floor ---- */

static void floor_plain(float *r, const float *g, uint64_t n)
{
    for (uint64_t i = 0; i < n; i++) {
        r[i] += g[i];
    }
}

#ifdef __x86_64__
#define AVX2 __attribute__((target("avx2,prfchw")))

AVX2 static inline void floor_line(float *r, const float *g)
{
    for (unsigned i = 0; i < 16; i += 8) {
        _mm256_storeu_ps(r + i, _mm256_add_ps(_mm256_loadu_ps(r + i), _mm256_loadu_ps(g + i)));
    }
}

/* write: how the residual is fetched, 1 KiB elements ahead: 0 not at all, 1 to read, 2 to write */
AVX2 static inline void floor_vector(float *r, const float *g, uint64_t n, int fetch)
{
    uint64_t i = 0;
    for (; i + 16 <= n; i += 16) {
        if (fetch > 0) {
            __builtin_prefetch(g + i + 1024, 0, 3);
        }
        if (fetch == 1) {
            __builtin_prefetch(r + i + 1024, 0, 3);
        } else if (fetch == 2) {
            __builtin_prefetch(r + i + 1024, 1, 3);
        }
        floor_line(r + i, g + i);
    }
    floor_plain(r + i, g + i, n - i);
}

AVX2 static void floor_avx2(float *r, const float *g, uint64_t n)
{
    floor_vector(r, g, n, 0);
}

AVX2 static void floor_prefetch(float *r, const float *g, uint64_t n)
{
    floor_vector(r, g, n, 1);
}

AVX2 static void floor_prefetchw(float *r, const float *g, uint64_t n)
{
    floor_vector(r, g, n, 2);
}
#else
#define floor_avx2 floor_plain
#define floor_prefetch floor_plain
#define floor_prefetchw floor_plain
#endif

typedef void floor_loop(float *r, const float *g, uint64_t n);
static floor_loop *const floors[FLOORS] = {
    floor_plain, floor_avx2, floor_prefetch, floor_prefetchw};
static const char *const floor_names[FLOORS] = {"plain", "avx2", "prefetch", "prefetchw"};

/* ---- the measurement ---- */

struct setting {
    const char *name;
    struct view view;
    uint64_t k;
    bool per_fibre;
};

struct buffers {
    float *residual;
    float *gradient;
    struct journal *journal;
    struct fused pass;
    struct sparse out;
    double sums[2];
};

/* Roughly normal, and larger in some places than in others. */
static float random_gradient(uint64_t *state)
{
    double sum = 0;
    for (int i = 0; i < 4; i++) {
        *state = *state * 6364136223846793005u + 1442695040888963407u;
        sum += (double)(*state >> 33) * 0x1p-31 - 0.5;
    }
    return (float)sum;
}

static struct buffers buffers_make(const struct setting *setting)
{
    const uint64_t n = view_size(&setting->view);
    const uint64_t entries = setting->per_fibre ? setting->view.fibres * setting->k : setting->k;
    struct buffers b = {.residual = map(n * sizeof(float)),
        .gradient = map(n * sizeof(float)),
        .journal = map(sizeof *b.journal),
        .out = {.position = map(entries * sizeof(uint32_t)),
            .value = map(entries * sizeof(float)),
            .capacity = entries}};
    uint64_t state = 1;
    for (uint64_t i = 0; i < n; i++) {
        b.gradient[i] = random_gradient(&state);
        b.residual[i] = random_gradient(&state);
    }
    b.pass = (struct fused){.residual = b.residual,
        .view = setting->view,
        .k = setting->k,
        .per_fibre = setting->per_fibre,
        .count = 1,
        .dtype = DTYPE_F32,
        .progress = map(progress_size(n)),
        .ranges = 1,
        .scratch = map(fused_scratch(&setting->view, setting->k, setting->per_fibre, 1))};
    if (setting->per_fibre) {
        b.pass.hints = map(setting->view.fibres * sizeof(float));
    }
    return b;
}

static void buffers_drop(struct buffers *b, const struct setting *setting)
{
    const uint64_t n = view_size(&setting->view);
    (void)munmap(b->residual, n * sizeof(float));
    (void)munmap(b->gradient, n * sizeof(float));
    (void)munmap(b->journal, sizeof *b->journal);
    (void)munmap(b->out.position, b->out.capacity * sizeof(uint32_t));
    (void)munmap(b->out.value, b->out.capacity * sizeof(float));
    (void)munmap(b->pass.progress, progress_size(n));
    (void)munmap(b->pass.scratch, fused_scratch(&setting->view, setting->k, setting->per_fibre, 1));
    if (b->pass.hints != NULL) {
        (void)munmap(b->pass.hints, setting->view.fibres * sizeof(float));
    }
}

static double run_pass(struct buffers *b, double phase[3])
{
    const void *const gradients[] = {b->gradient};
    double t[4];
    b->pass.gradients = gradients;
    b->pass.out = &b->out;
    b->pass.stamp++;
    t[0] = now();
    fused_start(&b->pass, b->sums);
    t[1] = now();
    fused_range(&b->pass, 0, b->journal);
    t[2] = now();
    (void)fused_finish(&b->pass, b->sums);
    t[3] = now();
    for (int i = 0; i < 3; i++) {
        phase[i] = t[i + 1] - t[i];
    }
    for (size_t i = 0; i < b->out.count; i++) {
        b->residual[b->out.position[i]] = 0;
    }
    return t[3] - t[0];
}

static int by_value(const void *left, const void *right)
{
    const double a = *(const double *)left;
    const double b = *(const double *)right;
    return a < b ? -1 : a > b;
}

static double quantile(const double *values, int count, double share)
{
    double sorted[MAX_REPEATS];
    memcpy(sorted, values, (size_t)count * sizeof *sorted);
    qsort(sorted, (size_t)count, sizeof *sorted, by_value);
    return sorted[(int)(share * (double)(count - 1) + 0.5)];
}

static void measure(const struct setting *setting, int repeats)
{
    static double floor_time[FLOORS][MAX_REPEATS];
    static double pass_time[MAX_REPEATS];
    static double phase_time[3][MAX_REPEATS];
    static double ratio[MAX_REPEATS];
    struct buffers b = buffers_make(setting);
    const uint64_t n = view_size(&setting->view);
    int best = 0;
    for (int i = -3; i < repeats; i++) { /* three to warm up */
        const int slot = i < 0 ? 0 : i;
        double phase[3];
        for (int f = 0; f < FLOORS; f++) {
            const double start = now();
            floors[f](b.residual, b.gradient, n);
            floor_time[f][slot] = now() - start;
        }
        pass_time[slot] = run_pass(&b, phase);
        for (int p = 0; p < 3; p++) {
            phase_time[p][slot] = phase[p];
        }
    }
    for (int f = 1; f < FLOORS; f++) {
        if (quantile(floor_time[f], repeats, 0.5) < quantile(floor_time[best], repeats, 0.5)) {
            best = f;
        }
    }
    for (int i = 0; i < repeats; i++) {
        ratio[i] = pass_time[i] / floor_time[best][i];
    }
    (void)printf("%-22s floor %6.2f ms (%s)  pass %6.2f ms (%.2f + %.2f + %.2f)  ratio %.2f "
                 "(%.2f to %.2f)\n",
        setting->name, 1e3 * quantile(floor_time[best], repeats, 0.5), floor_names[best],
        1e3 * quantile(pass_time, repeats, 0.5), 1e3 * quantile(phase_time[0], repeats, 0.5),
        1e3 * quantile(phase_time[1], repeats, 0.5), 1e3 * quantile(phase_time[2], repeats, 0.5),
        quantile(ratio, repeats, 0.5), quantile(ratio, repeats, 0.1),
        quantile(ratio, repeats, 0.9));
    buffers_drop(&b, setting);
}

int main(int argc, char **argv)
{
    static const struct setting settings[] = {
        {"25M global 1%", {1, 25000000, 1}, 250000, false},
        {"25M global 0.1%", {1, 25000000, 1}, 25000, false},
        {"4096x4096 rows k=41", {4096, 4096, 1}, 41, true},
        {"16384x1024 rows k=10", {16384, 1024, 1}, 10, true},
        {"1M global 1%", {1, 1000000, 1}, 10000, false},
    };
    const int repeats = argc > 1 ? atoi(argv[1]) : 31;
    if (repeats < 1 || repeats > MAX_REPEATS) {
        (void)fprintf(stderr, "usage: bench_fused [REPEATS, at most %d]\n", MAX_REPEATS);
        return 2;
    }
    (void)printf("implementation %s, median of %d (10%% to 90%%), phases start + range + finish\n",
        chunk_best()->name, repeats);
    for (size_t i = 0; i < sizeof settings / sizeof *settings; i++) {
        measure(&settings[i], repeats);
    }
    return 0;
}
