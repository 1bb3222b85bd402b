#include "client/src/ring.h"

bool ring_writer_has_room(const struct ring_writer *writer)
{
    return writer->tail - atomic_load(&writer->page->head) < LOCAL_RING_ENTRIES;
}

void ring_writer_put(struct ring_writer *writer, const struct local_entry *entry)
{
    writer->ring->entry[writer->tail % LOCAL_RING_ENTRIES] = *entry;
    writer->tail++;
    atomic_store(&writer->ring->tail, writer->tail);
}

bool ring_writer_must_wake(struct ring_writer *writer)
{
    const uint32_t sleep = atomic_load(&writer->page->daemon_asleep);

    if (sleep == 0 || sleep == writer->answered) {
        return false;
    }
    writer->answered = sleep;
    return true;
}

void ring_writer_sleep(struct ring_writer *writer)
{
    writer->sleep++;
    writer->sleep += writer->sleep == 0;
    atomic_store(&writer->ring->client_asleep, writer->sleep);
}

void ring_writer_awake(struct ring_writer *writer)
{
    atomic_store_explicit(&writer->ring->client_asleep, 0, memory_order_release);
}
