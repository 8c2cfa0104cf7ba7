/* What people see and ask of the cluster that this node is in. */
#include "cluster/cluster.h"

#include <stdio.h>
#include <string.h>

#include "base/bytes.h"
#include "base/mem.h"
#include "server/server_int.h"
#include "server/monitor_int.h"
#include "tier/peer/peer.h"

#define SAMPLES 4096u /* runs that owned parts are worked out from */
#define GOLDEN 0x9e3779b97f4a7c15u
#define LEAVE_NS 2000000000u /* that the source may take, and the members */

typedef struct ldr_cluster_figures {
    ldr_cluster_stats_t s;
    uint64_t weightless;
    ldr_milli_t held, age;
} ldr_cluster_figures_t;

typedef struct ldr_member_figures {
    uint64_t weight;
    ldr_milli_t share, owned;
} ldr_member_figures_t;

#define LDR_ROW ldr_cluster_figures_t
static const ldr_row_t cluster_rows[] = {LDR_ROWS(LDR_CLUSTER_FIGURES)};
#undef LDR_ROW
#define LDR_ROW ldr_member_figures_t
static const ldr_row_t member_rows[] = {LDR_ROWS(LDR_MEMBER_FIGURES)};
#undef LDR_ROW

static void cluster_look(ldr_cluster_t *c, ldr_cluster_figures_t *f)
{
    memset(f, 0, sizeof(*f));
    ldr_cluster_stats(c, &f->s);
    f->weightless = f->s.members - f->s.owners - f->s.leaving;
    f->held.value = f->s.held_ms;
    f->age.value = f->s.source_age_ms;
}

/* One for each member of the view. NULL: no memory. */
static ldr_member_figures_t *look_members(const ldr_view_t *v)
{
    ldr_member_figures_t *f = ldr_alloc((v->count + 1u) * sizeof(*f));
    uint32_t owner;

    if (f == NULL) {
        return NULL;
    }
    for (uint32_t i = 0; i < v->count; i++) {
        const ldr_member_t *m = &v->members[i];

        f[i].weight = m->weight;
        f[i].share.value = m->leaving ? 0 : m->share * 1000 / LDR_SHARE_FULL;
    }
    for (uint64_t run = 0; run < SAMPLES; run++) {
        if (ldr_view_owners(v, run * GOLDEN, 1, &owner) == 1) {
            f[owner].owned.value++;
        }
    }
    for (uint32_t i = 0; i < v->count; i++) {
        f[i].owned.value = f[i].owned.value * 1000 / SAMPLES;
    }
    return f;
}

static void hash_text(const ldr_view_t *v, char text[LDR_HEX_BYTES(8)])
{
    ldr_hex(v->hash, 8, text);
}

static void expose_members(const ldr_view_t *v, ldr_exposition_t *e)
{
    ldr_member_figures_t *f = look_members(v);
    ldr_subject_t *subjects = ldr_alloc((v->count + 1u) * sizeof(*subjects));

    for (uint32_t i = 0; i < v->count; i++) {
        const ldr_member_t *m = &v->members[i];

        ldr_metric_put(e, LDR_METRIC_member_info,
                       LDR_LABELS(m->name, m->address, m->zone, m->version), 1);
        if (f != NULL && subjects != NULL) {
            subjects[i] = (ldr_subject_t){&f[i], {m->name}};
        }
    }
    if (f != NULL && subjects != NULL) {
        ldr_figures_put(e, member_rows, subjects, v->count);
    }
    ldr_free(subjects);
    ldr_free(f);
}

void ldr_cluster_expose(ldr_cluster_t *c, ldr_exposition_t *e)
{
    ldr_cluster_figures_t f;
    char hash[LDR_HEX_BYTES(8)];

    if (c == NULL) {
        return;
    }
    const ldr_view_t *v = ldr_cluster_view(c);
    ldr_self_t self = ldr_cluster_self(c);
    cluster_look(c, &f);
    hash_text(v, hash);
    ldr_metric_put(e, LDR_METRIC_cluster_info,
                   LDR_LABELS(f.s.source, self.cluster, self.name, hash), 1);
    ldr_metric_put(e, LDR_METRIC_cluster_trouble, LDR_LABELS(f.s.trouble),
                   f.s.trouble[0] != '\0');
    ldr_figures_put(e, cluster_rows, &(ldr_subject_t){&f, {NULL}}, 1);
    expose_members(v, e);
    ldr_view_give(v);
}

void ldr_cluster_json(ldr_cluster_t *c, ldr_node_t *node, ldr_json_t *j)
{
    ldr_cluster_figures_t f;
    ldr_peer_figures_t peer;
    char hash[LDR_HEX_BYTES(8)], why[200];

    if (c == NULL) {
        ldr_json_key(j, "cluster");
        ldr_text_add(&j->t, "null");
        return;
    }
    const ldr_view_t *v = ldr_cluster_view(c);
    ldr_self_t self = ldr_cluster_self(c);
    ldr_member_figures_t *members = look_members(v);
    cluster_look(c, &f);
    hash_text(v, hash);
    ldr_json_begin(j, "cluster", '{');
    ldr_json_text(j, "source", f.s.source);
    ldr_json_text(j, "name", self.cluster);
    ldr_json_text(j, "member", self.name);
    ldr_json_text(j, "view", hash);
    ldr_json_truth(j, "source_up", f.s.source_ok != 0);
    ldr_json_text(j, "trouble", f.s.trouble);
    ldr_figures_json(j, cluster_rows, &f);
    ldr_json_begin(j, "members", '[');
    for (uint32_t i = 0; members != NULL && i < v->count; i++) {
        const ldr_member_t *m = &v->members[i];

        ldr_json_begin(j, NULL, '{');
        ldr_json_text(j, "name", m->name);
        ldr_json_text(j, "address", m->address);
        ldr_json_text(j, "zone", m->zone);
        ldr_json_text(j, "version", m->version);
        ldr_json_truth(j, "leaving", m->leaving);
        ldr_json_truth(j, "self", i == v->self);
        ldr_figures_json(j, member_rows, &members[i]);
        if (ldr_peers_of(&node->host) != NULL &&
            ldr_peers_figures(ldr_peers_of(&node->host), m->name, &peer, why,
                              sizeof(why))) {
            ldr_json_text(j, "why", why);
            ldr_figures_json(j, ldr_rows_peer, &peer);
        }
        ldr_json_end(j, '}');
    }
    ldr_json_end(j, ']');
    if (ldr_peers_of(&node->host) != NULL) {
        ldr_homes_figures_t homes = ldr_peers_homes(ldr_peers_of(&node->host));

        ldr_json_number(j, "homes", homes.known);
        ldr_json_number(j, "homes_dropped", homes.dropped);
        ldr_json_number(j, "copies", homes.copies);
    }
    ldr_json_end(j, '}');
    ldr_free(members);
    ldr_view_give(v);
}

/* "leave" and "return", of this node or with the name of another member. */
bool ldr_cluster_verb(ldr_server_t *server, const char *verb, char *text,
                      size_t size, larder_status_t *st_p)
{
    ldr_cluster_t *c = server->cluster;
    bool back = strncmp(verb, "return", 6) == 0;
    const char *rest = verb + (back ? 6 : 5);

    if ((!back && strncmp(verb, "leave", 5) != 0) ||
        (rest[0] != '\0' && rest[0] != ' ')) {
        return false;
    }
    if (c == NULL) {
        *st_p = ldr_fail(LARDER_E_INVALID,
                         "this node is in no cluster (option cluster)");
        return true;
    }
    ldr_self_t self = ldr_cluster_self(c);
    const char *name = rest[0] == ' ' ? rest + 1 : self.name;
    *st_p = ldr_cluster_drain(c, name, back);
    if (*st_p == LARDER_PENDING) {
        *st_p = ldr_peers_order(ldr_peers_of(&server->node->host), name, back);
    }
    snprintf(text, size, "%s %s", name,
             back ? "takes its place again"
                  : "leaves: it owns nothing more, and still serves what it "
                    "has");
    return true;
}

/* ---- TLS ---- */

larder_status_t ldr_cluster_tls(const ldr_options_t *o, ldr_tls_t **tls_p)
{
    ldr_tls_params_t params = {
        .server = true,
        .cert = o->cluster_cert,
        .key = o->cluster_key,
        .ca = o->cluster_ca,
    };

    *tls_p = NULL;
    if (o->cluster_tls == LDR_TLS_OFF) {
        return LARDER_OK;
    }
    if (o->cluster_cert[0] == '\0' || o->cluster_key[0] == '\0' ||
        o->cluster_ca[0] == '\0') {
        return ldr_fail(LARDER_E_INVALID,
                        "cluster_tls = on needs cluster_cert, "
                        "cluster_key and cluster_ca");
    }
    return ldr_tls_create(&params, tls_p);
}

void ldr_cluster_tls_renew(ldr_server_t *server)
{
    ldr_tls_t *fresh = NULL;
    larder_status_t st = LARDER_OK;

    if (server->peer_tls != NULL) {
        st = ldr_cluster_tls(&server->config->options, &fresh);
    }
    if (st == LARDER_OK && fresh != NULL) {
        ldr_tls_renew(server->peer_tls, fresh);
        st = ldr_peers_renew(ldr_peers_of(&server->node->host));
    }
    if (st != LARDER_OK) {
        ldr_warn(&server->log,
                 "reload: the certificates of the cluster stay as they were: "
                 "%s",
                 ldr_fail_text());
    }
}

/* ---- the end ---- */

void ldr_cluster_depart(ldr_server_t *server, uint64_t deadline_ns)
{
    uint64_t now_ns = ldr_server_now(server);
    ldr_stop_t stop = {NULL, ldr_min64(deadline_ns, now_ns + LEAVE_NS)};

    if (ldr_cluster_leave(server->cluster, false, stop.deadline_ns) !=
        LARDER_OK) {
        ldr_warn(&server->log, "cluster: %s", ldr_fail_text());
    }
    if (server->node != NULL) {
        stop.deadline_ns =
            ldr_min64(deadline_ns, ldr_server_now(server) + LEAVE_NS);
        ldr_peers_leave(ldr_peers_of(&server->node->host), &stop);
    }
}

void ldr_cluster_hand_on(ldr_server_t *server, uint64_t deadline_ns)
{
    ldr_stop_t stop = {NULL, deadline_ns};
    uint64_t given = 0, left = 0;

    if (server->node == NULL) {
        return;
    }
    ldr_peers_hand_on(ldr_peers_of(&server->node->host), &stop, &given, &left);
    if (given > 0 || left > 0) {
        ldr_info(&server->log,
                 "cluster: handed on %llu shards that only this member had; "
                 "%llu were left",
                 (unsigned long long)given, (unsigned long long)left);
    }
}
