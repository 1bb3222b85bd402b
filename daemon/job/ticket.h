/*
 * Requests whose outcome a client awaits.
 */
#ifndef ADTOPK_JOB_TICKET_H
#define ADTOPK_JOB_TICKET_H

#include "daemon/job/model.h"

struct ticket *ticket_create(uint64_t number);
void ticket_free(struct ticket *ticket); /* and those behind it, without an answer */
/* How many are in a list. Clients that went away still count: their answers are actions, too. */
unsigned ticket_count(const struct ticket *first);
/* Adds the action `outcome`, with ticket, status and error filled in, and frees the ticket, if
 * there is one. error NULL: it was done. */
void ticket_answer(struct job *job, struct ticket **ticket, const struct action *outcome,
    const struct error *error);
/* The same for a list of tickets. */
void ticket_answer_all(struct job *job, struct ticket **first, const struct action *outcome,
    const struct error *error);

#endif
