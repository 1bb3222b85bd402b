/*
 * What a run found: a table as it goes, in the manner of nccl-tests, or one JSON document at the
 * end.
 */
#ifndef PERF_REPORT_H
#define PERF_REPORT_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "proto/error.h"
#include "tests/bench/perf/machine.h"
#include "tests/bench/perf/series.h"

#define REPORT_SCHEMA 1
#define REPORT_PEERS 2

/* Which columns the table of a benchmark has. */
enum report_layout {
    REPORT_BANDWIDTH, /* throughput: GB/s, bytes on the wire */
    REPORT_SELECT,    /* the pass: threads, peers */
    REPORT_SPARSIFY,  /* the same by sparsifier, which may select more or fewer */
    REPORT_LAYERS,    /* the same for the tensors of a model, with room for their names */
    REPORT_ROUND,     /* whole steps: throughput, time on cores */
    REPORT_LATENCY,   /* hand-over: percentiles against a target */
};

/* What another program needs for the same. */
struct row_peer {
    const char *name;
    const struct series *time; /* microseconds; NULL or empty: not measured */
};

/* One line of the table. NAN: does not apply. */
struct row {
    const char *benchmark;
    const char *variant;  /* kernel, encoding, mode */
    const char *input;    /* the input of the benchmark; "" */
    const char *layer;    /* tensor of a model; NULL: does not apply */
    uint64_t size;        /* bytes of the dense tensor or message */
    uint64_t count;       /* its elements; how many messages */
    const char *type;     /* of an element */
    const char *residual; /* of the residual's; NULL: does not apply */
    double density;
    unsigned threads;    /* that share the work; 0: does not apply */
    unsigned tensors;    /* of the job; 0: does not apply */
    double cpu_us;       /* on cores, of all processes together; 0: does not apply */
    unsigned ranks;      /* gradients that are summed; 0: does not apply */
    double alg_bytes;    /* the bytes that algbw counts */
    double bus_bytes;    /* the bytes that busbw counts */
    double wire_bytes;   /* of one contribution, everything counted */
    double nonzeros;     /* in wire_bytes; or that were selected, on average */
    double target_count; /* the requested number of nonzeros */
    double target_us;
    const struct series *time; /* microseconds */
    const char *floor_name;
    const struct series *floor;  /* microseconds; the least possible `time` */
    bool paired;                 /* both were sampled in turns */
    const struct series *settle; /* microseconds that are not in `time`; NULL: does not apply */
    struct row_peer peer[REPORT_PEERS];
};

/* A number, or a text, of a line in a table of its own kind. */
struct report_fact {
    const char *name;
    const char *unit; /* NULL: none */
    const char *text; /* NULL: the number */
    double number;    /* NAN: not known */
    bool whole;       /* the number is one that counts or names something */
};

struct report;

/** 8 * bytes / nonzeros; NAN if either is NAN or there are none. */
double report_bits(double bytes, double nonzeros);

/** Gigabytes (10^9) per second of so many bytes in so many microseconds; NAN without time. */
double report_bandwidth(double bytes, double us);

/** NULL without memory. `argv` is kept in the document. Text goes to `out` unless `json`. */
struct report *report_new(
    FILE *out, bool json, const struct machine *machine, int argc, char *const *argv);

/** Names the GPU that the rows are from. */
void report_device(struct report *report, const char *name);

/** Begins a benchmark: a heading, and in text the columns' names. */
void report_begin(struct report *report, enum report_layout layout, const char *name,
    const char *help, const char *about);

/** Prints or keeps a row; everything is copied. ADTOPK_ERR_MEMORY is the only error. */
enum adtopk_status report_row(struct report *report, const struct row *row, struct error *err);

/** A line of the table `name`, which begins where another table ended. Its lines have the same
 * facts. listed: whether the text shows it; the document has all, as a list of objects. MEMORY. */
enum adtopk_status report_facts(struct report *report, const char *name,
    const struct report_fact *facts, size_t count, bool listed, struct error *err);

/** A sentence about the whole; the document has them as "remarks". MEMORY. */
enum adtopk_status report_remark(struct report *report, const char *sentence, struct error *err);

/** Prints the document of a JSON report, and frees it in any case. Errors: MEMORY, SYSTEM (the
 * output cannot be written). NULL is allowed. */
enum adtopk_status report_finish(struct report *report, bool interrupted, struct error *err);

#endif
