/*
 * Fuzz target: what a trainer and its daemon say to each other. The first byte says who speaks.
 */
#include "local.pb-c.h"
#include "tests/fuzz/message.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    message_check_dialogue(
        &adtopk__local_request__descriptor, &adtopk__local_reply__descriptor, data, size);
    return 0;
}
