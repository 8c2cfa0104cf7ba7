/* All metrics as Prometheus text: the node's, the daemon's, the process's. */
#include <ctype.h>
#include <dirent.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "server/catalog.h"
#include "server/monitor_int.h"

/* Shown from the start, so that their first request is seen as a change. */
#define COMMON                                                                 \
    (1ull << LDR_OP_GET | 1ull << LDR_OP_PUT | 1ull << LDR_OP_MATCH |          \
     1ull << LDR_OP_LEASE | 1ull << LDR_OP_RESERVE | 1ull << LDR_OP_COMMIT)

/* ---- names ---- */

#define NAMES(function, map)                                                   \
    const char *function(unsigned i)                                           \
    {                                                                          \
        static const char *const names[] = {map(X)};                           \
                                                                               \
        return i < sizeof(names) / sizeof(*names) ? names[i] : NULL;           \
    }
#define X(name, label) label,
NAMES(ldr_outcome_label, LDR_OUTCOME_MAP)
NAMES(ldr_transport_label, LDR_TRANSPORT_MAP)
NAMES(ldr_auth_fail_label, LDR_AUTH_FAIL_MAP)
NAMES(ldr_refusal_label, LDR_REFUSAL_MAP)
#undef X

const char *ldr_status_label(larder_status_t status)
{
    static _Thread_local char label[32];
    const char *name = "LARDER_E_UNKNOWN";
    size_t n = 0;

    switch (status) {
#define X(id, value, text)                                                     \
    case id:                                                                   \
        name = #id;                                                            \
        break;
        LARDER_STATUS_MAP(X)
#undef X
    }
    name += strncmp(name, "LARDER_E_", 9) == 0 ? 9 : 7;
    for (; *name != '\0' && n + 1 < sizeof(label); name++) {
        label[n++] = (char)tolower((unsigned char)*name);
    }
    label[n] = '\0';
    return label;
}

const char *ldr_failure_label(unsigned i)
{
    const char *label = ldr_status_label((larder_status_t)(-(int)i));

    return i > 0 && strcmp(label, "unknown") != 0 ? label : NULL;
}

const char *ldr_op_label(unsigned opcode)
{
    const char *text = ldr_opcode_text(opcode);

    return text != NULL ? text : "unknown";
}

/* ---- rows ---- */

#define LDR_ROW ldr_op_count_t
static const ldr_row_t op_rows[] = {LDR_ROWS(LDR_OP_FIGURES)};
#undef LDR_ROW
#define LDR_ROW ldr_tenant_count_t
const ldr_row_t ldr_rows_client[] = {LDR_ROWS(LDR_CLIENT_FIGURES)};
#undef LDR_ROW
#define LDR_ROW ldr_transport_count_t
static const ldr_row_t transport_rows[] = {LDR_ROWS(LDR_TRANSPORT_FIGURES)};
#undef LDR_ROW
#define LDR_ROW ldr_server_metrics_t
const ldr_row_t ldr_rows_server[] = {LDR_ROWS(LDR_SERVER_FIGURES)};
#undef LDR_ROW
#define LDR_ROW ldr_process_t
const ldr_row_t ldr_rows_process[] = {LDR_ROWS(LDR_PROCESS_FIGURES)};
#undef LDR_ROW

uint64_t ldr_op_total(const ldr_server_metrics_t *m, unsigned opcode)
{
    uint64_t total = 0;

    for (int i = 0; i < LDR_OUTCOME_COUNT; i++) {
        total += ldr_counted(&m->ops[opcode].outcomes[i]);
    }
    return total;
}

static void put_ops(const ldr_server_metrics_t *m, ldr_exposition_t *e)
{
    ldr_subject_t subjects[LDR_METRICS_OPCODES];
    size_t count = 0;

    for (unsigned op = 0; op < LDR_METRICS_OPCODES; op++) {
        if ((op < 64 && (COMMON >> op & 1) != 0) || ldr_op_total(m, op) > 0) {
            subjects[count++] =
                (ldr_subject_t){&m->ops[op], {ldr_op_label(op)}};
        }
    }
    ldr_figures_put(e, op_rows, subjects, count);
}

static void put_transports(const ldr_server_metrics_t *m, ldr_exposition_t *e)
{
    ldr_subject_t subjects[LDR_TRANSPORT_COUNT];

    for (unsigned i = 0; i < LDR_TRANSPORT_COUNT; i++) {
        subjects[i] =
            (ldr_subject_t){&m->transports[i], {ldr_transport_label(i)}};
    }
    ldr_figures_put(e, transport_rows, subjects, LDR_TRANSPORT_COUNT);
}

/* ---- the slowest ---- */

void ldr_slow_names(ldr_node_t *node, const ldr_slow_t *s,
                    ldr_slow_names_t *out)
{
    ldr_space_stats_t space;

    *out = (ldr_slow_names_t){.op = ldr_op_label(s->opcode),
                              .by = ldr_transport_label(s->transport),
                              .status = ldr_status_label(s->status)};
    ldr_node_tenant_label(node, s->tenant, out->tenant);
    if (ldr_node_space_stats(node, s->space, &space)) {
        ldr_space_label(space.id, out->space);
    }
}

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
        ldr_slow_names_t names;
        unsigned k = 0;

        while (!is_alike(&slow[k], &slow[i])) {
            k++;
        }
        ldr_slow_names(node, &slow[i], &names);
        if (k == i && names.by != NULL) {
            ldr_metric_put_fixed(e, LDR_METRIC_slowest_request_seconds,
                                 LDR_LABELS(names.op, names.by, names.tenant,
                                            names.space, names.status),
                                 slow[i].ns, 9);
        }
    }
}

/* ---- the process ---- */

void ldr_process_look(const ldr_server_metrics_t *m, ldr_process_t *p)
{
    struct rusage used;
    struct rlimit limit;
    char text[1024] = "";
    long pages = 0;
    FILE *file = fopen("/proc/self/stat", "re");

    *p = (ldr_process_t){.start = {m->start_ms}};
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
        p->cpu.value =
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

static void put_build(ldr_exposition_t *e)
{
    char version[32] = "", build[160] = "";
    const char *text = larder_version();
    size_t n = strcspn(text, " ");

    snprintf(version, sizeof(version), "%.*s", (int)n, text);
    snprintf(build, sizeof(build), "%s", text[n] == ' ' ? text + n + 2 : "");
    build[strcspn(build, ")")] = '\0';
    ldr_metric_put(e, LDR_METRIC_build_info, LDR_LABELS(version, build), 1);
}

size_t ldr_server_metrics_text(ldr_node_t *node, ldr_server_metrics_t *m,
                               uint32_t tenant, char *text, size_t size)
{
    ldr_more_t more = {ldr_rows_client, m->tenants, sizeof(*m->tenants)};
    ldr_exposition_t e;
    ldr_process_t p;

    ldr_exposition_init(&e, text, size);
    ldr_node_expose(node, tenant, &more, &e);
    if (tenant == LDR_NIL) {
        ldr_process_look(m, &p);
        put_ops(m, &e);
        put_transports(m, &e);
        put_slowest(node, m, &e);
        if (m->admin_url[0] != '\0') {
            ldr_metric_put(&e, LDR_METRIC_admin_on, LDR_LABELS(m->admin_url),
                           m->admin_on);
        }
        put_build(&e);
        ldr_catalog_expose(m->catalog, &e);
        ldr_cluster_expose(m->cluster, &e);
        ldr_figures_put(&e, ldr_rows_server, &(ldr_subject_t){m, {NULL}}, 1);
        ldr_figures_put(&e, ldr_rows_process, &(ldr_subject_t){&p, {NULL}}, 1);
    }
    return e.text.length;
}
