#include "daemon/local/mark.h"

#include <errno.h>
#include <stddef.h>
#include <string.h>
#include <unistd.h>

#include "proto/payload.h"
#include "proto/retry.h"

#define MARK_MAGIC UINT64_C(0x65726f74536b7441)
#define MARK_FORMAT 2u
#define MARK_UNSEALED 1u /* the format before, whose mark ends with a checksum before `sealed` */
#define MARK_WORKERS_AT 2048u /* in the page: there the mark has room to grow */
#define MARK_READ                                                                                  \
    16384u /* bytes of content that are read at a time: they stay in the first cache */

static uint32_t mark_crc(const struct mark *mark)
{
    return crc32c(0, mark, offsetof(struct mark, crc));
}

void mark_fill(struct mark *mark, const struct job_key *key, unsigned part, uint64_t size)
{
    memset(mark, 0, sizeof *mark);
    mark->magic = MARK_MAGIC;
    mark->format = MARK_FORMAT;
    mark->part = part;
    mark->size = size;
    mark->owner = key->owner;
    memcpy(mark->name, key->name, sizeof mark->name);
    memcpy(mark->run_id, key->run_id, sizeof mark->run_id);
    mark->crc = mark_crc(mark);
}

static bool mark_write_whole(int fd, const void *bytes, size_t size, uint64_t place)
{
    size_t done = 0;

    while (done < size) {
        const ssize_t put =
            pwrite(fd, (const char *)bytes + done, size - done, (off_t)(place + done));

        if (put < 0 && errno != EINTR) {
            return false;
        }
        done += put > 0 ? (size_t)put : 0;
    }
    return true;
}

bool mark_write(int fd, const struct mark *mark)
{
    return mark_write_whole(fd, mark, sizeof *mark, mark->size);
}

static bool mark_read_whole(int fd, void *bytes, size_t size, uint64_t place)
{
    size_t done = 0;

    while (done < size) {
        const ssize_t got = pread(fd, (char *)bytes + done, size - done, (off_t)(place + done));

        if (got == 0 || (got < 0 && errno != EINTR)) {
            return false;
        }
        done += got > 0 ? (size_t)got : 0;
    }
    return true;
}

/* Whether the mark's checksum is right. Makes a mark of the format before one of this format. */
static bool mark_check(struct mark *mark)
{
    if (mark->format == MARK_UNSEALED &&
        mark->sealed == crc32c(0, mark, offsetof(struct mark, sealed))) {
        mark->format = MARK_FORMAT;
        mark->sealed = 0;
        mark->crc = mark_crc(mark);
    }
    return mark->format == MARK_FORMAT && mark->crc == mark_crc(mark);
}

const char *mark_read(int fd, unsigned part, struct mark *mark, struct stat *status)
{
    if (fstat(fd, status) != 0 || !S_ISREG(status->st_mode)) {
        return "is no file";
    }
    if (status->st_uid != geteuid() || (status->st_mode & 077) != 0) {
        return "can be written or read by another user";
    }
    if (status->st_size <= MARK_PAGE || status->st_size % MARK_PAGE != 0 ||
        !mark_read_whole(fd, mark, sizeof *mark, (uint64_t)status->st_size - MARK_PAGE) ||
        mark->magic != MARK_MAGIC) {
        return "is cut short, or is not of a store";
    }
    if (mark->format > MARK_FORMAT) {
        return "has another format than this daemon reads";
    }
    if (!mark_check(mark) || mark->part != part ||
        mark->size != (uint64_t)status->st_size - MARK_PAGE ||
        memchr(mark->name, '\0', sizeof mark->name) == NULL ||
        memchr(mark->run_id, '\0', sizeof mark->run_id) == NULL) {
        return "is damaged";
    }
    return NULL;
}

/* ------------------------------------------------------------------ stores */

/* Whether a core can read the store of this main part. */
static bool mark_is_known(int fd, char fault[STORE_FAULT_SIZE])
{
    struct {
        uint64_t magic;
        uint32_t version;
    } start = {.magic = 0};

    return !mark_read_whole(fd, &start, sizeof start, 0) || start.magic == 0 ||
           store_is_known(start.magic, start.version, fault);
}

struct mark_workers {
    uint32_t number;
    uint32_t crc; /* of it */
};

static uint32_t mark_workers_crc(const struct mark_workers *workers)
{
    return crc32c(0, &workers->number, sizeof workers->number);
}

void mark_note_workers(int fd, uint64_t size, uint32_t workers)
{
    struct mark_workers noted = {.number = workers};

    noted.crc = mark_workers_crc(&noted);
    (void)mark_write_whole(fd, &noted, sizeof noted, size + MARK_WORKERS_AT);
}

/* Reads what was noted. False: the note is damaged. */
static bool mark_read_workers(int fd, uint64_t size, uint32_t *workers)
{
    struct mark_workers noted = {.number = 0};
    const bool whole = mark_read_whole(fd, &noted, sizeof noted, size + MARK_WORKERS_AT);

    *workers = noted.number;
    return whole &&
           ((noted.number == 0 && noted.crc == 0) || noted.crc == mark_workers_crc(&noted));
}

/* ------------------------------------------------------------------ seals */

/* The checksum of a file's content. Needs no memory, because a lack of it must not look like
 * damage. False: the file cannot be read. */
static bool mark_sum(int fd, uint64_t size, uint32_t *sum)
{
    uint8_t bytes[MARK_READ];
    uint64_t done = 0;
    ssize_t got = 1;

    *sum = 0;
    while (done < size && got > 0) {
        const uint64_t left = size - done;

        RETRY(got, pread(fd, bytes, left < MARK_READ ? left : MARK_READ, (off_t)done));
        *sum = got > 0 ? crc32c(*sum, bytes, (size_t)got) : *sum;
        done += got > 0 ? (uint64_t)got : 0;
    }
    return done == size;
}

/* Whether the content is what was sealed. True of a file without a seal. */
static bool mark_is_intact(int fd, const struct mark *mark)
{
    uint32_t sum;

    return mark->sealed == 0 || (mark_sum(fd, mark->size, &sum) && sum == mark->content);
}

bool mark_seal(int fd, struct mark *mark, bool sealed)
{
    mark->content = 0;
    mark->sealed = sealed ? 1 : 0;
    if (sealed && !mark_sum(fd, mark->size, &mark->content)) {
        return false;
    }
    mark->crc = mark_crc(mark);
    return mark_write(fd, mark);
}

const char *mark_examine(int fd, unsigned part, struct mark_file *file)
{
    const char *fault = mark_read(fd, part, &file->mark, &file->status);

    if (fault == NULL && !mark_is_intact(fd, &file->mark)) {
        fault = "was changed while no daemon used it";
    }
    if (fault != NULL || part != CORE_STORE_MAIN) {
        return fault;
    }
    if (!mark_is_known(fd, file->unknown)) {
        return file->unknown;
    }
    return mark_read_workers(fd, file->mark.size, &file->workers) ? NULL : "is damaged";
}
