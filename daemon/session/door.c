#include "daemon/session/door.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>

#include "daemon/session/session.h"

#define DOOR_NUMBER_SHIFT 56 /* position of the door's number in a session's number */

enum adtopk_status door_open(struct door *door, struct doors *doors, struct error *err)
{
    while (door->number < DOORS_MAX && doors->door[door->number] != NULL) {
        door->number++;
    }
    assert(door->number < DOORS_MAX);
    door->slot = calloc(door->max_sessions, sizeof(struct session *));
    if (door->slot == NULL) {
        return error_set(err, ADTOPK_ERR_MEMORY, "no memory for sessions");
    }
    door->doors = doors;
    doors->door[door->number] = door;
    return ADTOPK_OK;
}

void door_free(struct door *door)
{
    assert(door->sessions == NULL);
    free(door->slot);
    if (door->doors != NULL) {
        door->doors->door[door->number] = NULL;
    }
}

static struct session **door_slot(const struct door *door, session_id id)
{
    return &door->slot[id % door->max_sessions];
}

void door_enter(struct door *door, struct session *session)
{
    assert(door->used < door->max_sessions);
    do {
        session->id = (session_id)door->number << DOOR_NUMBER_SHIFT | ++door->serial;
    } while (*door_slot(door, session->id) != NULL);
    *door_slot(door, session->id) = session;
    door->used++;
    door->stats.opened++;
    door->stats.sessions++;
    session->door = door;
    session->next = door->sessions;
    if (session->next != NULL) {
        session->next->previous = session;
    }
    door->sessions = session;
}

void door_leave(struct session *session)
{
    struct door *door = session->door;

    assert(door_find(door->doors, session->id) == session);
    assert(session->users == 0 && session->lent == 0);
    *door_slot(door, session->id) = NULL;
    door->used--;
    if (session->previous != NULL) {
        session->previous->next = session->next;
    } else {
        door->sessions = session->next;
    }
    if (session->next != NULL) {
        session->next->previous = session->previous;
    }
}

struct session *door_find(const struct doors *doors, session_id id)
{
    const uint64_t number = id >> DOOR_NUMBER_SHIFT;
    const struct door *door = number < DOORS_MAX ? doors->door[number] : NULL;
    struct session *session = door != NULL ? *door_slot(door, id) : NULL;

    return session != NULL && session->id == id ? session : NULL;
}

struct door_stats door_count(const struct doors *doors)
{
    struct door_stats all = {.sessions = 0};

    for (unsigned i = 0; i < DOORS_MAX; i++) {
        if (doors->door[i] != NULL) {
            const struct door_stats *stats = &doors->door[i]->stats;

            all.sessions += stats->sessions;
            all.opened += stats->opened;
            all.refused += stats->refused;
            all.refused_share += stats->refused_share;
            all.lost += stats->lost;
            all.protocol_errors += stats->protocol_errors;
        }
    }
    return all;
}

/* ---- limits of users ---- */

static uint32_t door_held(const struct door *door, uint32_t uid)
{
    uint32_t held = 0;

    for (const struct session *one = door->sessions; one != NULL; one = one->next) {
        held += one->uid == uid;
    }
    return held;
}

static uint32_t door_held_at_all(const struct doors *doors, uint32_t uid)
{
    uint32_t held = 0;

    for (unsigned i = 0; i < DOORS_MAX; i++) {
        held += doors->door[i] != NULL ? door_held(doors->door[i], uid) : 0;
    }
    return held;
}

static bool door_has_too_many(uint32_t uid, uint32_t has, uint32_t may, char text[ERROR_TEXT_SIZE])
{
    if (uid == 0 || has < may) {
        return false;
    }
    (void)snprintf(text, ERROR_TEXT_SIZE,
        "user %u has %u session%s on this daemon already, and one user may have %u (user_sessions)",
        uid, has, error_s(has), may);
    return true;
}

bool door_admit(struct door *door, uint32_t uid, char text[ERROR_TEXT_SIZE])
{
    const uint32_t all = door->max_sessions, held = door_held(door, uid);
    const uint32_t limit = door->doors->limits.user_sessions;
    const uint32_t share = limit > 0 && limit < all ? limit : all - all / 4;
    /* Places for all users together. At this number the door refuses this user. */
    const uint32_t room = uid == 0 ? all : all - (held < all / 64 ? all / 16 : all / 8);

    if (door->used >= all) {
        (void)snprintf(
            text, ERROR_TEXT_SIZE, "the daemon serves %u sessions already, its limit", all);
        return false;
    }
    if ((limit > 0 && door_has_too_many(uid, door_held_at_all(door->doors, uid), limit, text)) ||
        door_has_too_many(uid, held, share, text)) {
        door->stats.refused_share++;
        return false;
    }
    if (door->used >= room) {
        (void)snprintf(text, ERROR_TEXT_SIZE,
            "user %u has %u sessions on this daemon and all users %u of %u; the rest is kept for "
            "root and for users with fewer",
            uid, held, door->used, all);
        door->stats.refused_share++;
        return false;
    }
    return true;
}

void door_warn(const struct door *door, uint32_t uid, const char *peer, const char *why)
{
    const struct doors *doors = door->doors;
    char line[ERROR_TEXT_SIZE + 128];

    if (doors->warn != NULL) {
        (void)snprintf(line, sizeof line, "refused a trainer of uid %u, %s: %s", uid, peer, why);
        doors->warn(doors->context, uid, line);
    }
}

void door_refused(struct door *door, uint32_t uid, const char *peer, const char *why)
{
    door->stats.refused++;
    door_warn(door, uid, peer, why);
}
