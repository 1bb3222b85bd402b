#include "proto/faults.h"

#include <stdarg.h>
#include <stddef.h>

enum adtopk_status faults_add(
    struct faults *faults, enum adtopk_status code, const char *format, ...)
{
    va_list args;

    if (faults->count < FAULTS_MAX) {
        va_start(args, format);
        (void)error_set_args(&faults->fault[faults->count], code, format, args);
        va_end(args);
    }
    faults->count++;
    return code;
}

enum adtopk_status faults_first(const struct faults *faults, struct error *err)
{
    if (faults->count == 0) {
        return ADTOPK_OK;
    }
    if (err != NULL) {
        *err = faults->fault[0];
    }
    return faults->fault[0].code;
}

bool faults_full(const struct faults *faults)
{
    return faults->count >= (faults->first_only ? 1 : FAULTS_MAX);
}

unsigned faults_kept(const struct faults *faults)
{
    return faults->count < FAULTS_MAX ? faults->count : FAULTS_MAX;
}
