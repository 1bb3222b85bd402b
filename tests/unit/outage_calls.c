/* What a rank of a walk calls: every function of the client library. outage_device.c has those of
 * GPUs. */
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>

#include <adtopk/checkpoint.h>
#include <adtopk/members.h>

#include "client/src/context.h"
#include "outage_walk.h"

#define TENSORS 2u
#define WAIT_MS 20     /* of each call, before the rank looks whether the other one has failed */
#define GROWN_STEPS 2u /* that the ranks take together after one has joined */

/* Nothing of a walk takes so many seconds. What failed in vain waits for them. */
#define POLICY(seconds, more)                                                                      \
    "{\"density\":0.05,\"bucket_bytes\":2000,\"join_timeout\":" seconds ",\"wait_limit\":" seconds \
    ",\"push_timeout\":" seconds more ",\"rules\":[{\"match\":\"ahead\",\"lookahead\":0.5}]}"

static const char *const walk_policies[WALK_KINDS] = {
    [WALK_GROW] = POLICY("5", ",\"on_peer_loss\":\"shrink\",\"shrink_after\":1,\"grow\":true"),
    [WALK_SUCCESSOR] = POLICY("5", ",\"on_rank_loss\":\"wait\""),
    [WALK_KILLED] = POLICY("10", ""),
    [WALK_STOPPED] = POLICY("10", ""),
    [WALK_FAR_KILLED] = POLICY("10", ""),
    [WALK_DEVICE_KILLED] = POLICY("10", ""),
    [WALK_LOST] = POLICY("5", ",\"on_peer_loss\":\"shrink\"")};

bool walk_given_up(const struct walker *walker)
{
    for (unsigned rank = 0; rank < nodes_count(); rank++) {
        if (atomic_load(&walker->shared->failed[rank]) == walker->number) {
            return true;
        }
    }
    return false;
}

/* Calls again what is pending, unless another rank has given up. */
#define AGAIN(walker, call)                                                                        \
    do {                                                                                           \
        enum adtopk_status status_;                                                                \
        do {                                                                                       \
            status_ = (call);                                                                      \
        } while (status_ == ADTOPK_PENDING && !walk_given_up(walker));                             \
        if (status_ != ADTOPK_OK) {                                                                \
            return status_;                                                                        \
        }                                                                                          \
    } while (0)

/* The first rank is on another machine than its daemon. */
static bool walker_is_far(const struct walker *walker)
{
    return walker->rank == 0 && (walker->kind == WALK_REMOTE || walker->kind == WALK_FAR_KILLED);
}

/* ---- the calls ---- */

static enum adtopk_status walk_open(struct walker *walker)
{
    char run[16];
    const bool keys = walker->node->key[0] != '\0';
    const char *policy = walk_policies[walker->kind];
    const struct adtopk_options options = {.size = sizeof(options),
        .address = walker_is_far(walker) ? walker->node->remote : walker->node->local,
        .key_file = keys ? nodes_trainer_key() : NULL,
        .server_key = keys ? walker->node->key : NULL,
        .job = "walk",
        .run_id = run,
        .rank = walker->rank,
        .has_rank = 1,
        .world_size = (int)nodes_count(),
        .policy = policy != NULL ? policy : POLICY("5", ""),
        .connect_timeout_ms = 2000,
        .return_timeout_ms = 10000,
        .comes_back = walker->comes_back ? 1 : 0,
        .first_step = walker->first_step,
        .answer_timeout_ms = 5000};

    (void)snprintf(run, sizeof(run), "%u", walker->number);
    return adtopk_open(&options, &walker->context);
}

static enum adtopk_status walk_add(struct walker *walker, const char *name, unsigned forms)
{
    const struct adtopk_tensor_spec spec = {.size = sizeof(spec),
        .name = name,
        .dims = 2,
        .shape = {WALK_ROWS, WALK_COLUMNS},
        .forms = forms};
    uint32_t number;

    return adtopk_register(walker->context, &spec, &number);
}

static enum adtopk_status walk_register(struct walker *walker)
{
    const enum adtopk_status status =
        walk_add(walker, "list", ADTOPK_FORM_LIST | ADTOPK_FORM_DENSE);

    return status == ADTOPK_OK ? walk_add(walker, "ahead", ADTOPK_FORM_PENDING) : status;
}

static enum adtopk_status walk_commit(struct walker *walker)
{
    AGAIN(walker, adtopk_commit_for(walker->context, WAIT_MS));
    return ADTOPK_OK;
}

static enum adtopk_status walk_load(struct walker *walker)
{
    struct adtopk_checkpoint loaded = {.size = sizeof(loaded)};

    return walker->kind == WALK_LOAD
               ? adtopk_checkpoint_load(walker->context, nodes_folder(), &loaded)
               : ADTOPK_OK;
}

static enum adtopk_status walk_push(struct walker *walker)
{
    for (uint32_t i = 0; i < WALK_NUMEL; i++) {
        walker->values[i] = (float)(i * (uint32_t)(walker->rank + 1) % 7);
    }
    for (uint32_t t = 0; t < TENSORS; t++) {
        AGAIN(walker, adtopk_push_tensor(walker->context, t, walker->values));
    }
    return ADTOPK_OK;
}

static enum adtopk_status walk_step(struct walker *walker)
{
    struct adtopk_update update = {.size = sizeof(update)};
    enum adtopk_status status = walk_push(walker);

    if (status != ADTOPK_OK) {
        return status;
    }
    AGAIN(walker, adtopk_step_wait_for(walker->context, WAIT_MS));
    status = adtopk_update(walker->context, 0, &update);
    if (status == ADTOPK_OK) {
        adtopk_apply_sgd(walker->parameters, &update, 0.1f);
    }
    return status;
}

static enum adtopk_status walk_residual(struct walker *walker)
{
    AGAIN(walker, adtopk_residual_for(walker->context, 0, walker->values, WAIT_MS));
    return ADTOPK_OK;
}

static enum adtopk_status walk_lookahead(struct walker *walker)
{
    const struct adtopk_lookahead_spec spec = {.size = sizeof(spec),
        .parameters = walker->parameters,
        .shifted = walker->values,
        .rate = 0.1f};
    struct adtopk_update update = {.size = sizeof(update)};
    const enum adtopk_status status = adtopk_update(walker->context, 1, &update);

    return status == ADTOPK_OK ? adtopk_lookahead(walker->context, 1, &spec) : status;
}

static enum adtopk_status walk_operations(struct walker *walker)
{
    AGAIN(walker, adtopk_barrier_for(walker->context, WAIT_MS));
    AGAIN(walker, adtopk_broadcast_for(walker->context, walker->values, 100, 1, WAIT_MS));
    AGAIN(walker, adtopk_allreduce_for(walker->context, walker->values, 100, WAIT_MS));
    return ADTOPK_OK;
}

static enum adtopk_status walk_save(struct walker *walker)
{
    const enum adtopk_status status = walker->kind == WALK_LOCAL
                                          ? adtopk_checkpoint_save(walker->context, nodes_folder())
                                          : ADTOPK_OK;

    return walker->kind == WALK_LOCAL && status == ADTOPK_OK
               ? adtopk_checkpoint_saved(walker->context, 1)
               : status;
}

/* ---- calls that are made less often ---- */

/* What needs no daemon. */
static enum adtopk_status walk_tell(struct walker *walker)
{
    char run[16];
    const bool right = snprintf(run, sizeof(run), "%u", walker->number) > 0 &&
                       adtopk_rank(walker->context) == walker->rank &&
                       adtopk_world_size(walker->context) == (int)nodes_count() &&
                       strcmp(adtopk_job(walker->context), "walk") == 0 &&
                       strcmp(adtopk_run_id(walker->context), run) == 0 &&
                       adtopk_step(walker->context) == 1 &&
                       adtopk_message(walker->context) != NULL && adtopk_version()[0] != '\0' &&
                       strcmp(adtopk_status_name(ADTOPK_OK), "ok") == 0;

    return right ? ADTOPK_OK : ADTOPK_ERR_PROTOCOL;
}

/* A step whose gradients are written where the daemon reads them. Its updates are read one by one.
 */
static enum adtopk_status walk_tensors(struct walker *walker)
{
    struct adtopk_update update = {.size = sizeof(update)};
    enum adtopk_status status = ADTOPK_OK;

    for (uint32_t t = 0; t < TENSORS && status == ADTOPK_OK; t++) {
        const struct adtopk_push_spec push = {.size = sizeof(push), .tensor = t, .scale = 2.0f};

        memcpy(adtopk_gradient(walker->context, t), walker->values, sizeof(walker->values));
        status = adtopk_push(walker->context, &push);
    }
    if (status == ADTOPK_OK) {
        status = adtopk_step_end(walker->context);
    }
    if (status != ADTOPK_OK) {
        return status;
    }
    AGAIN(walker, adtopk_wait_for(walker->context, 1, WAIT_MS));
    status = adtopk_wait(walker->context, 0);
    if (status == ADTOPK_OK) {
        status = adtopk_update(walker->context, 0, &update);
    }
    if (status == ADTOPK_OK) {
        adtopk_copy_update(walker->values, &update);
        status = adtopk_step_wait(walker->context);
    }
    return status;
}

/* The forms without a time-out. */
static enum adtopk_status walk_plainly(struct walker *walker)
{
    enum adtopk_status status = adtopk_barrier(walker->context);

    if (status == ADTOPK_OK) {
        status = adtopk_broadcast(walker->context, walker->values, 100, 0);
    }
    if (status == ADTOPK_OK) {
        status = adtopk_allreduce(walker->context, walker->values, 100);
    }
    return status == ADTOPK_OK ? adtopk_residual(walker->context, 1, walker->values) : status;
}

/* ---- ranks that an operator watches ---- */

static enum adtopk_status walk_save_if_due(struct walker *walker)
{
    int due = 0;
    const enum adtopk_status status = adtopk_checkpoint_due(walker->context, &due);

    return status == ADTOPK_OK && due != 0 ? adtopk_checkpoint_save(walker->context, nodes_folder())
                                           : status;
}

/* Trains until the first rank has seen that the operator is done. */
static enum adtopk_status walk_train(struct walker *walker)
{
    uint8_t goes_on = 1;

    while (walker->kind == WALK_OPERATE) {
        enum adtopk_status status = walk_save_if_due(walker);

        if (status != ADTOPK_OK) {
            return status;
        }
        if (walker->rank == 0) {
            atomic_store(&walker->shared->trains, walker->number);
            goes_on = atomic_load(&walker->shared->done[WALKER_OPERATOR]) != walker->number;
        }
        AGAIN(walker, adtopk_broadcast_for(walker->context, &goes_on, 1, 0, WAIT_MS));
        if (goes_on == 0) {
            return ADTOPK_OK;
        }
        status = walk_step(walker);
        if (status != ADTOPK_OK) {
            return status;
        }
    }
    return ADTOPK_OK;
}

/* ---- a rank that dies, and another process in its place ---- */

/* The rank dies, as its daemon sees it, and another one comes in its place. */
static enum adtopk_status walk_die(struct walker *walker)
{
    enum adtopk_status status;

    (void)shutdown(walker->context->socket, SHUT_RDWR);
    adtopk_close(walker->context);
    walker->context = NULL;
    status = walk_open(walker);
    if (status == ADTOPK_OK) {
        status = walk_register(walker);
    }
    return status == ADTOPK_OK ? walk_commit(walker) : status;
}

/* The daemon sees the death before it can hear of the successor, but it may still be at work. */
static enum adtopk_status walk_succeed(struct walker *walker)
{
    const enum adtopk_status status = adtopk_push_tensor(walker->context, 0, walker->values);

    walker->comes_back = true;
    walker->first_step = adtopk_step(walker->context);
    return status == ADTOPK_OK ? walk_die(walker) : status;
}

static enum adtopk_status walk_successor(struct walker *walker)
{
    enum adtopk_status status = ADTOPK_OK;

    if (walker->kind != WALK_SUCCESSOR) {
        return ADTOPK_OK;
    }
    if (walker->rank != 0) {
        status = walk_succeed(walker);
    }
    return status == ADTOPK_OK ? walk_step(walker) : status;
}

/* ---- a daemon that ends, and another one in its place ---- */

/* In mid-step. */
static enum adtopk_status walk_killed(struct walker *walker)
{
    if (walker->kind != WALK_KILLED && walker->kind != WALK_FAR_KILLED) {
        return ADTOPK_OK;
    }
    AGAIN(walker, adtopk_push_tensor(walker->context, 0, walker->values));
    if (walker->rank == 0) {
        node_exchange(walker->node, SIGKILL);
    }
    AGAIN(walker, adtopk_push_tensor(walker->context, 1, walker->values));
    AGAIN(walker, adtopk_step_wait_for(walker->context, WAIT_MS));
    return ADTOPK_OK;
}

/* Until another rank has come to some place in this walk. */
static void walk_await(const struct walker *walker, const _Atomic unsigned *reached)
{
    const struct timespec pause = {.tv_nsec = 200000};

    while (atomic_load(reached) != walker->number && !walk_given_up(walker)) {
        (void)clock_nanosleep(CLOCK_MONOTONIC, 0, &pause, NULL); /* not one that fails */
    }
}

/* In mid-step the last node is killed. Its rank hears so, and the others go on. */
static enum adtopk_status walk_lost(struct walker *walker)
{
    enum adtopk_status status = ADTOPK_PENDING;

    AGAIN(walker, adtopk_push_tensor(walker->context, 0, walker->values));
    if (walker->rank == 0) {
        walk_await(walker, &walker->shared->halfway);
        node_exchange(walk_ends(walker->kind, walker->node), SIGKILL);
    }
    if (walker->rank != LOST_NODE) {
        AGAIN(walker, adtopk_push_tensor(walker->context, 1, walker->values));
        AGAIN(walker, adtopk_step_wait_for(walker->context, WAIT_MS));
        return walk_step(walker);
    }
    atomic_store(&walker->shared->halfway, walker->number);
    while (status == ADTOPK_PENDING && !walk_given_up(walker)) {
        status = adtopk_step_wait_for(walker->context, WAIT_MS);
    }
    return status == ADTOPK_ERR_UNREACHABLE ? ADTOPK_OK : status;
}

/* While the first rank waits for an operation. */
static enum adtopk_status walk_stopped(struct walker *walker)
{
    enum adtopk_status status = ADTOPK_PENDING;

    if (walker->kind != WALK_STOPPED) {
        return ADTOPK_OK;
    }
    if (walker->rank == 0) {
        status = adtopk_barrier_for(walker->context, 0);
        node_exchange(walker->node, SIGTERM);
        atomic_store(&walker->shared->stopped, walker->number);
    } else {
        walk_await(walker, &walker->shared->stopped);
    }
    if (status == ADTOPK_PENDING) {
        AGAIN(walker, adtopk_barrier_for(walker->context, WAIT_MS));
        status = ADTOPK_OK;
    }
    return status == ADTOPK_OK ? walk_step(walker) : status;
}

/* ---- a rank that is lost and joins again ---- */

/* The second rank dies, and is started again. */
static enum adtopk_status walk_again(struct walker *walker)
{
    return walker->kind == WALK_GROW && walker->rank != 0 ? walk_die(walker) : ADTOPK_OK;
}

/* Trains until both ranks have for some steps, or the second one has given up. */
static enum adtopk_status walk_grow(struct walker *walker)
{
    struct adtopk_members members = {.size = sizeof(members)};
    enum adtopk_status status = ADTOPK_OK;

    while (walker->kind == WALK_GROW && status == ADTOPK_OK &&
           atomic_load(&walker->shared->done[1]) != walker->number) {
        const uint64_t step = adtopk_step(walker->context);

        status = adtopk_members(walker->context, &members);
        if (status == ADTOPK_OK && members.joined > 0 && step == members.joined + GROWN_STEPS) {
            return ADTOPK_OK;
        }
        if (status == ADTOPK_OK && step == members.joined && step > 0) {
            AGAIN(walker, adtopk_broadcast_for(walker->context, walker->parameters, WALK_NUMEL,
                              (int)members.root, WAIT_MS));
        }
        status = status == ADTOPK_OK ? walk_step(walker) : status;
    }
    return status;
}

static enum adtopk_status walk_later(struct walker *walker)
{
    const enum adtopk_status status = walk_add(walker, "later", ADTOPK_FORM_DENSE);

    return status == ADTOPK_OK ? walk_commit(walker) : status;
}

/* ---- the order ---- */

static enum adtopk_status walk_sleep(struct walker *walker)
{
    int descriptor;
    enum adtopk_status status;

    if (walker_is_far(walker)) {
        return ADTOPK_OK; /* such a rank has no descriptor */
    }
    status = adtopk_descriptor(walker->context, &descriptor);

    if (status == ADTOPK_OK) {
        status = adtopk_arm(walker->context);
    }
    return status == ADTOPK_PENDING ? ADTOPK_OK : status;
}

static const struct walk_call calls[] = {
    {"open", walk_open},
    {"register", walk_register},
    {"commit", walk_commit},
    {"load", walk_load},
    {"step", walk_step},
    {"tell", walk_tell},
    {"tensors", walk_tensors},
    {"residual", walk_residual},
    {"lookahead", walk_lookahead},
    {"operations", walk_operations},
    {"ask", walk_ask},
    {"train", walk_train},
    {"successor", walk_successor},
    {"killed", walk_killed},
    {"stopped", walk_stopped},
    {"save", walk_save},
    {"again", walk_again},
    {"grow", walk_grow},
    {"later", walk_later},
    {"sleep", walk_sleep},
    {"step", walk_step},
    {"plainly", walk_plainly},
    {NULL, NULL},
};

static const struct walk_call lost_calls[] = {
    {"open", walk_open},
    {"register", walk_register},
    {"commit", walk_commit},
    {"step", walk_step},
    {"lost", walk_lost},
    {NULL, NULL},
};

static const struct walk_call device_calls[] = {
    {"open", walk_open},
    {"check", walk_device_check},
    {"register", walk_device_register},
    {"commit", walk_commit},
    {"step", walk_device_step},
    {"killed", walk_device_killed},
    {"residual", walk_residual},
    {"step", walk_device_step},
    {NULL, NULL},
};

const struct walk_call *walk_calls(enum walk_kind kind)
{
    switch (kind) {
    case WALK_DEVICE:
    case WALK_DEVICE_KILLED: return device_calls;
    case WALK_LOST: return lost_calls;
    default: return calls;
    }
}
