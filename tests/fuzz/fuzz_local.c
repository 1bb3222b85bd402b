/*
 * Fuzz target: what a trainer and its daemon say to each other. The first byte says who speaks.
 */
#include "local.pb-c.h"
#include "tests/fuzz/message.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size > 0) {
        message_check(data[0] % 2 == 0 ? &adtopk__local_request__descriptor
                                       : &adtopk__local_reply__descriptor,
            data + 1, size - 1);
    }
    return 0;
}
