/*
 * Admin HTTP: the dashboard, /metrics, /healthz, /readyz, /config and
 * /status.json by GET, /query by POST. Nothing can be changed here. One thread,
 * another for questions, and few connections: where there are more, the oldest
 * give way (lobby.h).
 *
 * Who may see what: a peer on this host (loopback) sees all, provided its Host
 * header names this host, or else a web page could have a browser read it for
 * it (DNS rebinding). A peer elsewhere, where the address is bound wider (which
 * ldr_config_check() refuses without admin_open), sees /metrics, /healthz and
 * /readyz, which is what scrapers and probes need. /query asks who the caller
 * is (ldr_admin_source_t) before it reads what it wants to know; and it wants a
 * Content-Type that a page of another site cannot send.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/log.h"
#include "larder/larder.h"

typedef struct ldr_admin ldr_admin_t;

/* Where the pages' contents come from. Called in the admin's thread, query() in
 * another one. Functions that write text give the length all of it needs. */
typedef struct ldr_admin_source {
    size_t (*metrics)(void *arg, char *text, size_t size);
    /* False: not ready, with the reason. */
    bool (*ready)(void *arg, char *why, size_t size);
    size_t (*config)(void *arg, char *text, size_t size); /* JSON */
    /* JSON; of the history only what is younger than since_ms. */
    size_t (*status)(void *arg, uint64_t since_ms, char *text, size_t size);
    /* Whose chunks may be asked for: E_DENIED, E_UNSUPPORTED. */
    larder_status_t (*query_tenant)(void *arg, const char *authorization,
                                    bool here, uint32_t *tenant_p);
    /* JSON to JSON, which is the admin's to free. */
    larder_status_t (*query)(void *arg, uint32_t tenant, const char *body,
                             size_t bytes, char **text_p, size_t *length_p);
    void *arg;
} ldr_admin_source_t;

/* LARDER_E_UNSUPPORTED: built without libmicrohttpd. */
larder_status_t ldr_admin_check(const char *address);
/* address: "host:port"; port 0: any. Fails as ldr_admin_check(), too. */
larder_status_t ldr_admin_open(const char *address,
                               const ldr_admin_source_t *source,
                               const ldr_log_t *log, ldr_admin_t **admin_p);
/* The same on a socket that listens there, which is the admin's from then on,
 * whatever comes of it. */
larder_status_t ldr_admin_open_at(const char *address, int fd,
                                  const ldr_admin_source_t *source,
                                  const ldr_log_t *log, ldr_admin_t **admin_p);
void ldr_admin_close(ldr_admin_t *admin); /* NULL is fine */
uint16_t ldr_admin_port(const ldr_admin_t *admin);
/* "http://127.0.0.1:9464/", for the log. */
const char *ldr_admin_url(const ldr_admin_t *admin);

/* The page: HTML with its script and styles inside (dashboard.c). */
extern const char ldr_dashboard_page[];
extern const size_t ldr_dashboard_bytes;
