#include "daemon/local/ring.h"

/* Reads a word once. The compiler may neither repeat nor split the read, because the client may
 * write meanwhile. */
static uint32_t ring_load32(const uint32_t *word)
{
    return *(const volatile uint32_t *)word;
}

static uint64_t ring_load64(const uint64_t *word)
{
    return *(const volatile uint64_t *)word;
}

int ring_reader_take(struct ring_reader *reader, struct local_entry *entry, struct error *err)
{
    const uint64_t tail = atomic_load_explicit(&reader->ring->tail, memory_order_acquire);
    const struct local_entry *from = &reader->ring->entry[reader->head % LOCAL_RING_ENTRIES];

    if (tail == reader->head) {
        return 0;
    }
    /* The numbers are unsigned: an index that went back seems far ahead. */
    if (tail - reader->head > LOCAL_RING_ENTRIES) {
        (void)error_set(err, ADTOPK_ERR_PROTOCOL,
            "its ring has %u entries, and its index jumped from %llu to %llu", LOCAL_RING_ENTRIES,
            (unsigned long long)reader->head, (unsigned long long)tail);
        return -1;
    }
    entry->type = ring_load32(&from->type);
    entry->tensor = ring_load32(&from->tensor);
    entry->number = ring_load64(&from->number);
    entry->root = ring_load32(&from->root);
    entry->size = ring_load32(&from->size);
    entry->scale = *(const volatile float *)&from->scale;
    entry->lookahead = *(const volatile float *)&from->lookahead;
    reader->head++;
    return 1;
}

void ring_reader_publish(struct ring_reader *reader)
{
    atomic_store(&reader->page->head, reader->head);
}

bool ring_reader_pending(const struct ring_reader *reader)
{
    return atomic_load(&reader->ring->tail) != reader->head;
}

bool ring_reader_is_let_go(const struct ring_reader *reader)
{
    return atomic_load(&reader->ring->let_go) != 0;
}

bool ring_reader_must_wake(struct ring_reader *reader)
{
    const uint32_t sleep = atomic_load(&reader->ring->client_asleep);

    if (sleep == 0 || sleep == reader->answered) {
        return false;
    }
    reader->answered = sleep;
    return true;
}

void ring_reader_sleep(struct ring_reader *reader)
{
    reader->sleep++;
    reader->sleep += reader->sleep == 0;
    atomic_store(&reader->page->daemon_asleep, reader->sleep);
}

void ring_reader_awake(struct ring_reader *reader)
{
    atomic_store_explicit(&reader->page->daemon_asleep, 0, memory_order_release);
}
