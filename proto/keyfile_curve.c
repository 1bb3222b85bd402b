/* The part of key files that needs libzmq: making pairs, and the key that belongs to a secret. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>
#include <zmq.h>

#include "proto/keyfile.h"

enum adtopk_status keyfile_load(const char *path, struct keyfile_pair *pair, struct error *err)
{
    return keyfile_load_with(path, zmq_curve_public, pair, err);
}

enum adtopk_status keyfile_look(const char *path, struct keyfile_pair *pair, struct error *err)
{
    struct error why = {.code = ADTOPK_OK};
    const enum adtopk_status status = keyfile_read_pair(path, true, zmq_curve_public, pair, &why);

    if (status == ADTOPK_OK) {
        return ADTOPK_OK;
    }
    return error_set(err, status, "%s%s", why.text,
        status == ADTOPK_ERR_ARGUMENT ? "; this is no key pair" : "");
}

static enum adtopk_status keyfile_not_made(const char *path, const char *what, struct error *err)
{
    return error_set(
        err, ADTOPK_ERR_SYSTEM, "%.120s: cannot be %s: %s", path, what, strerror(errno));
}

static bool keyfile_write(int fd, const char *text, size_t size)
{
    while (size > 0) {
        ssize_t done = write(fd, text, size);

        if (done < 0 && errno != EINTR) {
            return false;
        }
        text += done > 0 ? done : 0;
        size -= done > 0 ? (size_t)done : 0;
    }
    return fsync(fd) == 0;
}

static enum adtopk_status keyfile_create(
    const char *path, const char *text, size_t size, struct error *err)
{
    int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
    enum adtopk_status status = ADTOPK_OK;

    if (fd < 0) {
        return keyfile_not_made(path, "created", err);
    }
    if (!keyfile_write(fd, text, size)) {
        status = keyfile_not_made(path, "written", err);
    }
    if (close(fd) != 0 && status == ADTOPK_OK) {
        status = keyfile_not_made(path, "written", err);
    }
    if (status != ADTOPK_OK) {
        (void)unlink(path);
    }
    return status;
}

enum adtopk_status keyfile_generate(
    const char *path, char public_key[KEYFILE_KEY_SIZE], struct error *err)
{
    struct keyfile_pair pair;
    char text[512];
    int size;
    enum adtopk_status status;

    if (zmq_curve_keypair(pair.public_key, pair.secret_key) != 0) {
        return error_set(
            err, ADTOPK_ERR_SYSTEM, "this libzmq cannot make keys: %s", zmq_strerror(errno));
    }
    size = snprintf(text, sizeof(text),
        "# A key pair of adtopk. Give others the public key only.\n"
        "version = %d\npublic = \"%s\"\nsecret = \"%s\"\n",
        KEYFILE_VERSION, pair.public_key, pair.secret_key);
    status = keyfile_create(path, text, (size_t)size, err);
    memcpy(public_key, pair.public_key, KEYFILE_KEY_SIZE);
    explicit_bzero(text, sizeof(text));
    keyfile_wipe(&pair);
    return status;
}
