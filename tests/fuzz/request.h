/*
 * An input that is read byte by byte, and a trainer's requests that are made from it: what the
 * targets of both kinds of sessions share.
 */
#ifndef ADTOPK_FUZZ_REQUEST_H
#define ADTOPK_FUZZ_REQUEST_H

#include <stddef.h>
#include <stdint.h>

#include "proto/local.pb-c.h"

struct fuzz_input {
    const uint8_t *data;
    size_t size;
};

/** The next byte, and the next two as a number; 0 at the end. */
unsigned fuzz_byte(struct fuzz_input *input);
unsigned fuzz_number(struct fuzz_input *input);

/* A request. It points into itself, so it must not move. */
struct fuzz_request {
    Adtopk__LocalRequest request;
    Adtopk__LocalOpen open;
    Adtopk__LocalTensor tensor, *list[1];
    Adtopk__LocalRegister batch;
    Adtopk__LocalCommit commit;
    Adtopk__LocalMapped mapped;
    Adtopk__LocalLeave leave;
    uint64_t shape[2];
};

/** Makes a request of this kind; of kinds without a case a goodbye. version: of the protocol. */
void fuzz_request_make(
    struct fuzz_request *made, unsigned kind, uint32_t version, struct fuzz_input *input);

#endif
