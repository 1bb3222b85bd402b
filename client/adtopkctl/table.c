#include "client/adtopkctl/table.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "client/adtopkctl/text.h"

#define GAP 2 /* between two columns */

struct table_cell {
    char *text;
    double key;
    bool number;
};

struct table_row {
    const void *about;
    unsigned cells;
    struct table_cell cell[TABLE_COLUMNS_MAX];
    char *below; /* lines; NULL: there are none */
};

void table_begin(struct table *table, const struct table_column *column, unsigned columns)
{
    *table = (struct table){.column = column, .columns = columns};
}

void table_add(struct table *table, const void *about)
{
    if (table->rows == table->room) {
        const size_t room = table->room > 0 ? 2 * table->room : 16;
        struct table_row *grown = realloc(table->row, room * sizeof(*grown));

        if (grown == NULL) {
            table->failed = true;
            return;
        }
        table->row = grown;
        table->room = room;
    }
    table->row[table->rows++] = (struct table_row){.about = about};
}

static void table_cell(struct table *table, const char *text, double key, bool number)
{
    struct table_row *row = table->rows > 0 ? &table->row[table->rows - 1] : NULL;
    char clean[TEXT_SIZE];

    if (row == NULL || row->cells == table->columns || table->failed) {
        return;
    }
    row->cell[row->cells] =
        (struct table_cell){.text = strdup(text_clean(text != NULL ? text : "-", TEXT_SIZE, clean)),
            .key = key,
            .number = number};
    table->failed = row->cell[row->cells].text == NULL;
    row->cells += table->failed ? 0 : 1;
}

void table_text(struct table *table, const char *text)
{
    table_cell(table, text, 0, false);
}

void table_number(struct table *table, const char *text, double key)
{
    table_cell(table, text, key, true);
}

void table_below(struct table *table, char *lines)
{
    table->failed |= lines == NULL;
    if (table->rows > 0 && table->row[table->rows - 1].below == NULL) {
        table->row[table->rows - 1].below = lines;
    } else {
        free(lines);
    }
}

/* ------------------------------------------------------------------ order */

static unsigned table_sorted_by; /* qsort() has no context */

static int table_compare(const void *one, const void *other)
{
    const struct table_row *a = one, *b = other;
    const unsigned by = table_sorted_by;

    if (by >= a->cells || by >= b->cells) {
        return (a->cells < b->cells) - (a->cells > b->cells);
    }
    if (a->cell[by].number && b->cell[by].number) {
        return (a->cell[by].key < b->cell[by].key) - (a->cell[by].key > b->cell[by].key);
    }
    return strcmp(a->cell[by].text, b->cell[by].text);
}

bool table_sort(struct table *table, const char *title)
{
    for (unsigned c = 0; c < table->columns; c++) {
        if (strcmp(table->column[c].title, title) == 0) {
            table_sorted_by = c;
            if (table->rows > 1) {
                qsort(table->row, table->rows, sizeof(*table->row), table_compare);
            }
            return true;
        }
    }
    return false;
}

static void table_row_free(struct table_row *row)
{
    for (unsigned c = 0; c < row->cells; c++) {
        free(row->cell[c].text);
    }
    free(row->below);
}

void table_filter(struct table *table, const char *part)
{
    size_t kept = 0;

    for (size_t r = 0; r < table->rows; r++) {
        bool keep = part[0] == '\0';

        for (unsigned c = 0; !keep && c < table->row[r].cells; c++) {
            keep = strstr(table->row[r].cell[c].text, part) != NULL;
        }
        if (keep) {
            table->row[kept++] = table->row[r];
        } else {
            table_row_free(&table->row[r]);
        }
    }
    table->rows = kept;
}

const void *table_about(const struct table *table, size_t row)
{
    return row < table->rows ? table->row[row].about : NULL;
}

/* ------------------------------------------------------------------ printing */

static size_t table_used(const struct table *table, const size_t width[TABLE_COLUMNS_MAX])
{
    size_t whole = 0;

    for (unsigned c = 0; c < table->columns; c++) {
        whole += width[c] > 0 ? width[c] + (whole > 0 ? GAP : 0) : 0;
    }
    return whole;
}

/* Whether every column is there, and fits. */
static bool table_is_whole(
    const struct table *table, const size_t width[TABLE_COLUMNS_MAX], size_t most)
{
    bool whole = table_used(table, width) <= most;

    for (unsigned c = 0; whole && c < table->columns; c++) {
        whole = width[c] > 0;
    }
    return whole;
}

/* The same if all columns shrink as far as they may. */
static size_t table_least(const struct table *table, const size_t width[TABLE_COLUMNS_MAX])
{
    size_t least[TABLE_COLUMNS_MAX];

    for (unsigned c = 0; c < table->columns; c++) {
        const size_t most = table->column[c].least;
        least[c] = most > 0 && width[c] > most ? most : width[c];
    }
    return table_used(table, least);
}

/* Takes a column of the terminal from the widest that may shrink; false: none may. */
static bool table_shrink(const struct table *table, size_t width[TABLE_COLUMNS_MAX])
{
    unsigned widest = table->columns;

    for (unsigned c = 0; c < table->columns; c++) {
        const size_t least = table->column[c].least;

        if (least > 0 && width[c] > least &&
            (widest == table->columns || width[c] > width[widest])) {
            widest = c;
        }
    }
    if (widest < table->columns) {
        width[widest]--;
    }
    return widest < table->columns;
}

static void table_measure(const struct table *table, size_t most, size_t width[TABLE_COLUMNS_MAX])
{
    for (unsigned c = 0; c < table->columns; c++) {
        width[c] = text_columns(table->column[c].title);
        for (size_t r = 0; r < table->rows; r++) {
            const struct table_row *row = &table->row[r];
            const size_t cell = c < row->cells ? text_columns(row->cell[c].text) : 0;
            width[c] = cell > width[c] ? cell : width[c];
        }
    }
    for (unsigned c = table->columns; c > 0; c--) {
        if (table_least(table, width) > most && table->column[c - 1].extra) {
            width[c - 1] = 0;
        }
    }
    while (table_used(table, width) > most && table_shrink(table, width)) {
    }
}

/* One line, cut at `most` columns. Blanks are due when something stands behind them. */
static void table_line(FILE *out, const struct table *table, const char *const text[],
    const size_t width[TABLE_COLUMNS_MAX], size_t most)
{
    size_t used = 0, due = 0;

    for (unsigned c = 0; c < table->columns; c++) {
        const bool right = table->column[c].right;
        char shown[TEXT_SIZE];
        const size_t gap = used > 0 ? GAP : 0;
        size_t columns, pad;

        if (width[c] == 0) {
            continue;
        }
        if (used + gap >= most) {
            break;
        }
        (void)text_clean(
            text[c], width[c] < most - used - gap ? width[c] : most - used - gap, shown);
        columns = text_columns(shown);
        pad = width[c] > columns ? width[c] - columns : 0;
        pad = used + gap + columns + pad > most ? 0 : pad;
        due += gap + (right ? pad : 0);
        if (columns > 0) {
            (void)fprintf(out, "%*s%s", (int)due, "", shown);
            due = 0;
        }
        due += right ? 0 : pad;
        used += gap + columns + pad;
    }
}

bool table_print(FILE *out, const struct table *table, size_t most, size_t selected)
{
    size_t width[TABLE_COLUMNS_MAX];
    const char *text[TABLE_COLUMNS_MAX];

    table_measure(table, most, width);
    for (unsigned c = 0; c < table->columns; c++) {
        text[c] = table->column[c].title;
    }
    table_line(out, table, text, width, most);
    (void)fputc('\n', out);
    for (size_t r = 0; r < table->rows; r++) {
        const struct table_row *row = &table->row[r];

        for (unsigned c = 0; c < table->columns; c++) {
            text[c] = c < row->cells ? row->cell[c].text : "";
        }
        (void)fputs(r == selected ? "\033[7m" : "", out);
        table_line(out, table, text, width, most);
        (void)fputs(r == selected ? "\033[0m\n" : "\n", out);
        (void)fputs(row->below != NULL ? row->below : "", out);
    }
    if (table->failed) {
        (void)fputs("(memory is short: rows are missing)\n", out);
    }
    return table_is_whole(table, width, most);
}

void table_free(struct table *table)
{
    for (size_t r = 0; r < table->rows; r++) {
        table_row_free(&table->row[r]);
    }
    free(table->row);
    *table = (struct table){.rows = 0};
}
