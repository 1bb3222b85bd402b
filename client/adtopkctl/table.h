/*
 * Tables for people. Columns are as wide as their longest cell. If the table is wider than the
 * terminal, columns that shrink lose the middle of their cells, the widest first. If that is not
 * enough, extra columns are left out; lines that are still too long are cut. Nothing in a cell
 * commands the terminal.
 */
#ifndef ADTOPK_TABLE_H
#define ADTOPK_TABLE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>

#define TABLE_COLUMNS_MAX 14
#define TABLE_UNLIMITED 100000u /* a width that no table reaches */

struct table_column {
    const char *title;
    bool right;   /* aligned */
    size_t least; /* columns of the terminal to which it may shrink; 0: it does not */
    bool extra;   /* left out where the table does not fit otherwise */
};

struct table_row;

struct table {
    const struct table_column *column;
    unsigned columns;
    struct table_row *row;
    size_t rows, room;
    bool failed; /* memory was short: some rows are missing */
};

/** An empty table; `column` must outlive it. */
void table_begin(struct table *table, const struct table_column *column, unsigned columns);

/** Adds a row, without cells. about: the caller's, to be found by table_about(). */
void table_add(struct table *table, const void *about);

/** Adds the next cell to the last row: a text, which is copied and cleaned, or "-" for NULL. */
void table_text(struct table *table, const char *text);

/** The same; `key` is its place when the table is sorted by numbers. */
void table_number(struct table *table, const char *text, double key);

/** Puts lines below the last row, whatever the order is then. Takes `lines`, of malloc(), which is
 * NULL if memory was short. */
void table_below(struct table *table, char *lines);

/** Sorts by a column: texts from A to Z, numbers from large to small. False: none has this title.
 */
bool table_sort(struct table *table, const char *title);

/** Leaves only rows of which some cell contains `part`; all rows contain "". */
void table_filter(struct table *table, const char *part);

/** What table_add() was given for this row; NULL: there are fewer. */
const void *table_about(const struct table *table, size_t row);

/** Prints it. selected: the row that is shown in reverse; SIZE_MAX: none. False: columns were left
 * out, or lines cut. */
bool table_print(FILE *out, const struct table *table, size_t width, size_t selected);

void table_free(struct table *table);

#endif
