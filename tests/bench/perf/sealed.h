/*
 * TCP with the cipher of CurveZMQ, XSalsa20 with Poly1305 by libsodium: the floor of links under
 * CURVE.
 */
#ifndef PERF_SEALED_H
#define PERF_SEALED_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The most that is sealed at once: as much as a packet of a link has. */
#define SEALED_PART (1u << 20)

/* One end. Both ends have the same key, and count what they sealed and opened. */
struct sealed {
    uint64_t count;
    uint8_t *part; /* SEALED_PART and the authenticator */
};

/** False without memory. sealed_end() frees what it took. */
bool sealed_begin(struct sealed *end);
void sealed_end(struct sealed *end);

/** All of it, part by part, or false. The receiver also fails if a part was changed. */
bool sealed_send(struct sealed *end, int fd, const void *bytes, size_t size);
bool sealed_receive(struct sealed *end, int fd, void *bytes, size_t size);

#endif
