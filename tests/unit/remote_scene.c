#include "remote_scene.h"

struct remote_host host;
static struct raw_trainer bystander;
static uint64_t bystander_step;
float ones[NUMEL];

struct remote_stats stats(void)
{
    struct remote_stats found;

    remote_stats(host.remote, &found);
    return found;
}

int start(void **state)
{
    (void)state;
    for (unsigned i = 0; i < NUMEL; i++) {
        ones[i] = 1;
    }
    remote_host_start(&host, (struct remote_config){.owner = 7, .max_sessions = 8});
    raw_open(&bystander, &host, NULL, NULL, NULL);
    raw_join(&bystander, "bystander", 1, NUMEL);
    bystander_step = 0;
    return 0;
}

void take_step(struct raw_trainer *raw, uint64_t step)
{
    const Adtopk__RemoteReply *reply;

    raw_push(raw, 0, step, 0, ones, sizeof ones);
    raw_step_end(raw, step);
    reply = raw_receive(raw, PATIENCE_MS);
    assert_non_null(reply);
    assert_int_equal(reply->kind_case, ADTOPK__REMOTE_REPLY__KIND_UPDATE);
    assert_int_equal(reply->update->span, NUMEL);
    assert_int_equal(raw->part_size, sizeof ones);
    assert_memory_equal(raw->part, ones, sizeof ones);
    reply = raw_receive(raw, PATIENCE_MS);
    assert_non_null(reply);
    assert_int_equal(reply->kind_case, ADTOPK__REMOTE_REPLY__KIND_STEP);
    assert_int_equal(reply->step->number, step);
}

int stop(void **state)
{
    (void)state;
    take_step(&bystander, bystander_step);
    raw_close(&bystander);
    remote_host_run(&host, 50);
    remote_host_stop(&host);
    return 0;
}

void join(struct raw_trainer *raw)
{
    raw_open(raw, &host, NULL, NULL, NULL);
    raw_join(raw, "job", 2, NUMEL);
}
