/* Keys of subscribers, and the answers to libzmq: see events_auth.h. All state
 * belongs to the events' thread, from open to close. */
#include "server/events_auth.h"

#if LDR_HAVE_ZMQ

#include <string.h>
#include <zmq.h>

#include "base/bytes.h"
#include "base/log.h"
#include "base/mem.h"
#include "net/auth.h"

#define Z85_CHARS 40u
#define KEY_BYTES 32u
#define CLIENTS_MAX 1024u
#define LIST_BYTES (CLIENTS_MAX * (Z85_CHARS + 64u))
#define PARTS 7u       /* of a question */
#define ANSWERS_MAX 64 /* between two looks at all else */
#define PART_BYTES 256u

struct ldr_events_auth {
    void *zap;
    ldr_server_metrics_t *metrics;
    char key[Z85_CHARS + 1];
    unsigned count;
    uint8_t clients[CLIENTS_MAX][KEY_BYTES];
};

static bool read_key(const char *at, size_t bytes, char text[Z85_CHARS + 1],
                     uint8_t key[KEY_BYTES])
{
    if (bytes != Z85_CHARS) {
        return false;
    }
    memcpy(text, at, Z85_CHARS);
    text[Z85_CHARS] = '\0';
    return zmq_z85_decode(key, text) != NULL;
}

static larder_status_t read_secret(ldr_events_auth_t *a, const char *path)
{
    char text[Z85_CHARS + 4];
    uint8_t key[KEY_BYTES];
    size_t bytes = 0;
    larder_status_t st =
        ldr_secret_read(path, "key of events", text, sizeof(text), &bytes);

    while (bytes > 0 && strchr("\r\n", text[bytes - 1]) != NULL) {
        bytes--;
    }
    if (st == LARDER_OK && !read_key(text, bytes, a->key, key)) {
        st = ldr_fail(LARDER_E_INVALID,
                      "%s: a secret CURVE key has 40 characters (Z85)", path);
    }
    explicit_bzero(text, sizeof(text));
    explicit_bzero(key, sizeof(key));
    return st;
}

static larder_status_t read_clients(ldr_events_auth_t *a, const char *path)
{
    char *text = ldr_alloc(LIST_BYTES), one[Z85_CHARS + 1];
    size_t bytes = 0;
    unsigned line = 0;
    larder_status_t st =
        text != NULL
            ? ldr_list_read(path, "clients of events", text, LIST_BYTES, &bytes)
            : ldr_fail(LARDER_E_NO_MEMORY, "not enough memory for %s", path);

    for (size_t at = 0; st == LARDER_OK && at < bytes; line++) {
        const char *end = memchr(text + at, '\n', bytes - at);
        size_t length = end != NULL ? (size_t)(end - text) - at : bytes - at;
        size_t next = at + length + 1;

        while (length > 0 && strchr(" \t\r", text[at + length - 1]) != NULL) {
            length--;
        }
        if (length > 0 && text[at] != '#' &&
            (a->count == CLIENTS_MAX ||
             !read_key(text + at, length, one, a->clients[a->count++]))) {
            st = ldr_fail(LARDER_E_INVALID,
                          "%s: line %u: not a public CURVE key of 40 "
                          "characters (Z85), or more than %u keys",
                          path, line + 1, CLIENTS_MAX);
        }
        at = next;
    }
    if (st == LARDER_OK && (a->count == 0 || bytes == LIST_BYTES)) {
        st = ldr_fail(LARDER_E_INVALID, "%s: %s", path,
                      a->count == 0 ? "there is no key in it" : "too long");
    }
    ldr_free(text);
    return st;
}

larder_status_t ldr_events_auth_open(void *context, const char *key,
                                     const char *clients,
                                     ldr_server_metrics_t *metrics,
                                     ldr_events_auth_t **auth_p)
{
    if (!zmq_has("curve")) {
        return ldr_fail(LARDER_E_UNSUPPORTED,
                        "events_key: this libzmq was built without CURVE");
    }
    ldr_events_auth_t *a = ldr_alloc(sizeof(*a));
    if (a == NULL) {
        return ldr_fail(LARDER_E_NO_MEMORY, "not enough memory for keys");
    }
    a->metrics = metrics;
    larder_status_t st = read_secret(a, key);
    if (st == LARDER_OK) {
        st = read_clients(a, clients);
    }
    if (st == LARDER_OK) {
        a->zap = zmq_socket(context, ZMQ_REP);
        if (a->zap == NULL || zmq_bind(a->zap, "inproc://zeromq.zap.01") != 0) {
            st = ldr_fail(LARDER_E_IO, "events_key: %s",
                          zmq_strerror(zmq_errno()));
        }
    }
    if (st != LARDER_OK) {
        ldr_events_auth_close(a);
        return st;
    }
    *auth_p = a;
    return LARDER_OK;
}

void ldr_events_auth_close(ldr_events_auth_t *a)
{
    if (a == NULL) {
        return;
    }
    if (a->zap != NULL) {
        zmq_close(a->zap);
    }
    explicit_bzero(a->key, sizeof(a->key));
    ldr_free(a);
}

bool ldr_events_auth_on(const ldr_events_auth_t *a, void *socket)
{
    static const char domain[] = "larder";
    int one = 1;

    return a == NULL ||
           (zmq_setsockopt(socket, ZMQ_CURVE_SERVER, &one, sizeof(one)) == 0 &&
            zmq_setsockopt(socket, ZMQ_CURVE_SECRETKEY, a->key,
                           sizeof(a->key)) == 0 &&
            zmq_setsockopt(socket, ZMQ_ZAP_DOMAIN, domain,
                           sizeof(domain) - 1) == 0);
}

void *ldr_events_auth_socket(const ldr_events_auth_t *a)
{
    return a->zap;
}

static bool known(const ldr_events_auth_t *a, const uint8_t key[KEY_BYTES])
{
    bool found = false;

    for (unsigned i = 0; i < a->count; i++) {
        found |= memcmp(a->clients[i], key, KEY_BYTES) == 0;
    }
    return found;
}

/* [version, request, domain, address, identity, mechanism, key]. */
static bool answer(ldr_events_auth_t *a)
{
    uint8_t part[PARTS][PART_BYTES];
    int bytes[PARTS] = {0}, more = 1;
    size_t room = sizeof(more);
    unsigned count = 0;

    while (more && count < PARTS) {
        bytes[count] = zmq_recv(a->zap, part[count], PART_BYTES, ZMQ_DONTWAIT);
        if (bytes[count] < 0) {
            return false;
        }
        count++;
        zmq_getsockopt(a->zap, ZMQ_RCVMORE, &more, &room);
    }
    bool good = count == PARTS && !more && bytes[5] == 5 &&
                memcmp(part[5], "CURVE", 5) == 0 &&
                bytes[6] == (int)KEY_BYTES && known(a, part[6]);
    if (!good) {
        ldr_metrics_auth_fail(a->metrics, LDR_AUTH_FAIL_CERTIFICATE);
    }
    size_t id = ldr_min64((uint64_t)bytes[1], PART_BYTES);
    zmq_send(a->zap, "1.0", 3, ZMQ_SNDMORE);
    zmq_send(a->zap, part[1], id, ZMQ_SNDMORE);
    zmq_send(a->zap, good ? "200" : "400", 3, ZMQ_SNDMORE);
    zmq_send(a->zap, good ? "OK" : "unknown key", good ? 2 : 11, ZMQ_SNDMORE);
    zmq_send(a->zap, "", 0, ZMQ_SNDMORE);
    zmq_send(a->zap, "", 0, 0);
    return true;
}

void ldr_events_auth_serve(ldr_events_auth_t *a)
{
    for (int i = 0; i < ANSWERS_MAX && a != NULL && answer(a); i++) {
    }
}

#endif
