/*
 * A node that lies, for test_liar.py. It has a key that the other nodes know and keeps the rules of
 * the links, but it has no rank of the job.
 *
 *   test-liar NODE KEY_FILE LISTEN ENDPOINT KEY ENDPOINT KEY     the peers are nodes 0 and 1
 *
 * Each line of its input is KIND OWNER JOB RUN_ID COUNT. The program waits for node 0's join of the
 * job, and sends each peer COUNT lies of that kind (see liar_lies.c). When both links have
 * acknowledged all of them it answers "ok".
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/integration/liar.h"

#define QUEUE_MAX (1u << 20) /* bytes on their way to a peer, above which it makes no more */

/* Waits until node 0 has joined the job and both peers are there. */
static void wait_join(struct liar *liar)
{
    uint64_t end = now_us() + PATIENCE_US;

    while (strcmp(liar->heard[0].name, liar->name) != 0 || !links_is_up(liar->links, 0) ||
           !links_is_up(liar->links, 1)) {
        (void)liar_turn(liar, true);
        if (now_us() > end) {
            fail("node 0 says nothing of the job");
        }
    }
}

static void obey(struct liar *liar, const char *line)
{
    char kind[32];
    unsigned count = 0;

    if (sscanf(line, "%31s %u %63s %63s %u", kind, &liar->owner, liar->name, liar->run_id,
            &count) != 5) {
        fail("cannot read a line");
    }
    wait_join(liar);
    for (unsigned i = 0; i < count; i++) {
        for (uint16_t peer = 0; peer < PEERS; peer++) {
            liar_tell(liar, kind, peer);
        }
        liar_drain(liar, QUEUE_MAX);
    }
    liar_drain(liar, 0);
    (void)printf("ok\n");
    (void)fflush(stdout);
}

int main(int argc, char **argv)
{
    static struct liar liar = {.random = 1};
    char line[512];

    if (argc != 8) {
        fail("usage: test-liar NODE KEY_FILE LISTEN ENDPOINT KEY ENDPOINT KEY");
    }
    liar.node = (uint16_t)strtoul(argv[1], NULL, 10);
    (void)setvbuf(stdin, NULL, _IONBF, 0); /* poll() must see unread input */
    liar_open(&liar, argv[2], argv[3], argv + 4);
    for (;;) {
        if (liar_turn(&liar, true)) {
            if (fgets(line, sizeof(line), stdin) == NULL) {
                break;
            }
            obey(&liar, line);
        }
    }
    liar_close(&liar);
    return 0;
}
