/*
 * The answers of the server. All who ask for the same one are sent the same memory, of which
 * libmicrohttpd counts the readers.
 *
 * The happy path: answers_keep() for the first request, and the kept answer serves the next ones
 * too; answers_drop() when what it tells has changed. Its memory goes with its last reader.
 * Failures: slow readers hold answers that were dropped. answers_full() tells when these have
 * ANSWERS_OLD_MAX bytes together; then the server makes no other ones for a while.
 */
#ifndef ADTOPK_EXPORTER_ANSWERS_H
#define ADTOPK_EXPORTER_ANSWERS_H

#include <microhttpd.h>
#include <stdbool.h>
#include <stddef.h>

#define ANSWERS_OLD_MAX ((size_t)32 << 20)

/* NULL text: no memory. */
struct answer {
    unsigned code;
    const char *type;
    char *text; /* from malloc() */
    size_t size;
};

/* Begins with zeros. */
struct kept_answer {
    struct MHD_Response *response; /* NULL: none is kept */
    unsigned code;
    size_t size;
};

/* Begins with zeros. It must live until all responses are gone. */
struct answers {
    size_t bytes;      /* of all that are not freed */
    size_t kept_bytes; /* of those that are kept */
};

/** The answer as libmicrohttpd sends it. It takes the text. NULL: no memory. */
struct MHD_Response *answers_make(struct answers *answers, struct answer answer);

/** Makes the answer, and keeps it where none is kept. False: no memory. */
bool answers_keep(struct answers *answers, struct kept_answer *kept, struct answer answer);

/** Keeps the answer no longer, if one is kept. */
void answers_drop(struct answers *answers, struct kept_answer *kept);

/** Whether readers hold too much that is kept no longer. */
bool answers_full(const struct answers *answers);

#endif
