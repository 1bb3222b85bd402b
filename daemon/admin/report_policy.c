/* Policies, and who changed them. */
#include <stdlib.h>
#include <string.h>

#include "daemon/admin/report.h"
#include "daemon/policy/policy.h"

void report_unmatched(struct document *document, cJSON *object, const struct report_daemon *daemon,
    const struct job_info *job)
{
    cJSON *rules = document_array(document, object, "unmatched_rules");
    const char *match;

    for (uint32_t i = 0; (match = core_unmatched_rule(daemon->core, job->id, i)) != NULL; i++) {
        document_append_text(document, rules, match);
    }
}

/* An empty policy, with all keys. NULL: no memory. */
static cJSON *report_policy_usual(void)
{
    struct policy standard;
    char text[POLICY_TEXT_SIZE];

    policy_default(&standard);
    policy_print(&standard, text);
    return cJSON_Parse(text);
}

/* The keys of a policy whose values are not the usual ones. NULL: none, or no memory. */
static cJSON *report_policy_changed(const char *policy, const cJSON *usual)
{
    cJSON *given = cJSON_Parse(policy), *item, *next;

    for (item = given != NULL ? given->child : NULL; item != NULL; item = next) {
        next = item->next;
        if (cJSON_Compare(item, cJSON_GetObjectItemCaseSensitive(usual, item->string), true)) {
            cJSON_Delete(cJSON_DetachItemViaPointer(given, item));
        }
    }
    return given;
}

static void report_policy_add_changed(struct document *document, const char *policy)
{
    cJSON *names = document_array(document, document->root, "changed_keys");
    cJSON *usual = report_policy_usual();
    cJSON *changed = report_policy_changed(policy, usual);
    const cJSON *item;

    cJSON_ArrayForEach(item, changed)
    {
        document_append_text(document, names, item->string);
    }
    cJSON_Delete(changed);
    cJSON_Delete(usual);
}

static void policy_reader_read(struct policy_reader *reader, const char *policy)
{
    cJSON *changed;

    if (reader->changes != NULL && strcmp(policy, reader->policy) == 0) {
        return;
    }
    if (reader->usual == NULL) {
        reader->usual = report_policy_usual();
    }
    free(reader->changes);
    changed = report_policy_changed(policy, reader->usual);
    reader->changes = changed != NULL ? cJSON_PrintUnformatted(changed) : NULL;
    reader->policy = policy;
    cJSON_Delete(changed);
}

void policy_reader_end(struct policy_reader *reader)
{
    free(reader->changes);
    cJSON_Delete(reader->usual);
}

void report_changes(struct document *document, cJSON *object, const struct job_info *job,
    struct policy_reader *reader)
{
    if (job->policy.text == NULL) {
        return;
    }
    policy_reader_read(reader, job->policy.text);
    if (reader->changes != NULL) {
        document_raw(document, object, "policy_changes", reader->changes);
    }
}

char *report_policy(const struct report_daemon *daemon, const struct job_info *job)
{
    const char *policy = job->policy.text != NULL ? job->policy.text : "{}";
    struct document document;

    document_begin(&document);
    report_key(&document, document.root, &job->key);
    document_count(&document, document.root, "version", job->policy.version);
    document_count(&document, document.root, "step", job->policy.step);
    document_count(&document, document.root, "next_version", job->policy.next_version);
    document_count(&document, document.root, "next_step", job->policy.next_step);
    report_unmatched(&document, document.root, daemon, job);
    document_raw(&document, document.root, "policy", policy);
    report_policy_add_changed(&document, policy);
    return document_end(&document);
}

char *report_default_policy(const char *policy)
{
    struct document document;
    struct policy parsed;
    char text[POLICY_TEXT_SIZE];

    policy_default(&parsed);
    if (policy != NULL) {
        (void)policy_parse(&parsed, policy, NULL); /* the core has taken it, so it is right */
    }
    policy_print(&parsed, text);
    document_begin(&document);
    document_raw(&document, document.root, "policy", text);
    report_policy_add_changed(&document, text);
    return document_end(&document);
}

char *report_policy_change(
    const struct report_daemon *daemon, const struct job_info *job, uint32_t version, uint64_t step)
{
    const char *policy = job->policy.text != NULL ? job->policy.text : "{}";
    struct document document;
    struct policy_past past;

    document_begin(&document);
    report_key(&document, document.root, &job->key);
    document_count(&document, document.root, "version", version);
    document_count(&document, document.root, "step", step);
    if (core_policy_change(daemon->core, job->id, 0, &past) && past.change.version == version) {
        document_text(&document, document.root, "what", past.what);
    }
    report_unmatched(&document, document.root, daemon, job);
    document_raw(&document, document.root, "policy", policy);
    return document_end(&document);
}

char *report_policy_log(const struct report_daemon *daemon, const struct job_info *job)
{
    struct document document;
    struct policy_past past;
    cJSON *changes;

    document_begin(&document);
    report_key(&document, document.root, &job->key);
    document_text(&document, document.root, "state", job->state);
    document_count(&document, document.root, "version", job->policy.version);
    changes = document_array(&document, document.root, "changes");
    for (uint32_t i = 0;
         history_policy_change(daemon->jobs.history, daemon->core, job->id, i, &past); i++) {
        const struct policy_change *change = &past.change;
        cJSON *entry = document_append(&document, changes);

        document_count(&document, entry, "version", change->version);
        document_count(&document, entry, "step", change->step);
        document_count(&document, entry, "node", change->node);
        document_count(&document, entry, "uid", change->uid);
        report_pid(&document, entry, change->pid);
        document_bool(&document, entry, "planner", change->uid == POLICY_PLANNER);
        document_bool(&document, entry, "tensors", change->uid == POLICY_TENSORS);
        document_optional(
            &document, entry, "since_s", report_since_s(daemon, past.at_us), past.at_us != 0);
        document_text(&document, entry, "what", past.what);
    }
    return document_end(&document);
}
