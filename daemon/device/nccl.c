#include "daemon/device/nccl.h"

#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

#define LIBRARY "libnccl.so.2"
#define LIBRARY_VARIABLE "ADTOPK_NCCL_LIBRARY"

/* Where each call of the library goes in struct nccl. */
static const struct nccl_symbol {
    const char *name;
    size_t offset;
} nccl_symbol[] = {
#define NCCL_SYMBOL(type, name, parameters) {#name, offsetof(struct nccl, name)},
    NCCL_CALLS(NCCL_SYMBOL)
#undef NCCL_SYMBOL
};

#define SYMBOLS (sizeof(nccl_symbol) / sizeof(nccl_symbol[0]))

static const char *nccl_library(void)
{
    const char *named = getenv(LIBRARY_VARIABLE);

    return named != NULL && named[0] != '\0' ? named : LIBRARY;
}

static enum adtopk_status nccl_find_calls(struct nccl *nccl, struct error *err)
{
    for (size_t i = 0; i < SYMBOLS; i++) {
        void *found = dlsym(nccl->library, nccl_symbol[i].name);

        if (found == NULL) {
            return error_set(err, ADTOPK_ERR_SYSTEM,
                "%.100s has no %s: adtopk needs NCCL %d.%d or later", nccl_library(),
                nccl_symbol[i].name, NCCL_MINIMUM / 10000, NCCL_MINIMUM / 100 % 100);
        }
        (void)memcpy((char *)nccl + nccl_symbol[i].offset, &found, sizeof(found));
    }
    return ADTOPK_OK;
}

static enum adtopk_status nccl_check_version(struct nccl *nccl, struct error *err)
{
    const ncclResult_t result = nccl->ncclGetVersion(&nccl->version);

    if (result != ncclSuccess) {
        return nccl_failed(nccl, result, "ncclGetVersion", NULL, err);
    }
    return nccl->version >= NCCL_MINIMUM
               ? ADTOPK_OK
               : error_set(err, ADTOPK_ERR_SYSTEM,
                     "%.100s is NCCL %d.%d.%d, and adtopk needs %d.%d or later", nccl_library(),
                     nccl->version / 10000, nccl->version / 100 % 100, nccl->version % 100,
                     NCCL_MINIMUM / 10000, NCCL_MINIMUM / 100 % 100);
}

enum adtopk_status nccl_open(struct nccl *nccl, struct error *err)
{
    enum adtopk_status status;

    *nccl = (struct nccl){.library = dlopen(nccl_library(), RTLD_NOW | RTLD_LOCAL)};
    if (nccl->library == NULL) {
        return error_set(err, ADTOPK_ERR_SYSTEM, "this node has no NCCL: %.200s", dlerror());
    }
    status = nccl_find_calls(nccl, err);
    if (status == ADTOPK_OK) {
        status = nccl_check_version(nccl, err);
    }
    if (status != ADTOPK_OK) {
        (void)dlclose(nccl->library);
        *nccl = (struct nccl){.library = NULL};
    }
    return status;
}

enum adtopk_status nccl_failed(const struct nccl *nccl, ncclResult_t result, const char *call,
    ncclComm_t comm, struct error *err)
{
    const char *last = nccl->ncclGetLastError(comm);

    return error_set(err, ADTOPK_ERR_SYSTEM, "%s: %s (%d)%s%.150s", call,
        nccl->ncclGetErrorString(result), result, last != NULL && last[0] != '\0' ? ": " : "",
        last != NULL ? last : "");
}
