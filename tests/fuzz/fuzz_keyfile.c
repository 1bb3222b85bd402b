/*
 * Fuzz target: the text of a key file. An accepted pair holds together.
 */
#include <stdint.h>
#include <stdlib.h>
#include <zmq.h>

#include "proto/keyfile.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct keyfile_pair pair;
    struct error err = {.code = ADTOPK_OK};
    enum adtopk_status status =
        keyfile_parse("file", (const char *)data, size, zmq_curve_public, &pair, &err);

    if (status == ADTOPK_OK) {
        if (!keyfile_is_key(pair.public_key) ||
            (pair.secret_key[0] != '\0' && !keyfile_is_key(pair.secret_key))) {
            abort();
        }
    } else if (err.code != status || err.text[0] == '\0' || pair.secret_key[0] != '\0') {
        abort();
    }
    return 0;
}
