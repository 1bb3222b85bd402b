#include "proto/passed_sockets.h"

#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

/* The number in a variable; 0 if there is none, or one that no descriptor or process can have. */
static long passed_variable(const char *name)
{
    const char *text = getenv(name);
    char *end = NULL;
    long number;

    if (text == NULL || !isdigit((unsigned char)*text)) {
        return 0;
    }
    errno = 0;
    number = strtol(text, &end, 10);
    return errno == 0 && *end == '\0' && number < INT_MAX - PASSED_FIRST ? number : 0;
}

int passed_end(void)
{
    const bool ours = passed_variable("LISTEN_PID") == (long)getpid();

    return PASSED_FIRST + (ours ? (int)passed_variable("LISTEN_FDS") : 0);
}

static bool passed_option(int fd, int option, int wanted)
{
    int value = 0;
    socklen_t size = sizeof(value);

    return getsockopt(fd, SOL_SOCKET, option, &value, &size) == 0 && value == wanted;
}

bool passed_listens(int fd, int type)
{
    return passed_option(fd, SO_TYPE, type) && passed_option(fd, SO_ACCEPTCONN, 1);
}

enum adtopk_status passed_take(int fd, struct error *err)
{
    if (fcntl(fd, F_SETFD, FD_CLOEXEC) != 0 || fcntl(fd, F_SETFL, O_NONBLOCK) != 0) {
        return error_set(
            err, ADTOPK_ERR_SYSTEM, "cannot use descriptor %d: %s", fd, strerror(errno));
    }
    return ADTOPK_OK;
}
