#include "client/adtopkctl/checkpoint.h"

#include <dirent.h>
#include <string.h>

#include "client/adtopkctl/text.h"
#include "proto/checkpoint.h"

/* What the lowest rank's file says of the job. */
static bool checkpoint_add_job(cJSON *document, const char *folder, const struct checkpoint *file)
{
    const Adtopk__CheckpointFile *head = file->head;
    const Adtopk__CheckpointJob *job = head->job;
    char id[2 * CHECKPOINT_ID + 1] = "";

    for (unsigned i = 0; i < CHECKPOINT_ID; i++) {
        (void)snprintf(id + 2 * i, 3, "%02x", head->id.data[i]);
    }
    return cJSON_AddNumberToObject(document, "schema", 1) != NULL &&
           cJSON_AddStringToObject(document, "folder", folder) != NULL &&
           cJSON_AddStringToObject(document, "id", id) != NULL &&
           cJSON_AddStringToObject(document, "name", job->name) != NULL &&
           cJSON_AddStringToObject(document, "run_id", job->run_id) != NULL &&
           cJSON_AddNumberToObject(document, "owner", job->owner) != NULL &&
           cJSON_AddNumberToObject(document, "step", (double)job->step) != NULL &&
           cJSON_AddNumberToObject(document, "world_size", job->world_size) != NULL &&
           cJSON_AddNumberToObject(document, "members", checkpoint_members(job)) != NULL &&
           cJSON_AddNumberToObject(document, "tensors", job->tensors) != NULL &&
           cJSON_AddStringToObject(document, "policy", head->policy) != NULL;
}

/* Whether a file is whole and of the same checkpoint. `err` says why it is not. */
static enum adtopk_status checkpoint_check_file(const struct checkpoint *first, const char *folder,
    uint32_t rank, struct checkpoint *file, struct error *err)
{
    char path[CHECKPOINT_PATH];
    enum adtopk_status status = checkpoint_path(folder, rank, path, err);

    status = status == ADTOPK_OK ? checkpoint_open(file, path, err) : status;
    if (status != ADTOPK_OK) {
        return status;
    }
    if (memcmp(file->head->id.data, first->head->id.data, CHECKPOINT_ID) != 0 ||
        file->head->file != rank || file->head->n_tensor != first->head->n_tensor) {
        return error_set(
            err, ADTOPK_ERR_MISMATCH, "it was not saved with rank-%u.adtopk", first->head->file);
    }
    return checkpoint_verify(file, err);
}

/* Adds a file to the document; false without memory. */
static bool checkpoint_add_file(
    cJSON *files, const struct checkpoint *first, const char *folder, uint32_t rank, bool *good)
{
    struct checkpoint file = {.file = -1};
    struct error err = {.text = ""};
    const bool whole = checkpoint_check_file(first, folder, rank, &file, &err) == ADTOPK_OK;
    const bool open = file.file >= 0;
    cJSON *object = cJSON_CreateObject();
    bool complete =
        cJSON_AddNumberToObject(object, "rank", rank) != NULL &&
        cJSON_AddBoolToObject(object, "good", whole) != NULL &&
        cJSON_AddStringToObject(object, "error", err.text) != NULL &&
        cJSON_AddNumberToObject(object, "node", open ? file.head->job->node : 0) != NULL &&
        cJSON_AddNumberToObject(object, "ranks", open ? (double)file.head->job->n_ranks : 0) !=
            NULL &&
        cJSON_AddNumberToObject(object, "bytes", open ? (double)file.size : 0) != NULL;

    checkpoint_close(&file);
    *good &= whole;
    if (!cJSON_AddItemToArray(files, object)) {
        cJSON_Delete(object);
        complete = false;
    }
    return complete;
}

/* Whether a file of this name is from a save that did not end. */
static bool checkpoint_is_left(const char *name)
{
    char file[32];
    unsigned rank;

    if (sscanf(name, "rank-%9u.", &rank) != 1) {
        return false;
    }
    (void)snprintf(file, sizeof file, "rank-%u.adtopk", rank);
    return checkpoint_is_aside(name, file);
}

/* Adds the names of such files; false without memory. */
static bool checkpoint_add_left(cJSON *document, const char *folder)
{
    cJSON *names = cJSON_AddArrayToObject(document, "unfinished"), *name;
    DIR *found = opendir(folder);
    const struct dirent *entry;
    bool complete = names != NULL;

    while (found != NULL && (entry = readdir(found)) != NULL) {
        if (checkpoint_is_left(entry->d_name)) {
            name = cJSON_CreateString(entry->d_name);
            complete = name != NULL && cJSON_AddItemToArray(names, name) && complete;
        }
    }
    if (found != NULL) {
        (void)closedir(found);
    }
    return complete;
}

cJSON *checkpoint_document(const char *folder, bool *complete, bool *good, struct error *err)
{
    char path[CHECKPOINT_PATH];
    struct checkpoint first;
    uint32_t lowest;
    cJSON *document, *files;

    if (checkpoint_lowest(folder, &lowest, err) != ADTOPK_OK ||
        checkpoint_path(folder, lowest, path, err) != ADTOPK_OK ||
        checkpoint_open(&first, path, err) != ADTOPK_OK) {
        return NULL;
    }
    document = cJSON_CreateObject();
    *good = true;
    *complete = checkpoint_add_job(document, folder, &first);
    files = cJSON_AddArrayToObject(document, "files");
    for (size_t i = 0; i < first.head->n_files; i++) {
        *complete =
            checkpoint_add_file(files, &first, folder, first.head->files[i], good) && *complete;
    }
    *complete = cJSON_AddBoolToObject(document, "good", *good) != NULL &&
                checkpoint_add_left(document, folder) && *complete;
    checkpoint_close(&first);
    return document;
}

void checkpoint_show(FILE *out, const cJSON *document)
{
    const cJSON *files = text_member(document, "files"), *file;
    const double tensors = text_number(document, "tensors");
    const double ranks = text_number(document, "members");
    const int nodes = cJSON_GetArraySize(files);
    char text[TEXT_SIZE];

    text_job(out, document);
    (void)fprintf(out, ", of user %s: after step %.0f, %.0f tensor%s, %.0f rank%s on %d node%s\n",
        text_user(text_number(document, "owner"), 32, text), text_number(document, "step"), tensors,
        text_s(tensors), ranks, text_s(ranks), nodes, text_s(nodes));
    (void)fprintf(out, "%-22s%6s%7s%12s  %s\n", "file", "node", "ranks", "size", "state");
    cJSON_ArrayForEach(file, files)
    {
        (void)snprintf(text, sizeof(text), "rank-%.0f.adtopk", text_number(file, "rank"));
        (void)fprintf(
            out, "%-22s%6.0f%7.0f", text, text_number(file, "node"), text_number(file, "ranks"));
        (void)fprintf(out, "%12s  ", text_bytes(text_number(file, "bytes"), text));
        (void)fprintf(out, "%s\n",
            text_true(file, "good") ? "good" : text_string(file, "error", TEXT_SIZE - 1, text));
    }
    cJSON_ArrayForEach(file, text_member(document, "unfinished"))
    {
        (void)fprintf(out, "%s is of a save that has not ended\n", cJSON_GetStringValue(file));
    }
}
