/*
 * One call of etcd's JSON gateway, and what is in it. A conn (ldr_etcd_conn_t)
 * belongs to one thread, which makes one call at a time; a call ends when
 * another thread sets *canceled.
 */
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/hash.h"
#include "base/json.h"
#include "base/mem.h"
#include "cluster/etcd.h"
#include "net/login.h"
#include "net/socket.h"

#define REPLY_MAX ((size_t)256 << 20)
#define CHECK_HEX 32u /* digits of a check */

static bool take_reply(void *arg, const char *bytes, size_t count)
{
    ldr_etcd_conn_t *conn = arg;

    if (count > REPLY_MAX - conn->reply_bytes ||
        !ldr_grow(&conn->reply, &conn->reply_capacity,
                  conn->reply_bytes + count + 1, 1)) {
        return false;
    }
    memcpy(conn->reply + conn->reply_bytes, bytes, count);
    conn->reply_bytes += count;
    conn->reply[conn->reply_bytes] = '\0';
    return true;
}

void ldr_etcd_other(ldr_etcd_t *e, ldr_etcd_conn_t *conn)
{
    conn->server = (conn->server + 1) % e->server_count;
}

/* ---- errors ---- */

/* The text that an error answer carries: {"error":...,"message":...}, or in a
 * stream's {"error":{"message":...}}. */
static void read_error(const ldr_etcd_conn_t *conn, char *text, size_t size)
{
    ldr_json_reader_t r = ldr_json_reader(
        conn->reply != NULL ? conn->reply : "", conn->reply_bytes);
    char name[32];

    text[0] = '\0';
    ldr_json_open(&r, '{');
    while (text[0] == '\0' && ldr_json_name(&r, name, sizeof(name))) {
        if (strcmp(name, "error") == 0 || strcmp(name, "message") == 0) {
            if (!ldr_json_read_text(&r, text, size) && r.broken) {
                return;
            }
        } else {
            ldr_json_skip(&r);
        }
    }
    for (char *at = text; *at != '\0'; at++) {
        if ((unsigned char)*at < ' ') {
            *at = ' ';
        }
    }
}

static bool is_token_error(const char *text)
{
    return strstr(text, "auth token") != NULL ||
           strstr(text, "user name is empty") != NULL;
}

/* ---- one server ---- */

static int post(ldr_etcd_t *e, ldr_etcd_conn_t *conn, const char *path,
                const char *body, ldr_http_request_t *request, long *status_p)
{
    char url[LDR_MEMBER_ADDRESS + 64];

    snprintf(url, sizeof(url), "%s://%s/v3/%s", e->tls ? "https" : "http",
             e->servers[conn->server], path);
    request->url = url;
    request->body = body;
    request->token = conn->token;
    request->ca = e->ca;
    request->cert = e->cert;
    request->key = e->key;
    request->canceled = conn->canceled;
    return e->c->http->post(e->c->http->arg, request, status_p);
}

static bool call_once(ldr_etcd_t *e, ldr_etcd_conn_t *conn, const char *path,
                      const char *body, bool *token_p)
{
    ldr_http_request_t request = {
        .timeout_ms = LDR_ETCD_CALL_MS, .take = take_reply, .arg = conn};
    char text[200];
    long status = 0;

    *token_p = false;
    conn->reply_bytes = 0;
    if (post(e, conn, path, body, &request, &status) != 0) {
        return false;
    }
    if (status == 200 && conn->reply != NULL) {
        return true;
    }
    read_error(conn, text, sizeof(text));
    *token_p = status == 401 || is_token_error(text);
    ldr_fail(LARDER_E_OFFLINE, "%s answers %ld to %s: %s",
             e->servers[conn->server], status, path,
             text[0] != '\0' ? text : "no reason given");
    return false;
}

/* Asks for a token, where there is a login. */
static bool log_in(ldr_etcd_t *e, ldr_etcd_conn_t *conn)
{
    const char *path = e->c->options.cluster_login;
    char user[LDR_LOGIN_VALUE], password[LDR_LOGIN_VALUE], name[16];
    char body[2 * LDR_LOGIN_VALUE + 64];
    ldr_json_t j = {.t = ldr_text(body, sizeof(body))};
    bool token_error, done = false;

    conn->token[0] = '\0';
    if (ldr_login_get(path, "user", "ETCD_USER", user) != LARDER_OK ||
        ldr_login_get(path, "password", "ETCD_PASSWORD", password) !=
            LARDER_OK) {
        return false;
    }
    if (user[0] == '\0') {
        ldr_fail(LARDER_E_DENIED,
                 "etcd wants a user: name a file with user= and password= in "
                 "cluster_login");
        return false;
    }
    ldr_json_begin(&j, NULL, '{');
    ldr_json_text(&j, "name", user);
    ldr_json_text(&j, "password", password);
    ldr_json_end(&j, '}');
    if (call_once(e, conn, "auth/authenticate", body, &token_error)) {
        ldr_json_reader_t r = ldr_json_reader(conn->reply, conn->reply_bytes);

        ldr_json_open(&r, '{');
        while (ldr_json_name(&r, name, sizeof(name))) {
            if (strcmp(name, "token") == 0) {
                done = ldr_json_read_text(&r, conn->token, sizeof(conn->token));
            } else {
                ldr_json_skip(&r);
            }
        }
    }
    OPENSSL_cleanse(password, sizeof(password));
    OPENSSL_cleanse(body, sizeof(body));
    return done;
}

bool ldr_etcd_call(ldr_etcd_t *e, ldr_etcd_conn_t *conn, const char *path,
                   const char *body)
{
    bool wants_token = false;

    for (unsigned i = 0; i < e->server_count; i++) {
        if (conn->canceled != NULL &&
            __atomic_load_n(conn->canceled, __ATOMIC_ACQUIRE)) {
            return false;
        }
        if (call_once(e, conn, path, body, &wants_token)) {
            return true;
        }
        if (wants_token) {
            return log_in(e, conn) &&
                   call_once(e, conn, path, body, &wants_token);
        }
        ldr_etcd_other(e, conn);
    }
    return false;
}

bool ldr_etcd_stream(ldr_etcd_t *e, ldr_etcd_conn_t *conn, const char *path,
                     const char *body,
                     bool (*take)(void *arg, const char *bytes, size_t count),
                     void *arg)
{
    ldr_http_request_t request = {.timeout_ms = 0, .take = take, .arg = arg};
    long status = 0;

    return post(e, conn, path, body, &request, &status) == 0 && status == 200;
}

/* ---- texts ---- */

void ldr_etcd_base64(const char *text, char *out)
{
    EVP_EncodeBlock((unsigned char *)out, (const unsigned char *)text,
                    (int)strlen(text));
}

/* False: no base64 of a text, or too long. */
static bool from_base64(const char *in, char *out, size_t size)
{
    size_t bytes = strlen(in);
    unsigned char raw[LDR_ETCD_BASE64(LDR_ETCD_VALUE)];

    if (bytes == 0 || bytes % 4 != 0 || bytes >= sizeof(raw)) {
        return false;
    }
    int got = EVP_DecodeBlock(raw, (const unsigned char *)in, (int)bytes);
    if (got < 0) {
        return false;
    }
    size_t length = (size_t)got - (in[bytes - 1] == '=') -
                    (bytes > 1 && in[bytes - 2] == '=');
    if (length >= size || memchr(raw, '\0', length) != NULL) {
        return false;
    }
    memcpy(out, raw, length);
    out[length] = '\0';
    return true;
}

static void read_base64(ldr_json_reader_t *r, char *out, size_t size)
{
    char text[LDR_ETCD_BASE64(LDR_ETCD_VALUE)];

    out[0] = '\0';
    if (ldr_json_read_text(r, text, sizeof(text)) &&
        !from_base64(text, out, size)) {
        out[0] = '\0';
    }
}

void ldr_etcd_read_kv(ldr_json_reader_t *r, ldr_etcd_kv_t *kv)
{
    char name[32];

    memset(kv, 0, sizeof(*kv));
    ldr_json_open(r, '{');
    while (ldr_json_name(r, name, sizeof(name))) {
        if (strcmp(name, "key") == 0) {
            read_base64(r, kv->key, sizeof(kv->key));
        } else if (strcmp(name, "value") == 0) {
            read_base64(r, kv->value, sizeof(kv->value));
        } else if (strcmp(name, "create_revision") == 0) {
            ldr_json_u64(r, &kv->created);
        } else if (strcmp(name, "mod_revision") == 0) {
            ldr_json_u64(r, &kv->modified);
        } else {
            ldr_json_skip(r);
        }
    }
}

uint64_t ldr_etcd_read_header(ldr_json_reader_t *r)
{
    uint64_t revision = 0;
    char name[32];

    ldr_json_open(r, '{');
    while (ldr_json_name(r, name, sizeof(name))) {
        if (strcmp(name, "revision") == 0) {
            ldr_json_u64(r, &revision);
        } else {
            ldr_json_skip(r);
        }
    }
    return revision;
}

/* ---- a member's value ---- */

/* Who does not have the secret cannot make this: somebody who has it has used
 * this name in this cluster, and not in another one that is called the same. It
 * says nothing of the address and the weight: who may write to etcd can change
 * them, or repeat what is gone. Sessions find out who is there. */
static void make_check(const ldr_cluster_t *c, const ldr_token_t *secret,
                       const char *name, char check[CHECK_HEX + 1])
{
    static const char label[] = "larder cluster member 1";
    const ldr_piece_t pieces[] = {{label, sizeof(label)},
                                  {c->name, strlen(c->name) + 1},
                                  {name, strlen(name)}};
    uint8_t mac[32] = {0};

    (void)ldr_hmac_sha256(secret->data, secret->bytes, pieces, 3, mac);
    ldr_hex(mac, CHECK_HEX / 2, check);
}

void ldr_etcd_compose(const ldr_cluster_t *c, const ldr_member_t *m,
                      char text[LDR_ETCD_VALUE])
{
    ldr_json_t j = {.t = ldr_text(text, LDR_ETCD_VALUE)};
    char check[CHECK_HEX + 1];

    make_check(c, &c->secrets[0], m->name, check);
    ldr_json_begin(&j, NULL, '{');
    ldr_json_text(&j, "name", m->name);
    ldr_json_text(&j, "address", m->address);
    ldr_json_text(&j, "zone", m->zone);
    ldr_json_number(&j, "weight", m->weight);
    ldr_json_number(&j, "share", m->share);
    ldr_json_truth(&j, "leaving", m->leaving);
    ldr_json_text(&j, "version", m->version);
    ldr_json_number(&j, "run", m->run);
    ldr_json_text(&j, "check", check);
    ldr_json_end(&j, '}');
}

static bool check_good(const ldr_cluster_t *c, const char *name,
                       const char *given)
{
    char check[CHECK_HEX + 1];
    bool good = false;

    for (unsigned i = 0; i < c->secret_count; i++) {
        make_check(c, &c->secrets[i], name, check);
        good = good || strcmp(check, given) == 0;
    }
    return good;
}

static bool read_member(const char *text, ldr_member_t *m, char *check,
                        size_t check_size)
{
    ldr_json_reader_t r = ldr_json_reader(text, strlen(text));
    uint64_t weight = 0, share = LDR_SHARE_FULL;
    bool good = ldr_json_open(&r, '{');
    char name[32];

    memset(m, 0, sizeof(*m));
    check[0] = '\0';
    while (good && ldr_json_name(&r, name, sizeof(name))) {
        const struct {
            const char *name;
            char *text;
            size_t size;
            uint64_t *number;
        } fields[] = {
            {"name", m->name, sizeof(m->name), NULL},
            {"address", m->address, sizeof(m->address), NULL},
            {"zone", m->zone, sizeof(m->zone), NULL},
            {"version", m->version, sizeof(m->version), NULL},
            {"check", check, check_size, NULL},
            {"weight", NULL, 0, &weight},
            {"share", NULL, 0, &share},
            {"run", NULL, 0, &m->run},
        };
        size_t i = 0, count = sizeof(fields) / sizeof(fields[0]);

        while (i < count && strcmp(name, fields[i].name) != 0) {
            i++;
        }
        if (strcmp(name, "leaving") == 0) {
            good = ldr_json_bool(&r, &m->leaving);
        } else if (i == count) {
            ldr_json_skip(&r); /* of a later version */
        } else if (fields[i].text != NULL) {
            good = ldr_json_read_text(&r, fields[i].text, fields[i].size);
        } else {
            good = ldr_json_u64(&r, fields[i].number);
        }
    }
    m->weight = weight <= LDR_WEIGHT_MAX ? (uint32_t)weight : 0;
    m->share = share <= LDR_SHARE_FULL ? (uint32_t)share : 0;
    return good && !r.broken && weight <= LDR_WEIGHT_MAX && share >= 1 &&
           share <= LDR_SHARE_FULL;
}

const char *ldr_etcd_parse(const ldr_cluster_t *c, const char *text,
                           ldr_member_t *m)
{
    char check[2 * CHECK_HEX];
    ldr_address_t address;

    if (!read_member(text, m, check, sizeof(check)) ||
        !ldr_tenant_name_ok(m->name) ||
        (m->zone[0] != '\0' && !ldr_tenant_name_ok(m->zone)) ||
        !ldr_address_parse(m->address, strlen(m->address), &address) ||
        m->run == 0) {
        return "its key has no value that a member writes";
    }
    m->id = ldr_member_id(m->name);
    if (!check_good(c, m->name, check)) {
        return "it has another cluster_secret";
    }
    if (strtoul(m->version, NULL, 10) != LARDER_VERSION_MAJOR) {
        return "it runs another major version";
    }
    return NULL;
}
