/*
 * The first frames of a session: hello, and proof of who one is. Runs in the
 * thread that connects, before any other thread uses the stream.
 */
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>

#include "base/bytes.h"
#include "base/mem.h"
#include "base/thread.h"
#include "net/session.h"

#define FIRST_NS 1000000000u

/* ---- whole frames ---- */

int ldr_stream_wait(const ldr_remote_t *r, ldr_stream_t *s,
                    const ldr_stop_t *stop)
{
    for (;;) {
        uint64_t now_ns = ldr_now_ns(r->clock);

        if (stop->canceled != NULL &&
            __atomic_load_n(stop->canceled, __ATOMIC_RELAXED)) {
            return -ECANCELED;
        }
        if (now_ns >= stop->deadline_ns) {
            return -ETIMEDOUT;
        }
        int ready =
            ldr_stream_poll(s, s->wants_write ? POLLOUT : POLLIN,
                            ldr_min64(stop->deadline_ns, now_ns + LDR_LOOK_NS));
        if (ready != 0) {
            return ready > 0 ? 0 : ready;
        }
    }
}

/* Sends or receives all of it. 0 or a negative errno. */
static int move_all(const ldr_remote_t *r, ldr_stream_t *s,
                    ssize_t (*move)(ldr_stream_t *s, const struct iovec *iov,
                                    unsigned count),
                    uint8_t *data, size_t bytes, const ldr_stop_t *stop)
{
    struct iovec iov = {data, bytes};

    while (iov.iov_len > 0) {
        ssize_t n = move(s, &iov, 1);

        if (n == -EAGAIN) {
            n = ldr_stream_wait(r, s, stop);
        }
        if (n < 0) {
            return (int)n;
        }
        iov.iov_base = (uint8_t *)iov.iov_base + n;
        iov.iov_len -= (size_t)n;
    }
    return 0;
}

larder_status_t ldr_reply_failed(const ldr_frame_t *reply, const uint8_t *body)
{
    larder_status_t st = ldr_frame_status(reply);
    int length = (int)ldr_min64(reply->body, LDR_TEXT_MAX);

    return length > 0
               ? ldr_fail(st, "%.*s", length, (const char *)body)
               : ldr_fail(st, "the daemon says: %s", larder_status_text(st));
}

larder_status_t ldr_lost(const ldr_remote_t *r, int error)
{
    const char *name = r->options.address;

    if (error == -ETIMEDOUT) {
        return ldr_fail(LARDER_E_DEADLINE, "%s: did not answer in time", name);
    }
    if (error == -ECANCELED) {
        return LARDER_E_CANCELED;
    }
    if (error == -EACCES) { /* TLS, with its text */
        char why[200];

        snprintf(why, sizeof(why), "%s", ldr_fail_text());
        return ldr_fail(LARDER_E_DENIED, "%s: %s", name, why);
    }
    if (error == -EPROTO) {
        return ldr_fail(LARDER_E_VERSION,
                        "%s: what listens there does not speak Larder's "
                        "protocol",
                        name);
    }
    return ldr_fail(LARDER_E_OFFLINE, "%s: the connection broke: %s", name,
                    error == -EPIPE
                        ? "closed by the other side before it let us in: is it "
                          "the right port (`listening:` in the daemon's log), "
                          "and tls the same on both sides?"
                        : strerror(-error));
}

/* Whether a web server is there. Who has let us in before is not asked: that
 * one is only slow. */
static bool is_web_server(ldr_remote_t *r, const ldr_stream_t *stream,
                          uint64_t wait_ns)
{
    if (__atomic_load_n(&r->connects, __ATOMIC_RELAXED) > 0 ||
        stream->ops->speaks_http == NULL ||
        !stream->ops->speaks_http(stream, ldr_now_ns(r->clock) + wait_ns)) {
        return false;
    }
    ldr_fail(LARDER_E_VERSION,
             "%s: what listens there does not speak Larder's protocol but "
             "HTTP: a daemon's dashboard and metrics (its option admin)? "
             "Engines and commands need an address that its log calls "
             "`listening:`",
             r->options.address);
    return true;
}

/* Waits a while for the first bytes of the answer to a hello. If none come from
 * a web server that is E_VERSION, with a text; else OK. */
static larder_status_t await_first(ldr_remote_t *r, ldr_stream_t *stream,
                                   const ldr_stop_t *stop, uint64_t wait_ns)
{
    uint64_t now_ns = ldr_now_ns(r->clock);
    uint64_t until_ns = now_ns + wait_ns;

    while (now_ns < until_ns) {
        if (ldr_stream_poll(stream, POLLIN,
                            ldr_min64(until_ns, now_ns + LDR_LOOK_NS)) != 0) {
            return LARDER_OK;
        }
        if (ldr_stopped(r->clock, stop) == LARDER_E_CANCELED) {
            return LARDER_E_CANCELED;
        }
        now_ns = ldr_now_ns(r->clock);
    }
    return is_web_server(r, stream, wait_ns) ? LARDER_E_VERSION : LARDER_OK;
}

/* One request and its reply, with nobody else on the stream. */
static larder_status_t hello_call(ldr_remote_t *r, ldr_stream_t *stream,
                                  const ldr_stop_t *stop, uint8_t *at,
                                  uint16_t opcode, size_t bytes,
                                  ldr_frame_t *reply)
{
    uint32_t left_ms = ldr_left_ms(r->clock, stop->deadline_ns);
    uint64_t wait_ns = ldr_min64((uint64_t)left_ms * 250000u, FIRST_NS);
    ldr_frame_t frame = {.opcode = opcode,
                         .id = opcode,
                         .body = (uint32_t)bytes,
                         .arg = left_ms};

    ldr_frame_put(at, &frame, true);
    int error = move_all(r, stream, ldr_stream_write, at,
                         LDR_FRAME_BYTES + bytes, stop);
    if (error == 0 && opcode == LDR_OP_HELLO) {
        larder_status_t st = await_first(r, stream, stop, wait_ns);

        if (st != LARDER_OK) {
            return st;
        }
    }
    if (error == 0) {
        error = move_all(r, stream, ldr_stream_read, at, LDR_FRAME_BYTES, stop);
    }
    if (error == 0) {
        ldr_frame_verdict_t v = ldr_frame_get(at, LDR_BODY_HELLO_MAX, reply);

        if (v != LDR_FRAME_OK || reply->opcode != opcode ||
            reply->id != opcode || (reply->flags & LDR_FRAME_REPLY) == 0) {
            error = -EPROTO;
        }
    }
    if (error == 0) {
        error = move_all(r, stream, ldr_stream_read, at + LDR_FRAME_BYTES,
                         reply->body, stop);
    }
    if (error == 0 && !ldr_frame_check(at, reply)) {
        error = -EPROTO;
    }
    bool refused = error == -EPROTO || error == -EPIPE || error == -ECONNRESET;
    if (refused && is_web_server(r, stream, wait_ns)) {
        return LARDER_E_VERSION;
    }
    if (error != 0) {
        return ldr_lost(r, error);
    }
    return ldr_frame_status(reply) < 0
               ? ldr_reply_failed(reply, at + LDR_FRAME_BYTES)
               : LARDER_OK;
}

/* ---- who we are ---- */

static larder_status_t prove(ldr_remote_t *r, ldr_stream_t *stream,
                             const ldr_stop_t *stop, uint8_t *at,
                             const ldr_proof_t *proof)
{
    const ldr_options_t *o = &r->options;
    ldr_token_t tokens[LDR_TOKENS_MAX];
    unsigned count = 0, which;
    ldr_frame_t reply;

    if (o->token_file[0] == '\0') {
        /* A proof that proves nothing: so the daemon, too, logs and counts
         * who it did not let in, and why. */
        memset(at + LDR_FRAME_BYTES, 0, LDR_MAC_BYTES);
        hello_call(r, stream, stop, at, LDR_OP_AUTH, LDR_MAC_BYTES, &reply);
        return ldr_fail(LARDER_E_DENIED,
                        o->scheme == LDR_SCHEME_UNIX
                            ? "%s: not let in as tenant '%s': put token_file= "
                              "into the URL if the tenant has a token, else "
                              "name this uid in its uids; the daemon's log "
                              "says which"
                            : "%s: asks tenant '%s' for a token: put "
                              "token_file= into the URL",
                        o->address, o->tenant);
    }
    larder_status_t st = ldr_tokens_read(o->token_file, tokens, &count);
    if (st == LARDER_OK &&
        !ldr_proof_make(&tokens[0], proof, false, at + LDR_FRAME_BYTES)) {
        st = ldr_fail(LARDER_E_NO_MEMORY, "hashing failed");
    }
    if (st == LARDER_OK) {
        st =
            hello_call(r, stream, stop, at, LDR_OP_AUTH, LDR_MAC_BYTES, &reply);
    }
    /* It must know the token as well: nobody else gets our keys. */
    if (st == LARDER_OK && (reply.body != LDR_MAC_BYTES ||
                            !ldr_proof_check(tokens, count, proof, true,
                                             at + LDR_FRAME_BYTES, &which))) {
        st = ldr_fail(LARDER_E_DENIED,
                      "%s: what listens there does not know the token in "
                      "%s",
                      o->address, o->token_file);
    }
    explicit_bzero(tokens, sizeof(tokens));
    return st;
}

larder_status_t ldr_hello_say(ldr_remote_t *r, ldr_stream_t *stream,
                              const ldr_stop_t *stop, ldr_link_t *link)
{
    const ldr_options_t *o = &r->options;
    uint8_t at[LDR_FRAME_BYTES + LDR_BODY_HELLO_MAX];
    ldr_hello_t hello = {
        .version_min = LDR_WIRE_VERSION_MIN,
        .version_max = LDR_WIRE_VERSION_MAX,
        .features = LDR_FEATURES,
    };
    ldr_welcome_t welcome;
    ldr_frame_t reply;

    snprintf(hello.tenant, sizeof(hello.tenant), "%s", o->tenant);
    snprintf(hello.program, sizeof(hello.program), "%s", larder_version());
    if (!ldr_nonce(hello.nonce, sizeof(hello.nonce))) {
        return ldr_fail(LARDER_E_NO_MEMORY, "no randomness");
    }
    larder_status_t st =
        hello_call(r, stream, stop, at, LDR_OP_HELLO,
                   ldr_put_hello(at + LDR_FRAME_BYTES, &hello), &reply);
    if (st != LARDER_OK) {
        return st;
    }
    if (!ldr_get_welcome(at + LDR_FRAME_BYTES, reply.body, &welcome)) {
        return ldr_lost(r, -EPROTO);
    }
    if (welcome.version < LDR_WIRE_VERSION_MIN ||
        welcome.version > LDR_WIRE_VERSION_MAX) {
        return ldr_fail(LARDER_E_VERSION,
                        "%s: the daemon (%s) wants protocol version %u, this "
                        "client (%s) speaks %u to %u: update the older one",
                        o->address, welcome.program, welcome.version,
                        larder_version(), LDR_WIRE_VERSION_MIN,
                        LDR_WIRE_VERSION_MAX);
    }
    link->epoch = welcome.epoch;
    link->features = welcome.features & LDR_FEATURES;
    if (welcome.auth == 0 && o->token_file[0] != '\0') {
        /* Whoever answers there has not shown that it knows the token. */
        return ldr_fail(LARDER_E_DENIED,
                        "%s: the daemon does not ask for the token of tenant "
                        "'%s': give the tenant its token_file there, or leave "
                        "token_file out of the URL",
                        o->address, o->tenant);
    }
    if (welcome.auth != 0) {
        ldr_proof_t proof = {hello.nonce, welcome.nonce, hello.tenant,
                             welcome.epoch};

        st = prove(r, stream, stop, at, &proof);
    }
    if (st == LARDER_OK) {
        ldr_tally(&r->connects, 1);
    }
    return st;
}

/* ---- links ---- */

void ldr_link_init(ldr_link_t *link, ldr_remote_t *r)
{
    link->remote = r;
    ldr_mutex_init(&link->space_lock);
}

void ldr_link_destroy(ldr_link_t *link)
{
    ldr_free(link->spaces);
    pthread_mutex_destroy(&link->space_lock);
}
