/*
 * Device memory: handles (memfd), ranges of addresses that they are mapped to, allocations, and
 * host memory that was registered. New memory is full of 0xa5. Ranges are PROT_NONE but while
 * kernels and copies run: a host that reads device memory gets SIGSEGV.
 */
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "tests/cuda/driver/standin.h"

#define PIECE (64u << 10)
#define PAGE UINT64_C(4096)
#define ALREADY_REGISTERED 712 /* CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED */

struct handle {
    int fd;
    int device; /* -1: imported, so that another process is charged */
    uint64_t size;
};

struct range {
    struct range *next;
    char *bytes;
    uint64_t size;
    bool mapped, open; /* open: cuMemSetAccess() was called */
    bool allocated;    /* by cuMemAlloc() */
    bool registered;   /* host memory */
};

static struct range *ranges;
static unsigned unlocked;

/* The first range with all of these bytes, from this one on. */
static struct range *range_from(
    struct range *range, const void *bytes, uint64_t size, bool registered)
{
    while (
        range != NULL && !(range->registered == registered && (const char *)bytes >= range->bytes &&
                             (const char *)bytes + size <= range->bytes + range->size)) {
        range = range->next;
    }
    return range;
}

static struct range *range_at(const void *bytes, uint64_t size, bool registered)
{
    return range_from(ranges, bytes, size, registered);
}

static struct range *range_add(void *bytes, uint64_t size)
{
    struct range *range = calloc(1, sizeof(*range));

    if (range == NULL) {
        abort();
    }
    *range = (struct range){.next = ranges, .bytes = bytes, .size = size};
    ranges = range;
    return range;
}

static void range_drop(struct range *gone)
{
    struct range **at = &ranges;

    while (*at != gone) {
        at = &(*at)->next;
    }
    *at = gone->next;
    free(gone);
}

static void protect(int protection)
{
    for (struct range *range = ranges; range != NULL; range = range->next) {
        if (range->open && mprotect(range->bytes, range->size, protection) != 0) {
            abort();
        }
    }
}

void standin_unlock(void)
{
    if (unlocked++ == 0) {
        protect(PROT_READ | PROT_WRITE);
    }
}

void standin_lock(void)
{
    if (--unlocked == 0) {
        protect(PROT_NONE);
    }
}

bool standin_is_registered(const void *host, uint64_t size)
{
    return range_at(host, size, true) != NULL;
}

void standin_drop_memory(void)
{
    while (ranges != NULL) {
        if (!ranges->registered) {
            (void)munmap(ranges->bytes, ranges->size);
        }
        if (ranges->allocated) {
            standin_give_back(standin_device(), ranges->size);
        }
        range_drop(ranges);
    }
}

bool standin_is_word(CUdeviceptr address)
{
    const void *word = (const void *)(uintptr_t)address;
    const struct range *range = range_at(word, sizeof(uint32_t), true);

    if (range == NULL) {
        range = range_at(word, sizeof(uint32_t), false);
        while (range != NULL && !range->open) { /* an address that is reserved, around a mapping */
            range = range_from(range->next, word, sizeof(uint32_t), false);
        }
    }
    return address % sizeof(uint32_t) == 0 && range != NULL;
}

/* ------------------------------------------------------------------ handles */

static uint64_t whole(uint64_t size)
{
    return (size + standin_state()->granule - 1) / standin_state()->granule *
           standin_state()->granule;
}

static CUresult handle_make(CUmemGenericAllocationHandle *made, int fd, int device, uint64_t size)
{
    struct handle *handle = malloc(sizeof(*handle));

    if (handle == NULL || fd < 0) {
        free(handle);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    *handle = (struct handle){.fd = fd, .device = device, .size = size};
    *made = (CUmemGenericAllocationHandle)(uintptr_t)handle;
    return CUDA_SUCCESS;
}

static bool fill(int fd, uint64_t size)
{
    static char garbage[PIECE];

    (void)memset(garbage, 0xa5, sizeof(garbage));
    for (uint64_t at = 0; at < size; at += sizeof(garbage)) {
        if (pwrite(fd, garbage, sizeof(garbage), (off_t)at) != (ssize_t)sizeof(garbage)) {
            return false;
        }
    }
    return true;
}

CUresult cuMemGetAllocationGranularity(size_t *bytes, const CUmemAllocationProp *prop, int option)
{
    STANDIN_ALONE;
    (void)prop;
    (void)option;
    *bytes = standin_state()->granule;
    return standin_called("cuMemGetAllocationGranularity");
}

CUresult cuMemCreate(CUmemGenericAllocationHandle *handle, size_t size,
    const CUmemAllocationProp *prop, unsigned long long flags)
{
    STANDIN_ALONE;
    CUresult result = standin_called("cuMemCreate");
    int fd;

    if (result != CUDA_SUCCESS) {
        return result;
    }
    if (size == 0 || size % standin_state()->granule != 0 || flags != 0 ||
        prop->requestedHandleTypes != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR ||
        prop->type != CU_MEM_ALLOCATION_TYPE_PINNED ||
        prop->location.type != CU_MEM_LOCATION_TYPE_DEVICE || prop->location.id < 0 ||
        prop->location.id >= standin_state()->devices) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (!standin_take(prop->location.id, size)) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    fd = memfd_create("device memory", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (fd < 0 || !fill(fd, size) ||
        fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0) {
        return CUDA_ERROR_OUT_OF_MEMORY; /* sealed: nobody can cut a real device's memory either */
    }
    return handle_make(handle, fd, prop->location.id, size);
}

CUresult cuMemRelease(CUmemGenericAllocationHandle made)
{
    STANDIN_ALONE;
    struct handle *handle = (struct handle *)(uintptr_t)made;

    if (handle->device >= 0) {
        standin_give_back(handle->device, handle->size);
    }
    (void)close(handle->fd);
    free(handle);
    return standin_called("cuMemRelease");
}

CUresult cuMemExportToShareableHandle(
    void *shareable, CUmemGenericAllocationHandle made, int type, unsigned long long flags)
{
    STANDIN_ALONE;
    const struct handle *handle = (const struct handle *)(uintptr_t)made;
    CUresult result = standin_called("cuMemExportToShareableHandle");

    if (type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR || flags != 0) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (result == CUDA_SUCCESS) {
        const int fd = dup(handle->fd);

        (void)memcpy(shareable, &fd, sizeof(fd));
        return fd >= 0 ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
    }
    return result;
}

/* What processes before this one have left in the memory is gone, if a test wants that. */
static void forget(int fd, off_t size)
{
    const char *path = getenv("ADTOPK_TEST_CUDA_FORGETS");
    void *bytes;

    if (path == NULL || access(path, F_OK) != 0) {
        return;
    }
    bytes = mmap(NULL, (size_t)size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (bytes == MAP_FAILED) {
        abort();
    }
    (void)memset(bytes, 0xa5, (size_t)size);
    (void)munmap(bytes, (size_t)size);
}

CUresult cuMemImportFromShareableHandle(
    CUmemGenericAllocationHandle *handle, void *shareable, int type)
{
    STANDIN_ALONE;
    const int fd = (int)(intptr_t)shareable; /* the descriptor itself, as documented */
    CUresult result = standin_called_in_context("cuMemImportFromShareableHandle");
    off_t size;

    if (result != CUDA_SUCCESS || type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) {
        return result != CUDA_SUCCESS ? result : CUDA_ERROR_INVALID_VALUE;
    }
    size = lseek(fd, 0, SEEK_END);
    forget(fd, size);
    return size > 0 ? handle_make(handle, dup(fd), -1, (uint64_t)size) : CUDA_ERROR_INVALID_VALUE;
}

/* ------------------------------------------------------------------ ranges of addresses */

/* Addresses that begin at a whole granule. */
static void *reserve(uint64_t size)
{
    const uint64_t granule = standin_state()->granule, more = size + granule;
    char *bytes = mmap(NULL, more, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    uint64_t before;

    if (bytes == MAP_FAILED) {
        return NULL;
    }
    before = (granule - (uintptr_t)bytes % granule) % granule;
    if (before > 0) {
        (void)munmap(bytes, before);
    }
    (void)munmap(bytes + before + size, granule - before);
    return bytes + before;
}

CUresult cuMemAddressReserve(
    CUdeviceptr *address, size_t size, size_t alignment, CUdeviceptr wish, unsigned long long flags)
{
    STANDIN_ALONE;
    CUresult result = standin_called_in_context("cuMemAddressReserve");
    void *bytes;

    if (result != CUDA_SUCCESS || size == 0 || size % standin_state()->granule != 0 || flags != 0 ||
        wish != 0 || alignment != 0) {
        return result != CUDA_SUCCESS ? result : CUDA_ERROR_INVALID_VALUE;
    }
    bytes = reserve(size);
    if (bytes == NULL) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    *address = (CUdeviceptr)(uintptr_t)range_add(bytes, size)->bytes;
    return CUDA_SUCCESS;
}

/* The mapping, or the reservation, of exactly these addresses. */
static struct range *device_range(CUdeviceptr address, uint64_t size, bool mapped)
{
    struct range *range = ranges;

    while (
        range != NULL && !(range->bytes == (char *)(uintptr_t)address && range->size == size &&
                             range->mapped == mapped && !range->registered && !range->allocated)) {
        range = range->next;
    }
    return range;
}

/* Whether a mapping shares addresses with these. */
static bool device_overlaps(CUdeviceptr address, uint64_t size)
{
    const char *bytes = (const char *)(uintptr_t)address;
    const struct range *range = ranges;

    while (range != NULL &&
           !(range->mapped && bytes < range->bytes + range->size && range->bytes < bytes + size)) {
        range = range->next;
    }
    return range != NULL;
}

CUresult cuMemAddressFree(CUdeviceptr address, size_t size)
{
    STANDIN_ALONE;
    struct range *range = device_range(address, size, false);
    CUresult result = standin_called_in_context("cuMemAddressFree");

    if (range == NULL || device_overlaps(address, size)) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    (void)munmap(range->bytes, range->size);
    range_drop(range);
    return result;
}

CUresult cuMemMap(CUdeviceptr address, size_t size, size_t offset,
    CUmemGenericAllocationHandle made, unsigned long long flags)
{
    STANDIN_ALONE;
    const struct handle *handle = (const struct handle *)(uintptr_t)made;
    void *bytes = (void *)(uintptr_t)address;
    CUresult result = standin_called_in_context("cuMemMap");

    if (result != CUDA_SUCCESS || range_at(bytes, size, false) == NULL ||
        device_overlaps(address, size) || address % standin_state()->granule != 0 ||
        size % standin_state()->granule != 0 || offset != 0 || flags != 0 || size > handle->size) {
        return result != CUDA_SUCCESS ? result : CUDA_ERROR_INVALID_VALUE;
    }
    if (mmap(bytes, size, PROT_NONE, MAP_SHARED | MAP_FIXED, handle->fd, 0) == MAP_FAILED) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    range_add(bytes, size)->mapped = true;
    return CUDA_SUCCESS;
}

CUresult cuMemUnmap(CUdeviceptr address, size_t size)
{
    STANDIN_ALONE;
    struct range *range = device_range(address, size, true);
    CUresult result = standin_called_in_context("cuMemUnmap");

    if (range == NULL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    standin_drain_all();
    (void)mmap(range->bytes, size, PROT_NONE,
        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
    range_drop(range);
    return result;
}

CUresult cuMemSetAccess(
    CUdeviceptr address, size_t size, const CUmemAccessDesc *access, size_t count)
{
    STANDIN_ALONE;
    struct range *range = device_range(address, size, true);
    CUresult result = standin_called_in_context("cuMemSetAccess");

    if (range == NULL || count != 1 || access->location.type != CU_MEM_LOCATION_TYPE_DEVICE ||
        access->location.id != standin_device() ||
        access->flags != CU_MEM_ACCESS_FLAGS_PROT_READWRITE) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    range->open = result == CUDA_SUCCESS;
    return result;
}

/* ------------------------------------------------------------------ allocations, host memory */

CUresult cuMemAlloc_v2(CUdeviceptr *address, size_t size)
{
    STANDIN_ALONE;
    CUresult result = standin_called_in_context("cuMemAlloc_v2");
    struct range *range;
    void *bytes;

    if (result != CUDA_SUCCESS || size == 0) {
        return result != CUDA_SUCCESS ? result : CUDA_ERROR_INVALID_VALUE;
    }
    if (!standin_take(standin_device(), whole(size))) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    bytes = mmap(NULL, whole(size), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (bytes == MAP_FAILED) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    (void)memset(bytes, 0xa5, whole(size));
    (void)mprotect(bytes, whole(size), PROT_NONE);
    range = range_add(bytes, whole(size));
    range->open = range->allocated = true;
    *address = (CUdeviceptr)(uintptr_t)bytes;
    return CUDA_SUCCESS;
}

CUresult cuMemGetInfo_v2(size_t *left, size_t *total)
{
    STANDIN_ALONE;
    CUresult result = standin_called_in_context("cuMemGetInfo_v2");

    if (result == CUDA_SUCCESS) {
        *left = standin_left(standin_device());
        *total = standin_state()->memory;
    }
    return result;
}

/* The host may always touch it: what is imitated is a GPU that is waited for after each kernel. */
CUresult cuMemAllocManaged(CUdeviceptr *address, size_t size, unsigned flags)
{
    STANDIN_ALONE;
    CUresult result = standin_called_in_context("cuMemAllocManaged");
    struct range *range;

    if (result != CUDA_SUCCESS || flags != 1) {
        return result != CUDA_SUCCESS ? result : CUDA_ERROR_INVALID_VALUE;
    }
    result = cuMemAlloc_v2(address, size);
    if (result == CUDA_SUCCESS) {
        range = range_at((const void *)(uintptr_t)*address, size, false);
        range->open = false;
        result = mprotect(range->bytes, range->size, PROT_READ | PROT_WRITE) == 0
                     ? CUDA_SUCCESS
                     : CUDA_ERROR_OUT_OF_MEMORY;
    }
    return result;
}

CUresult cuMemFree_v2(CUdeviceptr address)
{
    STANDIN_ALONE;
    struct range *range = range_at((const void *)(uintptr_t)address, 1, false);
    CUresult result = standin_called_in_context("cuMemFree_v2");

    if (range == NULL || !range->allocated || range->bytes != (char *)(uintptr_t)address) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    standin_drain_all();
    standin_give_back(standin_device(), range->size);
    (void)munmap(range->bytes, range->size);
    range_drop(range);
    return result;
}

/* Whether the driver has registered one of these pages: it locks whole ones, and each once. */
static bool host_overlaps(const char *host, uint64_t size)
{
    const uint64_t begin = (uintptr_t)host / PAGE * PAGE;
    const uint64_t end = ((uintptr_t)host + size + PAGE - 1) / PAGE * PAGE;
    const struct range *range = ranges;

    while (range != NULL &&
           !(range->registered && (uintptr_t)range->bytes / PAGE * PAGE < end &&
               begin < ((uintptr_t)range->bytes + range->size + PAGE - 1) / PAGE * PAGE)) {
        range = range->next;
    }
    return range != NULL;
}

CUresult cuMemHostRegister_v2(void *host, size_t size, unsigned flags)
{
    STANDIN_ALONE;
    CUresult result = standin_called_in_context("cuMemHostRegister_v2");

    if (result != CUDA_SUCCESS ||
        (flags & ~(unsigned)CU_MEMHOSTREGISTER_PORTABLE) != CU_MEMHOSTREGISTER_DEVICEMAP) {
        return result != CUDA_SUCCESS ? result : CUDA_ERROR_INVALID_VALUE;
    }
    if (host_overlaps(host, size)) {
        return ALREADY_REGISTERED;
    }
    range_add(host, size)->registered = true;
    return CUDA_SUCCESS;
}

CUresult cuMemHostUnregister(void *host)
{
    STANDIN_ALONE;
    struct range *range = range_at(host, 1, true);
    CUresult result = standin_called_in_context("cuMemHostUnregister");

    if (range == NULL || range->bytes != host) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    standin_drain_all();
    range_drop(range);
    return result;
}

CUresult cuMemHostGetDevicePointer_v2(CUdeviceptr *address, void *host, unsigned flags)
{
    STANDIN_ALONE;
    *address = (CUdeviceptr)(uintptr_t)host;
    return flags == 0 && standin_is_registered(host, 1)
               ? standin_called_in_context("cuMemHostGetDevicePointer_v2")
               : CUDA_ERROR_INVALID_VALUE;
}
