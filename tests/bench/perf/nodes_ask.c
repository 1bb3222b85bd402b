/* What the nodes sent, from adtopkctl's document: its fields are documented and stay. */
#include "tests/bench/perf/nodes.h"

#include <cjson/cJSON.h>
#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/bench/perf/process.h"

#define DOCUMENT_MAX (1u << 20)

static _Noreturn void become_ctl(const char *ctl, const char *socket, const char *job, int out)
{
    if (dup2(out, STDOUT_FILENO) >= 0) {
        (void)execl(ctl, ctl, "--socket", socket, "--json", "stats", "--job", job, (char *)NULL);
    }
    _exit(127);
}

/* Everything that can be read, as text; NULL without memory. */
static char *read_all(int fd)
{
    char *text = malloc(DOCUMENT_MAX);
    size_t size = 0;
    ssize_t got = 1;

    while (text != NULL && got != 0 && size + 1 < DOCUMENT_MAX) {
        got = read(fd, text + size, DOCUMENT_MAX - 1 - size);
        if (got < 0 && errno != EINTR) {
            break;
        }
        size += got > 0 ? (size_t)got : 0;
    }
    if (text != NULL) {
        text[size] = '\0';
    }
    return text;
}

static char *ask(const char *ctl, const char *socket, const char *job)
{
    const pid_t parent = getpid();
    int channel[2];
    int status = -1;
    char *text = NULL;
    pid_t pid;

    if (pipe(channel) != 0) {
        return NULL;
    }
    (void)fflush(NULL);
    pid = fork();
    if (pid == 0) {
        process_detach(parent);
        become_ctl(ctl, socket, job, channel[1]);
    }
    (void)close(channel[1]);
    if (pid > 0) {
        text = read_all(channel[0]);
        while (waitpid(pid, &status, 0) < 0 && errno == EINTR) {
        }
    }
    (void)close(channel[0]);
    if (status != 0) {
        free(text);
        text = NULL;
    }
    return text;
}

static double number(const cJSON *object, const char *name)
{
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(object, name);

    return cJSON_IsNumber(item) ? item->valuedouble : 0;
}

enum adtopk_status nodes_ask(const struct nodes *nodes, unsigned node, const char *job,
    struct nodes_sent *sent, struct error *err)
{
    char socket[NODES_PATH_SIZE];
    char *text;
    cJSON *document;
    const cJSON *found;

    (void)snprintf(socket, sizeof(socket), "%s/%u.control", nodes->folder, node);
    text = ask(nodes->ctl, socket, job);
    document = text != NULL ? cJSON_Parse(text) : NULL;
    free(text);
    found = cJSON_GetArrayItem(cJSON_GetObjectItemCaseSensitive(document, "jobs"), 0);
    sent->steps = number(found, "steps");
    sent->wire_bytes = number(found, "wire_bytes_sent");
    sent->nonzeros = number(found, "nonzeros_sent");
    cJSON_Delete(document);
    return sent->steps > 0 ? ADTOPK_OK
                           : error_set(err, ADTOPK_ERR_PROTOCOL,
                                 "%.150s has nothing to say of job %s", nodes->ctl, job);
}
