/* A trainer of the examples with a probe. Arguments: FILE EVERY RANKS_PER_WORKER ADDRESS, as
 * probe_create() takes them, then the trainer's options. convergence/study starts it. */
#include <stdio.h>
#include <stdlib.h>

#include "probe.h"

int main(int argc, char **argv)
{
    const int every = argc > 4 ? atoi(argv[2]) : 0, ranks = argc > 4 ? atoi(argv[3]) : 0;
    if (every < 1 || ranks < 1) {
        fprintf(stderr, "usage: %s FILE EVERY RANKS_PER_WORKER ADDRESS [option...]\n", argv[0]);
        return 2;
    }
    struct probe *probe = probe_create(argv[1], (uint64_t)every, ranks, argv[4]);
    if (!probe) {
        return 1;
    }
    const struct train_observer observer = {probe_step, probe};
    argv[4] = argv[0];
    const int status = train_main(argc - 4, argv + 4, &observer);
    return probe_destroy(probe) == 0 ? status : 1;
}
