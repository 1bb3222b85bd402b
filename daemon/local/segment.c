#include "daemon/local/segment.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "proto/retry.h"

#ifndef MFD_NOEXEC_SEAL /* Linux 6.3; unknown to glibc 2.36 */
#define MFD_NOEXEC_SEAL 0x0008U
#endif

#define SEGMENT_PAGE 4096u
#define SEGMENT_MARGIN (64u << 20) /* memory that the daemon always leaves to the system */

const struct segment segment_none = {.fd = -1};

static enum adtopk_status segment_failed(
    const char *call, const char *name, int reason, struct error *err)
{
    return error_set(
        err, ADTOPK_ERR_SYSTEM, "%s for the %s failed: %s", call, name, strerror(reason));
}

static enum adtopk_status segment_too_large(
    const char *name, uint64_t size, uint64_t promised, struct error *err)
{
    const uint64_t available = segment_available();

    return error_set(err, ADTOPK_ERR_MEMORY,
        "the %s needs %llu bytes, and this node has %llu bytes of memory left", name,
        (unsigned long long)size,
        (unsigned long long)(available > promised ? available - promised : 0));
}

/* The error of a mmap() that failed: it needs addresses only, not memory. */
static enum adtopk_status segment_no_addresses(const char *name, uint64_t size, struct error *err)
{
    struct rlimit limit;

    if (getrlimit(RLIMIT_AS, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY) {
        return error_set(err, ADTOPK_ERR_MEMORY,
            "the %s needs %llu bytes of address space, and this daemon may have %llu in all "
            "(RLIMIT_AS, ulimit -v)",
            name, (unsigned long long)size, (unsigned long long)limit.rlim_cur);
    }
    return error_set(err, ADTOPK_ERR_MEMORY,
        "the kernel gives no addresses for the %s of %llu bytes (vm.overcommit_memory, "
        "vm.max_map_count)",
        name, (unsigned long long)size);
}

static uint64_t segment_round(uint64_t size)
{
    return (size + SEGMENT_PAGE - 1) / SEGMENT_PAGE * SEGMENT_PAGE;
}

int segment_file(const char *name)
{
    const unsigned flags = MFD_CLOEXEC | MFD_ALLOW_SEALING;
    const int fd = memfd_create(name, flags | MFD_NOEXEC_SEAL);

    return fd < 0 && errno == EINVAL ? memfd_create(name, flags) : fd;
}

enum adtopk_status segment_create(
    struct segment *segment, const char *name, uint64_t size, struct error *err)
{
    uint64_t rounded;
    int failed;

    *segment = segment_none;
    if (!segment_is_possible(size)) {
        return segment_too_large(name, size, 0, err);
    }
    rounded = segment_round(size);
    segment->fd = segment_file(name);
    if (segment->fd < 0) {
        return segment_failed("memfd_create", name, errno, err);
    }
    RETRY(failed, ftruncate(segment->fd, (off_t)rounded));
    if (failed != 0) {
        const int reason = errno;
        segment_drop(segment);
        return reason == EFBIG || reason == EINVAL ? segment_too_large(name, size, 0, err)
                                                   : segment_failed("ftruncate", name, reason, err);
    }
    segment->size = rounded;
    return ADTOPK_OK;
}

uint64_t segment_missing(const struct segment *segment)
{
    struct stat status;
    uint64_t there, whole;

    if (fstat(segment->fd, &status) != 0) {
        return segment->size;
    }
    there = (uint64_t)status.st_blocks * 512;
    whole = (uint64_t)status.st_size; /* with what is kept behind the segment: a folder's mark */
    whole = whole > segment->size ? whole : segment->size;
    return there < whole ? whole - there : 0;
}

enum adtopk_status segment_afford(
    const char *name, uint64_t size, uint64_t missing, uint64_t promised, struct error *err)
{
    const uint64_t available = segment_available();

    if (promised > available || missing > available - promised ||
        available - promised - missing < SEGMENT_MARGIN) {
        return segment_too_large(name, size, promised, err);
    }
    return ADTOPK_OK;
}

enum adtopk_status segment_refuse(
    const struct segment *segment, const char *name, struct error *err)
{
    struct statvfs system;

    if (fstatvfs(segment->fd, &system) != 0 || system.f_blocks == 0) {
        return segment_too_large(name, segment->size, 0, err);
    }
    return error_set(err, ADTOPK_ERR_MEMORY,
        "the %s needs %llu bytes, and store_folder has room for %llu", name,
        (unsigned long long)segment->size, (unsigned long long)system.f_bavail * system.f_frsize);
}

enum adtopk_status segment_fill(const struct segment *segment, const char *name, uint64_t offset,
    uint64_t size, struct error *err)
{
    const uint64_t end = segment_round(offset + size);
    uint64_t done = offset / SEGMENT_PAGE * SEGMENT_PAGE;

    while (done < end) {
        const uint64_t left = end - done;
        const uint64_t piece = left < SEGMENT_STRIDE ? left : SEGMENT_STRIDE;

        if (fallocate(segment->fd, 0, (off_t)done, (off_t)piece) == 0) {
            done += piece;
        } else if (errno == ENOSPC || errno == ENOMEM || errno == EFBIG) {
            return segment_refuse(segment, name, err);
        } else if (errno != EINTR) {
            return segment_failed("fallocate", name, errno, err);
        }
    }
    return ADTOPK_OK;
}

enum adtopk_status segment_reserve(
    struct segment *segment, const char *name, uint64_t promised, struct error *err)
{
    const uint64_t missing = segment_missing(segment);
    enum adtopk_status status;

    if (missing == 0) {
        return ADTOPK_OK;
    }
    status = segment_afford(name, segment->size, missing, promised, err);
    return status == ADTOPK_OK ? segment_fill(segment, name, 0, segment->size, err) : status;
}

enum adtopk_status segment_private(
    struct segment *segment, const char *name, uint64_t size, uint64_t promised, struct error *err)
{
    enum adtopk_status status;
    void *bytes;

    *segment = segment_none;
    if (!segment_is_possible(size)) {
        return segment_too_large(name, size, promised, err);
    }
    status = segment_afford(name, size, segment_round(size), promised, err);
    if (status != ADTOPK_OK) {
        return status;
    }
    bytes =
        mmap(NULL, segment_round(size), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (bytes == MAP_FAILED) {
        return errno == ENOMEM ? segment_no_addresses(name, size, err)
                               : segment_failed("mmap", name, errno, err);
    }
    (void)madvise(bytes, segment_round(size), MADV_HUGEPAGE); /* if the kernel has them */
    segment->bytes = bytes;
    segment->size = segment_round(size);
    return ADTOPK_OK;
}

enum adtopk_status segment_shown(
    struct segment *segment, const char *name, uint64_t size, uint64_t promised, struct error *err)
{
    *segment = segment_none;
    if (!segment_is_possible(size)) {
        return segment_too_large(name, size, promised, err);
    }
    if (segment_afford(name, size, segment_round(size), promised, err) != ADTOPK_OK ||
        segment_create(segment, name, size, err) != ADTOPK_OK) {
        return err->code;
    }
    if (fchmod(segment->fd, S_IRUSR | S_IWUSR) != 0) {
        (void)segment_failed("fchmod", name, errno, err);
    } else if (segment_map(segment, PROT_READ | PROT_WRITE, name, err) == ADTOPK_OK &&
               segment_seal(segment, SEGMENT_WRITER_SEALED, name, err) == ADTOPK_OK) {
        /* If the kernel gives them to shared memory (transparent_hugepage/shmem_enabled). */
        (void)madvise(segment->bytes, segment->size, MADV_HUGEPAGE);
        return ADTOPK_OK;
    }
    segment_drop(segment);
    return err->code;
}

int segment_show(const struct segment *segment, const char *name, struct error *err)
{
    char path[64];
    int descriptor;

    (void)snprintf(path, sizeof path, "/proc/self/fd/%d", segment->fd);
    RETRY(descriptor, open(path, O_RDONLY | O_CLOEXEC));
    if (descriptor < 0) {
        (void)segment_failed("open", name, errno, err);
    }
    return descriptor;
}

uint64_t segment_touched(const struct segment *segment, uint64_t index)
{
    static _Thread_local unsigned char there[SEGMENT_STRIDE / SEGMENT_PAGE];
    const uint64_t offset = index * SEGMENT_STRIDE, left = segment->size - offset;
    const uint64_t size = left < SEGMENT_STRIDE ? left : SEGMENT_STRIDE;
    uint64_t pages = 0;

    if (mincore((uint8_t *)segment->bytes + offset, size, there) != 0) {
        return 0;
    }
    for (uint64_t page = 0; page < size / SEGMENT_PAGE; page++) {
        pages += there[page] & 1;
    }
    return pages * SEGMENT_PAGE;
}

uint64_t segment_untouched(const struct segment *segment)
{
    uint64_t touched = 0;

    for (uint64_t index = 0; index * SEGMENT_STRIDE < segment->size; index++) {
        touched += segment_touched(segment, index);
    }
    return segment->size - touched;
}

uint64_t segment_taken(const struct segment *segment)
{
    uint64_t missing = segment->size;

    if (segment->fd >= 0) {
        missing = segment_missing(segment);
    } else if (segment->bytes != NULL) {
        missing = segment_untouched(segment);
    }
    return missing < segment->size ? segment->size - missing : 0;
}

static enum adtopk_status segment_map_at(struct segment *segment, void *at, int protection,
    int flags, const char *name, struct error *err)
{
    void *bytes = mmap(at, segment->size, protection, MAP_SHARED | flags, segment->fd, 0);

    if (bytes == MAP_FAILED) {
        return errno == ENOMEM ? segment_no_addresses(name, segment->size, err)
                               : segment_failed("mmap", name, errno, err);
    }
    segment->bytes = bytes;
    return ADTOPK_OK;
}

enum adtopk_status segment_map(
    struct segment *segment, int protection, const char *name, struct error *err)
{
    return segment_map_at(segment, NULL, protection, 0, name, err);
}

enum adtopk_status segment_map_over(
    struct segment *segment, void *at, int protection, const char *name, struct error *err)
{
    return segment_map_at(segment, at, protection, MAP_FIXED, name, err);
}

enum adtopk_status segment_seal(
    struct segment *segment, enum segment_seals seals, const char *name, struct error *err)
{
    const int wanted = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL |
                       (seals == SEGMENT_WRITER_SEALED ? F_SEAL_FUTURE_WRITE : 0);
    struct stat status;
    int found;

    /* The check below finds an error of this call. */
    (void)fcntl(segment->fd, F_ADD_SEALS, wanted);
    found = fcntl(segment->fd, F_GET_SEALS);
    if (found < 0 || (found & wanted) != wanted) {
        return error_set(err, ADTOPK_ERR_PROTOCOL, "the %s could not be sealed", name);
    }
    if (fstat(segment->fd, &status) != 0 || (uint64_t)status.st_size != segment->size) {
        return error_set(err, ADTOPK_ERR_PROTOCOL, "the %s was resized", name);
    }
    return ADTOPK_OK;
}

void segment_close(struct segment *segment)
{
    if (segment->fd >= 0) {
        (void)close(segment->fd);
        segment->fd = -1;
    }
}

bool segment_trim(struct segment *segment, uint64_t piece)
{
    if (segment->bytes == NULL || segment->size <= piece ||
        munmap((uint8_t *)segment->bytes + segment->size - piece, piece) != 0) {
        return false;
    }
    segment->size -= piece;
    return true;
}

void segment_drop(struct segment *segment)
{
    segment_close(segment);
    if (segment->bytes != NULL) {
        (void)munmap(segment->bytes, segment->size);
    }
    *segment = segment_none;
}
