/* policy get, check, set and log. */
#include <stdlib.h>
#include <string.h>

#include "client/adtopkctl/show.h"
#include "client/adtopkctl/text.h"
#include "daemon/policy/policy.h"

#define KEY_COLUMNS 20
#define MATCH_COLUMNS 60

static void show_line(FILE *out, bool changed, const char *key, const char *value)
{
    char clean[TEXT_SIZE];

    (void)fputs(changed ? "* " : "  ", out);
    text_pad(out, text_clean(key, KEY_COLUMNS, clean), KEY_COLUMNS);
    (void)fprintf(out, "  %s\n", text_clean(value, TEXT_COLUMNS - KEY_COLUMNS - 4, clean));
}

static void show_value(FILE *out, bool changed, const char *key, const cJSON *item)
{
    char *text = cJSON_IsString(item) ? NULL : cJSON_PrintUnformatted(item);
    const bool is_fraction = cJSON_IsNumber(item) && text != NULL && strchr(text, '.') != NULL;
    char number[TEXT_SIZE];

    (void)snprintf(number, sizeof(number), "%.9g", is_fraction ? item->valuedouble : 0);
    show_line(out, changed, key,
        cJSON_IsString(item) ? item->valuestring
        : text == NULL       ? "?"
        : is_fraction        ? number
                             : text);
    cJSON_free(text);
}

static bool show_is_changed(const cJSON *document, const char *key)
{
    const cJSON *name;

    cJSON_ArrayForEach(name, text_member(document, "changed_keys"))
    {
        if (cJSON_IsString(name) && strcmp(name->valuestring, key) == 0) {
            return true;
        }
    }
    return false;
}

/* A line a key; a line an element of an array, which is how rules come. */
static void show_keys(FILE *out, const cJSON *document)
{
    const cJSON *policy = text_member(document, "policy");
    const cJSON *item;
    const cJSON *element;

    cJSON_ArrayForEach(item, policy)
    {
        const char *key = item->string != NULL ? item->string : "";
        const bool changed = show_is_changed(document, key);

        if (!cJSON_IsArray(item) || item->child == NULL) {
            show_value(out, changed, key, item);
            continue;
        }
        cJSON_ArrayForEach(element, item)
        {
            show_value(out, changed, element == item->child ? key : "", element);
        }
    }
    if (cJSON_GetArraySize(text_member(document, "changed_keys")) > 0) {
        (void)fprintf(out, "* not the built-in default\n");
    }
}

void show_unmatched(FILE *out, const cJSON *document)
{
    const cJSON *match;
    char clean[TEXT_SIZE];
    char line[TEXT_SIZE + 40];

    cJSON_ArrayForEach(match, text_member(document, "unmatched_rules"))
    {
        (void)snprintf(line, sizeof(line), "no tensor's name matches the rule \"%s\"",
            text_clean(cJSON_IsString(match) ? match->valuestring : "-", MATCH_COLUMNS, clean));
        text_wrapped(out, "warning:", line);
    }
}

/* Keys that have no effect beside the others. */
static void show_contradictions(FILE *out, const cJSON *policy)
{
    char loss[TEXT_SIZE];
    const bool shrinks = strcmp(text_string(policy, "on_peer_loss", 20, loss), "shrink") == 0;

    if (text_true(policy, "grow") && !shrinks) {
        text_wrapped(out, "warning:", "\"grow\" does nothing without \"on_peer_loss\" \"shrink\"");
    }
    if (shrinks && text_number(policy, "wait_limit") <= text_number(policy, "shrink_after")) {
        text_wrapped(out, "warning:",
            "the job ends after \"wait_limit\", before it goes on without a lost node after "
            "\"shrink_after\"");
    }
}

/* "KEY=VALUE" of each key that is not as built in, with a comma between two. */
static void show_change_list(FILE *out, const cJSON *changes)
{
    const cJSON *key;
    char clean[TEXT_SIZE];

    cJSON_ArrayForEach(key, changes)
    {
        char *value = cJSON_PrintUnformatted(key);

        (void)fprintf(out, "%s%s=", key != changes->child ? ", " : "",
            text_clean(key->string != NULL ? key->string : "", MATCH_COLUMNS, clean));
        (void)fputs(text_clean(value != NULL ? value : "?", MATCH_COLUMNS, clean), out);
        cJSON_free(value);
    }
}

void show_changes(FILE *out, const cJSON *job)
{
    const cJSON *changes = text_member(job, "policy_changes");
    char *list = NULL;
    size_t size = 0;
    FILE *memory = cJSON_GetArraySize(changes) > 0 ? open_memstream(&list, &size) : NULL;

    if (memory != NULL) {
        show_change_list(memory, changes);
        if (fclose(memory) == 0) {
            text_wrapped(out, "policy set:", list);
        }
        free(list);
    }
}

/* The density that follows from a budget. */
static void show_density(FILE *out, const cJSON *document)
{
    char *text = cJSON_PrintUnformatted(document);
    char sparsifier[TEXT_SIZE], line[TEXT_SIZE];
    struct error err;
    struct policy policy;

    policy_default(&policy);
    if (text != NULL && policy_parse(&policy, text, &err) == ADTOPK_OK &&
        policy.tensor.budget > 0 &&
        strcmp(text_string(document, "sparsifier", KEY_COLUMNS, sparsifier), "dense") != 0) {
        (void)snprintf(line, sizeof(line),
            "this budget sends %.3g%% of the entries, where no rule says otherwise",
            100 * policy_settled(&policy.tensor).params.density);
        text_fill(out, 0, 2, line);
    }
    cJSON_free(text);
}

void show_policy(FILE *out, const cJSON *document)
{
    double version = text_number(document, "version");
    double next = text_number(document, "next_version");

    if (text_member(document, "name") == NULL) {
        (void)fprintf(out, "policy\n");
    } else {
        text_job(out, document);
        (void)fprintf(out, ": policy version %.0f", version);
        if (version > 0) {
            (void)fprintf(out, " from step %.0f", text_number(document, "step"));
        }
        (void)fprintf(out, "\n");
    }
    if (next > 0) {
        (void)fprintf(out, "  version %.0f will hold from step %.0f\n", next,
            text_number(document, "next_step"));
    }
    show_unmatched(out, document);
    show_contradictions(out, text_member(document, "policy"));
    show_keys(out, document);
    show_density(out, text_member(document, "policy"));
}

/* The possible values of a key and its default, behind its name, and its meaning below. */
static void show_policy_key(FILE *out, const char *before, const cJSON *key, const char *behind)
{
    char name[TEXT_SIZE];
    char values[TEXT_SIZE];
    char line[2 * TEXT_SIZE + 4];

    (void)fprintf(out, "%s", before);
    text_pad(out, text_string(key, "name", KEY_COLUMNS - 2, name), KEY_COLUMNS - 2);
    (void)snprintf(line, sizeof(line), "%s (%s)", text_string(key, "values", TEXT_SIZE / 2, values),
        text_string(key, "default", TEXT_SIZE / 4, name));
    (void)fprintf(out, "%s  ", behind);
    text_fill(out, KEY_COLUMNS + 2, KEY_COLUMNS + 2, line);
    (void)fprintf(out, "%*s", KEY_COLUMNS + 2, "");
    text_fill(
        out, KEY_COLUMNS + 2, KEY_COLUMNS + 2, text_string(key, "help", TEXT_SIZE / 2, values));
}

void show_policy_keys(FILE *out, const cJSON *document)
{
    const cJSON *key;

    cJSON_ArrayForEach(key, text_member(document, "keys"))
    {
        show_policy_key(out, "", key, text_true(key, "in_rules") ? " *" : "  ");
    }
    (void)fprintf(out,
        "\n* may also stand in a rule, for tensors whose name matches a pattern; the last\n"
        "  rule that matches wins: \"rules\": [{\"match\": \"*.norm*\", "
        "\"sparsifier\": \"dense\"}]\n");
}

static void show_sparsifier(FILE *out, const cJSON *sparsifier)
{
    const cJSON *key;
    char text[TEXT_SIZE];

    text_column(out, sparsifier, "name", KEY_COLUMNS + 2);
    text_fill(out, KEY_COLUMNS + 2, KEY_COLUMNS + 2,
        text_string(sparsifier, "help", TEXT_SIZE / 2, text));
    text_wrapped(out, "entries per turn:", text_string(sparsifier, "entries", TEXT_SIZE / 2, text));
    text_wrapped(out, "source:", text_string(sparsifier, "source", TEXT_SIZE / 2, text));
    cJSON_ArrayForEach(key, text_member(sparsifier, "parameters"))
    {
        show_policy_key(out, "  ", key, "");
    }
    (void)fprintf(out, "\n");
}

void show_sparsifiers(FILE *out, const cJSON *document)
{
    const cJSON *item;

    cJSON_ArrayForEach(item, text_member(document, "sparsifiers"))
    {
        show_sparsifier(out, item);
    }
    (void)fprintf(out, "For all but dense; k is the density's share of the entries, at least 1:\n");
    cJSON_ArrayForEach(item, text_member(document, "parameters"))
    {
        show_policy_key(out, "  ", item, "");
    }
}

/* What a change set; nothing where that is not known. */
static void show_policy_what(FILE *out, const cJSON *change)
{
    char what[TEXT_SIZE];

    if (cJSON_IsString(text_member(change, "what")) &&
        text_string(change, "what", TEXT_SIZE - 1, what)[0] != '\0') {
        text_wrapped(out, "it sets", what);
    }
}

void show_policy_change(FILE *out, const cJSON *document)
{
    text_job(out, document);
    (void)fprintf(out, ": policy version %.0f holds from step %.0f\n",
        text_number(document, "version"), text_number(document, "step"));
    show_policy_what(out, document);
    show_unmatched(out, document);
    show_contradictions(out, text_member(document, "policy"));
}

static void show_policy_past(struct table *table, const cJSON *change)
{
    const cJSON *since = text_member(change, "since_s");
    char text[TEXT_SIZE], duration[TEXT_SIZE];

    table_add(table, change);
    show_count(table, change, "version");
    show_count(table, change, "step");
    (void)snprintf(
        text, sizeof(text), "%s ago", text_duration(text_number(change, "since_s"), duration));
    table_text(table, cJSON_IsNumber(since) ? text : NULL);
    table_text(table, text_true(change, "tensors") ? "more tensors"
                      : text_true(change, "planner")
                          ? "planner"
                          : text_user(text_number(change, "uid"), 24, text));
    table_number(table, text_pid(change, text), text_number(change, "pid"));
    show_count(table, change, "node");
    table_below(table, show_below(change, show_policy_what));
}

void show_policy_log(FILE *out, const cJSON *document)
{
    static const struct table_column columns[] = {{.title = "version", .right = true},
        {.title = "from step", .right = true}, {.title = "when"}, {.title = "by", .least = 8},
        {.title = "process", .right = true}, {.title = "node", .right = true}};
    struct table table;
    const cJSON *change;

    text_job(out, document);
    (void)fprintf(out, ": policy version %.0f%s\n", text_number(document, "version"),
        text_is_over(document) ? " when it ended" : "");
    if (cJSON_GetArraySize(text_member(document, "changes")) == 0) {
        (void)fprintf(out, "no changes\n");
        return;
    }
    table_begin(&table, columns, sizeof(columns) / sizeof(columns[0]));
    cJSON_ArrayForEach(change, text_member(document, "changes"))
    {
        show_policy_past(&table, change);
    }
    show_table(out, &table);
    table_free(&table);
}
