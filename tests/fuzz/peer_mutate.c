/*
 * Mutations of fuzz_peer's inputs: two bytes, then records of a kind, a length and so many bytes. A
 * byte that comes in between by chance makes other records of all that follow. So most mutations
 * here change whole records, or one of them, and crossing two inputs cuts both between records.
 */
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define HEAD 2u        /* bytes before the first record */
#define RECORD_HEAD 2u /* its kind and length */
#define RECORD_MOST (RECORD_HEAD + 255u)
#define RECORDS_MAX 256u
#define INPUT_MAX 65536u
#define NEW_BYTES 12u  /* of a new record at most */
#define NEW_RECORDS 3u /* that come in at most at once */

/* The first is libFuzzer's. */
size_t LLVMFuzzerMutate(uint8_t *data, size_t size, size_t max_size);
size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t max_size, unsigned seed);
size_t LLVMFuzzerCustomCrossOver(const uint8_t *first, size_t first_size, const uint8_t *second,
    size_t second_size, uint8_t *out, size_t max_out, unsigned seed);

enum mutation { CHANGE, INSERT, REMOVE, REPEAT, MOVE, RENAME, HEADER, MUTATIONS };

/* Where records begin; the last one of these is the end of all. */
struct records {
    unsigned count;
    size_t begin[RECORDS_MAX + 1];
};

struct made {
    uint8_t bytes[INPUT_MAX];
    size_t size, most;
};

static uint32_t draw(uint32_t *state, uint32_t below)
{
    *state ^= *state << 13;
    *state ^= *state >> 17;
    *state ^= *state << 5;
    return *state % below;
}

static void find_records(const uint8_t *data, size_t size, struct records *records)
{
    size_t at = HEAD;

    records->count = 0;
    while (size - at >= RECORD_HEAD && records->count < RECORDS_MAX) {
        const size_t left = size - at - RECORD_HEAD;

        records->begin[records->count++] = at;
        at += RECORD_HEAD + (data[at + 1] < left ? data[at + 1] : left);
    }
    records->begin[records->count] = at;
}

static void put(struct made *made, const uint8_t *bytes, size_t size)
{
    if (size <= made->most - made->size) {
        memcpy(made->bytes + made->size, bytes, size);
        made->size += size;
    }
}

/* Records from `from` to before `to`. */
static void put_records(struct made *made, const uint8_t *data, const struct records *records,
    unsigned from, unsigned to)
{
    put(made, data + records->begin[from], records->begin[to] - records->begin[from]);
}

/* Half of new records are empty, which to most kinds is what a correct peer does. */
static void put_new(struct made *made, uint32_t *state)
{
    uint8_t record[RECORD_HEAD + NEW_BYTES] = {(uint8_t)draw(state, 256), 0};

    record[1] = (uint8_t)(draw(state, 2) * draw(state, NEW_BYTES + 1));
    for (unsigned i = 0; i < record[1]; i++) {
        const uint32_t size = draw(state, 3); /* most numbers are small ones */

        record[RECORD_HEAD + i] = (uint8_t)(size == 0 ? 0 : draw(state, size == 1 ? 8 : 256));
    }
    put(made, record, RECORD_HEAD + record[1]);
}

/* The record with other bytes, or of another kind. */
static void put_changed(struct made *made, const uint8_t *data, const struct records *records,
    unsigned which, bool rename, uint32_t *state)
{
    uint8_t record[RECORD_MOST];
    const size_t begin = records->begin[which], size = records->begin[which + 1] - begin;

    memcpy(record, data + begin, size);
    record[1] = (uint8_t)(size - RECORD_HEAD);
    if (rename) {
        record[0] = (uint8_t)draw(state, 256);
    } else {
        record[1] = (uint8_t)LLVMFuzzerMutate(
            record + RECORD_HEAD, size - RECORD_HEAD, RECORD_MOST - RECORD_HEAD);
    }
    put(made, record, RECORD_HEAD + record[1]);
}

static void mutate(struct made *made, const uint8_t *data, const struct records *records,
    enum mutation what, uint32_t *state)
{
    const unsigned count = records->count, which = draw(state, count), to = draw(state, count + 1);
    const bool moves = what == MOVE || what == REPEAT;

    put(made, data, HEAD);
    if (what == HEADER) {
        made->bytes[draw(state, HEAD)] = (uint8_t)draw(state, 256);
    }
    for (unsigned i = 0; i <= count; i++) {
        if (i == to && what == INSERT) {
            for (uint32_t left = 1 + draw(state, NEW_RECORDS); left > 0; left--) {
                put_new(made, state);
            }
        } else if (i == to && moves) {
            put_records(made, data, records, which, which + 1);
        }
        if (i == count || (i == which && (what == REMOVE || what == MOVE))) {
            continue;
        }
        if (i == which && (what == CHANGE || what == RENAME)) {
            put_changed(made, data, records, i, what == RENAME, state);
        } else {
            put_records(made, data, records, i, i + 1);
        }
    }
}

/* One in eight is changed without regard to records. */
size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t max_size, unsigned seed)
{
    static struct made made; /* large */
    struct records records;
    uint32_t state = seed * UINT32_C(2654435761) | 1;

    if (size < HEAD || draw(&state, 8) == 0) {
        return LLVMFuzzerMutate(data, size, max_size);
    }
    find_records(data, size, &records);
    made.size = 0;
    made.most = max_size < INPUT_MAX ? max_size : INPUT_MAX;
    if (records.count == 0) {
        put(&made, data, HEAD);
        put_new(&made, &state);
    } else {
        mutate(&made, data, &records, (enum mutation)draw(&state, MUTATIONS), &state);
    }
    memcpy(data, made.bytes, made.size);
    return made.size;
}

/* The first records of one input, and the last ones of the other. */
size_t LLVMFuzzerCustomCrossOver(const uint8_t *first, size_t first_size, const uint8_t *second,
    size_t second_size, uint8_t *out, size_t max_out, unsigned seed)
{
    static struct made made; /* large */
    struct records one, other;
    uint32_t state = seed * UINT32_C(2654435761) | 1;

    if (first_size < HEAD || second_size < HEAD) {
        return 0;
    }
    find_records(first, first_size, &one);
    find_records(second, second_size, &other);
    made.size = 0;
    made.most = max_out < INPUT_MAX ? max_out : INPUT_MAX;
    put(&made, first, HEAD);
    put_records(&made, first, &one, 0, draw(&state, one.count + 1));
    put_records(&made, second, &other, draw(&state, other.count + 1), other.count);
    memcpy(out, made.bytes, made.size);
    return made.size;
}
