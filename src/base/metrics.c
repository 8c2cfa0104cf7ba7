/*
 * Writes figures as Prometheus text and as JSON, from the table in figures.h.
 * No state of its own. Counters are read one by one (relaxed), while others
 * count: their sum may be a little old.
 */
#include "base/metrics.h"

#include <string.h>

#define BUCKET_LAST 24u /* 2^24 us: 17 s; what takes longer is in +Inf */

const ldr_metric_info_t ldr_metric_table[LDR_METRIC_COUNT] = {
#define S(...)
#define M(name, type, labels, help)                                            \
    {LDR_METRIC_TYPE_##type, PREFIX #name, labels, help},
#define V(name, type, labels, key, field, help) M(name, type, labels, help)
#define PREFIX "larder_"
    LDR_EMBEDDED_FIGURES(M, V, S, S, S) LDR_DAEMON_FIGURES(M, V, S, S, S)
#undef PREFIX
#define PREFIX "process_"
        LDR_PROCESS_FIGURES(M, V, S, S, S)
#undef PREFIX
#undef V
#undef M
#undef S
};

#define LDR_ROW ldr_disk_figures_t
const ldr_row_t ldr_rows_disk[] = {LDR_ROWS(LDR_DISK_FIGURES)};
#undef LDR_ROW
#define LDR_ROW ldr_shared_figures_t
const ldr_row_t ldr_rows_shared[] = {LDR_ROWS(LDR_SHARED_FIGURES)};
#undef LDR_ROW
#define LDR_ROW ldr_peer_figures_t
const ldr_row_t ldr_rows_peer[] = {LDR_ROWS(LDR_PEER_FIGURES)};
#undef LDR_ROW

const char *ldr_metric_type_text(ldr_metric_type_t type)
{
    static const char *const texts[] = {"counter", "gauge", "histogram"};

    return texts[type];
}

void ldr_exposition_init(ldr_exposition_t *e, char *text, size_t size)
{
    memset(e, 0, sizeof(*e));
    e->text = ldr_text(text, size);
    e->current = -1;
}

/* Writes the head before the first value. False: this metric has had its
 * turn. */
static bool metric_begin(ldr_exposition_t *e, ldr_metric_t id)
{
    const ldr_metric_info_t *m = &ldr_metric_table[id];

    if (e->current == (int)id) {
        return true;
    }
    if (e->begun[id]) {
        return false;
    }
    e->current = (int)id;
    e->begun[id] = 1;
    ldr_text_add(&e->text, "# HELP %s %s\n# TYPE %s %s\n", m->name, m->help,
                 m->name, ldr_metric_type_text(m->type));
    return true;
}

/* Paths and names may hold what a label must not. */
static void label_value(ldr_text_t *t, const char *value)
{
    for (; *value != '\0'; value++) {
        if (*value == '"' || *value == '\\') {
            ldr_text_char(t, '\\');
            ldr_text_char(t, *value);
        } else if (*value == '\n') {
            ldr_text_add(t, "\\n");
        } else {
            ldr_text_char(t, *value);
        }
    }
}

/* The series' name; bound_ns != 0: it is a bucket of a histogram. */
static void series(ldr_exposition_t *e, ldr_metric_t id, const char *suffix,
                   const char *const *labels, uint64_t bound_ns)
{
    const char *names = ldr_metric_table[id].labels;
    const char *between = "{";

    ldr_text_add(&e->text, "%s%s", ldr_metric_table[id].name, suffix);
    while (*names != '\0' && *labels != NULL) {
        size_t n = strcspn(names, ",");

        ldr_text_add(&e->text, "%s%.*s=\"", between, (int)n, names);
        label_value(&e->text, *labels++);
        ldr_text_char(&e->text, '"');
        between = ",";
        names += n + (names[n] == ',');
    }
    if (bound_ns != 0) {
        ldr_text_add(&e->text, "%sle=\"", between);
        if (bound_ns == UINT64_MAX) {
            ldr_text_add(&e->text, "+Inf");
        } else {
            ldr_text_fixed(&e->text, bound_ns, 9);
        }
        ldr_text_char(&e->text, '"');
        between = ",";
    }
    ldr_text_add(&e->text, "%s ", between[0] == ',' ? "}" : "");
}

void ldr_metric_put(ldr_exposition_t *e, ldr_metric_t id,
                    const char *const *labels, uint64_t value)
{
    ldr_metric_put_fixed(e, id, labels, value, 0);
}

void ldr_metric_put_fixed(ldr_exposition_t *e, ldr_metric_t id,
                          const char *const *labels, uint64_t value,
                          unsigned decimals)
{
    if (metric_begin(e, id)) {
        series(e, id, "", labels, 0);
        ldr_text_fixed(&e->text, value, decimals);
        ldr_text_char(&e->text, '\n');
    }
}

static void metric_bucket(ldr_exposition_t *e, ldr_metric_t id,
                          const char *const *labels, uint64_t bound_ns,
                          uint64_t count)
{
    series(e, id, "_bucket", labels, bound_ns);
    ldr_text_u64(&e->text, count);
    ldr_text_char(&e->text, '\n');
}

static void put_histogram(ldr_exposition_t *e, ldr_metric_t id,
                          const char *const *labels, const ldr_histogram_t *h)
{
    ldr_histogram_t now;
    uint64_t count = 0;
    unsigned i = 0;

    ldr_histogram_read(h, &now);
    for (unsigned octave = 0; octave <= BUCKET_LAST; octave++) {
        uint64_t bound = (uint64_t)1000 << octave;

        for (; ldr_histogram_bound_ns(i) <= bound; i++) {
            count += now.buckets[i];
        }
        metric_bucket(e, id, labels, bound, count);
    }
    count = ldr_histogram_count(&now);
    metric_bucket(e, id, labels, UINT64_MAX, count);
    series(e, id, "_sum", labels, 0);
    ldr_text_fixed(&e->text, now.sum_ns, 9);
    ldr_text_char(&e->text, '\n');
    series(e, id, "_count", labels, 0);
    ldr_text_u64(&e->text, count);
    ldr_text_char(&e->text, '\n');
}

/* ---- rows ---- */

/* A row's value, the i-th of an array; no histogram. */
static void put_value(ldr_text_t *t, const ldr_row_t *row, const void *at,
                      unsigned i, bool sign)
{
    const void *p = (const char *)at + row->offset + i * sizeof(uint64_t);
    uint64_t value =
        row->kind == LDR_KIND_U32
            ? *(const uint32_t *)p
            : __atomic_load_n((const uint64_t *)p, __ATOMIC_RELAXED);

    if (row->kind == LDR_KIND_I64) {
        ldr_text_i64(t, sign || (int64_t)value > 0 ? (int64_t)value : 0);
    } else {
        ldr_text_fixed(t, value,
                       row->kind == LDR_KIND_MILLI   ? 3
                       : row->kind == LDR_KIND_MICRO ? 6
                                                     : 0);
    }
}

static void put_row(ldr_exposition_t *e, ldr_metric_t id, const ldr_row_t *row,
                    const ldr_subject_t *s)
{
    const void *p = (const char *)s->at + row->offset;
    const char *labels[5] = {s->labels[0], s->labels[1]};
    unsigned n = labels[0] == NULL ? 0 : labels[1] == NULL ? 1 : 2;

    if (row->label[0] != '\0') {
        labels[n++] = row->label;
    }
    if (row->kind == LDR_KIND_HISTOGRAM || row->kind == LDR_KIND_HISTOGRAM_AT) {
        put_histogram(e, id, labels,
                      row->kind == LDR_KIND_HISTOGRAM
                          ? p
                          : *(const ldr_histogram_t *const *)p);
        return;
    }
    size_t count = row->names != NULL ? row->bytes / sizeof(uint64_t) : 1;
    for (unsigned i = 0; i < count; i++) {
        labels[n] = row->names != NULL ? row->names(i) : NULL;
        if (row->names == NULL || labels[n] != NULL) {
            series(e, id, "", labels, 0);
            put_value(&e->text, row, s->at, i, true);
            ldr_text_char(&e->text, '\n');
        }
    }
}

void ldr_figures_put(ldr_exposition_t *e, const ldr_row_t *rows,
                     const ldr_subject_t *subjects, size_t count)
{
    while (rows->kind != LDR_KIND_END) {
        ldr_metric_t id = rows->metric; /* rows begin with a metric */
        const ldr_row_t *first = ++rows;

        while (rows->kind > LDR_KIND_METRIC) {
            rows++;
        }
        for (size_t i = 0; i < count && rows > first && metric_begin(e, id);
             i++) {
            for (const ldr_row_t *row = first; row < rows; row++) {
                if (row->label != NULL) {
                    put_row(e, id, row, &subjects[i]);
                }
            }
        }
    }
}

void ldr_figures_json(ldr_json_t *j, const ldr_row_t *rows, const void *at)
{
    for (; rows->kind != LDR_KIND_END; rows++) {
        if (rows->kind != LDR_KIND_METRIC && rows->key[0] != '\0') {
            ldr_json_key(j, rows->key);
            put_value(&j->t, rows, at, 0, false);
        }
    }
}
