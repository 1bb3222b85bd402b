/* The hand-written digits: reading the file and splitting it. */
#ifndef DIGITS_DATA_H
#define DIGITS_DATA_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "model.h"

enum { DATA_ERROR_SIZE = 256 };

/* `count` examples: images[count][MODEL_PIXELS] in 0..1 and labels[count] in 0..9. */
struct data_set {
    float *images;
    uint8_t *labels;
    size_t count;
};

/* Row number modulo 5 equal to 4, counted from 0, is for testing; the others are for training. */
struct data {
    struct data_set train;
    struct data_set test;
};

/* Reads a CSV of 64 pixels (whole numbers 0..16) and a label (0..9) a line, without header. Strict:
 * no blanks, signs, empty fields or empty lines; a line ends with LF or CR LF, the last one may
 * end with the file. Returns 0, or -1 with a sentence in `error` that names file, line and column
 * (the field's number, from 1); `data` is then empty. The caller frees with data_free. */
int data_load(struct data *data, const char *path, char error[DATA_ERROR_SIZE]);

/* The same from an open stream; `name` is only for errors. */
int data_parse(struct data *data, FILE *stream, const char *name, char error[DATA_ERROR_SIZE]);

void data_free(struct data *data);

#endif
