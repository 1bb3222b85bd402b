/* Tickets: a client outside waits for the outcome of a request. */
#include "daemon/job/ticket.h"

#include <stdlib.h>

#include "daemon/job/actions.h"
#include "daemon/job/job_fail.h"

struct ticket *ticket_create(uint64_t number)
{
    struct ticket *ticket = calloc(1, sizeof(*ticket));
    struct failure *failure = calloc(1, sizeof(*failure));

    if (ticket == NULL || failure == NULL) {
        free(ticket);
        free(failure);
        return NULL;
    }
    failure->references = 1;
    *ticket = (struct ticket){.number = number, .failure = failure};
    return ticket;
}

void ticket_free(struct ticket *ticket)
{
    while (ticket != NULL) {
        struct ticket *next = ticket->next;

        job_drop_failure(ticket->failure);
        free(ticket);
        ticket = next;
    }
}

unsigned ticket_count(const struct ticket *first)
{
    unsigned count = 0;

    for (; first != NULL; first = first->next) {
        count++;
    }
    return count;
}

void ticket_answer(struct job *job, struct ticket **ticket, const struct action *outcome,
    const struct error *error)
{
    struct action action = *outcome;

    if (*ticket == NULL) {
        return;
    }
    action.ticket = (*ticket)->number;
    if (error != NULL) {
        action.status = error->code;
        (*ticket)->failure->error = *error;
        action.error = &(*ticket)->failure->error; /* the action has the reference now */
    } else {
        action.status = ADTOPK_OK;
        job_drop_failure((*ticket)->failure);
    }
    core_act(job->core, &action);
    free(*ticket);
    *ticket = NULL;
}

void ticket_answer_all(
    struct job *job, struct ticket **first, const struct action *outcome, const struct error *error)
{
    while (*first != NULL) {
        struct ticket *ticket = *first;

        *first = ticket->next;
        ticket_answer(job, &ticket, outcome, error);
    }
}
