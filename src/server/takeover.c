/*
 * Taking over: the new daemon says so on the old one's socket, and waits; the
 * old one ends as for SIGTERM, writing down what is only in DRAM. At the very
 * end, when its directories are free, it answers how much of DRAM goes along
 * and how much is given up, and sends descriptors: the list (store/handover.h),
 * then the extents, a few with each byte, until it closes the socket. Its
 * clients find the new daemon by themselves, and in it what they had.
 *
 * `handover` is the verb; `takeover` asks the same without the descriptors, as
 * daemons did that were made before there were any.
 */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <poll.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/log.h"
#include "base/mem.h"
#include "node/handover.h"
#include "server/session.h"

/* Beyond drain_ms, which it may take to write down what it has. If it is given
 * up on after that there is no daemon at all. */
#define TAKEOVER_MS 120000u
#define PING_NS 10000000000u /* one that works answers in a millisecond */
#define SEND_NS 10000000000u
#define GONE_NS 1000000000u /* for the kernel to close what a process had */
#define FDS_MOST 4096u      /* no daemon has as many extents */

/* ---- the old one ---- */

/* The answer is given by ldr_server_handed_over(). */
void ldr_takeover_begin(ldr_request_t *r, bool hands_over)
{
    ldr_session_t *s = r->session;
    ldr_server_t *server = s->server;
    uint64_t one = 1;

    bool asked =
        __atomic_exchange_n(&server->takeover_asked, true, __ATOMIC_ACQ_REL);
    if (asked) {
        ldr_reply_fail(r, ldr_fail(LARDER_E_BUSY,
                                   "another daemon is taking over already"));
        return;
    }
    server->takeover_fd = fcntl(s->socket.stream.fd, F_DUPFD_CLOEXEC, 0);
    if (server->takeover_fd < 0) {
        __atomic_store_n(&server->takeover_asked, false, __ATOMIC_RELEASE);
        ldr_reply_fail(r, ldr_fail(LARDER_E_IO, "no descriptor left"));
        return;
    }
    s->awaited = true; /* and gives way to nobody */
    ldr_lobby_leave(server->lobbies[s->local], s->stranger);
    s->stranger = NULL;
    server->takeover_frame = r->frame;
    server->takeover_frame.epoch = s->epoch;
    server->hands_over = hands_over;
    ldr_info(&server->log, "%s takes over", s->from);
    ldr_request_free(r);
    if (write(server->end_fd, &one, sizeof(one)) < 0) {
        /* It is readable already. */
    }
}

/* All of the message, or nothing. */
static bool send_some(int fd, const void *data, size_t bytes, const int *fds,
                      unsigned count, uint64_t deadline_ns)
{
    int sent;

    do {
        sent = ldr_send_fds(fd, data, bytes, fds, count);
    } while (sent == -EAGAIN && ldr_poll(fd, POLLOUT, deadline_ns) > 0);
    return sent == 0;
}

static bool send_memory(int fd, const ldr_handover_t *h, uint64_t deadline_ns)
{
    bool ok = send_some(fd, "l", 1, &h->list.fd, 1, deadline_ns);

    for (uint32_t i = 0; ok && i < h->fd_count; i += LDR_FDS_MAX) {
        uint32_t count = h->fd_count - i;

        ok = send_some(fd, "x", 1, h->fds + i,
                       count < LDR_FDS_MAX ? count : LDR_FDS_MAX, deadline_ns);
    }
    return ok;
}

void ldr_server_handed_over(ldr_server_t *server, const larder_stats_t *stats,
                            const ldr_handover_t *h, larder_status_t st)
{
    uint8_t out[LDR_FRAME_BYTES + 200];
    char *text = (char *)out + LDR_FRAME_BYTES;
    uint64_t deadline_ns = ldr_server_now(server) + SEND_NS;

    if (server->takeover_fd < 0) {
        return;
    }
    int bytes =
        snprintf(text, 200, "%" PRIu64 " bytes of DRAM %s; %s", h->left_bytes,
                 h->list.base != NULL ? "stayed behind" : "were given up",
                 stats->disks == 0 ? "there is no SSD tier"
                 : st == LARDER_OK ? "the SSD tier has all of it"
                                   : "some of it is not on SSD");
    ldr_frame_t frame = server->takeover_frame;
    frame.flags = LDR_FRAME_REPLY;
    frame.body = (uint32_t)bytes;
    frame.payload = 0;
    frame.arg = LARDER_OK;
    ldr_frame_put(out, &frame, true);
    /* If the one who asked is gone: so are we. */
    if (send_some(server->takeover_fd, out, LDR_FRAME_BYTES + (size_t)bytes,
                  NULL, 0, deadline_ns) &&
        h->list.base != NULL) {
        send_memory(server->takeover_fd, h, deadline_ns);
    }
    close(server->takeover_fd);
    server->takeover_fd = -1;
}

/* ---- the new one ---- */

static bool add_fds(ldr_handover_t *h, const int *fds, unsigned count)
{
    for (unsigned i = 0; i < count; i++) {
        if (h->fd_count == FDS_MOST) {
            close(fds[i]);
        } else {
            h->fds[h->fd_count++] = fds[i];
        }
    }
    return h->fd_count < FDS_MOST;
}

/* The first descriptor is the list's. */
static bool take_list(ldr_handover_t *h)
{
    struct stat st;

    if (h->fd_count == 0 || fstat(h->fds[0], &st) != 0 || st.st_size <= 0 ||
        !ldr_extent_adopt(&h->list, h->fds[0], (size_t)st.st_size)) {
        return false;
    }
    memmove(h->fds, h->fds + 1, --h->fd_count * sizeof(*h->fds));
    return true;
}

/* What comes until the old daemon closes the socket. Without any of it the new
 * one begins with an empty DRAM. */
static void receive_memory(ldr_server_t *server, int fd, uint64_t deadline_ns)
{
    ldr_handover_t *h = &server->handover;
    ssize_t got = 1;

    h->fds = ldr_alloc(FDS_MOST * sizeof(*h->fds));
    while (h->fds != NULL && got > 0 && ldr_poll(fd, POLLIN, deadline_ns) > 0) {
        int fds[LDR_FDS_MAX];
        unsigned count = 0;
        uint8_t byte;

        got = ldr_recv_fds(fd, &byte, 1, fds, &count);
        if (got > 0 && !add_fds(h, fds, count)) {
            got = 0;
        }
    }
    if (h->fds == NULL || !take_list(h)) {
        ldr_handover_free(h);
    }
}

/* Connects to the daemon that runs; *fd_p: the socket, or a negative errno.
 * What it hands over becomes ours, so it has to be our own, or root's. Root
 * takes from anybody: where the path leads was the operator's to say. */
static larder_status_t connect_old(const char *path, uint64_t deadline_ns,
                                   int *fd_p)
{
    int fd = *fd_p = ldr_connect_unix(path, deadline_ns);
    ldr_peer_t old;

    if (fd < 0) {
        return ldr_fail(LARDER_E_OFFLINE, "%s: no daemon answers there: %s",
                        path, strerror(-fd));
    }
    if (geteuid() == 0) {
        return LARDER_OK;
    }
    if (ldr_peer_of(fd, &old) != 0) {
        return ldr_fail(LARDER_E_DENIED,
                        "%s: cannot tell whose daemon listens there", path);
    }
    if (old.pid_fd >= 0) {
        close(old.pid_fd);
    }
    return old.uid == 0 || old.uid == geteuid()
               ? LARDER_OK
               : ldr_fail(LARDER_E_DENIED,
                          "%s: the daemon there is run by uid %u, and its "
                          "memory is not taken: choose another --socket",
                          path, (unsigned)old.uid);
}

/* A socket that nobody listens on is what a crash leaves behind. */
static bool is_nobody(int fd)
{
    return fd == -ENOENT || fd == -ECONNREFUSED;
}

/* Whether the daemon at the other end is gone: it hung up, and nobody listens
 * there any more. One that is merely late still has its directories. */
static bool is_gone(const ldr_server_t *server, int fd, const char *path,
                    uint64_t deadline_ns)
{
    if (ldr_poll(fd, POLLIN, ldr_server_now(server)) <= 0) {
        return false;
    }
    int again = ldr_connect_unix(path, deadline_ns);
    if (again >= 0) { /* the kernel may be about to close that one, too */
        ldr_poll(again, POLLIN, ldr_server_now(server) + GONE_NS);
        close(again);
        again = ldr_connect_unix(path, deadline_ns);
    }
    if (again >= 0) {
        close(again);
    }
    return is_nobody(again);
}

/* From here on there is no way back. */
static larder_status_t ask_for_all(ldr_server_t *server, int fd,
                                   const char *path, uint64_t deadline_ns)
{
    char text[LDR_TEXT_MAX + 1];
    larder_status_t st =
        ldr_admin_ask(fd, path, "handover", text, sizeof(text), deadline_ns);

    if (st == LARDER_OK) {
        receive_memory(server, fd, deadline_ns);
    }
    if (st == LARDER_E_INVALID) { /* an older one */
        st = ldr_admin_say(path, "takeover", text, sizeof(text), deadline_ns);
    }
    if (st == LARDER_OK) {
        server->took_over = true;
        ldr_info(&server->log, "took over: %s", text);
    } else if (st == LARDER_E_OFFLINE &&
               is_gone(server, fd, path, deadline_ns)) {
        server->took_over = true; /* its directories may be locked a little */
        ldr_warn(&server->log,
                 "%s: the daemon was gone before it answered, and its memory "
                 "with it",
                 path);
        st = LARDER_OK;
    }
    return st;
}

/* One that hangs will not hand over: nobody shall wait minutes for it. One made
 * before does not know the word, or says "here" whatever it is: only one that
 * says it is paused is known to be. */
static larder_status_t ask_if_there(ldr_server_t *server, int fd,
                                    const char *path)
{
    char text[LDR_TEXT_MAX + 1];
    larder_status_t st = ldr_admin_ask(fd, path, "ping", text, sizeof(text),
                                       ldr_server_now(server) + PING_NS);

    if (st == LARDER_E_OFFLINE) {
        return ldr_fail(LARDER_E_OFFLINE,
                        "%s: the daemon there does not answer, and cannot hand "
                        "over: end it (SIGKILL), and start without --takeover",
                        path);
    }
    server->paused = st == LARDER_OK && strcmp(text, LDR_PAUSED_TEXT) == 0;
    if (server->paused) {
        ldr_warn(&server->log,
                 "the daemon at %s is paused, and so this one is "
                 "until `larder resume`",
                 path);
    }
    return LARDER_OK;
}

larder_status_t ldr_server_take_over(ldr_server_t *server)
{
    char path[LDR_UNIX_PATH_MAX];
    uint64_t ms = TAKEOVER_MS + server->config->options.drain_ms;
    uint64_t deadline_ns = ldr_server_now(server) + ms * 1000000u;
    int fd;

    if (!ldr_config_socket(server->config, path)) {
        return ldr_fail(LARDER_E_INVALID,
                        "--takeover needs the unix socket of the daemon that "
                        "runs (option socket)");
    }
    larder_status_t st = connect_old(path, deadline_ns, &fd);
    if (is_nobody(fd)) {
        ldr_info(&server->log, "%s: no daemon to take over from", path);
        return LARDER_OK;
    }
    if (st == LARDER_OK) {
        st = ldr_takeover_check(server->config, fd);
    }
    /* A look at disks that hang may have taken longer than a daemon listens to
     * somebody who says nothing: then it has hung up. */
    if (st == LARDER_OK && ldr_poll(fd, POLLIN, ldr_server_now(server)) > 0) {
        close(fd);
        st = connect_old(path, deadline_ns, &fd);
    }
    if (st == LARDER_OK) {
        st = ask_if_there(server, fd, path);
    }
    if (st == LARDER_OK) {
        ldr_info(&server->log,
                 "takes over: the daemon at %s has at most %" PRIu64
                 " s to end",
                 path, ms / 1000);
        st = ask_for_all(server, fd, path, deadline_ns);
    }
    if (fd >= 0) {
        close(fd);
    }
    return st;
}
