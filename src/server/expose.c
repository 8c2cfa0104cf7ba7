/* All metrics as Prometheus text: the node's, the daemon's, the process's. */
#include <ctype.h>
#include <dirent.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "node/metrics.h"
#include "server/status.h"
#include "server/status_int.h"

const char *const ldr_outcome_names[] = {
#define X(name, label) label,
    LDR_OUTCOME_MAP(X)
#undef X
};
const char *const ldr_transport_names[] = {
#define X(name, label) label,
    LDR_TRANSPORT_MAP(X)
#undef X
};
const char *const ldr_auth_fail_names[] = {
#define X(name, label) label,
    LDR_AUTH_FAIL_MAP(X)
#undef X
};
const char *const ldr_refusal_names[] = {
#define X(name, label) label,
    LDR_REFUSAL_MAP(X)
#undef X
};

void ldr_status_label(larder_status_t status, char label[LDR_LABEL_MAX])
{
    static const struct {
        int value;
        const char *name;
    } names[] = {
#define X(name, value, text) {value, #name},
        LARDER_STATUS_MAP(X)
#undef X
    };
    const char *name = "LARDER_E_UNKNOWN";
    size_t n = 0;

    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        if (names[i].value == (int)status) {
            name = names[i].name;
        }
    }
    name += strncmp(name, "LARDER_E_", 9) == 0 ? 9 : 7;
    for (; *name != '\0' && n + 1 < LDR_LABEL_MAX; name++) {
        label[n++] = (char)tolower((unsigned char)*name);
    }
    label[n] = '\0';
}

/* ---- requests ---- */

/* Shown from the start, so that their first request is seen as a change. */
static bool is_common(unsigned opcode)
{
    switch (opcode) {
    case LDR_OP_GET:
    case LDR_OP_PUT:
    case LDR_OP_MATCH:
    case LDR_OP_LEASE:
    case LDR_OP_RESERVE:
    case LDR_OP_COMMIT:
        return true;
    default:
        return false;
    }
}

uint64_t ldr_op_total(const ldr_server_metrics_t *m, unsigned opcode)
{
    uint64_t total = 0;

    for (int i = 0; i < LDR_OUTCOME_COUNT; i++) {
        total += ldr_counted(&m->ops[opcode].outcomes[i]);
    }
    return total;
}

const char *ldr_op_label(unsigned opcode)
{
    const char *text = ldr_opcode_text(opcode);

    return text != NULL ? text : "unknown";
}

static bool is_shown(const ldr_server_metrics_t *m, unsigned opcode)
{
    return is_common(opcode) || ldr_op_total(m, opcode) > 0;
}

static void put_requests(const ldr_server_metrics_t *m, ldr_exposition_t *e)
{
    for (unsigned op = 0; op < LDR_METRICS_OPCODES; op++) {
        for (int i = 0; i < LDR_OUTCOME_COUNT && is_shown(m, op); i++) {
            ldr_metric_put(e, LDR_METRIC_REQUESTS,
                           LDR_LABELS(ldr_op_label(op), ldr_outcome_names[i]),
                           ldr_counted(&m->ops[op].outcomes[i]));
        }
    }
    for (unsigned op = 0; op < LDR_METRICS_OPCODES; op++) {
        if (is_shown(m, op)) {
            ldr_metric_put_histogram(e, LDR_METRIC_REQUEST_SECONDS,
                                     LDR_LABELS(ldr_op_label(op)),
                                     &m->ops[op].latency);
        }
    }
#define X(name, value, text)                                                   \
    if ((value) < 0) {                                                         \
        char label[LDR_LABEL_MAX];                                             \
                                                                               \
        ldr_status_label(name, label);                                         \
        ldr_metric_put(e, LDR_METRIC_ERRORS, LDR_LABELS(label),                \
                       ldr_counted(&m->statuses[(value) < 0 ? -(value) : 0])); \
    }
    LARDER_STATUS_MAP(X)
#undef X
}

/* ---- the slowest ---- */

static bool is_alike(const ldr_slow_t *a, const ldr_slow_t *b)
{
    return a->opcode == b->opcode && a->transport == b->transport &&
           a->tenant == b->tenant && a->space == b->space &&
           a->status == b->status;
}

/* Slowest first. Of those that are alike only the first: labels may not be
 * repeated. */
static void put_slowest(ldr_node_t *node, ldr_server_metrics_t *m,
                        ldr_exposition_t *e)
{
    ldr_slow_t slow[LDR_METRICS_SLOW];
    unsigned count = ldr_metrics_slowest(m, slow);

    for (unsigned i = 0; i < count; i++) {
        const ldr_slow_t *s = &slow[i];
        char name[LDR_NAME_MAX] = "", id[LDR_SPACE_LABEL] = "";
        char status[LDR_LABEL_MAX];
        ldr_space_stats_t space;
        unsigned k = 0;

        while (!is_alike(&slow[k], s)) {
            k++;
        }
        if (k < i || s->transport >= LDR_TRANSPORT_COUNT) {
            continue;
        }
        ldr_node_tenant_label(node, s->tenant, name);
        if (ldr_node_space_stats(node, s->space, &space)) {
            ldr_space_label(space.id, id);
        }
        ldr_status_label(s->status, status);
        ldr_metric_put_fixed(e, LDR_METRIC_SLOWEST,
                             LDR_LABELS(ldr_op_label(s->opcode),
                                        ldr_transport_names[s->transport], name,
                                        id, status),
                             s->ns, 9);
    }
}

/* ---- tenants ---- */

typedef void (*tenant_fn)(const char *name, const ldr_tenant_count_t *t,
                          ldr_exposition_t *e);

static void put_tenant_requests(const char *name, const ldr_tenant_count_t *t,
                                ldr_exposition_t *e)
{
    for (int i = 0; i < LDR_OUTCOME_COUNT; i++) {
        ldr_metric_put(e, LDR_METRIC_TENANT_REQUESTS,
                       LDR_LABELS(name, ldr_outcome_names[i]),
                       ldr_counted(&t->requests[i]));
    }
}

static void put_tenant_bytes(const char *name, const ldr_tenant_count_t *t,
                             ldr_exposition_t *e)
{
    ldr_metric_put(e, LDR_METRIC_TENANT_BYTES, LDR_LABELS(name, "in"),
                   ldr_counted(&t->bytes_in));
    ldr_metric_put(e, LDR_METRIC_TENANT_BYTES, LDR_LABELS(name, "out"),
                   ldr_counted(&t->bytes_out));
}

static void put_tenant_sessions(const char *name, const ldr_tenant_count_t *t,
                                ldr_exposition_t *e)
{
    ldr_metric_put_signed(e, LDR_METRIC_TENANT_SESSIONS, LDR_LABELS(name),
                          ldr_level(&t->sessions));
}

static void put_tenant_throttled(const char *name, const ldr_tenant_count_t *t,
                                 ldr_exposition_t *e)
{
    ldr_metric_put(e, LDR_METRIC_TENANT_THROTTLED, LDR_LABELS(name),
                   ldr_counted(&t->throttled));
}

static void put_tenants(ldr_node_t *node, const ldr_server_metrics_t *m,
                        uint32_t tenant, ldr_exposition_t *e)
{
    static const tenant_fn all[] = {put_tenant_requests, put_tenant_bytes,
                                    put_tenant_sessions, put_tenant_throttled};
    char name[LDR_NAME_MAX];

    for (size_t k = 0; k < sizeof(all) / sizeof(all[0]); k++) {
        for (uint32_t i = 0; i < LDR_METRICS_TENANTS; i++) {
            if (tenant != LDR_NIL && tenant != i) {
                continue;
            }
            if (!ldr_node_tenant_label(node, i, name)) {
                break;
            }
            all[k](name, &m->tenants[i], e);
        }
    }
}

/* ---- sessions, levels, events ---- */

static void put_sessions(const ldr_server_metrics_t *m, ldr_exposition_t *e)
{
    for (int i = 0; i < LDR_TRANSPORT_COUNT; i++) {
        const char *name = ldr_transport_names[i];

        ldr_metric_put(e, LDR_METRIC_TRANSPORT_BYTES, LDR_LABELS(name, "in"),
                       ldr_counted(&m->bytes_in[i]));
        ldr_metric_put(e, LDR_METRIC_TRANSPORT_BYTES, LDR_LABELS(name, "out"),
                       ldr_counted(&m->bytes_out[i]));
    }
    for (int i = 0; i < LDR_TRANSPORT_COUNT; i++) {
        ldr_metric_put_signed(e, LDR_METRIC_SESSIONS,
                              LDR_LABELS(ldr_transport_names[i]),
                              ldr_level(&m->sessions[i]));
    }
    for (int i = 0; i < LDR_TRANSPORT_COUNT; i++) {
        ldr_metric_put(e, LDR_METRIC_SESSIONS_OPENED,
                       LDR_LABELS(ldr_transport_names[i]),
                       ldr_counted(&m->sessions_opened[i]));
    }
    for (int i = 0; i < LDR_AUTH_FAIL_COUNT; i++) {
        ldr_metric_put(e, LDR_METRIC_AUTH_FAILURES,
                       LDR_LABELS(ldr_auth_fail_names[i]),
                       ldr_counted(&m->auth_fails[i]));
    }
    for (int i = 0; i < LDR_REFUSAL_COUNT; i++) {
        ldr_metric_put(e, LDR_METRIC_REFUSED, LDR_LABELS(ldr_refusal_names[i]),
                       ldr_counted(&m->refusals[i]));
    }
    ldr_metric_put(e, LDR_METRIC_VERSION_REFUSALS, LDR_NO_LABELS,
                   ldr_counted(&m->refusals[LDR_REFUSAL_VERSION]));
}

#define LEVEL_MAP(X)                                                           \
    X(CONNECTING, CONNECTING)                                                  \
    X(LEASES, LEASES)                                                          \
    X(RESERVATIONS, RESERVATIONS)                                              \
    X(QUARANTINED, QUARANTINED)                                                \
    X(REVOKES, REVOKES_PENDING)                                                \
    X(JOBS_QUEUED, JOBS_QUEUED)                                                \
    X(JOBS_RUNNING, JOBS_RUNNING)                                              \
    X(REPLY_BYTES, REPLY_BYTES)                                                \
    X(TRACE_ON, TRACE_ON)

#define EVENT_MAP(X)                                                           \
    X(SESSIONS_DIED, SESSIONS_DIED)                                            \
    X(ABANDONED, LEASES_ABANDONED)                                             \
    X(EXTENTS_RECLAIMED, EXTENTS_RECLAIMED)                                    \
    X(PAYLOAD_MISMATCHES, CHECKSUM_MISMATCH)                                   \
    X(REPORTS, REPORTS)

static void put_plain(const ldr_server_metrics_t *m, ldr_exposition_t *e)
{
#define X(id, level)                                                           \
    ldr_metric_put_signed(e, LDR_METRIC_##id, LDR_NO_LABELS,                   \
                          ldr_level(&m->levels[LDR_LEVEL_##level]));
    LEVEL_MAP(X)
#undef X
#define X(id, event)                                                           \
    ldr_metric_put(e, LDR_METRIC_##id, LDR_NO_LABELS,                          \
                   ldr_counted(&m->events[LDR_EVENT_##event]));
    EVENT_MAP(X)
#undef X
    ldr_metric_put(e, LDR_METRIC_RELOADS, LDR_LABELS("ok"),
                   ldr_counted(&m->events[LDR_EVENT_RELOADS]));
    ldr_metric_put(e, LDR_METRIC_RELOADS, LDR_LABELS("failed"),
                   ldr_counted(&m->events[LDR_EVENT_RELOADS_FAILED]));
    ldr_metric_put(e, LDR_METRIC_TRACED, LDR_LABELS("written"),
                   ldr_counted(&m->events[LDR_EVENT_TRACE_WRITTEN]));
    ldr_metric_put(e, LDR_METRIC_TRACED, LDR_LABELS("repeated"),
                   ldr_counted(&m->events[LDR_EVENT_TRACE_REPEATED]));
    ldr_metric_put(e, LDR_METRIC_TRACED, LDR_LABELS("dropped"),
                   ldr_counted(&m->events[LDR_EVENT_TRACE_DROPPED]));
}

/* ---- the process ---- */

void ldr_process_look(ldr_process_t *p)
{
    struct rusage used;
    struct rlimit limit;
    char text[1024] = "";
    long pages = 0;
    FILE *file = fopen("/proc/self/stat", "re");

    memset(p, 0, sizeof(*p));
    if (file != NULL) {
        size_t n = fread(text, 1, sizeof(text) - 1, file);

        text[n] = '\0';
        fclose(file);
    }
    /* After the name in parentheses: state is field 3, threads 20, rss 24. */
    const char *at = strrchr(text, ')');
    if (at != NULL &&
        sscanf(at + 1,
               " %*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %*u %*u %*d %*d "
               "%*d %*d %lu %*d %*u %*u %ld",
               &p->threads, &pages) == 2) {
        p->resident_bytes = (uint64_t)pages * (uint64_t)sysconf(_SC_PAGESIZE);
    }
    if (getrusage(RUSAGE_SELF, &used) == 0) {
        p->cpu_us =
            (uint64_t)(used.ru_utime.tv_sec + used.ru_stime.tv_sec) * 1000000 +
            (uint64_t)(used.ru_utime.tv_usec + used.ru_stime.tv_usec);
    }
    if (getrlimit(RLIMIT_NOFILE, &limit) == 0) {
        p->fds_max = limit.rlim_cur;
    }
    DIR *dir = opendir("/proc/self/fd");
    if (dir != NULL) {
        while (readdir(dir) != NULL) {
            p->fds++;
        }
        closedir(dir);
        p->fds -= p->fds > 3 ? 3 : 0; /* "." and "..", and the folder itself */
    }
}

static void put_process(const ldr_server_metrics_t *m, ldr_exposition_t *e)
{
    ldr_process_t p;
    char version[32] = "", build[160] = "";
    const char *text = larder_version();
    size_t n = strcspn(text, " ");

    snprintf(version, sizeof(version), "%.*s", (int)n, text);
    snprintf(build, sizeof(build), "%s", text[n] == ' ' ? text + n + 2 : "");
    build[strcspn(build, ")")] = '\0';
    ldr_process_look(&p);
    if (m->admin_url[0] != '\0') {
        ldr_metric_put(e, LDR_METRIC_ADMIN_ON, LDR_LABELS(m->admin_url),
                       m->admin_on);
    }
    ldr_metric_put(e, LDR_METRIC_BUILD, LDR_LABELS(version, build), 1);
    ldr_metric_put_fixed(e, LDR_METRIC_START, LDR_NO_LABELS, m->start_ms, 3);
    ldr_metric_put_fixed(e, LDR_METRIC_CPU, LDR_NO_LABELS, p.cpu_us, 6);
    ldr_metric_put(e, LDR_METRIC_RESIDENT, LDR_NO_LABELS, p.resident_bytes);
    ldr_metric_put(e, LDR_METRIC_THREADS, LDR_NO_LABELS, p.threads);
    ldr_metric_put(e, LDR_METRIC_FDS, LDR_NO_LABELS, p.fds);
    ldr_metric_put(e, LDR_METRIC_FDS_MAX, LDR_NO_LABELS, p.fds_max);
}

size_t ldr_server_metrics_text(ldr_node_t *node, ldr_server_metrics_t *metrics,
                               uint32_t tenant, char *text, size_t size)
{
    ldr_exposition_t e;

    ldr_exposition_init(&e, text, size);
    ldr_node_expose(node, tenant, &e);
    put_tenants(node, metrics, tenant, &e);
    if (tenant == LDR_NIL) {
        put_requests(metrics, &e);
        put_slowest(node, metrics, &e);
        put_sessions(metrics, &e);
        put_plain(metrics, &e);
        put_process(metrics, &e);
    }
    return e.text.length;
}
