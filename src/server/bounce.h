/*
 * isolation=strict: a session gets a bounce buffer of its own instead of the
 * arena. The daemon copies between the two, checking as it goes, so that not
 * even engines of one tenant can reach each other's bytes. What lies in the
 * bounce buffer is hostile: it may change while it is read, and then fails its
 * checksum.
 *
 * The copies are made in job threads; everything else in the session's loop.
 *
 * Invariants: a page is in the list of free ones, or in that of one strict_t,
 * which a hold or a request has; free_count of page_count are free. A bounce
 * buffer lives while its session has it or a job works in it: `users` of them.
 * All bounce buffers' bytes are charged to their tenant and to the server.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "larder/larder.h"
#include "node/node.h"
#include "wire/wire.h"

#define LDR_BOUNCE_EXTENT 0x80000000u /* as clients see it */

typedef struct ldr_bounce ldr_bounce_t;
struct ldr_server;
struct ldr_server_tenant;
struct ldr_session;
struct ldr_request;
struct ldr_hold;

/* strict_window bytes, charged to the tenant until it is destroyed. E_LIMIT:
 * there are as many as there may be; E_NO_MEMORY. */
larder_status_t ldr_bounce_create(struct ldr_server *server,
                                  struct ldr_server_tenant *tenant,
                                  ldr_bounce_t **bounce_p);
void ldr_bounce_destroy(ldr_bounce_t *w); /* NULL is fine */

larder_status_t ldr_bounce_view(ldr_bounce_t *w, const ldr_extent_msg_t *want,
                                ldr_extent_view_t *view);
/* Whether its client may have it mapped: it was handed out, and nobody has said
 * that it is unmapped again. NULL: no. */
bool ldr_bounce_mapped(const ldr_bounce_t *w);
void ldr_bounce_unmapped(ldr_bounce_t *w); /* NULL is fine */
uint32_t ldr_bounce_segs(struct ldr_session *s, uint64_t lease, ldr_seg_t *segs,
                         uint32_t max);
/* Whether it has pages for so many bytes now. */
bool ldr_bounce_fits(const ldr_bounce_t *w, uint64_t length);
/* Pages for what a reservation holds in the arena. False: there are none. */
bool ldr_bounce_take(ldr_bounce_t *w, struct ldr_hold *hold);
/* A hold's pages come back. */
void ldr_bounce_give(ldr_bounce_t *w, struct ldr_hold *hold);

/* What LEASE and COMMIT do: each answers its request. COMMIT brings in what
 * r->works has, one entry for each shard of r->shard_of. */
void ldr_bounce_lease(struct ldr_request *r);
void ldr_bounce_commit(struct ldr_request *r);
/* Its session ended while a job worked: gives back what it has. */
void ldr_bounce_forget(struct ldr_request *r);
