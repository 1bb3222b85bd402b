#include "client/src/sized.h"

#include <stdint.h>
#include <string.h>

#define SIZED_MIN (2 * sizeof(size_t)) /* the size and one field */
#define SIZED_MAX 4096u /* no structure grows that large: the program did not set the size */

static size_t sized_of(const void *given)
{
    size_t size;

    memcpy(&size, given, sizeof size);
    return size;
}

enum adtopk_status client_sized_check(const char *name, const void *given, struct error *err)
{
    size_t size;

    if (given == NULL) {
        return error_set(err, ADTOPK_ERR_ARGUMENT, "the pointer to %s is NULL", name);
    }
    size = sized_of(given);
    if (size < SIZED_MIN || size > SIZED_MAX || size % _Alignof(size_t) != 0) {
        return error_set(err, ADTOPK_ERR_ARGUMENT, "the size in %s is %zu: set it to sizeof(%s)",
            name, size, name);
    }
    return ADTOPK_OK;
}

enum adtopk_status client_sized_take(
    const char *name, const void *given, void *known, size_t size, struct error *err)
{
    const enum adtopk_status status = client_sized_check(name, given, err);
    const uint8_t *bytes = given;

    if (status != ADTOPK_OK) {
        return status;
    }
    for (size_t i = size; i < sized_of(given); i++) {
        if (bytes[i] != 0) {
            return error_set(err, ADTOPK_ERR_ARGUMENT,
                "%s has %zu bytes, and uses fields beyond the %zu that version %s of "
                "libadtopk-client knows: install a later one",
                name, sized_of(given), size, ADTOPK_CLIENT_VERSION);
        }
    }
    memset(known, 0, size);
    memcpy(known, given, sized_of(given) < size ? sized_of(given) : size);
    return ADTOPK_OK;
}

void client_sized_fill(void *given, const void *known, size_t size)
{
    const size_t wanted = sized_of(given);

    memset(given, 0, wanted);
    memcpy(given, known, wanted < size ? wanted : size);
    memcpy(given, &wanted, sizeof wanted);
}
