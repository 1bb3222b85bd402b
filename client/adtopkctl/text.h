/*
 * Pieces of a document as text for people: a field that is missing, as in a daemon of another
 * version, shows as 0 or "-", and nothing in a name commands the terminal.
 */
#ifndef ADTOPK_TEXT_H
#define ADTOPK_TEXT_H

#include <cjson/cJSON.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>

#define TEXT_SIZE 512
#define TEXT_COLUMNS 80

/** A number, 0 if there is none; a member of an object, NULL if there is none. */
double text_number(const cJSON *object, const char *name);
const cJSON *text_member(const cJSON *object, const char *name);
bool text_true(const cJSON *object, const char *name);
bool text_is(const cJSON *object, const char *name, const char *wanted);

/** Whether a job's document says that it has ended, well or not. */
bool text_is_over(const cJSON *job);

/** The width of lines: TEXT_COLUMNS until it is set. */
void text_set_width(size_t columns);
size_t text_get_width(void);

/** The columns that a terminal gives to a clean text. */
size_t text_columns(const char *clean);

/** The printable form of `from`, at most `columns` wide: a longer one loses its middle. */
const char *text_clean(const char *from, size_t columns, char out[TEXT_SIZE]);

/** The text of a member, "-" if it is no string. */
const char *text_string(const cJSON *object, const char *name, size_t columns, char out[TEXT_SIZE]);

/** The process id of a document, "-" if it has none. */
const char *text_pid(const cJSON *object, char out[TEXT_SIZE]);

/** Prints the text of a member, padded to `width` characters. */
void text_column(FILE *out, const cJSON *object, const char *name, size_t width);
void text_pad(FILE *out, const char *clean, size_t width);

/** A sentence, from this column on; lines of at most the set width, the next ones indented. */
void text_fill(FILE *out, size_t column, size_t indent, const char *sentence);

/** "  LEAD sentence" in lines of at most the set width, the next ones indented by 4. */
void text_wrapped(FILE *out, const char *lead, const char *sentence);

/** Three digits and a decimal unit: "1.23 MB", "12.3 M". */
const char *text_bytes(double count, char out[TEXT_SIZE]);
const char *text_count(double count, char out[TEXT_SIZE]);

/** The ending of a plural: "" for 1, otherwise "s". */
const char *text_s(double count);

/** Three digits of less than 1000 s: "85 us", "1.25 ms", "4.38 s". */
const char *text_time(double us, char out[TEXT_SIZE]);

/** "25 s", "3 min", "2.5 h", "3.0 days". */
const char *text_duration(double seconds, char out[TEXT_SIZE]);

/** "0.25 ms"; "-" if nothing was measured yet. */
const char *text_round_trip(const cJSON *peer, char out[TEXT_SIZE]);

/** The user's name on this machine, else the number; at most `columns` characters. */
const char *text_user(double uid, size_t columns, char out[TEXT_SIZE]);

/** "job NAME, run RUN". */
void text_job(FILE *out, const cJSON *job);

#endif
