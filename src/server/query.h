/* POST /query: where a prompt is, for routers that ask instead of following
 * events. docs/guide/routing.md has the form of questions and answers. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "larder/larder.h"

struct ldr_server;
struct ldr_catalog;

#define LDR_QUERY_BYTES (8u << 20) /* of one question */

/* Whose chunks this caller may ask for. authorization: the header, or NULL;
 * here: the caller is on this host. E_UNSUPPORTED: query = off; E_DENIED. */
larder_status_t ldr_query_tenant(struct ldr_server *server,
                                 const char *authorization, bool here,
                                 uint32_t *tenant_p);

/* The answer to a question, JSON in *text_p, which is the caller's to free.
 * E_INVALID: the question is wrong, and the error text says how. */
larder_status_t ldr_query_answer(struct ldr_catalog *catalog, const char *name,
                                 uint32_t tenant, const char *body,
                                 size_t bytes, char **text_p, size_t *length_p);
