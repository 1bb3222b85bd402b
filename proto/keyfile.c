#include "proto/keyfile.h"

#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "proto/retry.h"

/* Errors must fit the rest of their sentence behind the path. */
#define KEYFILE_SHOWN "%.120s"

void keyfile_wipe(struct keyfile_pair *pair)
{
    explicit_bzero(pair, sizeof(*pair));
}

/* Five characters of Z85 stand for four bytes, the most significant first. */
static bool keyfile_decode_group(const char text[5], uint8_t bytes[4])
{
    static const char alphabet[] = "0123456789abcdefghijklmnopqrstuvwxyz"
                                   "ABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#";
    uint64_t value = 0;

    for (unsigned i = 0; i < 5; i++) {
        const char *digit = text[i] != '\0' ? strchr(alphabet, text[i]) : NULL;

        if (digit == NULL) {
            return false;
        }
        value = 85 * value + (uint64_t)(digit - alphabet);
    }
    for (unsigned i = 0; i < 4; i++) {
        bytes[i] = (uint8_t)(value >> (24 - 8 * i));
    }
    return value <= UINT32_MAX;
}

bool keyfile_decode(const char *key, uint8_t bytes[KEYFILE_KEY_BYTES])
{
    bool valid = strnlen(key, KEYFILE_KEY_SIZE) == KEYFILE_KEY_SIZE - 1;

    for (unsigned i = 0; valid && i < KEYFILE_KEY_BYTES / 4; i++) {
        valid = keyfile_decode_group(key + 5 * i, bytes + 4 * i);
    }
    return valid;
}

bool keyfile_is_key(const char *key)
{
    uint8_t bytes[KEYFILE_KEY_BYTES];
    const bool valid = keyfile_decode(key, bytes);

    explicit_bzero(bytes, sizeof(bytes));
    return valid;
}

/* ------------------------------------------------------------------ the text */

struct keyfile_reader {
    const char *source;
    struct error *err;
    struct keyfile_pair *pair;
    keyfile_public_of *public_of;
    bool versioned;
    unsigned line;
};

static enum adtopk_status keyfile_wrong(const struct keyfile_reader *reader, const char *what)
{
    return error_set(reader->err, ADTOPK_ERR_ARGUMENT, KEYFILE_SHOWN ":%u: %s", reader->source,
        reader->line, what);
}

/* A span of the text, without a NUL behind it. */
struct keyfile_word {
    const char *at;
    size_t size;
};

static struct keyfile_word keyfile_trim(struct keyfile_word word)
{
    while (word.size > 0 && strchr(" \t\r", word.at[0]) != NULL && word.at[0] != '\0') {
        word.at++;
        word.size--;
    }
    while (word.size > 0 && strchr(" \t\r", word.at[word.size - 1]) != NULL &&
           word.at[word.size - 1] != '\0') {
        word.size--;
    }
    return word;
}

static bool keyfile_equal(struct keyfile_word word, const char *text)
{
    return word.size == strlen(text) && memcmp(word.at, text, word.size) == 0;
}

static enum adtopk_status keyfile_take_key(
    struct keyfile_reader *reader, struct keyfile_word value, char key[KEYFILE_KEY_SIZE])
{
    if (key[0] != '\0') {
        return keyfile_wrong(reader, "this key occurs twice");
    }
    if (value.size != KEYFILE_KEY_SIZE + 1 || value.at[0] != '"' ||
        value.at[value.size - 1] != '"') {
        return keyfile_wrong(reader, "a key of 40 characters in quotes is needed here");
    }
    memcpy(key, value.at + 1, KEYFILE_KEY_SIZE - 1);
    key[KEYFILE_KEY_SIZE - 1] = '\0';
    return keyfile_is_key(key) ? ADTOPK_OK : keyfile_wrong(reader, "the key is not valid Z85");
}

static enum adtopk_status keyfile_take_line(struct keyfile_reader *reader, struct keyfile_word line)
{
    const char *equals;
    struct keyfile_word name, value;

    if (line.size == 0 || line.at[0] == '#') {
        return ADTOPK_OK;
    }
    equals = memchr(line.at, '=', line.size);
    if (equals == NULL) {
        return keyfile_wrong(reader, "not of the form NAME = VALUE");
    }
    name = keyfile_trim((struct keyfile_word){line.at, (size_t)(equals - line.at)});
    value =
        keyfile_trim((struct keyfile_word){equals + 1, line.size - (size_t)(equals + 1 - line.at)});
    if (keyfile_equal(name, "public")) {
        return keyfile_take_key(reader, value, reader->pair->public_key);
    }
    if (keyfile_equal(name, "secret")) {
        return keyfile_take_key(reader, value, reader->pair->secret_key);
    }
    if (!keyfile_equal(name, "version")) {
        return keyfile_wrong(reader, "neither version nor public nor secret");
    }
    if (reader->versioned) {
        return keyfile_wrong(reader, "version occurs twice");
    }
    reader->versioned = true;
    return keyfile_equal(value, "1") ? ADTOPK_OK
                                     : keyfile_wrong(reader, "only version = 1 can be read");
}

static enum adtopk_status keyfile_check(const struct keyfile_reader *reader)
{
    const struct keyfile_pair *pair = reader->pair;
    char belongs[KEYFILE_KEY_SIZE];

    if (!reader->versioned || pair->public_key[0] == '\0') {
        return error_set(reader->err, ADTOPK_ERR_ARGUMENT, KEYFILE_SHOWN ": %s is missing",
            reader->source, reader->versioned ? "public" : "version");
    }
    if (pair->secret_key[0] == '\0') {
        return ADTOPK_OK;
    }
    if (reader->public_of(belongs, pair->secret_key) != 0) {
        return error_set(reader->err, ADTOPK_ERR_SYSTEM, KEYFILE_SHOWN ": CURVE: %s",
            reader->source, strerror(errno));
    }
    if (strcmp(belongs, pair->public_key) != 0) {
        return error_set(reader->err, ADTOPK_ERR_ARGUMENT,
            KEYFILE_SHOWN ": the public key does not belong to the secret key", reader->source);
    }
    return ADTOPK_OK;
}

enum adtopk_status keyfile_parse(const char *source, const char *text, size_t size,
    keyfile_public_of *public_of, struct keyfile_pair *pair, struct error *err)
{
    struct keyfile_reader reader = {
        .source = source, .err = err, .pair = pair, .public_of = public_of};
    enum adtopk_status status = ADTOPK_OK;

    memset(pair, 0, sizeof(*pair));
    if (size > KEYFILE_SIZE_MAX) {
        return error_set(err, ADTOPK_ERR_ARGUMENT,
            KEYFILE_SHOWN ": longer than %d bytes: not a key file", source, KEYFILE_SIZE_MAX);
    }
    while (size > 0 && status == ADTOPK_OK) {
        const char *end = memchr(text, '\n', size);
        size_t length = end != NULL ? (size_t)(end - text) : size;

        reader.line++;
        status = memchr(text, '\0', length) == NULL
                     ? keyfile_take_line(&reader, keyfile_trim((struct keyfile_word){text, length}))
                     : keyfile_wrong(&reader, "a NUL does not belong in text");
        length += end != NULL ? 1 : 0;
        text += length;
        size -= length;
    }
    if (status == ADTOPK_OK) {
        status = keyfile_check(&reader);
    }
    if (status != ADTOPK_OK) {
        keyfile_wipe(pair);
    }
    return status;
}

/* ------------------------------------------------------------------ reading */

static enum adtopk_status keyfile_failed(const char *path, const char *what, struct error *err)
{
    return error_set(err, ADTOPK_ERR_SYSTEM, KEYFILE_SHOWN ": %s: %s", path, what, strerror(errno));
}

static enum adtopk_status keyfile_check_kind(
    int fd, const char *path, struct stat *info, struct error *err)
{
    if (fstat(fd, info) != 0) {
        return keyfile_failed(path, "cannot be examined", err);
    }
    return S_ISREG(info->st_mode)
               ? ADTOPK_OK
               : error_set(err, ADTOPK_ERR_DENIED, KEYFILE_SHOWN ": not a regular file", path);
}

/* It belongs to this user or to root, and to nobody else. */
static enum adtopk_status keyfile_check_rights(
    const struct stat *info, const char *path, struct error *err)
{
    if (info->st_uid != geteuid() && info->st_uid != 0) {
        return error_set(err, ADTOPK_ERR_DENIED,
            KEYFILE_SHOWN ": belongs to user %u, and not to this one or to root", path,
            (unsigned)info->st_uid);
    }
    if ((info->st_mode & 0077) != 0) {
        return error_set(err, ADTOPK_ERR_DENIED,
            KEYFILE_SHOWN ": mode %04o lets others %s it; chmod 600", path,
            (unsigned)(info->st_mode & 07777), (info->st_mode & 0022) != 0 ? "write" : "read");
    }
    return ADTOPK_OK;
}

/* Reads up to KEYFILE_SIZE_MAX + 1 bytes: one too many shows that it is too long. */
static ssize_t keyfile_read(int fd, char text[KEYFILE_SIZE_MAX + 1])
{
    size_t size = 0;

    while (size < KEYFILE_SIZE_MAX + 1) {
        ssize_t got = read(fd, text + size, KEYFILE_SIZE_MAX + 1 - size);

        if (got == 0) {
            break;
        }
        if (got < 0 && errno != EINTR) {
            return -1;
        }
        size += got > 0 ? (size_t)got : 0;
    }
    return (ssize_t)size;
}

static enum adtopk_status keyfile_read_text(int fd, const char *path, keyfile_public_of *public_of,
    struct keyfile_pair *pair, struct error *err)
{
    char text[KEYFILE_SIZE_MAX + 1];
    const ssize_t size = keyfile_read(fd, text);
    enum adtopk_status status = size < 0
                                    ? keyfile_failed(path, "cannot be read", err)
                                    : keyfile_parse(path, text, (size_t)size, public_of, pair, err);

    explicit_bzero(text, sizeof(text));
    if (status == ADTOPK_OK && pair->secret_key[0] == '\0') {
        return error_set(err, ADTOPK_ERR_ARGUMENT, KEYFILE_SHOWN ": secret is missing", path);
    }
    return status;
}

enum adtopk_status keyfile_read_pair(const char *path, bool form_first,
    keyfile_public_of *public_of, struct keyfile_pair *pair, struct error *err)
{
    struct stat info;
    enum adtopk_status status;
    int fd;

    memset(pair, 0, sizeof(*pair));
    /* Non-blocking: opening a file that is not a regular one could wait, before that is known. */
    RETRY(fd, open(path, O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK));
    if (fd < 0) {
        return keyfile_failed(path, "cannot be opened", err);
    }
    status = keyfile_check_kind(fd, path, &info, err);
    if (status == ADTOPK_OK && !form_first) {
        status = keyfile_check_rights(&info, path, err);
    }
    if (status == ADTOPK_OK) {
        status = keyfile_read_text(fd, path, public_of, pair, err);
    }
    if (status == ADTOPK_OK && form_first) {
        status = keyfile_check_rights(&info, path, err);
    }
    (void)close(fd);
    if (status != ADTOPK_OK) {
        keyfile_wipe(pair);
    }
    return status;
}

enum adtopk_status keyfile_load_with(
    const char *path, keyfile_public_of *public_of, struct keyfile_pair *pair, struct error *err)
{
    return keyfile_read_pair(path, false, public_of, pair, err);
}
