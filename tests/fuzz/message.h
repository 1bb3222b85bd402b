/*
 * One control message through codec_unpack(): the check that all fuzz targets of messages share.
 */
#ifndef ADTOPK_FUZZ_MESSAGE_H
#define ADTOPK_FUZZ_MESSAGE_H

#include "proto/codec.h"

/** Unpacks the bytes as a message of `type`, within its memory budget; packs it and unpacks it
 * again. Aborts where something is wrong. */
void message_check(const ProtobufCMessageDescriptor *type, const uint8_t *bytes, size_t size);

/** The same for messages in two directions: the first byte, if there is one, chooses a request
 * (even) or a reply (odd). */
void message_check_dialogue(const ProtobufCMessageDescriptor *request,
    const ProtobufCMessageDescriptor *reply, const uint8_t *bytes, size_t size);

#endif
