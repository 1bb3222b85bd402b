/*
 * Fuzz target: the messages between a trainer and its daemon. The first byte chooses the sender.
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
