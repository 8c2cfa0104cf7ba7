/*
 * doctor: do locks of a mount work between processes? Larder takes none there,
 * so whatever comes out is only told. Each kind is tried by two processes of
 * their own, since the lock manager of a mount may not answer (NFS without
 * lockd): they are killed when their time is up, and one that the kernel keeps
 * is left behind.
 *
 * The first process takes the lock; the second, its child, opens the file again
 * and tries the same. No call asks to wait.
 */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <sys/file.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/text.h"
#include "cli/doctor.h"

#define KIND_NS ((uint64_t)1000000000) /* of one kind */
#define REAP_NS ((uint64_t)200000000)  /* for what was killed */

/* What a process found: its exit code, 0 or one of these or an errno. */
enum { WORKS = 0, BOTH_HAVE_IT = 200, NO_ANSWER, NO_PROCESS };

_Static_assert(EHWPOISON < BOTH_HAVE_IT, "an errno is none of these");

static int take_flock(int fd)
{
    return flock(fd, LOCK_EX | LOCK_NB);
}

static int take_fcntl(int fd)
{
    struct flock all = {.l_type = F_WRLCK, .l_whence = SEEK_SET};

    return fcntl(fd, F_SETLK, &all);
}

static int take_ofd(int fd)
{
    struct flock all = {.l_type = F_WRLCK, .l_whence = SEEK_SET};

    return fcntl(fd, F_OFD_SETLK, &all);
}

typedef struct kind {
    const char *name;
    int (*take)(int fd);
} kind_t;

static const kind_t kinds[] = {
    {"flock()", take_flock},
    {"fcntl()", take_fcntl},
    {"fcntl() of open files (OFD)", take_ofd},
};

/* ---- in processes of their own: system calls, and nothing else ---- */

static void die_with_parent(void)
{
    prctl(PR_SET_PDEATHSIG, SIGKILL);
}

/* 0 or an errno. The file stays open. */
static int open_and_take(const kind_t *kind, const char *path)
{
    int fd = open(path, O_RDWR | O_CLOEXEC | O_NOFOLLOW);

    return fd >= 0 && kind->take(fd) == 0 ? 0 : errno;
}

static int second_tries(const kind_t *kind, const char *path)
{
    int status = 0;
    pid_t child = fork();

    if (child == 0) {
        die_with_parent();
        _exit(open_and_take(kind, path));
    }
    if (child < 0 || waitpid(child, &status, 0) != child ||
        !WIFEXITED(status)) {
        return NO_PROCESS;
    }
    switch (WEXITSTATUS(status)) {
    case 0:
        return BOTH_HAVE_IT;
    case EAGAIN:
    case EACCES:
        return WORKS;
    default:
        return WEXITSTATUS(status);
    }
}

/* ---- the check ---- */

/* Waits for it as long as it may take. False: it is still there. */
static bool child_reap(pid_t child, uint64_t wait_ns, int *status_p)
{
    uint64_t deadline = ldr_now_ns(&ldr_clock_real) + wait_ns;
    pid_t got;

    while ((got = waitpid(child, status_p, WNOHANG)) == 0 &&
           ldr_now_ns(&ldr_clock_real) < deadline) {
        poll(NULL, 0, 2);
    }
    return got == child;
}

static int try_kind(const ldr_doctor_t *d, const kind_t *kind, const char *path)
{
    int status = 0;
    pid_t child = fork();

    if (child == 0) {
        die_with_parent();
        setpgid(0, 0);
        close(d->pipe); /* who listens would wait for this process, too */
        int error = open_and_take(kind, path);
        _exit(error != 0 ? error : second_tries(kind, path));
    }
    if (child < 0) {
        return NO_PROCESS;
    }
    setpgid(child, child); /* whoever is first */
    bool ended = child_reap(child, KIND_NS, &status);
    kill(-child, SIGKILL); /* with the second, if there is one */
    if (!ended) {
        child_reap(child, REAP_NS, &status);
        return NO_ANSWER;
    }
    return WIFEXITED(status) ? WEXITSTATUS(status) : NO_PROCESS;
}

static void describe(ldr_text_t *out, int result)
{
    switch (result) {
    case WORKS:
        ldr_text_add(out, "works");
        break;
    case BOTH_HAVE_IT:
        ldr_text_add(out, "does not exclude: a second process got it, too");
        break;
    case NO_ANSWER:
        ldr_text_add(out, "did not answer within %u s and was given up",
                     (unsigned)(KIND_NS / 1000000000));
        break;
    case NO_PROCESS:
        ldr_text_add(out, "could not be tried: no process");
        break;
    case ENOLCK:
    case ENOSYS:
    case EOPNOTSUPP:
        ldr_text_add(out, "not supported (%s)", strerror(result));
        break;
    default:
        ldr_text_add(out, "failed (%s)", strerror(result));
        break;
    }
}

void ldr_doctor_locks(const ldr_doctor_t *d, const char *path)
{
    char text[400];
    ldr_text_t out = ldr_text(text, sizeof(text));
    bool all = true;

    for (size_t i = 0; i < sizeof(kinds) / sizeof(kinds[0]); i++) {
        int result = try_kind(d, &kinds[i], path);

        all = all && result == WORKS;
        ldr_text_add(&out, "%s%s ", i > 0 ? ", " : "", kinds[i].name);
        describe(&out, result);
    }
    ldr_doctor_say(d, all ? LDR_VERDICT_OK : LDR_VERDICT_SKIP, NULL,
                   "%s: locks between processes of this host: %s; not needed: "
                   "Larder relies on exclusive creation (renameat2() or "
                   "link()), which holds here",
                   d->subject, text);
}
