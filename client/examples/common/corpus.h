/* The text: reading the file, its alphabet, and which characters are held out. */
#ifndef EXAMPLE_CORPUS_H
#define EXAMPLE_CORPUS_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

enum { CORPUS_ERROR_SIZE = 256 };

/* Characters are bytes, numbered in the order of their values: *symbols* 0..symbols-1. An example
 * is the position of a character, which the model predicts from the characters before it. */
struct corpus {
    uint8_t *memory;
    const uint8_t *text; /* the symbols; `context` line ends stand before text[0] */
    size_t length;
    size_t symbols;
    uint8_t bytes[256]; /* of each symbol */
    size_t *train;      /* positions, rising */
    size_t train_count;
    size_t *test; /* every tenth line (line number modulo 10 equal to 9, counted from 0) */
    size_t test_count;
};

/* Reads a text of at least ten lines and at most 64 MiB, without control characters other than tab
 * and line feed; the last line may end with the file. `context` line ends are put before it.
 * Returns 0, or -1 with a sentence in `error` that names file, line and column (the byte's number,
 * from 1) where there are any; `corpus` is then empty. The caller frees with corpus_free. */
int corpus_load(
    struct corpus *corpus, const char *path, size_t context, char error[CORPUS_ERROR_SIZE]);

/* The same from an open stream; `name` is only for errors. */
int corpus_read(struct corpus *corpus, FILE *stream, const char *name, size_t context,
    char error[CORPUS_ERROR_SIZE]);

void corpus_free(struct corpus *corpus);

#endif
