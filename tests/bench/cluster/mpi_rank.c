/*
 * What a user of MPI would do: MPI_Allreduce of the whole gradient in f32 (mpi-f32), and
 * MPI_Allgather of each rank's list (mpi-gather).
 *
 * usage, by mpirun: cluster-mpi CONDUCTOR ELEMENTS LIST_BYTES
 */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/bench/cluster/turns.h"

#define TEAM "mpi"

struct rank {
    int number, world;
    int elements, list_bytes;
    float *gradient;
    char *list, *lists;
};

/* Ones, whose sum is easily checked. */
static bool prepare(void *context, const char *what)
{
    const struct rank *rank = context;

    (void)what;
    for (int i = 0; i < rank->elements; i++) {
        rank->gradient[i] = 1;
    }
    memset(rank->list, rank->number + 1, (size_t)rank->list_bytes);
    return true;
}

static bool allreduce(const struct rank *rank)
{
    return MPI_Allreduce(MPI_IN_PLACE, rank->gradient, rank->elements, MPI_FLOAT, MPI_SUM,
               MPI_COMM_WORLD) == MPI_SUCCESS &&
           rank->gradient[rank->elements - 1] == (float)rank->world;
}

static bool allgather(const struct rank *rank)
{
    const size_t end = (size_t)rank->list_bytes * (size_t)rank->world;

    return MPI_Allgather(rank->list, rank->list_bytes, MPI_BYTE, rank->lists, rank->list_bytes,
               MPI_BYTE, MPI_COMM_WORLD) == MPI_SUCCESS &&
           rank->lists[end - 1] == (char)rank->world;
}

static bool step(void *context, const char *what)
{
    const struct rank *rank = context;

    return (strcmp(what, "mpi-gather") == 0 ? allgather(rank) : allreduce(rank)) ||
           turns_fail(TEAM, (unsigned)rank->number, "%s: a wrong result", what);
}

static bool run(struct rank *rank, const char *path)
{
    static const struct turns turns = {prepare, step};
    bool ok;

    rank->gradient = malloc((size_t)rank->elements * sizeof(float));
    rank->list = malloc((size_t)rank->list_bytes);
    rank->lists = malloc((size_t)rank->list_bytes * (size_t)rank->world);
    ok = rank->gradient != NULL && rank->list != NULL && rank->lists != NULL;
    ok = ok ? turns_serve(path, TEAM, (unsigned)rank->number, &turns, rank)
            : turns_fail(TEAM, (unsigned)rank->number, "no memory for %d elements", rank->elements);
    free(rank->gradient);
    free(rank->list);
    free(rank->lists);
    return ok;
}

int main(int argc, char **argv)
{
    struct rank rank = {0};
    bool ok;

    if (argc != 4 || (rank.elements = atoi(argv[2])) < 1 || (rank.list_bytes = atoi(argv[3])) < 1) {
        (void)fprintf(stderr, "usage: mpirun %s CONDUCTOR ELEMENTS LIST_BYTES\n", argv[0]);
        return 2;
    }
    if (MPI_Init(&argc, &argv) != MPI_SUCCESS) {
        return 1;
    }
    ok = MPI_Comm_rank(MPI_COMM_WORLD, &rank.number) == MPI_SUCCESS &&
         MPI_Comm_size(MPI_COMM_WORLD, &rank.world) == MPI_SUCCESS && run(&rank, argv[1]);
    if (!ok) {
        (void)MPI_Abort(MPI_COMM_WORLD, 1);
    }
    return MPI_Finalize() == MPI_SUCCESS ? 0 : 1;
}
