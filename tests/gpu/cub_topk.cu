/*
 * How CUB does the selection on a GPU: r += g, then its top-k of the magnitudes, with positions.
 * Prints one JSON line per size and density, as torch_idiom.py does: the median of the
 * microseconds, and beside it that of r += g alone, in turns with it.
 *
 * It is none of adtopk's kernels, and is linked with cudart. So no other program contains it: `run`
 * builds it on the machine, or finds it in the bundle.
 *
 * usage: cub_topk [--brief]
 */
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#include <cub/device/device_topk.cuh>
#include <cuda_runtime.h>
#include <thrust/iterator/counting_iterator.h>
#include <thrust/iterator/transform_iterator.h>

static void check(cudaError_t result, const char *call)
{
    if (result != cudaSuccess) {
        std::fprintf(stderr, "%s: %s\n", call, cudaGetErrorString(result));
        std::exit(1);
    }
}
#define CHECK(call) check(call, #call)

struct magnitude {
    __host__ __device__ uint32_t operator()(float value) const
    {
        uint32_t bits;

        memcpy(&bits, &value, sizeof bits);
        return bits & 0x7fffffffu;
    }
};

static __global__ void add(float4 *r, const float4 *g, uint64_t n)
{
    for (uint64_t i = blockIdx.x * uint64_t{blockDim.x} + threadIdx.x; i < n;
         i += uint64_t{gridDim.x} * blockDim.x) {
        const float4 old = r[i], more = g[i];
        r[i] = {old.x + more.x, old.y + more.y, old.z + more.z, old.w + more.w};
    }
}

/* Values that look like normal ones: the sum of four. */
static std::vector<float> gradient(uint64_t n)
{
    std::vector<float> values(n);
    uint64_t state = 1;

    for (float &value : values) {
        value = 0;
        for (int i = 0; i < 4; i++) {
            state = state * 6364136223846793005u + 1442695040888963407u;
            value += float(state >> 40) / float(1 << 24) - 0.5f;
        }
    }
    return values;
}

class idiom {
  public:
    idiom(uint64_t elements, double share) : n(elements), k(uint32_t(elements * share))
    {
        const std::vector<float> values = gradient(n);

        CHECK(cudaMalloc(&r, n * sizeof *r));
        CHECK(cudaMalloc(&g, n * sizeof *g));
        CHECK(cudaMalloc(&key, k * sizeof *key));
        CHECK(cudaMalloc(&position, k * sizeof *position));
        CHECK(cudaMemset(r, 0, n * sizeof *r));
        CHECK(cudaMemcpy(g, values.data(), n * sizeof *g, cudaMemcpyHostToDevice));
        select();
        CHECK(cudaMalloc(&temporary, bytes));
        for (cudaEvent_t *event : {&begin, &end}) {
            CHECK(cudaEventCreate(event));
        }
        CHECK(cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, 0));
    }

    ~idiom()
    {
        for (void *memory : {(void *)r, (void *)g, (void *)key, (void *)position, temporary}) {
            (void)cudaFree(memory);
        }
    }

    /* Microseconds on the device. */
    double time(bool selects)
    {
        float ms;

        CHECK(cudaEventRecord(begin));
        add<<<8 * processors, 256>>>((float4 *)r, (const float4 *)g, n / 4);
        if (selects) {
            select();
        }
        CHECK(cudaEventRecord(end));
        CHECK(cudaEventSynchronize(end));
        CHECK(cudaEventElapsedTime(&ms, begin, end));
        return ms * 1e3;
    }

  private:
    /* Without temporary memory it says how much it wants. */
    void select()
    {
        const auto wants = cuda::execution::require(cuda::execution::determinism::not_guaranteed,
            cuda::execution::output_ordering::unsorted);

        CHECK(cub::DeviceTopK::MaxPairs(temporary, bytes,
            thrust::make_transform_iterator((const float *)r, magnitude{}), key,
            thrust::make_counting_iterator(uint32_t{0}), position, uint32_t(n), k, wants));
    }

    uint64_t n;
    uint32_t k;
    float *r = nullptr, *g = nullptr;
    uint32_t *key = nullptr, *position = nullptr;
    void *temporary = nullptr;
    size_t bytes = 0;
    cudaEvent_t begin, end;
    int processors;
};

static double median(std::vector<double> &values)
{
    std::sort(values.begin(), values.end());
    return values[values.size() / 2];
}

static void measure(uint64_t elements, double density, int turns)
{
    idiom work(elements, density);
    std::vector<double> times, floors;
    const int warmup = 5;

    for (int turn = 0; turn < warmup + turns; turn++) {
        const double floor = work.time(false), time = work.time(true);
        if (turn >= warmup) {
            floors.push_back(floor);
            times.push_back(time);
        }
    }
    const double time = median(times), floor = median(floors);
    std::printf("{\"elements\": %llu, \"density\": %g, \"median_us\": %.1f, \"floor_us\": %.1f, "
                "\"ratio\": %.3f, \"samples\": %d}\n",
        (unsigned long long)elements, density, time, floor, time / floor, turns);
}

int main(int argc, char **argv)
{
    const bool brief = argc == 2 && std::strcmp(argv[1], "--brief") == 0;
    const std::vector<uint64_t> sizes =
        brief ? std::vector<uint64_t>{65536} : std::vector<uint64_t>{25000000, 100000000};
    cudaDeviceProp device;

    CHECK(cudaGetDeviceProperties(&device, 0));
    std::printf("{\"device\": \"%s\", \"cub\": %d}\n", device.name, CUB_VERSION);
    for (const uint64_t elements : sizes) {
        for (const double density : {0.001, 0.01}) {
            measure(elements, density, brief ? 3 : 31);
        }
    }
    return 0;
}
