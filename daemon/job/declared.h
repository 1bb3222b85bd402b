/*
 * What a node has declared as lost with others, as a value: job/declare.h.
 *
 * It lies in the store with the views (views.h), so a restarted daemon knows it. A node that comes
 * back with its residuals has lost nothing. So each lost node is listed until it is a member again.
 * If the list is full, the loss of its first node becomes final.
 */
#ifndef ADTOPK_JOB_DECLARED_H
#define ADTOPK_JOB_DECLARED_H

#include <stdbool.h>
#include <stdint.h>

#include "daemon/job/info.h"

#define DECLARED_MOST 64u

struct declared_node {
    struct member_residual residual; /* as it told last */
    uint16_t node;
};

struct declared {
    struct lost_info final; /* of nodes that are not listed any more */
    uint32_t nodes;
    struct declared_node node[DECLARED_MOST]; /* in the order in which they were lost */
};

/* The node is lost. */
void declared_add(struct declared *declared, uint16_t node, const struct member_residual *residual);
/* It has come back with what it had. False: it is not listed. */
bool declared_withdraw(struct declared *declared, uint16_t node, struct member_residual *residual);
/* It has come back without what it had. */
void declared_finish(struct declared *declared, uint16_t node);
struct lost_info declared_total(const struct declared *declared);
/* Whether memory that a daemon left may be read. */
bool declared_fits(const struct declared *declared);

#endif
