/*
 * libssl, as the streams see it: a table of its functions, filled when TLS is
 * first needed. Nothing links libssl, so that an engine without TLS needs none.
 * What is in libcrypto is called as always.
 */
#pragma once

#include <openssl/ssl.h>
#include <pthread.h>
#include <stdbool.h>

#include "base/thread.h"

#define LDR_SSL_MAP(X)                                                         \
    X(TLS_method)                                                              \
    X(SSL_CTX_new)                                                             \
    X(SSL_CTX_free)                                                            \
    X(SSL_CTX_ctrl)                                                            \
    X(SSL_CTX_set_options)                                                     \
    X(SSL_CTX_set_num_tickets)                                                 \
    X(SSL_CTX_set_ciphersuites)                                                \
    X(SSL_CTX_set_default_passwd_cb)                                           \
    X(SSL_CTX_set_default_read_buffer_len)                                     \
    X(SSL_CTX_use_certificate_chain_file)                                      \
    X(SSL_CTX_use_PrivateKey_file)                                             \
    X(SSL_CTX_check_private_key)                                               \
    X(SSL_CTX_load_verify_locations)                                           \
    X(SSL_CTX_set_default_verify_paths)                                        \
    X(SSL_CTX_set_verify)                                                      \
    X(SSL_new)                                                                 \
    X(SSL_free)                                                                \
    X(SSL_ctrl)                                                                \
    X(SSL_set_fd)                                                              \
    X(SSL_set_accept_state)                                                    \
    X(SSL_set_connect_state)                                                   \
    X(SSL_get0_param)                                                          \
    X(SSL_do_handshake)                                                        \
    X(SSL_is_init_finished)                                                    \
    X(SSL_read_ex)                                                             \
    X(SSL_write_ex)                                                            \
    X(SSL_shutdown)                                                            \
    X(SSL_get_error)                                                           \
    X(SSL_get_verify_result)                                                   \
    X(SSL_get1_peer_certificate)

typedef struct ldr_ssl_api {
#define X(name) __typeof__(&name) name;
    LDR_SSL_MAP(X)
#undef X
} ldr_ssl_api_t;

/* Filled once a context has been created, so whoever has an SSL may use it. */
extern ldr_ssl_api_t ldr_ssl;

/* It has a context from its creation until it is destroyed. That may be renewed
 * by one thread while others make streams, so it is used with the lock. */
struct ldr_tls {
    pthread_mutex_t lock; /* for ctx */
    SSL_CTX *ctx;
    bool server;
};

static inline SSL_CTX *ldr_tls_ctx(const struct ldr_tls *tls)
{
    LDR_HELD(&tls->lock);
    LDR_ASSERT(tls->ctx != NULL);
    return tls->ctx;
}

/* The first error in libcrypto's queue, in words; empties the queue. */
const char *ldr_ssl_error_text(char *text, size_t size);
