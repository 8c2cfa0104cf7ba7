/*
 * Admin verbs, by unix socket, from the daemon's own uid or root: pause,
 * resume, takeover. And the side that says them.
 *
 * Taking over: the new daemon says so and waits; the old one ends as for
 * SIGTERM, writing down what is only in DRAM, and says at the very end, when
 * its directories are free, how much of DRAM was given up. Its clients find
 * the new daemon by themselves.
 */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <poll.h>
#include <string.h>
#include <unistd.h>

#include "base/log.h"
#include "server/session.h"

#define VERB_MAX 32u
#define TAKEOVER_MS 120000u /* a daemon may need to write down much */

static larder_status_t say_mode(ldr_server_t *server, const char *verb,
                                char *text, size_t size)
{
    bool pause = strcmp(verb, "pause") == 0;
    pthread_mutex_lock(&server->config_lock);
    ldr_mode_t back = (ldr_mode_t)server->latest->options.mode;
    pthread_mutex_unlock(&server->config_lock);

    ldr_node_set_mode(server->node, pause ? LDR_MODE_PAUSED : back);
    snprintf(text, size, "%s", pause ? "paused" : "resumed");
    return LARDER_OK;
}

/* The answer is given by ldr_server_handed_over(). */
static void begin_takeover(ldr_request_t *r)
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
    server->takeover_fd = fcntl(s->stream.fd, F_DUPFD_CLOEXEC, 0);
    if (server->takeover_fd < 0) {
        __atomic_store_n(&server->takeover_asked, false, __ATOMIC_RELEASE);
        ldr_reply_fail(r, ldr_fail(LARDER_E_IO, "no descriptor left"));
        return;
    }
    s->awaited = true;
    server->takeover_frame = r->frame;
    server->takeover_frame.epoch = s->epoch;
    ldr_info(&server->log, "%s takes over", s->from);
    ldr_request_free(r);
    if (write(server->end_fd, &one, sizeof(one)) < 0) {
        /* It is readable already. */
    }
}

void ldr_handle_admin(ldr_request_t *r)
{
    ldr_session_t *s = r->session;
    char verb[VERB_MAX], text[128];

    if (r->frame.body == 0 || r->frame.body >= VERB_MAX ||
        memchr(r->body, '\0', r->frame.body) != NULL) {
        ldr_request_bad(r, LDR_REFUSAL_MALFORMED, "a malformed verb");
        return;
    }
    memcpy(verb, r->body, r->frame.body);
    verb[r->frame.body] = '\0';
    if (!s->admin) {
        ldr_reply_fail(r, ldr_fail(LARDER_E_DENIED,
                                   "only root and the daemon's own user may "
                                   "say '%s'",
                                   verb));
    } else if (strcmp(verb, "pause") == 0 || strcmp(verb, "resume") == 0) {
        larder_status_t st = say_mode(s->server, verb, text, sizeof(text));

        ldr_reply(r, st, text, strlen(text));
    } else if (strcmp(verb, "takeover") == 0) {
        begin_takeover(r);
    } else {
        ldr_reply_fail(r, ldr_fail(LARDER_E_INVALID,
                                   "'%s' is none of pause, resume, takeover",
                                   verb));
    }
}

void ldr_server_handed_over(ldr_server_t *server, const larder_stats_t *stats,
                            larder_status_t st)
{
    uint8_t out[LDR_FRAME_BYTES + 160];
    char *text = (char *)out + LDR_FRAME_BYTES;

    if (server->takeover_fd < 0) {
        return;
    }
    int bytes =
        snprintf(text, 160, "%" PRIu64 " bytes of DRAM were given up; %s",
                 stats->dram_used_bytes,
                 stats->disks == 0 ? "there is no SSD tier that has "
                                     "them"
                 : st == LARDER_OK ? "the SSD tier has all of it"
                                   : "some of it is not on SSD");
    ldr_frame_t frame = server->takeover_frame;
    frame.flags = LDR_FRAME_REPLY;
    frame.body = (uint32_t)bytes;
    frame.payload = 0;
    frame.arg = LARDER_OK;
    ldr_frame_put(out, &frame, true);
    if (write(server->takeover_fd, out, LDR_FRAME_BYTES + (size_t)bytes) < 0) {
        /* The one who asked is gone; we are as well. */
    }
    close(server->takeover_fd);
    server->takeover_fd = -1;
}

/* ---- the other side ---- */

/* All of it, by the deadline. */
static bool receive(int fd, uint8_t *to, size_t bytes, uint64_t deadline_ns)
{
    while (bytes > 0) {
        if (ldr_poll(fd, POLLIN, deadline_ns) <= 0) {
            return false;
        }
        ssize_t n = read(fd, to, bytes);
        if (n == 0 || (n < 0 && errno != EAGAIN && errno != EINTR)) {
            return false;
        }
        if (n > 0) {
            to += n;
            bytes -= (size_t)n;
        }
    }
    return true;
}

larder_status_t ldr_admin_say(const char *socket_path, const char *verb,
                              char *text, size_t size, uint64_t deadline_ns)
{
    uint8_t buffer[LDR_FRAME_BYTES + LDR_TEXT_MAX + 1];
    ldr_frame_t frame = {
        .opcode = LDR_OP_ADMIN,
        .id = 1,
        .body = (uint32_t)strlen(verb),
        .arg = LARDER_FOREVER,
    };
    int fd = ldr_connect_unix(socket_path, deadline_ns);

    if (fd < 0) {
        return ldr_fail(LARDER_E_OFFLINE, "%s: no daemon answers there: %s",
                        socket_path, strerror(-fd));
    }
    memcpy(buffer + LDR_FRAME_BYTES, verb, frame.body);
    ldr_frame_put(buffer, &frame, true);
    bool ok = write(fd, buffer, LDR_FRAME_BYTES + frame.body) ==
                  (ssize_t)(LDR_FRAME_BYTES + frame.body) &&
              receive(fd, buffer, LDR_FRAME_BYTES, deadline_ns) &&
              ldr_frame_get(buffer, LDR_TEXT_MAX, &frame) == LDR_FRAME_OK &&
              receive(fd, buffer + LDR_FRAME_BYTES, frame.body, deadline_ns) &&
              ldr_frame_check(buffer, &frame);
    close(fd);
    if (!ok) {
        return ldr_fail(LARDER_E_OFFLINE,
                        "%s: the daemon gave no answer to '%s'", socket_path,
                        verb);
    }
    buffer[LDR_FRAME_BYTES + frame.body] = '\0';
    snprintf(text, size, "%s", (char *)buffer + LDR_FRAME_BYTES);
    larder_status_t st = ldr_frame_status(&frame);
    return st == LARDER_OK ? st : ldr_fail(st, "%s", text);
}

larder_status_t ldr_server_take_over(ldr_server_t *server)
{
    char path[LDR_UNIX_PATH_MAX], text[LDR_TEXT_MAX + 1];
    uint64_t deadline_ns = ldr_server_now() + TAKEOVER_MS * (uint64_t)1000000;

    if (!ldr_config_socket(server->config, path)) {
        return ldr_fail(LARDER_E_INVALID,
                        "--takeover needs the unix socket of the daemon that "
                        "runs (option socket)");
    }
    /* A socket that nobody listens on is what a crash leaves behind. */
    int fd = ldr_connect_unix(path, deadline_ns);
    if (fd == -ENOENT || fd == -ECONNREFUSED) {
        ldr_info(&server->log, "%s: no daemon to take over from", path);
        return LARDER_OK;
    }
    if (fd >= 0) {
        close(fd);
    }
    larder_status_t st =
        ldr_admin_say(path, "takeover", text, sizeof(text), deadline_ns);
    if (st == LARDER_OK) {
        ldr_info(&server->log, "took over: %s", text);
    }
    return st;
}
