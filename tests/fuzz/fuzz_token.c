/*
 * Fuzz target: the messages of bulk tokens. An accepted message is written back unchanged.
 */
#include <stdlib.h>
#include <string.h>

#include "daemon/transport/token.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct token_message message;
    uint8_t bytes[TOKEN_GRANT_SIZE];

    if (token_decode(&message, data, size) &&
        (!token_is_message(data, size) || token_encode(&message, bytes) != size ||
            memcmp(bytes, data, size) != 0)) {
        abort();
    }
    return 0;
}
