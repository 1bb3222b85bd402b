/*
 * Checking the configured policy. The core, which reads policies, knows no files and no lines; so
 * the line of what it refuses is found from outside: the document is cut behind each of its
 * members in turn, and the first cut that is refused with the same words ends with the culprit.
 */
#include <stdlib.h>
#include <string.h>

#include "daemon/config.h"
#include "daemon/config_json.h"
#include "daemon/config_option.h"
#include "daemon/core/policy.h"

#define SEARCH_LIMIT (32u << 10) /* bytes: in a longer policy only its first line is named */
#define SEARCH_DEPTH 8

struct search {
    const char *text;
    const char *sentence; /* what the whole document is refused with */
    char *cut;
    char closer[SEARCH_DEPTH];
    unsigned depth;
};

static enum adtopk_status parse(const char *text, struct error *err)
{
    struct policy policy;

    policy_default(&policy);
    return policy_parse(&policy, text, err);
}

/* Whether the document that ends at `end`, with all that is open closed, is refused alike. */
static bool refused_alike(struct search *search, const char *end)
{
    size_t size = (size_t)(end - search->text);
    struct error err = {.code = ADTOPK_OK};

    memcpy(search->cut, search->text, size);
    for (unsigned i = search->depth; i > 0; i--) {
        search->cut[size++] = search->closer[i - 1];
    }
    search->cut[size] = '\0';
    return parse(search->cut, &err) != ADTOPK_OK && strcmp(err.text, search->sentence) == 0;
}

/* The culprit among the members of the object or array at `container`, or NULL. */
static const char *find_culprit(struct search *search, const char *container)
{
    const bool object = *container == '{';
    const char *place = json_first(container);
    const char *culprit = NULL;

    search->closer[search->depth++] = object ? '}' : ']';
    if (refused_alike(search, container + 1)) { /* whatever is in it */
        place = NULL;
    }
    while (culprit == NULL && place != NULL && *place != '}' && *place != ']') {
        const char *value = object ? json_value(place) : place;

        if (refused_alike(search, json_end(value))) {
            const bool deeper = (*value == '{' || *value == '[') && search->depth < SEARCH_DEPTH;

            culprit = deeper ? find_culprit(search, value) : NULL;
            culprit = culprit != NULL ? culprit : place;
        }
        place = json_next(place);
    }
    search->depth--;
    return culprit;
}

/* Lines of the policy before the one that is refused with `sentence`. */
static unsigned lines_before(const char *text, const char *sentence)
{
    struct search search = {.text = text, .sentence = sentence};
    size_t length = strlen(text);
    const char *culprit = NULL;

    if (length <= SEARCH_LIMIT) {
        search.cut = malloc(length + SEARCH_DEPTH + 1);
    }
    if (search.cut != NULL) {
        culprit = find_culprit(&search, text);
    }
    free(search.cut);
    return culprit != NULL ? json_line(text, culprit) - 1 : 0;
}

enum adtopk_status config_check_policy(const struct config *config, struct error *err)
{
    const struct option *option = option_find("policy", strlen("policy"));
    const struct config_source *source = &config->source[option - option_table];
    struct error reason = {.code = ADTOPK_OK};
    char where[CONFIG_SOURCE_SIZE];

    if (config->policy == NULL || parse(config->policy, &reason) == ADTOPK_OK) {
        return ADTOPK_OK;
    }
    config_where(config, "policy", where);
    if (source->layer == LAYER_FILE) {
        (void)snprintf(where, sizeof(where), "%s:%u", config->file,
            source->line + lines_before(config->policy, reason.text));
    }
    return error_set(err, reason.code, "%s: %s", where, reason.text);
}
