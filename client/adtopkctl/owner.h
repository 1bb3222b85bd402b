/*
 * The owner in the name of a job, as the user gives it.
 */
#ifndef ADTOPK_OWNER_H
#define ADTOPK_OWNER_H

#include "client/adtopkctl/text.h"

/** "USER:NAME" with the user's number, as daemons want it; any other text as it is. */
const char *owner_with_number(const char *job, char out[TEXT_SIZE]);

#endif
