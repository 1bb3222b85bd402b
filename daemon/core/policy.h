/*
 * The policy of a job: what its JSON document says, with every default filled in.
 */
#ifndef ADTOPK_POLICY_H
#define ADTOPK_POLICY_H

#include <stdbool.h>
#include <stdint.h>

#include "daemon/collective/collective.h"
#include "daemon/sparsify/sparsifier.h"
#include "proto/error.h"

#define POLICY_TEXT_SIZE 1024

enum policy_scope { SCOPE_NODE = 0, SCOPE_RANK };
enum policy_reduce { REDUCE_MEAN = 0, REDUCE_SUM };
enum policy_peer_loss { PEER_LOSS_WAIT = 0, PEER_LOSS_FAIL };

struct policy {
    const struct sparsifier_ops *sparsifier;
    struct sparsifier_params params;
    enum policy_scope scope;
    enum policy_reduce reduce;
    enum policy_peer_loss on_peer_loss;
    enum payload_index indices;
    enum payload_value values;       /* of sparse contributions */
    enum payload_value dense_values; /* of dense ones */
    const struct collective_ops *sparse_collective;
    const struct collective_ops *dense_collective;
    uint64_t bucket_bytes; /* gradient bytes of one bucket, about */
    uint64_t join_timeout_us;
    uint64_t push_timeout_us;
    uint64_t wait_limit_us;
};

/** What holds where a document says nothing. */
void policy_default(struct policy *policy);

/**
 * Reads a JSON document on top of *policy. Strict: an unknown or repeated key, a wrong type, a
 * value out of range or text after the document is an error that names the key. *policy is
 * unchanged on error.
 */
enum adtopk_status policy_parse(struct policy *policy, const char *json, struct error *err);

/** The canonical document: every key, in a fixed order. Two policies are equal if and only if
 * their texts are. */
void policy_print(const struct policy *policy, char text[POLICY_TEXT_SIZE]);

#endif
