/*
 * The tensors that ranks describe.
 */
#ifndef ADTOPK_JOB_REGISTER_H
#define ADTOPK_JOB_REGISTER_H

#include "daemon/job/model.h"

enum adtopk_status register_tensor(
    struct rank *rank, const struct tensor_spec *spec, struct error *err);
enum adtopk_status register_disagree(
    struct rank *rank, const char *what, const char *name, struct error *err);

/* Tensor `t` of those in force and, after them, of the batch that is registered; the number of all
 * these. */
struct tensor *register_at(const struct job *job, uint32_t t);
uint32_t register_count(const struct job *job);
/* The first tensor of a batch, and the one behind its last. That of a batch which no rank has
 * committed may still move. */
uint32_t register_first(const struct job *job, unsigned batch);
uint32_t register_end(const struct job *job, unsigned batch);
/* A rank commits the batch: its tensors are final. */
void register_fix(struct job *job, unsigned batch);
/* The job has so many batches in force: parts the tensors of others from theirs. */
enum adtopk_status register_part(struct job *job, unsigned batches);

#endif
