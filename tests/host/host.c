#include "tests/host/host.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

const struct links_config host_links = {.part_size = 1000,
    .window = 10000,
    .max_control_message = 1u << 20,
    .max_bulk_message = 1u << 20,
    .heartbeat_us = 1000,
    .timeout_us = 10000,
    .resend_us = 1000};

static bool host_transmit(void *context, uint16_t peer, enum link_lane lane, const uint8_t *header,
    size_t header_size, const uint8_t *body, size_t body_size, struct buffer *owner)
{
    const struct host *host = context;

    (void)owner;
    assert(peer < HOST_NODES && host->to[peer] != NULL);
    host_queue_put(host->to[peer], host->config.node, lane, header, header_size, body, body_size);
    return true;
}

void host_start(struct host *host)
{
    struct core_config *config = &host->config;

    config->incarnation++;
    config->memory = host_memory_ops(&host->memory);
    config->transmit = host_transmit;
    config->transmit_context = host;
    if (config->links.window == 0) {
        config->links = host_links;
    }
    host->core = core_create(config, &host->refused);
    assert(host->core != NULL);
}

void host_drain(struct host *host)
{
    struct action action;

    while (core_next_action(host->core, &action)) {
        if (action.type != ACTION_COMPUTE) {
            host->note(host->context, &action);
        } else if (host->submit == NULL || !host->submit(host->context, action.compute)) {
            assert(host->helds < HOST_HELD);
            host->held[host->helds++] = action.compute;
        }
    }
}

/* Hands the core one event, without running the computes to which the event leads. */
static enum adtopk_status host_raise(struct host *host, struct event *event)
{
    enum adtopk_status status;

    event->now_us = host->now_us += host->tick_us;
    host->refused = (struct error){.code = ADTOPK_OK};
    status = core_event(host->core, event, &host->refused);
    assert(host->refused.code == status && (status == ADTOPK_OK || host->refused.text[0] != '\0'));
    host_drain(host);
    return status;
}

enum adtopk_status host_event(struct host *host, struct event event)
{
    const enum adtopk_status status = host_raise(host, &event);
    const struct error refused = host->refused;

    if (!host->hold) {
        host_compute(host);
    }
    host->refused = refused;
    return status;
}

void host_compute_one(struct host *host)
{
    struct event done = {.type = EVENT_COMPUTE_DONE, .compute = host->held[0]};
    enum adtopk_status status;

    assert(host->helds > 0);
    memmove(host->held, host->held + 1, --host->helds * sizeof(host->held[0]));
    done.compute->run(done.compute);
    status = host_raise(host, &done);
    assert(status == ADTOPK_OK);
}

void host_compute(struct host *host)
{
    while (host->helds > 0) {
        host_compute_one(host);
    }
}

bool host_receive(struct host *host, struct host_queue *queue)
{
    struct host_packet *packet = host_queue_take(queue);

    if (packet != NULL) {
        (void)host_event(host, (struct event){.type = EVENT_PACKET,
                                   .packet = {.peer = packet->from,
                                       .lane = packet->lane,
                                       .bytes = packet->bytes,
                                       .size = packet->size}});
        free(packet);
    }
    return packet != NULL;
}

void host_timer(struct host *host)
{
    if (core_deadline(host->core) <= host->now_us) {
        (void)host_event(host, (struct event){.type = EVENT_TIMER});
    }
}

void host_kill(struct host *host)
{
    core_destroy(host->core);
    host->core = NULL;
    host->memory.job = 0;
    host->helds = 0;
}

void host_stop(struct host *host)
{
    host_kill(host);
    host_memory_free(&host->memory);
}
