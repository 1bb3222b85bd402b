/*
 * Where the files of stores lie: files in memory, each under a name, which the next daemon finds.
 *
 *   files_in_folder     in a folder on a tmpfs
 *   files_at_manager    without a path (memfd). The service manager keeps their descriptors while
 *                       the daemon restarts, and passes them to the next one (systemd's descriptor
 *                       store)
 *
 * What the files contain is not known here (folder.c).
 */
#ifndef ADTOPK_LOCAL_FILES_H
#define ADTOPK_LOCAL_FILES_H

#include <stdbool.h>

#include "proto/error.h"

#define FILES_NAME_SIZE 160

struct files;

struct files_ops {
    bool exposed; /* they have paths, so others may change them while no daemon uses them */
    bool others;  /* keep() also takes descriptors of what is no file in memory */
    /* Opens a file for reading and writing. -1, and errno. */
    int (*open)(const struct files *files, const char *name);
    /* Makes an empty file without a name, which goes when it is closed. -1, and errno. */
    int (*make)(const struct files *files);
    /* Gives a new file its name: from now on the next daemon finds it. */
    enum adtopk_status (*keep)(struct files *files, const char *name, int fd, struct error *err);
    /* The next daemon no longer finds the file. Its memory goes when it is closed as well. */
    void (*remove)(struct files *files, const char *name);
    /* Removes what could not be removed at once. To be called now and then. */
    void (*settle)(struct files *files);
    /* Calls take() for each file that the daemon before left, until it returns false. */
    enum adtopk_status (*list)(struct files *files, bool (*take)(void *context, const char *name),
        void *context, struct error *err);
    /* Leaves the files to the next daemon. */
    void (*close)(struct files *files);
};

struct files {
    const struct files_ops *ops;
};

/** Opens the folder, and makes it if it is missing. Errors, each naming the path: STATE (another
 * daemon uses it), ARGUMENT (it is not in memory, or other users can reach it), SYSTEM, MEMORY. */
struct files *files_in_folder(const char *path, struct error *err);

/** Whether files_in_folder() could use the folder, which it neither makes nor takes; the same
 * errors. */
enum adtopk_status files_check_folder(const char *path, struct error *err);

/** Tells the service manager to keep this descriptor under the name, or, with -1, to keep it no
 * longer. */
typedef enum adtopk_status files_tell(const char *name, int fd, struct error *err);

/** Takes what the manager passed to this process (session/passed.h). The manager keeps at most
 * `limit` descriptors of one service. NULL: MEMORY. */
struct files *files_at_manager(files_tell *tell, unsigned limit, struct error *err);

/** Tells the manager to keep no longer what it passed to a daemon that does not use it. */
void files_forget(files_tell *tell);

#endif
