/*
 * Key files: the identity of a node, or of a trainer on another machine.
 *
 * A key is a CURVE25519 key as ZeroMQ uses it, written in Z85: 40 characters. A key file is text
 * with one setting per line, in any order. Blank lines and lines that begin with # are ignored:
 *
 *     version = 1
 *     public = "rq:rM>}U?@Lns47E1%kR.o@n%FcmmsL/@{H8]yf7"
 *     secret = "JTKVSB%%)wK0E.X)V>+}o?pNmC{O&4W4b!Ni{Lh6"
 *
 * The file of a pair belongs to one user, and no other user may read it.
 *
 * All functions may be called from any thread. Errors name the file and, where there is one, the
 * line. These functions wipe secrets from the memory that they used.
 */
#ifndef ADTOPK_KEYFILE_H
#define ADTOPK_KEYFILE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "proto/error.h"

#define KEYFILE_VERSION 1
#define KEYFILE_KEY_SIZE 41 /* a key in Z85 and its NUL */
#define KEYFILE_KEY_BYTES 32
#define KEYFILE_SIZE_MAX 4096

struct keyfile_pair {
    char public_key[KEYFILE_KEY_SIZE];
    char secret_key[KEYFILE_KEY_SIZE]; /* "": there is only the public one */
};

/** Computes the public key that belongs to a secret one; not 0 on a failure, which errno names.
 * zmq_curve_public() is one. The client library finds it when it opens libzmq. */
typedef int keyfile_public_of(char *public_key, const char *secret_key);

/** True if `key` is 40 characters of Z85 that stand for 32 bytes. */
bool keyfile_is_key(const char *key);

/** The bytes of a key; false if `key` is none. */
bool keyfile_decode(const char *key, uint8_t bytes[KEYFILE_KEY_BYTES]);

/**
 * False if `key`, which is a key, cannot be a public one: it is no multiple of the curve's base
 * point. Every public key is one, but only one of 32 secret keys looks like one. Takes about a
 * millisecond.
 */
bool keyfile_may_be_public(const char *key);

/**
 * Makes a pair and writes it to `path`, which must not exist yet; nothing is ever overwritten.
 * The file has mode 0600 and is on the disk when this returns. `public_key` gets the public key.
 */
enum adtopk_status keyfile_generate(
    const char *path, char public_key[KEYFILE_KEY_SIZE], struct error *err);

/**
 * Reads a pair. ADTOPK_ERR_DENIED if the file is not a regular one, belongs neither to this user
 * nor to root, or may be read or written by others. ADTOPK_ERR_ARGUMENT if its content is wrong;
 * ADTOPK_ERR_SYSTEM if it cannot be read. Links are followed, and their target is checked. Wipe the
 * pair with keyfile_wipe() after use; on an error it is empty.
 */
enum adtopk_status keyfile_load(const char *path, struct keyfile_pair *pair, struct error *err);

/** Does the same as keyfile_load(), without being linked with libzmq. */
enum adtopk_status keyfile_load_with(
    const char *path, keyfile_public_of *public_of, struct keyfile_pair *pair, struct error *err);

/** Reads a pair to show its public key: the same as keyfile_load(), but a file that is no pair is
 * told to be none, whoever may read it. */
enum adtopk_status keyfile_look(const char *path, struct keyfile_pair *pair, struct error *err);

/** The same, where `form_first`, as keyfile_look(), otherwise as keyfile_load(). */
enum adtopk_status keyfile_read_pair(const char *path, bool form_first,
    keyfile_public_of *public_of, struct keyfile_pair *pair, struct error *err);

/** Reads the `size` bytes of a file's text; `source` names it in errors. What keyfile_load() does
 * with a file's content, for tests. */
enum adtopk_status keyfile_parse(const char *source, const char *text, size_t size,
    keyfile_public_of *public_of, struct keyfile_pair *pair, struct error *err);

void keyfile_wipe(struct keyfile_pair *pair);

#endif
