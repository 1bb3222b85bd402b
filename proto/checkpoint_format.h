/*
 * Shared by the files that read and write checkpoints (checkpoint.h).
 */
#ifndef ADTOPK_CHECKPOINT_FORMAT_H
#define ADTOPK_CHECKPOINT_FORMAT_H

#include "proto/checkpoint.h"

#define CHECKPOINT_MAGIC "adtkckpt"
#define CHECKPOINT_ASIDE 48u /* bytes that the name of an unpublished file has more, at most */

#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "numbers in checkpoints are little-endian, as this processor's must be"
#endif

/* The beginning of a file. */
struct checkpoint_fixed {
    char magic[8];
    uint32_t version;
    uint32_t head; /* bytes of the head */
    uint64_t size; /* bytes of the file */
    uint32_t head_crc;
    uint32_t crc; /* of the fields above */
};

_Static_assert(sizeof(struct checkpoint_fixed) == CHECKPOINT_FIXED, "no padding");

/** Bytes of all blocks. place: gets where each tensor begins; or NULL. The tensors must have been
 * checked. That bounds the sum: a head has at least two bytes for each residual. */
uint64_t checkpoint_format_size(const Adtopk__CheckpointFile *head, struct checkpoint_place *place);

/** The checksum of a block. */
uint32_t checkpoint_format_crc(
    uint32_t head_crc, uint64_t block, const float *values, uint32_t count);

/** Fills in err for a call that failed with this errno: DENIED, LOST (no such file) or SYSTEM. */
enum adtopk_status checkpoint_format_failed(
    const char *path, const char *verb, int code, struct error *err);

#endif
