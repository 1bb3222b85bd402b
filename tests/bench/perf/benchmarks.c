#include "tests/bench/perf/benchmarks.h"

#include "tests/bench/perf/data.h"
#include "tests/bench/perf/handover.h"
#include "tests/bench/perf/link_end.h"
#include "tests/bench/perf/models.h"
#include "tests/bench/perf/peers.h"
#include "tests/bench/perf/select.h"

#define BIT(index) ((name_set)1 << (index))
#define EVERY ((name_set)-1)
#define KB UINT64_C(1024)
#define MB (1024 * KB)

/* In the order of the bits in options.c. */
const struct benchmark benchmark_table[BENCHMARK_COUNT] = {
    {.name = {.name = "select",
         .help = "add a gradient to a residual and select the largest entries"},
        .about = "# busbw: gradients read, residual read and written; settle: what was selected\n"
                 "# leaves the residual; nth, torch: a peer's time / (time + settle)\n"
                 "# floor: the fastest of four r += g loops on the same memory, in turns\n",
        .layout = REPORT_SELECT,
        .run = select_run,
        .defaults = {.min = 4 * KB,
            .max = 100 * MB,
            .factor = 16,
            .iterations = 31,
            .warmup = 8,
            .densities = {{0.001, 0.01}, 2},
            .distributions = BIT(DATA_NORMAL),
            .dtypes = BIT(DTYPE_F32),
            .residuals = BIT(0),
            .views = EVERY,
            .columns = {{4096}, 1},
            .threads = {{1}, 1},
            .ranks = {{1}, 1}}},
    {.name = {.name = "encode", .help = "write a payload frame"},
        .about = "# algbw: bytes of the dense tensor; busbw: list read, frame written\n"
                 "# floor: reading the list (the elements, if dense)\n",
        .run = encode_run,
        .defaults = {.min = MB,
            .max = 100 * MB,
            .factor = 100,
            .iterations = 31,
            .warmup = 2,
            .densities = {{0.01}, 1},
            .indices = EVERY,
            .values = EVERY,
            .fibre = 1024}},
    {.name = {.name = "decode", .help = "check and read a payload frame"},
        .about = "# algbw: bytes of the dense tensor; busbw: frame read, list written\n"
                 "# floor: memcpy of the frame\n",
        .run = decode_run,
        .defaults = {.min = MB,
            .max = 100 * MB,
            .factor = 100,
            .iterations = 31,
            .warmup = 2,
            .densities = {{0.01}, 1},
            .indices = EVERY,
            .values = EVERY,
            .fibre = 1024}},
    {.name = {.name = "sum", .help = "sum the contributions of several nodes"},
        .about =
            "# algbw: bytes of the dense tensor; busbw: bytes of the lists read (dense: written)\n"
            "# floor: reading the lists; clearing the dense form; the r += g loops\n",
        .run = sum_run,
        .defaults = {.min = MB,
            .max = 100 * MB,
            .factor = 100,
            .iterations = 31,
            .warmup = 2,
            .densities = {{0.01}, 1},
            .lists = {{2, 4, 16}, 3},
            .threads = {{1}, 1}}},
    {.name = {.name = "handover",
         .help = "hand a tensor to the daemon and get its update, on one node"},
        .about = "# density 1: the dense form; awake: back to back; asleep: after a pause;\n"
                 "# busy: as awake, beside processes that burn all cores\n"
                 "# floor: a round trip through shared memory between two processes; spinning\n"
                 "# with yields (awake), by futex (asleep, busy)\n",
        .layout = REPORT_LATENCY,
        .run = handover_run,
        .defaults = {.min = 4 * KB,
            .max = 4 * KB,
            .factor = 16,
            .iterations = 5000,
            .warmup = 100,
            .densities = {{1, 0.01}, 2},
            .ranks = {{1, 2}, 2},
            .modes = EVERY,
            .pause_ms = 5}},
    {.name = {.name = "round",
         .help = "make whole steps of two nodes on loopback, with one rank each"},
        .about =
            "# algbw: bytes of the dense tensor; wire: sent by one node per step; busbw: those\n"
            "# floor: the fastest r += g loop and an exchange of the same wire bytes over\n"
            "# loopback TCP, both nodes at once; cpu: both daemons and ranks together, of a step\n",
        .layout = REPORT_ROUND,
        .run = round_run,
        .defaults = {.min = 64 * KB,
            .max = 32 * MB,
            .factor = 32,
            .iterations = 31,
            .warmup = 4,
            .densities = {{1, 0.01, 0.001}, 3},
            .tensors = {{1}, 1}}},
    {.name = {.name = "link",
         .help = "send messages between two nodes, by ZeroMQ and the links on top"},
        .about = "# a batch of messages one way, until the receiver has the last\n"
                 "# floor: the same bytes through a TCP socket, encrypted where the link does "
                 "that, in turns\n",
        .run = link_run,
        .defaults = {.min = 4 * KB,
            .max = 16 * MB,
            .factor = 16,
            .iterations = 31,
            .warmup = 3,
            .security = EVERY}},
    {.name = {.name = "sparsify", .help = "make a turn of every sparsifier"},
        .about = "# count/k: entries that were selected, on average / k\n"
                 "# k: density * elements, at least 1\n"
                 "# floor: the fastest of four r += g loops on the same memory, in turns\n",
        .layout = REPORT_SPARSIFY,
        .run = sparsify_run,
        .defaults = {.min = 4 * MB,
            .max = 100 * MB,
            .factor = 100,
            .iterations = 31,
            .warmup = 8,
            .densities = {{0.001, 0.01}, 2},
            .distributions = BIT(DATA_NORMAL),
            .sparsifiers = EVERY,
            .threads = {{1}, 1}}},
    {.name = {.name = "overtake",
         .help = "send a small message behind a large one on the same link"},
        .about = "# size: of the large message; time: of one of 4 KB, sent right behind it\n"
                 "# in order: both in one queue; priority: of the same job, but needed sooner;\n"
                 "# other job: of another job of the same weight\n"
                 "# floor: the small message alone, in turns\n",
        .run = overtake_run,
        .defaults =
            {.min = 100 * MB, .max = 100 * MB, .factor = 16, .iterations = 31, .warmup = 3}},
    {.name = {.name = "cluster",
         .help = "measure ranks, links and steps of several machines",
         .apart = true},
        .about =
            "# started as a rank by torchrun, srun or mpirun; the daemons run already\n"
            "# algbw: bytes of the dense tensor; wire: sent by one node per step; busbw: those\n"
            "# ratio: to the time of the node's bytes at the rate of the slowest link\n",
        .run = cluster_run,
        .defaults = {.min = 4 * KB,
            .max = 64 * MB,
            .factor = 16,
            .iterations = 11,
            .warmup = 2,
            .densities = {{1, 0.01}, 2}}},
};

struct vocabulary benchmarks_vocabulary(struct vocabulary_storage *storage)
{
    for (unsigned i = 0; i < BENCHMARK_COUNT; i++) {
        storage->names[i] = benchmark_table[i].name;
        storage->names[i].defaults = &benchmark_table[i].defaults;
    }
    sparsify_list(storage->sparsifiers);
    frames_list(storage->indices, storage->values);
    return (struct vocabulary){.distributions = {data_names},
        .dtypes = {data_dtype_names},
        .residuals = {select_residual_names},
        .views = {select_view_names},
        .models = {models_names},
        .peers = {peers_names},
        .sparsifiers = {storage->sparsifiers},
        .indices = {storage->indices},
        .values = {storage->values},
        .modes = {handover_mode_names},
        .security = {link_security_names},
        .benchmarks = storage->names,
        .benchmark_count = BENCHMARK_COUNT};
}
