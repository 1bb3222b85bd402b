#include "daemon/admin/rights.h"

#include <errno.h>
#include <grp.h>
#include <stdlib.h>

#define NAME_ROOM (1u << 20) /* bytes of a group with very many members */

struct rights rights_of(uid_t self, const char *group)
{
    struct rights rights = {.self = self};
    struct group entry;
    struct group *found = NULL;
    char *room = malloc(NAME_ROOM);

    if (room != NULL && getgrnam_r(group, &entry, room, NAME_ROOM, &found) == 0 && found != NULL) {
        rights.has_group = true;
        rights.group = entry.gr_gid;
    }
    free(room);
    return rights;
}

/* The groups that the client had when it connected. Where the kernel does not tell: not in it. */
static bool rights_in_supplementary(int fd, gid_t group)
{
    gid_t none;
    socklen_t size = 0;
    gid_t *groups;
    bool found = false;

    if (getsockopt(fd, SOL_SOCKET, SO_PEERGROUPS, &none, &size) == 0 || errno != ERANGE) {
        return false;
    }
    groups = malloc(size);
    if (groups != NULL && getsockopt(fd, SOL_SOCKET, SO_PEERGROUPS, groups, &size) == 0) {
        for (size_t i = 0; i < size / sizeof(gid_t); i++) {
            found = found || groups[i] == group;
        }
    }
    free(groups);
    return found;
}

static bool rights_is_admin(const struct rights *rights, int fd, const struct ucred *who)
{
    return who->uid == 0 || who->uid == rights->self ||
           (rights->has_group &&
               (who->gid == rights->group || rights_in_supplementary(fd, rights->group)));
}

bool rights_allow(
    const struct rights *rights, enum right right, int fd, const struct ucred *who, uint32_t owner)
{
    switch (right) {
    case RIGHT_READ: return true;
    case RIGHT_OWNER: return who->uid == owner || rights_is_admin(rights, fd, who);
    case RIGHT_ADMIN: return rights_is_admin(rights, fd, who);
    }
    return false;
}
