/*
 * Who may make which request at the control socket. The kernel says who a client is (SO_PEERCRED
 * and SO_PEERGROUPS of its connection), never the client.
 *
 * An administrator is root, the daemon's own user, or a member of the control group.
 */
#ifndef ADTOPK_RIGHTS_H
#define ADTOPK_RIGHTS_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/socket.h>
#include <sys/types.h>

enum right {
    RIGHT_READ,  /* every client that can connect */
    RIGHT_OWNER, /* the job's owner, and administrators */
    RIGHT_ADMIN  /* administrators */
};

struct rights {
    uid_t self;
    bool has_group; /* false: the group has no members */
    gid_t group;
};

/** self: the daemon's uid. group: a group's name. If that group does not exist it has no members,
 * and has_group says so. Looks the group up, which may block. */
struct rights rights_of(uid_t self, const char *group);

/** fd: the client's connection; `who`: its credentials. owner: the job's, for RIGHT_OWNER. */
bool rights_allow(
    const struct rights *rights, enum right right, int fd, const struct ucred *who, uint32_t owner);

#endif
