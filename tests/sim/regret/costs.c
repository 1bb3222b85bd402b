#include "tests/sim/regret/costs.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#define LINE_SIZE 256

/* ------------------------------------------------------------------ reading */

static bool choice_of(const char *name, enum choice *choice)
{
    for (unsigned c = 0; c < CHOICES; c++) {
        if (strcmp(name, choice_name((enum choice)c)) == 0) {
            *choice = (enum choice)c;
            return true;
        }
    }
    return false;
}

/* Rows of several tensors come after the one of the same elements in one tensor. */
static bool take_further(
    struct costs *costs, enum choice choice, unsigned tensors, const struct costs_row *row)
{
    for (unsigned r = 0; r < costs->rows[choice]; r++) {
        const struct costs_row *one = &costs->row[choice][r];
        for (unsigned s = 0; one->elements == row->elements && s < COSTS_STAGES; s++) {
            double more = (row->ns[s] - one->ns[s]) / (tensors - 1);
            costs->further_ns[choice][s] = more > 0 ? more : 0;
        }
        if (one->elements == row->elements) {
            return true;
        }
    }
    return false;
}

static bool take_row(struct costs *costs, const char *line)
{
    char name[32];
    unsigned tensors;
    struct costs_row row;
    enum choice choice;

    if (sscanf(line, "%31[^,],%u,%lf,%lf,%lf,%lf,%lf", name, &tensors, &row.elements, &row.ns[0],
            &row.ns[1], &row.ns[2], &row.ns[3]) != 7 ||
        !choice_of(name, &choice) || tensors == 0 || !(row.elements > 0)) {
        return false;
    }
    for (unsigned s = 0; s < COSTS_STAGES; s++) {
        if (!(row.ns[s] >= 0 && row.ns[s] < 1e12)) {
            return false;
        }
    }
    if (tensors > 1) {
        return take_further(costs, choice, tensors, &row);
    }
    if (costs->rows[choice] == COSTS_ROWS ||
        (costs->rows[choice] > 0 &&
            row.elements <= costs->row[choice][costs->rows[choice] - 1].elements)) {
        return false;
    }
    costs->row[choice][costs->rows[choice]++] = row;
    return true;
}

/* The measurements, the names of the columns, and rows. */
static bool take_line(struct costs *costs, unsigned number, const char *line)
{
    if (number == 1) {
        return sscanf(line, "# ns on one thread, %*u steps, %u nodes, density %lf", &costs->nodes,
                   &costs->density) == 2;
    }
    return number == 2 ? strncmp(line, "choice,", 7) == 0 : take_row(costs, line);
}

bool costs_read(struct costs *costs, const char *path, struct error *err)
{
    FILE *file = fopen(path, "r");
    char line[LINE_SIZE];
    unsigned number = 0;
    bool good = file != NULL;

    *costs = (struct costs){.nodes = 0};
    if (file == NULL) {
        (void)error_set(err, ADTOPK_ERR_SYSTEM, "%s: %s", path, strerror(errno));
        return false;
    }
    while (good && fgets(line, sizeof(line), file) != NULL) {
        good = take_line(costs, ++number, line);
    }
    (void)fclose(file);
    if (!good) {
        (void)error_set(err, ADTOPK_ERR_ARGUMENT, "%s, line %u: no row of costs", path, number);
    }
    for (unsigned c = 0; good && c < CHOICES; c++) {
        if (costs->rows[c] == 0) {
            (void)error_set(err, ADTOPK_ERR_ARGUMENT, "%s says nothing of %s", path,
                choice_name((enum choice)c));
            good = false;
        }
    }
    return good;
}

/* ------------------------------------------------------------------ asking */

static double one_tensor(
    const struct costs_row *row, unsigned rows, enum stage stage, double elements)
{
    unsigned r = 0;

    while (r < rows && row[r].elements < elements) {
        r++;
    }
    if (r == rows) {
        return row[r - 1].ns[stage] * elements / row[r - 1].elements;
    }
    if (r == 0) {
        return row[0].ns[stage];
    }
    return row[r - 1].ns[stage] + (row[r].ns[stage] - row[r - 1].ns[stage]) *
                                      (elements - row[r - 1].elements) /
                                      (row[r].elements - row[r - 1].elements);
}

double costs_of(const struct costs *costs, enum choice choice, enum stage stage, uint64_t elements,
    unsigned tensors)
{
    if (tensors == 0) {
        return 0;
    }
    return one_tensor(costs->row[choice], costs->rows[choice], stage, (double)elements) +
           (tensors - 1) * costs->further_ns[choice][stage];
}
