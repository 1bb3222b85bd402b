#include "daemon/compute/launch_describe.h"

#include <stdio.h>

#include "daemon/compute/launch.h"
#include "daemon/job/members.h"

#define VERSION_SIZE 24

/* As NCCL counts: 22809 is 2.28.9. */
static const char *print_version(uint32_t version, char text[VERSION_SIZE])
{
    (void)snprintf(
        text, VERSION_SIZE, "%u.%u.%u", version / 10000, version / 100 % 100, version % 100);
    return text;
}

static bool names_carried(const struct job *job)
{
    for (uint32_t t = 0; job->plan->tensor != NULL && t < job->plan->tensors; t++) {
        const struct plan_tensor *planned = &job->plan->tensor[t];
        const struct collective_ops *ops = planned->dense || planned->known
                                               ? planned->policy.dense_collective
                                               : planned->policy.sparse_collective;
        if (ops->traits.framed != NULL) {
            return true;
        }
    }
    return false;
}

/* The first member whose carrier, or number of GPUs, differs from this node's. */
static const struct member *odd_member(const struct job *job)
{
    for (unsigned i = 0; i < job->in_force.nodes; i++) {
        const struct member *member = members_find(job, job->in_force.node[i]);
        if (member != NULL && (member->carrier.version != job->core->config.carrier_version ||
                                  member->carrier.devices != launch_devices(job))) {
            return member;
        }
    }
    return NULL;
}

void launch_describe(const struct job *job, char *text, size_t size)
{
    const struct core_config *config = &job->core->config;
    const struct member *odd = odd_member(job);
    char own[VERSION_SIZE], others[VERSION_SIZE];

    text[0] = '\0';
    if (job->view == 0 || !names_carried(job)) {
        return;
    }
    (void)print_version(config->carrier_version, own);
    if (config->carrier == NULL) {
        (void)snprintf(text, size, "by ZeroMQ: node %u has no NCCL", config->node);
    } else if (job->plan->policy.engine == POLICY_ENGINE_HOST) {
        (void)snprintf(text, size, "by ZeroMQ: the policy keeps residuals in host memory");
    } else if (odd == NULL && launch_devices(job) > 1) {
        (void)snprintf(text, size, "by %s %s, between %u GPUs of each node", config->carrier->name,
            own, launch_devices(job));
    } else if (odd == NULL) {
        (void)snprintf(text, size, "by %s %s", config->carrier->name, own);
    } else if (odd->carrier.version == 0) {
        (void)snprintf(
            text, size, "by ZeroMQ: node %u has no %s", odd->node, config->carrier->name);
    } else if (odd->carrier.version == config->carrier_version) {
        (void)snprintf(text, size, "by ZeroMQ: the job has %u GPUs on node %u, and %u on node %u",
            launch_devices(job), config->node, odd->carrier.devices, odd->node);
    } else {
        (void)snprintf(text, size, "by ZeroMQ: %s is %s on node %u, and %s on node %u",
            config->carrier->name, own, config->node, print_version(odd->carrier.version, others),
            odd->node);
    }
}
