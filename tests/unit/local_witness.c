#include "local_witness.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include <stdio.h>
#include <string.h>

#define NUMEL 5000u

adtopk_context *witness;
int descriptors, mappings;

void assert_has(const char *text, const char *word)
{
    if (strstr(text, word) == NULL) {
        fail_msg("\"%s\" does not say \"%s\"", text, word);
    }
}

enum adtopk_status try_open(const char *job, adtopk_context **context)
{
    struct adtopk_options options = rank_options(job);

    options.connect_timeout_ms = -1;
    return adtopk_open(&options, context);
}

adtopk_context *open_job(const char *job)
{
    return rank_registered(job, (struct rank_wish){.tensors = 1, .numel = NUMEL});
}

adtopk_context *open_ready(const char *job)
{
    return rank_ready(job, (struct rank_wish){.tensors = 1, .numel = NUMEL});
}

int witness_start(void **state)
{
    (void)state;
    if (daemon_start(&daemon_, SESSIONS) != 0) {
        return -1;
    }
    witness = open_ready("witness");
    rank_train(witness);
    rank_train(witness); /* before this step the daemon has closed the descriptors that it sent */
    descriptors = daemon_descriptors(&daemon_);
    mappings = daemon_mappings(&daemon_);
    return 0;
}

/* Waits for everything that the session cost to be free. A client has a second of that to read why
 * its session ended. */
int witness_stop(void **state)
{
    int status = daemon_settle(&daemon_, descriptors, mappings, PATIENCE_MS);

    (void)state;
    if (status != 0) {
        (void)fprintf(stderr, "%d of %d descriptors, %d of %d mappings left\n",
            daemon_descriptors(&daemon_), descriptors, daemon_mappings(&daemon_), mappings);
    }
    rank_train(witness);
    adtopk_close(witness);
    status |= daemon_stop(&daemon_);
    daemon_remove(&daemon_);
    return status;
}
