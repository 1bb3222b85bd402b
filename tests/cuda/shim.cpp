/*
 * Fibres that run the threads of a grid (launch.h, shim.h).
 *
 * A fibre runs until it has to wait, or until an atomic access or a fence, where it may have to let
 * another one go first. The thread sanitizer sees each CUDA thread as a fibre of its own. It learns
 * what orders memory: barriers, __syncwarp(), and a fence before an atomic access that another
 * thread sees by an atomic access before its own fence.
 *
 * This file is compiled without the thread sanitizer, and takes no memory from malloc() while
 * fibres run: a block that one fibre takes and another one uses would look like a race.
 */
#include "tests/cuda/shim.h"

#include <cstdio>
#include <cstdlib>
#include <pthread.h>

#include "tests/cuda/launch.h"
#include "tests/cuda/order.h"
#include "tests/cuda/stacks.h"

#if defined(SHIM_ASAN)
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#elif defined(SHIM_TSAN)
#include <sanitizer/tsan_interface.h>
#endif

enum : unsigned {
    WARP = 32,
    WARPS = LAUNCH_THREADS / WARP,
    FIBRES = LAUNCH_RESIDENT * LAUNCH_THREADS,
    WORDS = FIBRES / 64,
    SITES = 32,           /* shared arrays of a block */
    ARENA = 128 << 10,    /* bytes of shared memory per block under the thread sanitizer */
    LAST_CALLS = 8 << 10, /* bytes of a stack that fibre_run() and its last calls never gave back */
    YIELD_ONE_IN = 4      /* atomic accesses at which another thread may come first */
};

#if defined(SHIM_TSAN)
constexpr bool APART = true; /* every block has stacks of its own */
#else
constexpr bool APART = false;
#endif

/* Blocks of a grid under the thread sanitizer: the largest launch on the device that stands in. */
constexpr unsigned BLOCKS_APART = 12;
constexpr unsigned STACKS = (APART ? BLOCKS_APART : unsigned{LAUNCH_RESIDENT}) * LAUNCH_THREADS;

const shim_place *shim_here;

/* ------------------------------------------------------------------ the switch */

extern "C" void shim_switch(void **from, void *to);

/* Saves what a called function has to preserve, and takes the other stack. */
asm(R"(
.text
.globl shim_switch
.type shim_switch, @function
shim_switch:
    pushq %rbp
    pushq %rbx
    pushq %r12
    pushq %r13
    pushq %r14
    pushq %r15
    movq %rsp, (%rdi)
    movq %rsi, %rsp
    popq %r15
    popq %r14
    popq %r13
    popq %r12
    popq %rbx
    popq %rbp
    ret
.size shim_switch, .-shim_switch
)");

/* ------------------------------------------------------------------ what there is */

enum fibre_state { FIBRE_NONE, FIBRE_READY, FIBRE_AT_BARRIER, FIBRE_IN_WARP, FIBRE_DONE };

/* A stack to switch to, the host's or a fibre's. */
struct context {
    void *top;         /* of the stack while it does not run */
    const char *stack; /* its lowest byte */
    size_t size;
    void *fake; /* the address sanitizer's */
    void *tsan;
};

struct block;

struct fibre {
    context own;
    shim_place place;
    struct block *block;
    fibre_state state;
    const char *file; /* where it waits */
    int line;
    shim_kind kind; /* of the warp's operation */
    unsigned mask, source;
    uint64_t value;           /* that it gives, then that it gets */
    unsigned barriers, syncs; /* that it has passed */
    order_thread order;
};

struct shared_array {
    const void *site;
    char *bytes;
};

/* Objects by which the thread sanitizer learns that the threads of a block have met. Even and odd
 * meetings have their own: some threads may be at the next one already. */
struct meeting {
    char barrier[2][8];
    char warp[WARPS][2][8];
};

struct block {
    unsigned number, live, arrived;
    unsigned in_warp[WARPS]; /* lanes that wait for others of their warps */
    const char *file;        /* the barrier at which its threads arrive */
    int line;
    unsigned sites;
    shared_array shared[SITES];
    char *arena;
    size_t used;
    struct meeting *meeting;
};

struct launched {
    struct launch how;
    launch_kernel *kernel;
    const void *parameters;
    context host;
    uint64_t random, budget;
    unsigned begun, ended; /* blocks */
    bool refill;           /* the host shall begin another block */
    unsigned last;         /* the fibre that ran last */
    uint64_t ready[WORDS]; /* one bit per fibre */
    unsigned *turn;        /* in which blocks begin */
    struct block block[LAUNCH_RESIDENT];
    struct fibre fibre[FIBRES];
    char *stacks;
    char *arenas;
    struct meeting *meetings; /* one per block of the grid: two blocks never meet */
    char begin[8], end[8];
};

static launched *grid; /* that runs */
static fibre *current; /* NULL: the host */

[[noreturn]] static void fault(const fibre *at, const char *what, const char *file, int line)
{
    std::fprintf(stderr, "%s:%d: block %u, thread %u: %s\n", file, line, at->place.block.x,
        at->place.thread.x, what);
    std::abort();
}

static uint64_t draw(launched *l)
{
    uint64_t x = l->random;
    x ^= x << 13;
    x ^= x >> 7;
    x ^= x << 17;
    l->random = x;
    return x * 0x9e3779b97f4a7c15u >> 17;
}

/* ------------------------------------------------------------------ switching */

static void change(context *from, const context *to, bool leaves)
{
    (void)leaves;
#if defined(SHIM_ASAN)
    __sanitizer_start_switch_fiber(leaves ? nullptr : &from->fake, to->stack, to->size);
#elif defined(SHIM_TSAN)
    __tsan_switch_to_fiber(to->tsan, __tsan_switch_to_fiber_no_sync);
#endif
    shim_switch(&from->top, to->top);
#if defined(SHIM_ASAN)
    __sanitizer_finish_switch_fiber(from->fake, nullptr, nullptr);
#endif
}

static unsigned number_of(const fibre *f)
{
    return static_cast<unsigned>(f - grid->fibre);
}

static void set_ready(fibre *f, bool ready)
{
    unsigned n = number_of(f);
    uint64_t bit = uint64_t{1} << n % 64;
    grid->ready[n / 64] = ready ? grid->ready[n / 64] | bit : grid->ready[n / 64] & ~bit;
}

/* The first fibre from number n on, around the end, that may run; FIBRES: there is none. */
static unsigned ready_from(unsigned n)
{
    for (unsigned i = 0; i <= WORDS; i++) {
        unsigned w = (n / 64 + i) % WORDS;
        uint64_t bits = grid->ready[w];
        bits &= i == 0 ? ~uint64_t{0} << n % 64 : ~uint64_t{0};
        if (bits != 0) {
            return w * 64 + static_cast<unsigned>(__builtin_ctzll(bits));
        }
    }
    return FIBRES;
}

static unsigned ready_last()
{
    for (unsigned w = WORDS; w-- > 0;) {
        if (grid->ready[w] != 0) {
            return w * 64 + 63 - static_cast<unsigned>(__builtin_clzll(grid->ready[w]));
        }
    }
    return FIBRES;
}

/* A thread of the warp that ran last, else of any. */
static unsigned ready_ahead()
{
    unsigned warp = grid->last / WARP * WARP;
    unsigned found = ready_from(warp);
    if (found < FIBRES && found / WARP * WARP == warp) {
        return found;
    }
    return ready_from(static_cast<unsigned>(draw(grid) % FIBRES));
}

static fibre *pick()
{
    unsigned n = FIBRES;
    switch (grid->how.order) {
    case LAUNCH_ROUND_ROBIN: n = ready_from((grid->last + 1) % FIBRES); break;
    case LAUNCH_WARP_AHEAD: n = ready_ahead(); break;
    case LAUNCH_REVERSE: n = ready_last(); break;
    default: n = ready_from(static_cast<unsigned>(draw(grid) % FIBRES)); break;
    }
    return n < FIBRES ? &grid->fibre[n] : nullptr;
}

/* No thread may run, but the grid has not ended. */
[[noreturn]] static void stuck()
{
    for (const fibre &f : grid->fibre) {
        if (f.state == FIBRE_AT_BARRIER) {
            fault(&f, "waits at a barrier that another thread never reaches", f.file, f.line);
        }
    }
    for (const fibre &f : grid->fibre) {
        if (f.state == FIBRE_IN_WARP) {
            fault(&f, "waits for lanes of its mask that never come", f.file, f.line);
        }
    }
    std::abort();
}

/* Any other thread that may run, else this one. */
static fibre *pick_other()
{
    unsigned n = ready_from(static_cast<unsigned>(draw(grid) % FIBRES));
    n = n == number_of(current) ? ready_from((n + 1) % FIBRES) : n;
    return n < FIBRES ? &grid->fibre[n] : nullptr;
}

/* Gives way to whatever thread is next, or to the host where the portion or the grid has ended. */
static void give_way(bool leaves, fibre *(*choose)() = pick)
{
    fibre *const me = current;
    fibre *next = nullptr;
    if (grid->ended < grid->how.blocks && grid->budget > 0 && !grid->refill) {
        grid->budget--;
        next = choose();
        if (next == nullptr) {
            stuck();
        }
    }
    if (next == me && !leaves) {
        return;
    }
    if (next != nullptr) {
        grid->last = number_of(next);
        shim_here = &next->place;
    }
    current = next;
    change(&me->own, next != nullptr ? &next->own : &grid->host, leaves);
}

static void wait_as(fibre_state state, const char *file, int line)
{
    current->state = state;
    current->file = file;
    current->line = line;
    set_ready(current, false);
    give_way(false);
}

static void wake(fibre *f)
{
    f->state = FIBRE_READY;
    set_ready(f, true);
}

static void give_way_at_random()
{
    if (grid->how.order == LAUNCH_RANDOM ? draw(grid) % YIELD_ONE_IN == 0
                                         : draw(grid) % (16 * YIELD_ONE_IN) == 0) {
        give_way(false);
    }
}

/* ------------------------------------------------------------------ blocks */

static void block_end(struct block *block)
{
#if !defined(SHIM_TSAN)
    for (unsigned s = 0; s < block->sites; s++) {
        std::free(block->shared[s].bytes);
    }
#endif
    block->sites = 0;
}

/* The life of a fibre. It never returns: there is nothing below it. */
static void fibre_run()
{
#if defined(SHIM_ASAN)
    __sanitizer_finish_switch_fiber(nullptr, nullptr, nullptr);
#endif
    order_acquire(grid->begin);
    grid->kernel(grid->parameters);
    order_release(grid->end);
    current->state = FIBRE_DONE;
    set_ready(current, false);
    if (--current->block->live == 0) {
        block_end(current->block);
        grid->ended++;
        grid->refill = grid->begun < grid->how.blocks;
    }
    give_way(true);
    std::abort();
}

/* A fresh stack, as shim_switch() leaves one behind. */
static void fibre_stack(fibre *f)
{
    void **top = reinterpret_cast<void **>(
        const_cast<char *>(f->own.stack) + f->own.size - 2 * sizeof(void *));
#if defined(SHIM_ASAN)
    __asan_unpoison_memory_region(f->own.stack + f->own.size - LAST_CALLS, LAST_CALLS);
#endif
    *--top = nullptr; /* where fibre_run() would return to */
    *--top = reinterpret_cast<void *>(fibre_run);
    for (int i = 0; i < 6; i++) {
        *--top = nullptr;
    }
    f->own.top = top;
}

/* The thread sanitizer's fibre for a thread of the grid. To make one takes long, so they are kept:
 * the launches of this thread come one after the other. The sanitizer knows 255 threads at a time.
 * With more, a block's barrier hides what other blocks did before it. So in every other launch the
 * threads of a warp are one. */
static void *sanitizer_fibre(unsigned number)
{
#if defined(SHIM_TSAN)
    static void *made[STACKS + STACKS / WARP];
    void **const fibre = &made[grid->how.seed % 2 == 0 ? number : STACKS + number / WARP];
    if (*fibre == nullptr) {
        *fibre = __tsan_create_fiber(0);
    }
    return *fibre;
#else
    (void)number;
    return nullptr;
#endif
}

/* The stacks of a block. To the thread sanitizer a stack that two threads use looks like a race, so
 * there no two blocks have the same one. */
static char *block_stacks(const struct block *block)
{
    const size_t slot = static_cast<size_t>(block - grid->block);
    return grid->stacks + (APART ? block->number : slot) * LAUNCH_THREADS * STACK;
}

static void block_begin(struct block *block)
{
    unsigned slot = static_cast<unsigned>(block - grid->block);
    block->number = grid->turn[grid->begun++];
    block->live = LAUNCH_THREADS;
    block->arrived = block->sites = 0;
    block->used = 0;
    block->meeting = &grid->meetings[block->number];
    block->arena = grid->arenas != nullptr ? grid->arenas + size_t{block->number} * ARENA : nullptr;
    for (unsigned t = 0; t < LAUNCH_THREADS; t++) {
        fibre *f = &grid->fibre[slot * LAUNCH_THREADS + t];
        *f = fibre{};
        f->own.stack = block_stacks(block) + size_t{t} * STACK;
        f->own.size = STACK - stack_shift(t);
        f->own.tsan = sanitizer_fibre(block->number * LAUNCH_THREADS + t);
        f->place = {{t}, {block->number}, {LAUNCH_THREADS}, {grid->how.blocks}};
        f->block = block;
        f->order.number = block->number * LAUNCH_THREADS + t + 1;
        fibre_stack(f);
        wake(f);
    }
}

/* Blocks that ended make room for the next ones. */
static void blocks_refill()
{
    for (unsigned b = 0; b < grid->how.resident && grid->begun < grid->how.blocks; b++) {
        if (grid->block[b].live == 0) {
            block_begin(&grid->block[b]);
        }
    }
    grid->refill = false;
}

/* ------------------------------------------------------------------ what kernels call */

void shim_barrier(const char *file, int line)
{
    fibre *const me = current;
    struct block *const block = me->block;
    char *const object = block->meeting->barrier[me->barriers++ % 2];
    if (block->arrived > 0 && (block->line != line || block->file != file)) {
        std::fprintf(
            stderr, "%s:%d: here are other threads of the block\n", block->file, block->line);
        fault(me, "reaches another barrier than the block's other threads", file, line);
    }
    block->file = file;
    block->line = line;
    order_release(object);
    if (++block->arrived < LAUNCH_THREADS) {
        wait_as(FIBRE_AT_BARRIER, file, line);
    } else {
        unsigned first = number_of(me) / LAUNCH_THREADS * LAUNCH_THREADS;
        block->arrived = 0;
        for (unsigned t = 0; t < LAUNCH_THREADS; t++) {
            wake(&grid->fibre[first + t]);
        }
        give_way(false);
    }
    order_acquire(object);
}

static fibre *lane_of(const fibre *f, unsigned lane)
{
    return &grid->fibre[number_of(f) / WARP * WARP + lane];
}

/* Whether all lanes of the mask wait for the same operation. */
static bool is_complete(const fibre *me)
{
    for (unsigned lane = 0; lane < WARP; lane++) {
        const fibre *f = lane_of(me, lane);
        if ((me->mask >> lane & 1) == 0) {
            continue;
        }
        if (f->state != FIBRE_IN_WARP || f->kind != me->kind || f->mask != me->mask ||
            f->line != me->line || f->file != me->file) {
            return false;
        }
    }
    return true;
}

static void complete(const fibre *me)
{
    uint64_t given[WARP] = {0};
    unsigned ballot = 0;
    for (unsigned lane = 0; lane < WARP; lane++) {
        given[lane] = lane_of(me, lane)->value;
        ballot |= (me->mask >> lane & 1) != 0 && given[lane] != 0 ? 1u << lane : 0;
    }
    for (unsigned lane = 0; lane < WARP; lane++) {
        fibre *f = lane_of(me, lane);
        if ((me->mask >> lane & 1) != 0) {
            f->value = f->kind == SHIM_BALLOT ? ballot : given[f->source];
            wake(f);
        }
    }
}

uint64_t shim_collect(
    shim_kind kind, unsigned mask, uint64_t value, unsigned source, const char *file, int line)
{
    fibre *const me = current;
    const unsigned lane = me->place.thread.x % WARP;
    unsigned &waiting = me->block->in_warp[me->place.thread.x / WARP];
    char *const object = me->block->meeting->warp[me->place.thread.x / WARP][me->syncs % 2];
    if ((mask >> lane & 1) == 0) {
        fault(me, "is not in the mask that it names", file, line);
    }
    if (kind == SHIM_SHUFFLE && (mask >> source & 1) == 0) {
        fault(me, "shuffles from a lane outside the mask", file, line);
    }
    if (kind == SHIM_SYNC) {
        me->syncs++;
        order_release(object);
    }
    me->kind = kind;
    me->mask = mask;
    me->value = value;
    me->source = source;
    me->state = FIBRE_IN_WARP;
    me->file = file;
    me->line = line;
    waiting |= 1u << lane;
    if ((waiting & mask) == mask && is_complete(me)) {
        waiting &= ~mask;
        complete(me);
        give_way_at_random();
    } else {
        wait_as(FIBRE_IN_WARP, file, line);
    }
    if (kind == SHIM_SYNC) {
        order_acquire(object);
    }
    return me->value;
}

void shim_fence()
{
    order_fence(&current->order);
    give_way_at_random();
}

void shim_touch(const void *address)
{
    give_way_at_random();
    order_touch(&current->order, address);
}

void shim_pause()
{
    give_way(false, pick_other);
}

static char *shared_bytes(struct block *block, size_t bytes)
{
    char *place;
    if (block->arena == nullptr) {
        place = static_cast<char *>(std::malloc(bytes));
        if (place == nullptr) {
            std::abort();
        }
        std::memset(place, 0xa5, bytes);
        return place;
    }
    place = block->arena + block->used;
    block->used += (bytes + 63) / 64 * 64;
    if (block->used > ARENA) {
        fault(current, "has no shared memory left", "shim", 0);
    }
    return place;
}

void *shim_shared(const void *site, size_t bytes)
{
    struct block *const block = current->block;
    for (unsigned s = 0; s < block->sites; s++) {
        if (block->shared[s].site == site) {
            return block->shared[s].bytes;
        }
    }
    if (block->sites == SITES) {
        fault(current, "has too many shared arrays", "shim", 0);
    }
    char *place = shared_bytes(block, bytes);
    block->shared[block->sites++] = {site, place};
    return place;
}

/* ------------------------------------------------------------------ launches */

/* Blocks begin in their order, backwards or in a random one. */
static void launch_turns(launched *l)
{
    for (unsigned b = 0; b < l->how.blocks; b++) {
        l->turn[b] = l->how.order == LAUNCH_REVERSE ? l->how.blocks - 1 - b : b;
    }
    for (unsigned b = l->how.blocks; l->how.order == LAUNCH_RANDOM && b > 1; b--) {
        unsigned other = static_cast<unsigned>(draw(l) % b);
        unsigned turn = l->turn[b - 1];
        l->turn[b - 1] = l->turn[other];
        l->turn[other] = turn;
    }
}

/* Where the host's stack is. To find out takes time, and it does not move. */
static void launch_host(context *host)
{
    static context found;
    pthread_attr_t attributes;
    void *stack = nullptr;
    if (found.stack != nullptr) {
        *host = found;
        return;
    }
    if (pthread_getattr_np(pthread_self(), &attributes) != 0 ||
        pthread_attr_getstack(&attributes, &stack, &host->size) != 0) {
        std::abort();
    }
    (void)pthread_attr_destroy(&attributes);
    host->stack = static_cast<char *>(stack);
    found = *host;
}

/* What fibres use under the thread sanitizer exists before any of them runs. */
static void launch_sanitize(launched *l)
{
    if (APART) {
        l->arenas = static_cast<char *>(std::malloc(size_t{l->how.blocks} * ARENA));
        if (l->arenas == nullptr) {
            std::abort();
        }
        std::memset(l->arenas, 0xa5, size_t{l->how.blocks} * ARENA);
    }
    order_release(l->begin);
}

launched *launch_begin(const struct launch *how, launch_kernel *kernel, const void *parameters)
{
    launched *l = static_cast<launched *>(std::calloc(1, sizeof *l));
    if (l == nullptr || how->blocks == 0 || how->resident == 0 || how->resident > LAUNCH_RESIDENT ||
        (APART && how->blocks > BLOCKS_APART)) {
        std::abort();
    }
    l->how = *how;
    l->kernel = kernel;
    l->parameters = parameters;
    l->random = how->seed * 2 + 1;
    for (int i = 0; i < 4; i++) {
        (void)draw(l);
    }
    l->turn = static_cast<unsigned *>(std::calloc(how->blocks, sizeof *l->turn));
    l->meetings = static_cast<meeting *>(std::calloc(how->blocks, sizeof *l->meetings));
    l->stacks = stacks_take(STACKS);
    if (l->turn == nullptr || l->meetings == nullptr) {
        std::abort();
    }
    order_begin();
    launch_host(&l->host);
    launch_sanitize(l);
    launch_turns(l);
    grid = l;
    blocks_refill();
    return l;
}

bool launch_go_on(launched *l, uint64_t switches)
{
    grid = l;
    l->budget = switches;
    while (l->ended < l->how.blocks && l->budget > 0) {
        blocks_refill();
        fibre *next = pick();
        if (next == nullptr) {
            stuck();
        }
        l->last = number_of(next);
        current = next;
        shim_here = &next->place;
#if defined(SHIM_TSAN)
        l->host.tsan = __tsan_get_current_fiber();
#endif
        change(&l->host, &next->own, false);
        current = nullptr;
    }
    return l->ended == l->how.blocks;
}

void launch_end(launched *l)
{
    for (struct block &block : l->block) {
        block_end(&block);
    }
    order_acquire(l->end);
    std::free(l->arenas);
    std::free(l->meetings);
    std::free(l->turn);
    stacks_give(l->stacks, STACKS, l->ended < l->how.blocks);
    order_end();
    std::free(l);
}

void launch(const struct launch *how, launch_kernel *kernel, const void *parameters)
{
    launched *l = launch_begin(how, kernel, parameters);
    (void)launch_go_on(l, UINT64_MAX);
    launch_end(l);
}
