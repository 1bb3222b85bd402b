/*
 * One control message through codec_unpack(): what every fuzz target of messages checks.
 */
#ifndef ADTOPK_FUZZ_MESSAGE_H
#define ADTOPK_FUZZ_MESSAGE_H

#include "proto/codec.h"

/** Unpacks the bytes as a message of `type`, within its memory budget; packs it and unpacks it
 * again. Aborts where something is wrong. */
void message_check(const ProtobufCMessageDescriptor *type, const uint8_t *bytes, size_t size);

/** The same for two sides that talk: the first byte, if there is one, says which type the rest has,
 * a request (even) or a reply (odd). */
void message_check_dialogue(const ProtobufCMessageDescriptor *request,
    const ProtobufCMessageDescriptor *reply, const uint8_t *bytes, size_t size);

#endif
