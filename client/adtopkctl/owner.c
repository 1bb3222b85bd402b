#include "client/adtopkctl/owner.h"

#include <pwd.h>
#include <string.h>

const char *owner_with_number(const char *job, char out[TEXT_SIZE])
{
    const size_t length = strcspn(job, ":");
    char user[TEXT_SIZE];
    const struct passwd *found;

    /* Digits are a number already, even if a user is called so. */
    if (job[length] == '\0' || length >= sizeof(user) || strspn(job, "0123456789") == length) {
        return job;
    }
    (void)snprintf(user, sizeof(user), "%.*s", (int)length, job);
    found = getpwnam(user);
    if (found == NULL || strlen(job) + 10 >= TEXT_SIZE) {
        return job;
    }
    (void)snprintf(out, TEXT_SIZE, "%u%.490s", (unsigned)found->pw_uid, job + length);
    return out;
}
