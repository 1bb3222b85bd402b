/* Checking the configured policy, in the place where it stands. */
#include <string.h>

#include "daemon/config.h"
#include "daemon/config_option.h"
#include "daemon/core/policy.h"

void config_check_policy(const struct config *config, struct faults *faults)
{
    const struct option *option = option_find("policy", strlen("policy"));
    const struct config_source *source = &config->source[option - option_table];
    struct policy policy;
    char where[CONFIG_SOURCE_SIZE];

    if (config->policy == NULL) {
        return;
    }
    policy_default(&policy);
    if (source->layer == LAYER_FILE) {
        (void)policy_read_part(
            &policy, config->file, config->text, config->text + source->place, faults);
    } else {
        config_where(config, "policy", where);
        (void)policy_read(&policy, where, config->policy, faults);
    }
}
