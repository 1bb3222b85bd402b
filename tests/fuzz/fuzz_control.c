/*
 * Fuzz target: what adtopkctl and the daemon say to each other. The first byte says who speaks.
 */
#include "control.pb-c.h"
#include "tests/fuzz/message.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    message_check_dialogue(
        &adtopk__control_request__descriptor, &adtopk__control_reply__descriptor, data, size);
    return 0;
}
