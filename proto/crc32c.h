/*
 * The two ways to the CRC-32C of payload.h, for the test that compares them.
 */
#ifndef ADTOPK_CRC32C_H
#define ADTOPK_CRC32C_H

#include <stddef.h>
#include <stdint.h>

/** One table look-up a byte; runs everywhere. Reentrant. */
uint32_t crc32c_table(uint32_t crc, const void *bytes, size_t size);

#endif
