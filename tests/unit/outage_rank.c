#include "outage_rank.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <adtopk/members.h>

#include "client/control/connection.h"
#include "client/src/context.h"

#define ROWS 40u
#define COLUMNS 30u
#define NUMEL (ROWS * COLUMNS)
#define TENSORS 2u
#define WAIT_MS 20      /* of each call, before the rank looks whether the other one has failed */
#define ASK_MS 5000     /* within which a daemon answers an operator */
#define PATIENCE_S 100u /* a walk that takes longer hangs */

#define GROWN_STEPS 2u /* that the ranks take together after one has joined */

#define POLICY(more)                                                                               \
    "{\"density\":0.05,\"bucket_bytes\":2000,\"join_timeout\":5,\"wait_limit\":5,"                 \
    "\"push_timeout\":5" more ",\"rules\":[{\"match\":\"ahead\",\"lookahead\":0.5}]}"

/* What the two processes share. */
struct walkers {
    _Atomic unsigned order, done; /* number of the walk that the second rank shall do, and has */
    _Atomic unsigned failed;      /* number of the walk that the first rank gave up */
    _Atomic enum walk_kind kind;
    struct walk_end end; /* of the second rank */
};

struct walker {
    const struct outage_node *node;
    adtopk_context *context;
    unsigned number; /* of this walk */
    int rank;
    enum walk_kind kind;
    struct error refusal; /* of an operator's request */
    float parameters[NUMEL], values[NUMEL];
};

static struct walkers *shared;
static struct walker self;
static pid_t second;

static bool walker_given_up(const struct walker *walker)
{
    return walker->rank != 0 && atomic_load(&shared->failed) == walker->number;
}

/* Calls again what is pending, unless the other rank has given up. */
#define AGAIN(walker, call)                                                                        \
    do {                                                                                           \
        enum adtopk_status status_;                                                                \
        do {                                                                                       \
            status_ = (call);                                                                      \
        } while (status_ == ADTOPK_PENDING && !walker_given_up(walker));                           \
        if (status_ != ADTOPK_OK) {                                                                \
            return status_;                                                                        \
        }                                                                                          \
    } while (0)

/* ---- the calls ---- */

static enum adtopk_status walk_open(struct walker *walker)
{
    char run[16];
    const struct adtopk_options options = {.size = sizeof(options),
        .address = walker->kind == WALK_REMOTE && walker->rank == 0 ? walker->node->remote
                                                                    : walker->node->local,
        .job = "walk",
        .run_id = run,
        .rank = walker->rank,
        .has_rank = 1,
        .world_size = 2,
        .policy = walker->kind == WALK_GROW
                      ? POLICY(",\"on_peer_loss\":\"shrink\",\"shrink_after\":1,\"grow\":true")
                      : POLICY(""),
        .connect_timeout_ms = 2000,
        .answer_timeout_ms = 5000};

    (void)snprintf(run, sizeof(run), "%u", walker->number);
    return adtopk_open(&options, &walker->context);
}

static enum adtopk_status walk_add(struct walker *walker, const char *name, unsigned forms)
{
    const struct adtopk_tensor_spec spec = {
        .size = sizeof(spec), .name = name, .dims = 2, .shape = {ROWS, COLUMNS}, .forms = forms};
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
    for (uint32_t i = 0; i < NUMEL; i++) {
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
    return walker->kind == WALK_LOCAL ? adtopk_checkpoint_save(walker->context, nodes_folder())
                                      : ADTOPK_OK;
}

/* ---- a rank that is lost and joins again ---- */

/* The second rank dies, as its daemon sees it, and is started again. */
static enum adtopk_status walk_again(struct walker *walker)
{
    enum adtopk_status status;

    if (walker->kind != WALK_GROW || walker->rank == 0) {
        return ADTOPK_OK;
    }
    (void)shutdown(walker->context->socket, SHUT_RDWR);
    adtopk_close(walker->context);
    walker->context = NULL;
    status = walk_open(walker);
    if (status == ADTOPK_OK) {
        status = walk_register(walker);
    }
    return status == ADTOPK_OK ? walk_commit(walker) : status;
}

/* Trains until both ranks have for some steps, or the second one has given up. */
static enum adtopk_status walk_grow(struct walker *walker)
{
    struct adtopk_members members = {.size = sizeof(members)};
    enum adtopk_status status = ADTOPK_OK;

    while (walker->kind == WALK_GROW && status == ADTOPK_OK &&
           atomic_load(&shared->done) != walker->number) {
        const uint64_t step = adtopk_step(walker->context);

        status = adtopk_members(walker->context, &members);
        if (status == ADTOPK_OK && members.joined > 0 && step == members.joined + GROWN_STEPS) {
            return ADTOPK_OK;
        }
        if (status == ADTOPK_OK && step == members.joined && step > 0) {
            AGAIN(walker, adtopk_broadcast_for(walker->context, walker->parameters, NUMEL,
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

/* ---- an operator ---- */

/* Asks the first node, and notes its sentence if it refuses. */
static enum adtopk_status walk_ask(
    struct walker *walker, Adtopk__ControlRequest__KindCase kind, void *content)
{
    Adtopk__ControlRequest request = ADTOPK__CONTROL_REQUEST__INIT;
    char *document = NULL;
    enum connection_end end;
    enum adtopk_status status;

    request.version = 1;
    request.kind_case = kind;
    request.status = content; /* a union of pointers */
    status = connection_ask(
        walker->node->control, ASK_MS, &request, NULL, &document, -1, &end, &walker->refusal);
    free(document);
    return status;
}

static enum adtopk_status walk_operate(struct walker *walker)
{
    Adtopk__ControlStatus status = ADTOPK__CONTROL_STATUS__INIT;
    Adtopk__ControlStats stats = ADTOPK__CONTROL_STATS__INIT;
    Adtopk__ControlTensors tensors = ADTOPK__CONTROL_TENSORS__INIT;
    Adtopk__ControlPolicyGet policy = ADTOPK__CONTROL_POLICY_GET__INIT;
    Adtopk__ControlVerify verify = ADTOPK__CONTROL_VERIFY__INIT;
    Adtopk__ControlPlan plan = ADTOPK__CONTROL_PLAN__INIT;
    Adtopk__ControlRanks ranks = ADTOPK__CONTROL_RANKS__INIT;
    Adtopk__ControlStores stores = ADTOPK__CONTROL_STORES__INIT;
    Adtopk__ControlTrace trace = ADTOPK__CONTROL_TRACE__INIT;
    char job[32]; /* its key, since the job of a walk before may be ending still */
    const struct {
        Adtopk__ControlRequest__KindCase kind;
        void *content;
    } questions[] = {
        {ADTOPK__CONTROL_REQUEST__KIND_STATUS, &status},
        {ADTOPK__CONTROL_REQUEST__KIND_STATS, &stats},
        {ADTOPK__CONTROL_REQUEST__KIND_TENSORS, &tensors},
        {ADTOPK__CONTROL_REQUEST__KIND_POLICY_GET, &policy},
        {ADTOPK__CONTROL_REQUEST__KIND_VERIFY, &verify},
        {ADTOPK__CONTROL_REQUEST__KIND_PLAN, &plan},
        {ADTOPK__CONTROL_REQUEST__KIND_RANKS, &ranks},
        {ADTOPK__CONTROL_REQUEST__KIND_STORES, &stores},
        {ADTOPK__CONTROL_REQUEST__KIND_TRACE, &trace},
    };

    (void)snprintf(job, sizeof(job), "walk/%u", walker->number);
    tensors.job = policy.job = verify.job = plan.job = ranks.job = trace.job = job;
    verify.timeout_ms = trace.timeout_ms = ASK_MS / 2;
    for (unsigned i = 0; walker->kind == WALK_ASK && walker->rank == 0 &&
                         i < sizeof(questions) / sizeof(questions[0]);
         i++) {
        const enum adtopk_status got = walk_ask(walker, questions[i].kind, questions[i].content);

        if (got != ADTOPK_OK) {
            return got;
        }
    }
    return ADTOPK_OK;
}

/* ---- a walk ---- */

static enum adtopk_status walk_sleep(struct walker *walker)
{
    int descriptor;
    enum adtopk_status status;

    if (walker->kind == WALK_REMOTE && walker->rank == 0) {
        return ADTOPK_OK; /* such a rank has no descriptor */
    }
    status = adtopk_descriptor(walker->context, &descriptor);

    if (status == ADTOPK_OK) {
        status = adtopk_arm(walker->context);
    }
    return status == ADTOPK_PENDING ? ADTOPK_OK : status;
}

static const struct {
    const char *name;
    enum adtopk_status (*run)(struct walker *walker);
} calls[] = {
    {"open", walk_open},
    {"register", walk_register},
    {"commit", walk_commit},
    {"load", walk_load},
    {"step", walk_step},
    {"residual", walk_residual},
    {"lookahead", walk_lookahead},
    {"operations", walk_operations},
    {"operate", walk_operate},
    {"save", walk_save},
    {"again", walk_again},
    {"grow", walk_grow},
    {"later", walk_later},
    {"sleep", walk_sleep},
    {"step", walk_step},
};

static void walker_walk(struct walker *walker, unsigned number, struct walk_end *end)
{
    memset(end, 0, sizeof(*end));
    walker->number = number;
    walker->kind = atomic_load(&shared->kind);
    walker->context = NULL;
    walker->refusal.code = ADTOPK_OK;
    (void)alarm(PATIENCE_S); /* ends this process */
    for (unsigned i = 0; i < sizeof(calls) / sizeof(calls[0]) && end->status == ADTOPK_OK; i++) {
        end->status = calls[i].run(walker);
        (void)snprintf(end->call, sizeof(end->call), "%s", calls[i].name);
    }
    if (end->status != ADTOPK_OK) {
        (void)snprintf(end->text, sizeof(end->text), "%s",
            walker->refusal.code != ADTOPK_OK ? walker->refusal.text
                                              : adtopk_message(walker->context));
    }
    if (end->status != ADTOPK_OK && walker->rank == 0) {
        atomic_store(&shared->failed, number);
    }
    adtopk_close(walker->context);
    (void)alarm(0);
}

static void walker_pause(void)
{
    (void)nanosleep(&(struct timespec){.tv_nsec = 200000}, NULL);
}

/* The second rank: one walk after another, until it is killed. */
static void walker_serve(void)
{
    (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
    for (;;) {
        const unsigned order = atomic_load(&shared->order);

        if (order == atomic_load(&shared->done)) {
            walker_pause();
            continue;
        }
        walker_walk(&self, order, &shared->end);
        atomic_store(&shared->done, order);
    }
}

void walkers_start(const struct outage_node nodes[OUTAGE_NODES])
{
    shared = mmap(NULL, sizeof(*shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_ptr_not_equal(shared, MAP_FAILED);
    (void)fflush(NULL);
    self = (struct walker){.node = &nodes[1], .rank = 1};
    second = fork();
    if (second == 0) {
        walker_serve();
    }
    assert_true(second > 0);
    self = (struct walker){.node = &nodes[0], .rank = 0};
}

void walkers_stop(void)
{
    (void)kill(second, SIGKILL);
    (void)waitpid(second, NULL, 0);
    (void)munmap(shared, sizeof(*shared));
}

void walk(enum walk_kind kind, struct walk_end end[2])
{
    const unsigned number = atomic_load(&shared->done) + 1;

    atomic_store(&shared->kind, kind);
    atomic_store(&shared->order, number);
    walker_walk(&self, number, &end[0]);
    while (atomic_load(&shared->done) != number) {
        if (waitpid(second, NULL, WNOHANG) != 0) {
            fail_msg("the second rank hangs or has crashed in walk %u", number);
        }
        walker_pause();
    }
    end[1] = shared->end;
}
