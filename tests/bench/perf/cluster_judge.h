/*
 * Conclusions from what a run of `cluster` measured. Pure: numbers in, sentences out.
 */
#ifndef PERF_CLUSTER_JUDGE_H
#define PERF_CLUSTER_JUDGE_H

#include <stdbool.h>
#include <stddef.h>

/* A value is slow if it is so many times worse than the median. */
#define JUDGE_SLOW 1.5

/* The link between two nodes, while nothing else used it. NAN: unknown. */
struct judge_link {
    unsigned low, high;   /* the nodes */
    double small_us;      /* a step with a dense tensor of 4 KB */
    double there, back;   /* bytes per second from the lower node, and to it */
    double bytes_s;       /* the smaller of them */
    double network, loop; /* share of the time in which these threads of a daemon ran; busier end */
    double idle;          /* share of the time in which cores had no work; busier end */
    double encrypts;      /* 1: under CURVE, 0: in the clear */
};

/** The median of the values that are not NAN; NAN without any. Sorts `values`. */
double judge_median(double *values, size_t count);

/** Whether a time stands out beside its median; false if either is NAN. */
bool judge_is_slow(double time, double median);

/** Two sentences: the link, and what bounds it: CURVE, another thread of a daemon, other
 * programs, or the network. */
void judge_bound(const struct judge_link *link, char *text, size_t size);

#endif
