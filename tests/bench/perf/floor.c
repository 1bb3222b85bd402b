#include "tests/bench/perf/floor.h"

#include <math.h>
#include <string.h>

#include "kernels/base/convert.h"
#include "tests/bench/perf/clock.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#define AHEAD 1024 /* elements: 4 KB of the residual */
#define LINE 16    /* elements of the residual in a cache line */

enum prefetch { PREFETCH_NONE, PREFETCH_READ, PREFETCH_WRITE };

#define INLINE static inline __attribute__((always_inline))

INLINE float load(const void *g, enum dtype dtype, uint64_t i)
{
    switch (dtype) {
    case DTYPE_F16: return convert_f16(((const uint16_t *)g)[i]);
    case DTYPE_BF16: return convert_bf16(((const uint16_t *)g)[i]);
    default: return ((const float *)g)[i];
    }
}

/* Element i of the gradients' sum. */
INLINE float sum_of(const void *const *g, unsigned count, enum dtype dtype, uint64_t i)
{
    float sum = load(g[0], dtype, i);

    for (unsigned k = 1; k < count; k++) {
        sum += load(g[k], dtype, i);
    }
    return sum;
}

INLINE void add_each(
    const struct floor_work *work, unsigned count, enum dtype dtype, uint64_t first, uint64_t end)
{
    const void *const *g = work->g;
    uint16_t *half = work->half;
    float *r = work->r;

    for (uint64_t i = first; i < end && half != NULL; i++) {
        half[i] = convert_to_bf16(convert_bf16(half[i]) + sum_of(g, count, dtype, i));
    }
    for (uint64_t i = first; i < end && half == NULL; i++) {
        r[i] += sum_of(g, count, dtype, i);
    }
}

/* Fewer elements than a line. Inlined into every loop, they would be most of the machine code. */
static __attribute__((noinline)) void add_rest(
    const struct floor_work *work, uint64_t first, uint64_t end)
{
    add_each(work, work->count, work->dtype, first, end);
}

/* Beyond the end a prefetch is harmless. */
INLINE void prefetch_line(const struct floor_work *work, unsigned count, enum dtype dtype,
    uint64_t i, enum prefetch prefetch)
{
    const uint64_t size = dtype == DTYPE_F32 ? 4 : 2;

    const void *r = work->half != NULL ? (const void *)(work->half + i + AHEAD)
                                       : (const void *)(work->r + i + AHEAD);

    for (unsigned k = 0; k < count && prefetch != PREFETCH_NONE; k++) {
        __builtin_prefetch((const char *)work->g[k] + (i + AHEAD) * size, 0);
    }
    if (prefetch == PREFETCH_WRITE) {
        __builtin_prefetch(r, 1);
    } else if (prefetch == PREFETCH_READ) {
        __builtin_prefetch(r, 0);
    }
}

#if defined(__x86_64__)

#define WIDE __attribute__((target("avx2,f16c,prfchw")))

WIDE INLINE __m256 load8(const void *g, enum dtype dtype, uint64_t i)
{
    const __m128i half = _mm_loadu_si128((const __m128i *)(const void *)((const uint16_t *)g + i));

    switch (dtype) {
    case DTYPE_F16: return _mm256_cvtph_ps(half);
    case DTYPE_BF16: return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(half), 16));
    default: return _mm256_loadu_ps((const float *)g + i);
    }
}

WIDE INLINE __m256 sum8(const void *const *g, unsigned count, enum dtype dtype, uint64_t i)
{
    __m256 sum = load8(g[0], dtype, i);

    for (unsigned k = 1; k < count; k++) {
        sum = _mm256_add_ps(sum, load8(g[k], dtype, i));
    }
    return sum;
}

/* Sixteen elements of a residual in bf16, rounded to the nearest, ties to even. */
WIDE INLINE void add_half(uint16_t *half, __m256 low, __m256 high)
{
    const __m256i old[2] = {_mm256_cvtepu16_epi32(_mm_loadu_si128((const void *)half)),
        _mm256_cvtepu16_epi32(_mm_loadu_si128((const void *)(half + 8)))};
    const __m256 sum[2] = {low, high};
    __m256i up[2];

    for (unsigned v = 0; v < 2; v++) {
        const __m256i x = _mm256_castps_si256(
            _mm256_add_ps(_mm256_castsi256_ps(_mm256_slli_epi32(old[v], 16)), sum[v]));
        const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(x, 16), _mm256_set1_epi32(1));
        const __m256i most = _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff));

        up[v] = _mm256_srli_epi32(_mm256_add_epi32(x, most), 16);
    }
    _mm256_storeu_si256(
        (void *)half, _mm256_permute4x64_epi64(_mm256_packus_epi32(up[0], up[1]), 0xd8));
}

WIDE INLINE void add_lines(const struct floor_work *work, unsigned count, enum dtype dtype,
    uint64_t first, uint64_t end, enum prefetch prefetch)
{
    const void *const *g = work->g;
    float *r = work->r;
    uint64_t i = first;

    for (; i + LINE <= end && work->half != NULL; i += LINE) {
        prefetch_line(work, count, dtype, i, prefetch);
        add_half(work->half + i, sum8(g, count, dtype, i), sum8(g, count, dtype, i + 8));
    }
    for (; i + LINE <= end; i += LINE) {
        prefetch_line(work, count, dtype, i, prefetch);
        for (uint64_t j = i; j < i + LINE; j += 8) {
            _mm256_storeu_ps(
                r + j, _mm256_add_ps(_mm256_loadu_ps(r + j), sum8(g, count, dtype, j)));
        }
    }
    add_rest(work, i, end);
}

/* Inlined once for every type and for the usual numbers of gradients. */
WIDE INLINE void add_wide_of(const struct floor_work *work, enum dtype dtype, uint64_t first,
    uint64_t end, enum prefetch prefetch)
{
    switch (work->count) {
    case 1: add_lines(work, 1, dtype, first, end, prefetch); break;
    case 2: add_lines(work, 2, dtype, first, end, prefetch); break;
    case 4: add_lines(work, 4, dtype, first, end, prefetch); break;
    default: add_lines(work, work->count, dtype, first, end, prefetch); break;
    }
}

WIDE INLINE void add_wide(
    const struct floor_work *work, uint64_t first, uint64_t end, enum prefetch prefetch)
{
    switch (work->dtype) {
    case DTYPE_F16: add_wide_of(work, DTYPE_F16, first, end, prefetch); break;
    case DTYPE_BF16: add_wide_of(work, DTYPE_BF16, first, end, prefetch); break;
    default: add_wide_of(work, DTYPE_F32, first, end, prefetch); break;
    }
}

WIDE static void add_avx2_none(const struct floor_work *work, uint64_t first, uint64_t end)
{
    add_wide(work, first, end, PREFETCH_NONE);
}

WIDE static void add_avx2_read(const struct floor_work *work, uint64_t first, uint64_t end)
{
    add_wide(work, first, end, PREFETCH_READ);
}

WIDE static void add_avx2_write(const struct floor_work *work, uint64_t first, uint64_t end)
{
    add_wide(work, first, end, PREFETCH_WRITE);
}

/* Every processor with AVX2 has F16C. */
static bool has_avx2(void)
{
    return __builtin_cpu_supports("avx2") != 0;
}

#endif

INLINE void add_blocks(const struct floor_work *work, unsigned count, enum dtype dtype,
    uint64_t first, uint64_t end, enum prefetch prefetch)
{
    if (prefetch == PREFETCH_NONE) {
        add_each(work, count, dtype, first, end);
        return;
    }
    for (uint64_t i = first; i < end; i += LINE) {
        prefetch_line(work, count, dtype, i, prefetch);
        add_each(work, count, dtype, i, i + LINE < end ? i + LINE : end);
    }
}

INLINE void add_blocks_of(const struct floor_work *work, enum dtype dtype, uint64_t first,
    uint64_t end, enum prefetch prefetch)
{
    switch (work->count) {
    case 1: add_blocks(work, 1, dtype, first, end, prefetch); break;
    case 2: add_blocks(work, 2, dtype, first, end, prefetch); break;
    case 4: add_blocks(work, 4, dtype, first, end, prefetch); break;
    default: add_blocks(work, work->count, dtype, first, end, prefetch); break;
    }
}

INLINE void add_narrow(
    const struct floor_work *work, uint64_t first, uint64_t end, enum prefetch prefetch)
{
    switch (work->dtype) {
    case DTYPE_F16: add_blocks_of(work, DTYPE_F16, first, end, prefetch); break;
    case DTYPE_BF16: add_blocks_of(work, DTYPE_BF16, first, end, prefetch); break;
    default: add_blocks_of(work, DTYPE_F32, first, end, prefetch); break;
    }
}

static void add_plain(const struct floor_work *work, uint64_t first, uint64_t end)
{
    add_narrow(work, first, end, PREFETCH_NONE);
}

static void add_vector(const struct floor_work *work, uint64_t first, uint64_t end)
{
#if defined(__x86_64__)
    if (has_avx2()) {
        add_avx2_none(work, first, end);
        return;
    }
#endif
    add_narrow(work, first, end, PREFETCH_NONE);
}

static void add_prefetch(const struct floor_work *work, uint64_t first, uint64_t end)
{
#if defined(__x86_64__)
    if (has_avx2()) {
        add_avx2_read(work, first, end);
        return;
    }
#endif
    add_narrow(work, first, end, PREFETCH_READ);
}

static void add_prefetchw(const struct floor_work *work, uint64_t first, uint64_t end)
{
#if defined(__x86_64__)
    if (has_avx2()) {
        add_avx2_write(work, first, end);
        return;
    }
#endif
    add_narrow(work, first, end, PREFETCH_WRITE);
}

const struct floor_loop floor_loops[FLOOR_LOOPS] = {
    {"r+=g plain", add_plain},
    {"r+=g avx2", add_vector},
    {"r+=g prefetch", add_prefetch},
    {"r+=g prefetchw", add_prefetchw},
};

/* A loop's work, shared by a team. */
struct shared {
    const struct floor_work *work;
    const struct floor_loop *loop;
    unsigned parts;
};

/* Cut at cache lines. */
static void add_part(void *arg, unsigned index, unsigned thread)
{
    const struct shared *shared = arg;
    const uint64_t lines = shared->work->n / LINE;
    const uint64_t first = lines * index / shared->parts * LINE;
    const uint64_t end = lines * (index + 1) / shared->parts * LINE;

    (void)thread;
    shared->loop->add(shared->work, first, index + 1 < shared->parts ? end : shared->work->n);
}

double floor_time(const struct floor_work *work, unsigned loop, struct team *team, unsigned parts)
{
    const struct parallel parallel = team_parallel(team);
    struct shared shared = {work, &floor_loops[loop], parts};
    const uint64_t begin = clock_ns();

    parallel_for(&parallel, add_part, &shared, parts);
    return clock_us_between(begin, clock_ns());
}

bool floor_sample(struct floor_race *race, const struct floor_work *work)
{
    for (unsigned i = 0; i < FLOOR_LOOPS; i++) {
        const uint64_t begin = clock_ns();

        floor_loops[i].add(work, 0, work->n);
        if (!series_add(&race->time[i], clock_us_between(begin, clock_ns()))) {
            return false;
        }
    }
    return true;
}

unsigned floor_fastest(const struct floor_race *race)
{
    struct summary best = {0};
    unsigned fastest = 0;

    for (unsigned i = 0; i < FLOOR_LOOPS; i++) {
        struct summary summary;

        if (race->time[i].count == 0 || !series_summarise(&race->time[i], &summary)) {
            return 0;
        }
        if (i == 0 || summary.median < best.median) {
            best = summary;
            fastest = i;
        }
    }
    return fastest;
}

enum adtopk_status floor_report(
    struct perf *perf, struct row *row, const struct floor_race *race, struct error *err)
{
    const unsigned fastest = floor_fastest(race);
    struct row floor = *row;

    row->floor_name = floor_loops[fastest].name;
    row->floor = &race->time[fastest];
    floor.variant = row->floor_name;
    floor.input = "";
    floor.density = NAN;
    floor.time = row->floor;
    floor.floor_name = row->floor_name;
    floor.floor = row->floor;
    floor.paired = true;
    return perf_row(perf, &floor, err);
}

void floor_free(struct floor_race *race)
{
    for (unsigned i = 0; i < FLOOR_LOOPS; i++) {
        series_free(&race->time[i]);
    }
}
