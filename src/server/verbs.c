/*
 * Admin verbs, by unix socket, from the daemon's own uid or root: pause,
 * resume, ping, and those of takeover.c. And the side that says them.
 */
#include <errno.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/log.h"
#include "server/session.h"

#define VERB_MAX 96u /* a member's name may be in it */

void ldr_handle_admin(ldr_request_t *r)
{
    ldr_session_t *s = r->session;
    char verb[VERB_MAX], text[LDR_TEXT_MAX];
    larder_status_t st;

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
        bool pause = strcmp(verb, "pause") == 0;
        const char *said = pause ? LDR_PAUSED_TEXT : "resumed";

        ldr_server_pause(s->server, pause);
        ldr_reply(r, LARDER_OK, said, strlen(said));
    } else if (strcmp(verb, "ping") == 0) {
        /* A daemon that takes over is paused if this one is. */
        const char *said =
            ldr_server_paused(s->server) ? LDR_PAUSED_TEXT : "here";

        ldr_reply(r, LARDER_OK, said, strlen(said));
    } else if (ldr_cluster_verb(s->server, verb, text, sizeof(text), &st)) {
        if (st == LARDER_OK) {
            ldr_reply(r, st, text, strlen(text));
        } else {
            ldr_reply_fail(r, st);
        }
    } else if (strcmp(verb, "handover") == 0) {
        ldr_takeover_begin(r, true);
    } else if (strcmp(verb, "takeover") == 0) {
        ldr_takeover_begin(r, false);
    } else {
        ldr_reply_fail(r, ldr_fail(LARDER_E_INVALID,
                                   "'%s' is not one of pause, resume, leave, "
                                   "return, ping, handover, takeover",
                                   verb));
    }
}

/* ---- the other side ---- */

/* All of it, by the deadline: -ETIMEDOUT. -EPIPE: the peer hung up. */
static int receive(int fd, uint8_t *to, size_t bytes, uint64_t deadline_ns)
{
    while (bytes > 0) {
        if (ldr_poll(fd, POLLIN, deadline_ns) <= 0) {
            return -ETIMEDOUT;
        }
        ssize_t n = read(fd, to, bytes);
        if (n == 0 || (n < 0 && errno != EAGAIN && errno != EINTR)) {
            return -EPIPE;
        }
        if (n > 0) {
            to += n;
            bytes -= (size_t)n;
        }
    }
    return 0;
}

/* A whole frame, its body behind it. */
static int receive_frame(int fd, uint8_t *to, ldr_frame_t *frame,
                         uint64_t deadline_ns)
{
    int error = receive(fd, to, LDR_FRAME_BYTES, deadline_ns);

    if (error == 0 && ldr_frame_get(to, LDR_TEXT_MAX, frame) != LDR_FRAME_OK) {
        error = -EPROTO;
    }
    if (error == 0) {
        error = receive(fd, to + LDR_FRAME_BYTES, frame->body, deadline_ns);
    }
    return error == 0 && !ldr_frame_check(to, frame) ? -EPROTO : error;
}

larder_status_t ldr_admin_ask(int fd, const char *socket_path, const char *verb,
                              char *text, size_t size, uint64_t deadline_ns)
{
    uint8_t buffer[LDR_FRAME_BYTES + LDR_TEXT_MAX + 1];
    ldr_frame_t frame = {
        .opcode = LDR_OP_ADMIN,
        .id = 1,
        .body = (uint32_t)strlen(verb),
        .arg = LARDER_FOREVER,
    };

    memcpy(buffer + LDR_FRAME_BYTES, verb, frame.body);
    ldr_frame_put(buffer, &frame, true);
    size_t bytes = LDR_FRAME_BYTES + frame.body;
    int error = send(fd, buffer, bytes, MSG_NOSIGNAL) == (ssize_t)bytes
                    ? receive_frame(fd, buffer, &frame, deadline_ns)
                    : -EPIPE;
    if (error != 0) {
        return ldr_fail(LARDER_E_OFFLINE,
                        "%s: the daemon gave no answer to '%s': %s",
                        socket_path, verb,
                        error == -ETIMEDOUT ? "time ran out: is it stopped?"
                        : error == -EPIPE
                            ? "it hung up (only root and the daemon's own user "
                              "may ask it that)"
                            : "the answer is not a frame of Larder's");
    }
    buffer[LDR_FRAME_BYTES + frame.body] = '\0';
    snprintf(text, size, "%s", (char *)buffer + LDR_FRAME_BYTES);
    larder_status_t st = ldr_frame_status(&frame);
    return st == LARDER_OK ? st : ldr_fail(st, "%s", text);
}

larder_status_t ldr_admin_say(const char *socket_path, const char *verb,
                              char *text, size_t size, uint64_t deadline_ns)
{
    int fd = ldr_connect_unix(socket_path, deadline_ns);

    if (fd < 0) {
        return ldr_fail(LARDER_E_OFFLINE, "%s: no daemon answers there: %s",
                        socket_path, strerror(-fd));
    }
    larder_status_t st =
        ldr_admin_ask(fd, socket_path, verb, text, size, deadline_ns);
    close(fd);
    return st;
}
