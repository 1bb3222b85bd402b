/*
 * Names of phases, of reasons for waiting and of what tensors are, for reports and errors.
 */
#ifndef ADTOPK_JOB_NAMES_H
#define ADTOPK_JOB_NAMES_H

#include "daemon/job/info.h"

const char *phase_name(enum phase phase);

/** A word for programs, such as "push". */
const char *wait_kind_name(enum wait_kind kind);

const char *dtype_name(enum dtype dtype);

/** A tensor's type and shape, such as "bf16 [512, 3]". */
struct spec_text {
    char text[200];
};
struct spec_text spec_describe(const struct tensor_spec *spec);

#endif
