/*
 * Bounded packing and unpacking of the control messages.
 *
 * protobuf-c itself has no limits: a few MiB of input can become hundreds of MiB of heap. Here a
 * message may take at most CODEC_EXPANSION times its size (plus CODEC_SLACK) of heap, and input
 * over the caller's limit is refused. The messages themselves are not recursive.
 *
 * A string with a NUL in it is refused too: C would read only the part before it.
 */
#ifndef ADTOPK_CODEC_H
#define ADTOPK_CODEC_H

#include <protobuf-c/protobuf-c.h>
#include <stddef.h>
#include <stdint.h>

#include "proto/error.h"

#define CODEC_LOCAL_MAX 60000u    /* bytes of one message on a session or control socket */
#define CODEC_PEER_MAX (4u << 20) /* bytes of one control message between daemons */
#define CODEC_EXPANSION 16u
#define CODEC_SLACK 16384u

/** Unpacks `size` bytes; NULL and err on malformed or oversized input. Free with codec_free(). */
ProtobufCMessage *codec_unpack(const ProtobufCMessageDescriptor *type, const void *bytes,
    size_t size, size_t limit, struct error *err);

void codec_free(ProtobufCMessage *message);

/** Packs into malloc'ed memory that the caller frees; NULL without memory. */
uint8_t *codec_pack(const ProtobufCMessage *message, size_t *size);

#endif
