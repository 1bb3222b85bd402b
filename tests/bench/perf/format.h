/*
 * Numbers as people read them in the columns of a table.
 */
#ifndef PERF_FORMAT_H
#define PERF_FORMAT_H

#include <stddef.h>

#define FORMAT_SIZE 32

/** A measured number: three digits where they fit, no exponent; "-" for NAN. */
void format_measure(char text[FORMAT_SIZE], double number);

/** A whole number; "-" for NAN. */
void format_count(char text[FORMAT_SIZE], double number);

/** A density: "0.01", "1"; "-" for NAN. */
void format_density(char text[FORMAT_SIZE], double density);

/** A fraction in percent, "3.1%"; "-" for NAN. */
void format_percent(char text[FORMAT_SIZE], double fraction);

#endif
