/*
 * TLS contexts: loading libssl, certificates and rules. Any thread may call.
 * The table ldr_ssl is filled once, under load_lock, and constant after that. A
 * context's lock guards its SSL_CTX, which SIGHUP replaces: connections that
 * have begun keep the one before.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <openssl/err.h>
#include <openssl/opensslv.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "base/log.h"
#include "base/mem.h"
#include "base/thread.h"
#include "net/socket.h"
#include "net/tls_int.h"

#define TEXT_OF(x) #x
#define TEXT(x) TEXT_OF(x)

/* The library that belongs to the libcrypto we are linked with. */
#define LIBSSL_NAME "libssl.so." TEXT(OPENSSL_SHLIB_VERSION)
#define LIBSSL_PACKAGE "libssl" TEXT(OPENSSL_SHLIB_VERSION)

/* What one read from the socket may take: several records. */
#define READ_BUFFER_BYTES (64u << 10)

ldr_ssl_api_t ldr_ssl;

static pthread_mutex_t load_lock = PTHREAD_MUTEX_INITIALIZER;
static bool loaded; /* under load_lock */

/* ---- libssl ---- */

#if LDR_STATIC_SSL
/*
 * Linked in, with its libcrypto: the system's libssl would bring another one,
 * and what one of them made the other may not touch.
 */
static larder_status_t library_load(void)
{
#define X(name) ldr_ssl.name = name;
    LDR_SSL_MAP(X)
#undef X
    loaded = true;
    return LARDER_OK;
}
#else
static bool symbol_find(void *library, const char *name, void *slot)
{
    void *symbol = dlsym(library, name);

    /* POSIX has it that a pointer to a function fits. */
    memcpy(slot, &symbol, sizeof(symbol));
    return symbol != NULL;
}

/* Never unloaded: OpenSSL leaves handlers in the process. */
static larder_status_t library_load(void)
{
    ldr_ssl_api_t api;
    const char *missing = NULL;
    void *library = dlopen(LIBSSL_NAME, RTLD_NOW | RTLD_LOCAL);

    if (library == NULL) {
        return ldr_fail(LARDER_E_UNSUPPORTED,
                        "TLS needs %s, which is not here: install the package "
                        "%s (%s)",
                        LIBSSL_NAME, LIBSSL_PACKAGE, dlerror());
    }
#define X(name)                                                                \
    if (!symbol_find(library, #name, &api.name)) {                             \
        missing = #name;                                                       \
    }
    LDR_SSL_MAP(X)
#undef X
    if (missing != NULL) {
        dlclose(library);
        return ldr_fail(LARDER_E_UNSUPPORTED,
                        "%s lacks %s: install a newer package %s", LIBSSL_NAME,
                        missing, LIBSSL_PACKAGE);
    }
    ldr_ssl = api;
    loaded = true;
    return LARDER_OK;
}
#endif

static larder_status_t load_once(void)
{
    larder_status_t st = LARDER_OK;

    ldr_mutex_lock(&load_lock);
    if (!loaded) {
        st = library_load();
    }
    ldr_mutex_unlock(&load_lock);
    return st;
}

const char *ldr_ssl_error_text(char *text, size_t size)
{
    unsigned long error = ERR_get_error();
    const char *reason = NULL;

    ERR_clear_error();
    if (error != 0) {
        reason = ERR_SYSTEM_ERROR(error) ? strerror(ERR_GET_REASON(error))
                                         : ERR_reason_error_string(error);
    }
    snprintf(text, size, "%s", reason != NULL ? reason : "unknown error");
    return text;
}

/* ---- contexts ---- */

/* A key with a passphrase fails, instead of asking on the terminal. */
static int no_passphrase(char *buffer, int size, int writing, void *arg)
{
    (void)buffer;
    (void)size;
    (void)writing;
    (void)arg;
    return 0;
}

static larder_status_t fail_file(const char *what, const char *path)
{
    char text[128];

    return ldr_fail(LARDER_E_INVALID, "%s: not usable as the TLS %s: %s", path,
                    what, ldr_ssl_error_text(text, sizeof(text)));
}

static larder_status_t set_rules(SSL_CTX *ctx)
{
    char text[128];

    if (ldr_ssl.SSL_CTX_ctrl(ctx, SSL_CTRL_SET_MIN_PROTO_VERSION,
                             TLS1_3_VERSION, NULL) != 1 ||
        /* All three are sound; the first costs least. */
        ldr_ssl.SSL_CTX_set_ciphersuites(ctx,
                                         "TLS_AES_128_GCM_SHA256:"
                                         "TLS_AES_256_GCM_SHA384:"
                                         "TLS_CHACHA20_POLY1305_SHA256") != 1) {
        return ldr_fail(LARDER_E_UNSUPPORTED, "no TLS 1.3 in libssl: %s",
                        ldr_ssl_error_text(text, sizeof(text)));
    }
    /* A frame says how long it is, so an end without notice is just an end. */
    ldr_ssl.SSL_CTX_set_options(ctx, SSL_OP_ENABLE_KTLS |
                                         SSL_OP_IGNORE_UNEXPECTED_EOF);
    ldr_ssl.SSL_CTX_ctrl(ctx, SSL_CTRL_MODE,
                         SSL_MODE_ENABLE_PARTIAL_WRITE |
                             SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER |
                             SSL_MODE_RELEASE_BUFFERS,
                         NULL);
    /* Connections live long: nothing to resume. */
    ldr_ssl.SSL_CTX_ctrl(ctx, SSL_CTRL_SET_SESS_CACHE_MODE, SSL_SESS_CACHE_OFF,
                         NULL);
    ldr_ssl.SSL_CTX_set_num_tickets(ctx, 0);
    ldr_ssl.SSL_CTX_ctrl(ctx, SSL_CTRL_SET_READ_AHEAD, 1, NULL);
    ldr_ssl.SSL_CTX_set_default_read_buffer_len(ctx, READ_BUFFER_BYTES);
    ldr_ssl.SSL_CTX_set_default_passwd_cb(ctx, no_passphrase);
    return LARDER_OK;
}

static larder_status_t set_files(SSL_CTX *ctx, const ldr_tls_params_t *p)
{
    char text[128];

    if (p->cert != NULL) {
        if (ldr_ssl.SSL_CTX_use_certificate_chain_file(ctx, p->cert) != 1) {
            return fail_file("certificate", p->cert);
        }
        if (ldr_ssl.SSL_CTX_use_PrivateKey_file(ctx, p->key,
                                                SSL_FILETYPE_PEM) != 1 ||
            ldr_ssl.SSL_CTX_check_private_key(ctx) != 1) {
            return fail_file("key", p->key);
        }
    }
    if (p->ca != NULL) {
        if (ldr_ssl.SSL_CTX_load_verify_locations(ctx, p->ca, NULL) != 1) {
            return fail_file("ca", p->ca);
        }
    } else if (!p->server &&
               ldr_ssl.SSL_CTX_set_default_verify_paths(ctx) != 1) {
        return ldr_fail(LARDER_E_INVALID, "the system's certificates: %s",
                        ldr_ssl_error_text(text, sizeof(text)));
    }
    if (!p->server) {
        ldr_ssl.SSL_CTX_set_verify(ctx, SSL_VERIFY_PEER, NULL);
    } else if (p->ca != NULL) {
        ldr_ssl.SSL_CTX_set_verify(
            ctx, SSL_VERIFY_PEER | SSL_VERIFY_FAIL_IF_NO_PEER_CERT, NULL);
    }
    return LARDER_OK;
}

larder_status_t ldr_tls_create(const ldr_tls_params_t *params,
                               ldr_tls_t **tls_p)
{
    larder_status_t st = load_once();

    if (st != LARDER_OK) {
        return st;
    }
    if (params->server && (params->cert == NULL || params->key == NULL)) {
        return ldr_fail(LARDER_E_INVALID,
                        "TLS needs a certificate and its key");
    }
    if ((params->cert == NULL) != (params->key == NULL)) {
        return ldr_fail(LARDER_E_INVALID,
                        "a TLS certificate and its key come together");
    }
    ldr_tls_t *tls = ldr_alloc(sizeof(*tls));
    if (tls == NULL) {
        return ldr_fail(LARDER_E_NO_MEMORY, "no memory for TLS");
    }
    ERR_clear_error();
    ldr_mutex_init(&tls->lock);
    tls->server = params->server;
    tls->ctx = ldr_ssl.SSL_CTX_new(ldr_ssl.TLS_method());
    if (tls->ctx == NULL) {
        st = ldr_fail(LARDER_E_NO_MEMORY, "no memory for TLS");
    }
    if (st == LARDER_OK) {
        st = set_rules(tls->ctx);
    }
    if (st == LARDER_OK) {
        st = set_files(tls->ctx, params);
    }
    if (st != LARDER_OK) {
        ldr_tls_destroy(tls);
        return st;
    }
    *tls_p = tls;
    return LARDER_OK;
}

void ldr_tls_renew(ldr_tls_t *tls, ldr_tls_t *fresh)
{
    LDR_ASSERT(tls->server == fresh->server);
    ldr_mutex_lock(&tls->lock);
    SSL_CTX *old = ldr_tls_ctx(tls);
    tls->ctx = fresh->ctx;
    ldr_mutex_unlock(&tls->lock);
    fresh->ctx = old;
    ldr_tls_destroy(fresh);
}

void ldr_tls_destroy(ldr_tls_t *tls)
{
    if (tls != NULL) {
        ldr_ssl.SSL_CTX_free(tls->ctx); /* streams hold it too */
        pthread_mutex_destroy(&tls->lock);
        ldr_free(tls);
    }
}
