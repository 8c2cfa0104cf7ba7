/*
 * The daemon: its start and its end, by the main thread. config_lock guards the
 * configuration, which a reload replaces. Its loops: loops.c.
 */
#include "server/server.h"

#include <errno.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/bytes.h"
#include "base/clock.h"
#include "base/mem.h"
#include "base/text.h"
#include "base/thread.h"
#include "cluster/cluster.h"
#include "server/routing.h"
#include "server/session.h"
#include "server/monitor.h"
#include "server/trace.h"
#include "store/disk.h"

#define DRAIN_LOOK_NS 5000000u
#define JOBS_NS 1000000000u /* that jobs have at least, at the end */
/* A session has a socket, a pidfd and a bell; a quarter as many connections, by
 * either way, are not authenticated yet. */
#define SESSION_FILES 4u
#define FILES_BESIDE 256u /* for all that is no session */

/* ---- what admin HTTP shows ---- */

static size_t show_metrics(void *arg, char *text, size_t size)
{
    ldr_server_t *server = arg;

    return ldr_server_metrics_text(server->node, server->metrics, LDR_NIL, text,
                                   size);
}

static bool show_ready(void *arg, char *why, size_t size)
{
    ldr_server_t *server = arg;
    bool draining = __atomic_load_n(&server->draining, __ATOMIC_RELAXED);

    snprintf(why, size, "%s", draining ? "draining" : "");
    return !draining;
}

static size_t show_config(void *arg, char *text, size_t size)
{
    ldr_server_t *server = arg;

    ldr_mutex_lock(&server->config_lock);
    size_t length = ldr_config_json(server->latest, text, size);
    ldr_mutex_unlock(&server->config_lock);
    return length;
}

static size_t show_status(void *arg, uint64_t since_ms, char *text, size_t size)
{
    ldr_server_t *server = arg;

    return ldr_server_status_json(server->monitor, since_ms, text, size);
}

static larder_status_t admin_open(ldr_server_t *server)
{
    const ldr_options_t *o = &server->config->options;
    ldr_admin_source_t source = {
        show_metrics,       show_ready,         show_config, show_status,
        ldr_routing_tenant, ldr_routing_answer, server};

    ldr_monitor_params_t monitor = {
        .node = server->node,
        .metrics = server->metrics,
        .ready = show_ready,
        .arg = server,
        .clock = server->clock,
    };

    larder_status_t st = ldr_monitor_open(&monitor, &server->monitor);
    if (st != LARDER_OK || strcmp(o->admin, "none") == 0) {
        return st;
    }
    ldr_server_metrics_t *m = server->metrics;
    snprintf(m->admin_url, sizeof(m->admin_url), "http://%s/", o->admin);
    int fd = server->admin_fd;
    server->admin_fd = -1;
    if (fd < 0) { /* which was said */
        return LARDER_OK;
    }
    if (listen(fd, SOMAXCONN) != 0) { /* somebody was quicker */
        int error = -errno;

        close(fd);
        if (!ldr_config_is_default(server->config, LDR_OPTION_admin)) {
            return ldr_ports_refuse("admin", o->admin, error);
        }
        ldr_ports_no_admin(server, error);
        return LARDER_OK;
    }
    st = ldr_admin_open_at(o->admin, fd, &source, &server->log, &server->admin);
    if (st == LARDER_OK) {
        snprintf(m->admin_url, sizeof(m->admin_url), "%s",
                 ldr_admin_url(server->admin));
        m->admin_on = true;
        ldr_info(&server->log, "admin: %s", m->admin_url);
    }
    return st;
}

/* ---- open ---- */

/* The segments of all directories, which stay open: three quarters of all files
 * at most. */
static uint64_t segment_files(const ldr_options_t *o, uint64_t files)
{
    uint64_t bytes =
        o->segment > 0 ? o->segment : ldr_disk_segment_bytes(o->ssd);

    return ldr_min64(o->dir_count * (o->ssd / ldr_max64(bytes, 1) + 1),
                     files / 4 * 3);
}

/* As many sessions as there are descriptors for: a tenant that used up the last
 * ones would keep the others out. */
static void sessions_bound(ldr_server_t *server)
{
    const ldr_options_t *o = &server->config->options;
    uint64_t files = ldr_file_limit_raise();
    uint64_t beside = segment_files(o, files) + FILES_BESIDE;
    uint64_t most =
        files > beside ? ldr_max64(1, (files - beside) / SESSION_FILES) : 1;

    server->sessions_max = ldr_min64(o->sessions, most);
    if (server->sessions_max < o->sessions) {
        ldr_warn(&server->log,
                 "sessions: %llu and not %llu, since only %llu files may be "
                 "open: raise that limit (LimitNOFILE, ulimit -Hn), or lower "
                 "option sessions",
                 (unsigned long long)server->sessions_max,
                 (unsigned long long)o->sessions, (unsigned long long)files);
    }
}

/* Reads the certificates as they are now. */
static larder_status_t tls_open(const ldr_options_t *o, ldr_tls_t **tls_p)
{
    ldr_tls_params_t params = {
        .server = true,
        .cert = o->tls_cert,
        .key = o->tls_key,
        .ca = o->tls_client_ca[0] != '\0' ? o->tls_client_ca : NULL,
    };

    if (o->tls == LDR_TLS_OFF) {
        return o->tls_client_ca[0] == '\0'
                   ? LARDER_OK
                   : ldr_fail(LARDER_E_INVALID,
                              "tls_client_ca needs tls = on as well");
    }
    if (o->tls_cert[0] == '\0' || o->tls_key[0] == '\0') {
        return ldr_fail(LARDER_E_INVALID,
                        "tls = on needs tls_cert and tls_key");
    }
    return ldr_tls_create(&params, tls_p);
}

void ldr_server_pause(ldr_server_t *server, bool paused)
{
    ldr_mutex_lock(&server->config_lock);
    server->paused = paused;
    ldr_node_set_mode(server->node, paused ? LDR_MODE_PAUSED : LDR_MODE_ON);
    ldr_mutex_unlock(&server->config_lock);
}

bool ldr_server_paused(ldr_server_t *server)
{
    ldr_mutex_lock(&server->config_lock);
    bool paused = server->paused;
    ldr_mutex_unlock(&server->config_lock);
    return paused;
}

/* The node with its tenants' limits, before its disks begin to make room. */
static larder_status_t node_open(ldr_server_t *server)
{
    const ldr_config_t *config = server->config;
    ldr_tenant_params_t *tenants =
        ldr_alloc(config->tenant_count * sizeof(*tenants));
    ldr_node_env_t env = {
        .log = server->log,
        .clock = server->clock,
        .revoke = ldr_server_revoke,
        .revoke_arg = server,
        .tenants = tenants,
        .tenant_count = config->tenant_count,
        .handover =
            server->handover.list.base != NULL ? &server->handover : NULL,
        .successor = server->took_over,
        .cluster = server->cluster,
    };

    if (tenants == NULL) {
        return ldr_fail(LARDER_E_NO_MEMORY, "not enough memory for tenants");
    }
    for (unsigned i = 0; i < config->tenant_count; i++) {
        const ldr_tenant_config_t *t = &config->tenants[i];

        /* Its secret follows with the rest of it, before anybody comes in. */
        tenants[i] = (ldr_tenant_params_t){
            .name = t->name, .dram_max = t->dram, .ssd_max = t->ssd};
    }
    larder_status_t st = ldr_node_open(&config->options, &env, &server->node);
    ldr_handover_free(&server->handover);
    ldr_free(tenants);
    return st;
}

/* The cluster that the node is to be a member of, if there is one. */
static larder_status_t cluster_open(ldr_server_t *server)
{
    ldr_cluster_params_t params = {
        .options = &server->config->options,
        .log = server->log,
        .clock = server->clock,
    };

    larder_status_t st = params.options->cluster[0] != '\0'
                             ? ldr_cluster_open(&params, &server->cluster)
                             : LARDER_OK;
    server->metrics->cluster = server->cluster;
    return st;
}

/* A node that has its disk from before is no newcomer. */
static void cluster_return(ldr_server_t *server)
{
    larder_stats_t *stats =
        server->cluster != NULL ? ldr_alloc(sizeof(*stats)) : NULL;

    if (stats != NULL) {
        stats->struct_bytes = sizeof(*stats);
        ldr_node_stats(server->node, LDR_NIL, stats);
        if (stats->entries > 0) {
            ldr_cluster_returns(server->cluster);
        }
        ldr_free(stats);
    }
}

static larder_status_t trace_open(ldr_server_t *server)
{
    const ldr_options_t *o = &server->config->options;
    ldr_trace_params_t params = {
        .path = o->trace,
        .bytes_max = o->trace_max,
        .metrics = server->metrics,
        .log = &server->log,
        .clock = server->clock,
    };

    return o->trace[0] != '\0' ? ldr_trace_open(&params, &server->trace)
                               : LARDER_OK;
}

static larder_status_t open_parts(ldr_server_t *server)
{
    ldr_options_t *o = &server->config->options;

    server->end_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (server->end_fd < 0 ||
        !ldr_metrics_create(server->clock, &server->metrics) ||
        !ldr_nonce(&server->next_epoch, sizeof(server->next_epoch))) {
        return ldr_fail(LARDER_E_NO_MEMORY, "not enough memory");
    }
    server->next_epoch >>= 1; /* far from wrapping, and never 0 */
    sessions_bound(server);
    if (!ldr_config_socket(server->config, server->socket_path)) {
        server->socket_path[0] = '\0';
    }
    /* Before the directories, which a daemon there has: this says more. */
    larder_status_t st =
        server->took_over ? LARDER_OK : ldr_listen_probe(server);
    if (st == LARDER_OK) {
        st = ldr_ports_bind(server);
    }
    if (st == LARDER_OK) {
        st = trace_open(server);
    }
    if (st == LARDER_OK) {
        st = ldr_server_loops_open(server);
    }
    if (st == LARDER_OK) {
        st = cluster_open(server);
    }
    if (st == LARDER_OK) {
        st = node_open(server);
    }
    if (st == LARDER_OK) {
        cluster_return(server);
        ldr_server_pause(server, server->paused); /* as the one before it */
        st = ldr_server_tenants_load(server, server->config);
    }
    if (st == LARDER_OK) {
        st = ldr_routing_open(server);
    }
    if (st == LARDER_OK) {
        st = ldr_jobs_start(server, (unsigned)o->jobs);
    }
    if (st == LARDER_OK) {
        st = ldr_peers_listen(server);
    }
    if (st == LARDER_OK) {
        st = ldr_listen_all(server);
    }
    if (st == LARDER_OK) {
        st = admin_open(server);
    }
    return st == LARDER_OK ? ldr_server_loops_start(server) : st;
}

/* What can be seen to be wrong before the daemon that runs is asked to end:
 * after that there would be none. */
static larder_status_t open_checked(ldr_server_t *server)
{
    const ldr_options_t *o = &server->config->options;
    larder_status_t st = tls_open(o, &server->tls);

    if (st == LARDER_OK) {
        st = ldr_server_tenants_check(server->config);
    }
    if (st == LARDER_OK) {
        st = ldr_listen_check(server->config);
    }
    if (st == LARDER_OK && o->cluster[0] != '\0') {
        st = ldr_cluster_check(o);
    }
    if (st == LARDER_OK && o->cluster[0] != '\0') {
        st = ldr_cluster_tls(o, &server->peer_tls);
    }
    if (st == LARDER_OK && o->trace[0] != '\0') {
        st = ldr_trace_check(o->trace);
    }
    return st == LARDER_OK ? ldr_memory_check(o) : st;
}

/* What it has of this machine now, how much that may become, and what says so:
 * somebody may see a daemon for the first time. */
static void say_what_it_takes(ldr_server_t *server)
{
    const ldr_options_t *o = &server->config->options;
    char line[400], size[24];
    ldr_text_t out = ldr_text(line, sizeof(line));
    bool grows = o->dram_start != 0 && o->dram_start < o->dram;
    larder_stats_t *stats = ldr_alloc(sizeof(*stats));

    ldr_size_text(grows ? o->dram_start : o->dram, size, sizeof(size));
    ldr_text_add(&out, "takes %s of memory", size);
    if (grows) {
        ldr_size_text(o->dram, size, sizeof(size));
        ldr_text_add(&out, ", up to %s as it is used (dram_start, dram)", size);
    } else {
        ldr_text_add(&out, " (dram)");
    }
    if (o->dir_count > 0 && stats != NULL) {
        uint64_t used = 0;

        stats->struct_bytes = sizeof(*stats);
        ldr_node_stats(server->node, LDR_NIL, stats);
        for (uint64_t i = 0; i < stats->disks; i++) {
            used += stats->disk[i].bytes_used;
        }
        ldr_size_text(ldr_div_up(used, 1u << 20) << 20, size, sizeof(size));
        ldr_text_add(&out, "; %s of disk", size);
        ldr_size_text(o->ssd * o->dir_count, size, sizeof(size));
        ldr_text_add(&out, ", up to %s (ssd, dir)", size);
    } else if (o->dir_count == 0) {
        ldr_text_add(&out, "; no disk (dir)");
    }
    if (o->idle_exit_s != 0) {
        ldr_text_add(&out,
                     "; ends after %llu s without a session (idle_exit_s)",
                     (unsigned long long)o->idle_exit_s);
    }
    ldr_info(&server->log, "process %ld %s", (long)getpid(), line);
    ldr_free(stats);
}

larder_status_t ldr_server_open(const ldr_server_params_t *params,
                                ldr_server_t **server_p)
{
    ldr_server_t *server = ldr_alloc(sizeof(*server));
    larder_status_t st;

    if (server == NULL) {
        ldr_config_free(params->config);
        return ldr_fail(LARDER_E_NO_MEMORY, "not enough memory");
    }
    server->config = server->latest = params->config;
    server->log = params->log;
    server->clock = params->clock != NULL ? params->clock : &ldr_clock_real;
    server->begin_ns = ldr_server_now(server);
    server->end_fd = server->takeover_fd = server->admin_fd = -1;
    server->job_end = &server->job_head;
    ldr_mutex_init(&server->config_lock);
    ldr_mutex_init(&server->tenant_lock);
    ldr_mutex_init(&server->stage_lock);
    ldr_mutex_init(&server->revoke_lock);
    ldr_mutex_init(&server->job_lock);
    ldr_cond_init(&server->job_wake);
    st = open_checked(server);
    if (st == LARDER_OK && params->takeover) {
        st = ldr_server_take_over(server);
    }
    if (st == LARDER_OK) {
        st = open_parts(server);
    }
    if (st != LARDER_OK) {
        char text[LDR_TEXT_MAX];

        snprintf(text, sizeof(text), "%s", ldr_fail_text());
        ldr_server_close(server);
        return ldr_fail(st, "%s", text);
    }
    say_what_it_takes(server);
    *server_p = server;
    return LARDER_OK;
}

bool ldr_server_is_idle(ldr_server_t *server)
{
    uint64_t opened = 0;

    for (int i = 0; i < LDR_TRANSPORT_COUNT; i++) {
        opened += __atomic_load_n(&server->metrics->transports[i].opened,
                                  __ATOMIC_RELAXED);
    }
    ldr_mutex_lock(&server->tenant_lock);
    bool idle = opened == server->opened_seen && server->session_count == 0;
    ldr_mutex_unlock(&server->tenant_lock);
    server->opened_seen = opened;
    return idle;
}

int ldr_server_end_fd(const ldr_server_t *server)
{
    return server->end_fd;
}

void ldr_server_reload_failed(ldr_server_t *server)
{
    ldr_error(&server->log, "reload: nothing was changed: %s", ldr_fail_text());
    ldr_metrics_event(server->metrics, LDR_EVENT_RELOADS_FAILED, 1);
}

bool ldr_server_reload(ldr_server_t *server, ldr_config_t *config)
{
    ldr_config_t *old = server->latest;
    ldr_tls_t *tls = NULL;
    /* Before anything is put to use. Where they are does not change; what is
     * there does, when they are renewed. */
    larder_status_t st = tls_open(&config->options, &tls);

    if (st == LARDER_OK) {
        st = ldr_server_tenants_load(server, config);
    }
    if (st != LARDER_OK) {
        ldr_server_reload_failed(server);
        ldr_tls_destroy(tls);
        ldr_config_free(config);
        return false;
    }
    if (tls != NULL) {
        ldr_tls_renew(server->tls, tls);
    }
    ldr_mutex_lock(&server->config_lock);
    server->latest = config;
    ldr_mutex_unlock(&server->config_lock);
    if (old != server->config) {
        ldr_config_free(old);
    }
    ldr_listen_judge(server);
    ldr_cluster_tls_renew(server);
    if (server->cluster != NULL &&
        ldr_cluster_reload(server->cluster, &config->options) != LARDER_OK) {
        ldr_warn(&server->log, "reload: the members stay as they were: %s",
                 ldr_fail_text());
    }
    ldr_metrics_event(server->metrics, LDR_EVENT_RELOADS, 1);
    ldr_info(&server->log, "reloaded");
    return true;
}

/* ---- close ---- */

static uint64_t requests_under_way(ldr_server_t *server)
{
    return __atomic_load_n(&server->request_count, __ATOMIC_RELAXED);
}

static void stop_listening(ldr_task_t *task)
{
    ldr_server_t *server =
        (ldr_server_t *)((char *)task - offsetof(ldr_server_t, unlisten));

    ldr_listen_stop(server);
}

static void drain(ldr_server_t *server, uint64_t deadline_ns)
{
    __atomic_store_n(&server->draining, true, __ATOMIC_RELAXED);
    if (server->loop_count > 0 && server->loops[0].loop.started) {
        server->unlisten.run = stop_listening;
        ldr_loop_post(&server->loops[0].loop, &server->unlisten);
    } else {
        ldr_listen_stop(server);
    }
    while (requests_under_way(server) > 0 &&
           ldr_server_now(server) < deadline_ns) {
        ldr_threads_real.sleep(ldr_threads_real.arg, DRAIN_LOOK_NS);
    }
}

static void free_all(ldr_server_t *server)
{
    ldr_ports_close(server);
    for (unsigned i = 0; i < server->loop_count; i++) {
        ldr_server_loop_t *home = &server->loops[i];

        ldr_requests_destroy(home);
        ldr_free(home->reply);
        ldr_free(home->in);
        ldr_free(home->dump);
        ldr_free(home->shares);
        ldr_loop_destroy(&home->loop);
    }
    ldr_free(server->loops);
    for (unsigned i = 0; i < server->tenant_count; i++) {
        explicit_bzero(server->tenants[i], sizeof(*server->tenants[i]));
        ldr_free(server->tenants[i]);
    }
    if (server->latest != server->config) {
        ldr_config_free(server->latest);
    }
    ldr_config_free(server->config);
    if (server->cluster != NULL) {
        ldr_cluster_close(server->cluster);
    }
    ldr_tls_destroy(server->tls);
    ldr_tls_destroy(server->peer_tls);
    ldr_lobby_destroy(server->lobbies[0]);
    ldr_lobby_destroy(server->lobbies[1]);
    ldr_metrics_destroy(server->metrics);
    if (server->end_fd >= 0) {
        close(server->end_fd);
    }
    pthread_cond_destroy(&server->job_wake);
    pthread_mutex_destroy(&server->job_lock);
    pthread_mutex_destroy(&server->revoke_lock);
    pthread_mutex_destroy(&server->tenant_lock);
    pthread_mutex_destroy(&server->stage_lock);
    pthread_mutex_destroy(&server->config_lock);
    ldr_free(server);
}

larder_status_t ldr_server_close(ldr_server_t *server)
{
    uint64_t drain_ns = server->latest->options.drain_ms * 1000000u;
    uint64_t deadline_ns = ldr_server_now(server) + drain_ns;
    larder_status_t st = LARDER_OK;
    larder_stats_t stats = {0};
    ldr_handover_t handover = {0};

    /* The ring first: from here on others own what this node owned. Whoever
     * takes over from it is the same member. */
    bool leaves = server->cluster != NULL && !server->hands_over;
    if (leaves) {
        ldr_cluster_depart(server, deadline_ns - drain_ns / 2);
    }
    drain(server, deadline_ns - drain_ns / 2);
    bool whole =
        ldr_jobs_stop(server, ldr_max64(deadline_ns - drain_ns / 4,
                                        ldr_server_now(server) + JOBS_NS));
    ldr_admin_close(server->admin);
    ldr_monitor_close(server->monitor);
    ldr_server_loops_close(server);
    ldr_trace_close(server->trace);
    if (leaves) {
        ldr_cluster_hand_on(server, deadline_ns - drain_ns / 8);
    }
    ldr_peers_unlisten(server);
    ldr_routing_close(server);
    if (server->node != NULL && !whole) {
        ldr_node_leave(server->node);
    }
    if (server->node != NULL) {
        ldr_node_stats(server->node, LDR_NIL, &stats);
        handover.left_bytes = stats.dram_used_bytes;
        st = server->hands_over
                 ? ldr_node_hand_over(server->node, deadline_ns, &handover)
                 : ldr_node_close(server->node, deadline_ns);
    }
    ldr_server_handed_over(server, &stats, &handover, st);
    if (st == LARDER_E_DEADLINE && handover.list.base != NULL) {
        st = LARDER_OK; /* what is not on SSD went along */
    } else if (st == LARDER_E_DEADLINE) {
        ldr_warn(&server->log,
                 "saves that were only in DRAM are lost: writing them down "
                 "took longer than drain_ms");
    }
    ldr_handover_free(&handover);
    ldr_handover_free(&server->handover);
    if (whole) {
        free_all(server);
    } else {
        ldr_error(&server->log, "requests hang in a disk and are left behind");
    }
    return st;
}
