/*
 * The slower ways to the CRC-32C of payload.h, for the test that compares them with it.
 */
#ifndef ADTOPK_CRC32C_H
#define ADTOPK_CRC32C_H

#include <stddef.h>
#include <stdint.h>

/** One table look-up a byte; runs everywhere. Reentrant. */
uint32_t crc32c_table(uint32_t crc, const void *bytes, size_t size);

/** Uses the processor's CRC instruction if there is one, else the table. Reentrant. */
uint32_t crc32c_streams(uint32_t crc, const void *bytes, size_t size);

#endif
