#include "tests/bench/perf/sealed.h"

#include <sodium.h>
#include <stdlib.h>
#include <string.h>

#include "tests/bench/perf/tcp.h"

/* Nothing secret is sent, so the key may be known. */
static const uint8_t key[crypto_secretbox_KEYBYTES] = {1};

static void next_nonce(struct sealed *end, uint8_t nonce[crypto_secretbox_NONCEBYTES])
{
    memset(nonce, 0, crypto_secretbox_NONCEBYTES);
    end->count++;
    memcpy(nonce, &end->count, sizeof(end->count));
}

static size_t part_size(size_t left)
{
    return left < SEALED_PART ? left : SEALED_PART;
}

bool sealed_begin(struct sealed *end)
{
    *end = (struct sealed){.part = malloc(SEALED_PART + crypto_secretbox_MACBYTES)};
    return sodium_init() >= 0 && end->part != NULL;
}

void sealed_end(struct sealed *end)
{
    free(end->part);
    end->part = NULL;
}

bool sealed_send(struct sealed *end, int fd, const void *bytes, size_t size)
{
    const uint8_t *at = bytes;
    uint8_t nonce[crypto_secretbox_NONCEBYTES];

    while (size > 0) {
        const size_t part = part_size(size);

        next_nonce(end, nonce);
        if (crypto_secretbox_easy(end->part, at, part, nonce, key) != 0 ||
            !tcp_send(fd, end->part, part + crypto_secretbox_MACBYTES)) {
            return false;
        }
        at += part;
        size -= part;
    }
    return true;
}

bool sealed_receive(struct sealed *end, int fd, void *bytes, size_t size)
{
    uint8_t *at = bytes;
    uint8_t nonce[crypto_secretbox_NONCEBYTES];

    while (size > 0) {
        const size_t part = part_size(size), sealed = part + crypto_secretbox_MACBYTES;

        next_nonce(end, nonce);
        if (!tcp_receive(fd, end->part, sealed) ||
            crypto_secretbox_open_easy(at, end->part, sealed, nonce, key) != 0) {
            return false;
        }
        at += part;
        size -= part;
    }
    return true;
}
