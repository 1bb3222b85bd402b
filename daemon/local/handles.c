#include "daemon/local/handles.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "daemon/local/files.h"

#define HANDLES_SHARED "shared"

static void handle_name(const struct handle *handle, char name[FILES_NAME_SIZE])
{
    (void)snprintf(name, FILES_NAME_SIZE, "%08x.%u.%u@%s", handle->store, handle->part,
        handle->shard, handle->text);
}

static bool handles_add(struct handles *handles, const struct handle *handle)
{
    struct handle *added = malloc(sizeof *added);

    if (added != NULL) {
        *added = *handle;
        added->next = handles->first;
        handles->first = added;
    }
    return added != NULL;
}

bool handles_take(struct handles *handles, const char *name)
{
    struct handle handle = {.text = ""};
    char wanted[FILES_NAME_SIZE];

    if (sscanf(name, "%8x.%2u.%2u@%127[^: ]", &handle.store, &handle.part, &handle.shard,
            handle.text) != 4) {
        return true;
    }
    handle_name(&handle, wanted);
    return strcmp(name, wanted) != 0 || handles_add(handles, &handle);
}

/* The handle of this shard of the part, or of any shard of any part; NULL: there is none. */
static struct handle **handles_find(
    struct handles *handles, uint32_t store, unsigned part, const unsigned *shard)
{
    struct handle **link = &handles->first;

    while (*link != NULL &&
           ((*link)->store != store || (part != HANDLES_ALL && (*link)->part != part) ||
               (shard != NULL && (*link)->shard != *shard))) {
        link = &(*link)->next;
    }
    return *link != NULL ? link : NULL;
}

static void handles_forget(struct handles *handles, struct handle **link)
{
    struct handle *handle = *link;
    char name[FILES_NAME_SIZE];

    handle_name(handle, name);
    handles->files->ops->remove(handles->files, name);
    *link = handle->next;
    free(handle);
}

void handles_drop(struct handles *handles, uint32_t store, unsigned part)
{
    for (struct handle **link; (link = handles_find(handles, store, part, NULL)) != NULL;) {
        handles_forget(handles, link);
    }
}

void handles_drop_useless(struct handles *handles)
{
    const struct handle *handle = handles->first;

    while (handle != NULL) {
        if (handle->useless) {
            handles_drop(handles, handle->store, HANDLES_ALL);
            handle = handles->first;
        } else {
            handle = handle->next;
        }
    }
}

enum adtopk_status handles_keep(
    struct handles *handles, const struct handle *handle, int fd, struct error *err)
{
    struct handle **before = handles_find(handles, handle->store, handle->part, &handle->shard);
    char name[FILES_NAME_SIZE];

    if (before != NULL) {
        handles_forget(handles, before);
    }
    if (!handles_add(handles, handle)) {
        return error_set(err, ADTOPK_ERR_MEMORY, "no memory for a handle");
    }
    handle_name(handle, name);
    if (handles->files->ops->keep(handles->files, name, fd, err) != ADTOPK_OK) {
        handles_forget(handles, &handles->first);
        return err->code;
    }
    return ADTOPK_OK;
}

bool handles_has(const struct handles *handles, uint32_t store, unsigned part, unsigned shard)
{
    const struct handle *handle = handles->first;

    while (handle != NULL &&
           (handle->store != store || handle->part != part || handle->shard != shard)) {
        handle = handle->next;
    }
    return handle != NULL;
}

int handles_open(const struct handles *handles, const struct handle *handle)
{
    char name[FILES_NAME_SIZE];

    handle_name(handle, name);
    return handles->files->ops->open(handles->files, name);
}

/* A new file of this size under the name; -1 and an error. */
static int handles_make_shared(struct handles *handles, size_t size, struct error *err)
{
    const struct files_ops *ops = handles->files->ops;
    const int fd = ops->make(handles->files);

    if (fd < 0 || ftruncate(fd, (off_t)size) != 0) {
        (void)error_set(
            err, ADTOPK_ERR_SYSTEM, "making memory for the next daemon: %s", strerror(errno));
    } else if (ops->keep(handles->files, HANDLES_SHARED, fd, err) == ADTOPK_OK) {
        return fd;
    }
    if (fd >= 0) {
        (void)close(fd);
    }
    return -1;
}

void *handles_shared(struct handles *handles, size_t size, bool *found, struct error *err)
{
    int fd = handles->files->ops->open(handles->files, HANDLES_SHARED);
    struct stat status;
    void *memory = MAP_FAILED;

    if (fd >= 0 && (fstat(fd, &status) != 0 || status.st_size != (off_t)size)) {
        (void)close(fd); /* of another release */
        fd = -1;
    }
    *found = fd >= 0;
    if (fd < 0) {
        fd = handles_make_shared(handles, size, err);
    }
    if (fd >= 0) {
        memory = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
        (void)close(fd);
        if (memory == MAP_FAILED) {
            (void)error_set(err, ADTOPK_ERR_MEMORY, "no memory that the next daemon finds");
        }
    }
    return memory != MAP_FAILED ? memory : NULL;
}

void handles_close(struct handles *handles)
{
    while (handles->first != NULL) {
        struct handle *handle = handles->first;

        handles->first = handle->next;
        free(handle);
    }
}
