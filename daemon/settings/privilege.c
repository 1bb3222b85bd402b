#include "daemon/settings/privilege.h"

#include <errno.h>
#include <grp.h>
#include <linux/capability.h>
#include <pwd.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

static enum adtopk_status failed(const char *what, struct error *err)
{
    return error_set(err, ADTOPK_ERR_SYSTEM, "user: cannot %s: %s", what, strerror(errno));
}

/* Also privileges that a wrapper has told the kernel to keep. */
static enum adtopk_status drop_capabilities(struct error *err)
{
    struct __user_cap_header_struct header = {.version = _LINUX_CAPABILITY_VERSION_3};
    struct __user_cap_data_struct none[_LINUX_CAPABILITY_U32S_3] = {{0}};

    return syscall(SYS_capset, &header, none) == 0 ? ADTOPK_OK
                                                   : failed("give up capabilities", err);
}

enum adtopk_status privilege_drop(uint64_t uid, struct error *err)
{
    const uid_t to = (uid_t)uid;
    const struct passwd *user;

    if (getuid() == to && geteuid() == to && to != 0) {
        return ADTOPK_OK;
    }
    errno = 0;
    user = getpwuid(to);
    if (user == NULL) {
        return error_set(err, ADTOPK_ERR_ARGUMENT,
            "user: this system has no user %u, so its groups are not known", to);
    }
    if (geteuid() != 0) {
        return error_set(err, ADTOPK_ERR_DENIED, "user: only root can become user %s, not uid %u",
            user->pw_name, geteuid());
    }
    if (initgroups(user->pw_name, user->pw_gid) != 0) {
        return failed("take the user's groups", err);
    }
    if (setresgid(user->pw_gid, user->pw_gid, user->pw_gid) != 0 || setresuid(to, to, to) != 0) {
        return failed("become the user", err);
    }
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0) {
        return failed("refuse new privileges", err);
    }
    return to != 0 ? drop_capabilities(err) : ADTOPK_OK;
}

enum adtopk_status privilege_hide_memory(struct error *err)
{
    if (prctl(PR_SET_DUMPABLE, 0, 0, 0, 0) != 0) {
        return error_set(err, ADTOPK_ERR_SYSTEM,
            "key_file: cannot keep the keys out of core dumps: %s", strerror(errno));
    }
    return ADTOPK_OK;
}
