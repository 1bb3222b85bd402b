#include "tests/host/queue.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

void host_queue_put(struct host_queue *queue, uint16_t from, enum link_lane lane,
    const uint8_t *header, size_t header_size, const uint8_t *body, size_t body_size)
{
    struct host_packet *packet = malloc(sizeof(*packet) + header_size + body_size);

    assert(packet != NULL);
    *packet = (struct host_packet){.from = from, .lane = lane, .size = header_size + body_size};
    memcpy(packet->bytes, header, header_size);
    if (body_size > 0) {
        memcpy(packet->bytes + header_size, body, body_size);
    }
    if (queue->first == NULL) {
        queue->first = packet;
    } else {
        queue->last->next = packet;
    }
    queue->last = packet;
}

struct host_packet *host_queue_take(struct host_queue *queue)
{
    struct host_packet *packet = queue->first;

    if (packet != NULL) {
        queue->first = packet->next;
    }
    return packet;
}

void host_queue_drop(struct host_queue *queue)
{
    struct host_packet *packet;

    while ((packet = host_queue_take(queue)) != NULL) {
        free(packet);
    }
}
