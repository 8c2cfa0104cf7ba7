/*
 * Figures as text: the rows of base/figures.h, and what writes them, as
 * Prometheus text and as JSON. A metric is written by its id, so one without a
 * row cannot be shown.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/figures.h"
#include "base/histogram.h"
#include "base/json.h"
#include "base/text.h"

typedef enum ldr_metric {
#define S(...)
#define M(name, ...) LDR_METRIC_##name,
    LDR_EMBEDDED_FIGURES(M, M, S, S, S) LDR_DAEMON_FIGURES(M, M, S, S, S)
        LDR_PROCESS_FIGURES(M, M, S, S, S)
#undef M
#undef S
            LDR_METRIC_COUNT
} ldr_metric_t;

#define LDR_METRIC_DAEMON LDR_METRIC_requests_total /* the first of these */

typedef enum ldr_metric_type {
    LDR_METRIC_TYPE_COUNTER,
    LDR_METRIC_TYPE_GAUGE,
    LDR_METRIC_TYPE_HISTOGRAM
} ldr_metric_type_t;

typedef struct ldr_metric_info {
    ldr_metric_type_t type;
    const char *name, *labels, *help;
} ldr_metric_info_t;

extern const ldr_metric_info_t ldr_metric_table[LDR_METRIC_COUNT];
const char *ldr_metric_type_text(ldr_metric_type_t type);

/*
 * Metrics on their way to text. All values of one metric are written in a row:
 * the format wants it, and a metric that is begun again is written no more,
 * which the tests would see.
 */
typedef struct ldr_exposition {
    ldr_text_t text;
    int current; /* an ldr_metric_t, or -1 */
    uint8_t begun[LDR_METRIC_COUNT];
} ldr_exposition_t;

void ldr_exposition_init(ldr_exposition_t *e, char *text, size_t size);

/* The values of a metric's labels, in the order of its row. */
#define LDR_LABELS(...) ((const char *const[]){__VA_ARGS__, NULL})
#define LDR_NO_LABELS ((const char *const[]){NULL})

/* One value. There have to be as many labels as the row has. */
void ldr_metric_put(ldr_exposition_t *e, ldr_metric_t id,
                    const char *const *labels, uint64_t value);
/* value / 10^decimals */
void ldr_metric_put_fixed(ldr_exposition_t *e, ldr_metric_t id,
                          const char *const *labels, uint64_t value,
                          unsigned decimals);

/* ---- rows ---- */

/* A value in thousandths or in millionths. */
typedef struct ldr_milli {
    uint64_t value;
} ldr_milli_t;
typedef struct ldr_micro {
    uint64_t value;
} ldr_micro_t;

typedef enum ldr_kind {
    LDR_KIND_END, /* of the rows */
    LDR_KIND_METRIC,
    LDR_KIND_U64,
    LDR_KIND_I64,
    LDR_KIND_U32,
    LDR_KIND_MILLI,
    LDR_KIND_MICRO,
    LDR_KIND_HISTOGRAM,
    LDR_KIND_HISTOGRAM_AT /* a pointer to one */
} ldr_kind_t;

typedef struct ldr_row {
    ldr_kind_t kind;
    ldr_metric_t metric;              /* METRIC: which one */
    const char *key;                  /* "": not in the JSON */
    const char *label;                /* "": none; NULL: only in the JSON */
    const char *(*names)(unsigned i); /* NULL: no array */
    size_t offset, bytes;             /* in the struct */
} ldr_row_t;

/* Rows of the struct that LDR_ROW names: {LDR_ROWS(LDR_DISK_FIGURES)}. */
#define LDR_ROWS(map)                                                          \
    map(LDR_ROW_M, LDR_ROW_V, LDR_ROW_S, LDR_ROW_E, LDR_ROW_J) LDR_ROW_LAST
#define LDR_ROW_LAST                                                           \
    {                                                                          \
        .kind = LDR_KIND_END                                                   \
    }
#define LDR_ROW_M(name, ...)                                                   \
    {.kind = LDR_KIND_METRIC, .metric = LDR_METRIC_##name},
#define LDR_ROW_V(name, type, labels, key, field, help)                        \
    LDR_ROW_M(name, ) LDR_ROW_S(key, "", field)
#define LDR_ROW_S(key, label, field)                                           \
    {LDR_KIND(field), 0, #key, label, NULL, LDR_PLACE(field)},
#define LDR_ROW_E(names, label, field)                                         \
    {LDR_KIND_U64, 0, "", label, names, LDR_PLACE(field)},
#define LDR_ROW_J(key, field) LDR_ROW_S(key, NULL, field)
#define LDR_FIELD(field) ((LDR_ROW *)0)->field
#define LDR_PLACE(field) offsetof(LDR_ROW, field), sizeof(LDR_FIELD(field))
#define LDR_KIND(field)                                                        \
    _Generic(LDR_FIELD(field), uint64_t                                        \
             : LDR_KIND_U64, int64_t                                           \
             : LDR_KIND_I64, uint32_t                                          \
             : LDR_KIND_U32, ldr_milli_t                                       \
             : LDR_KIND_MILLI, ldr_micro_t                                     \
             : LDR_KIND_MICRO, ldr_histogram_t                                 \
             : LDR_KIND_HISTOGRAM, const ldr_histogram_t *                     \
             : LDR_KIND_HISTOGRAM_AT)

/* What rows are about: a struct, and the labels that all its series have. */
typedef struct ldr_subject {
    const void *at;
    const char *labels[2]; /* NULL: no more */
} ldr_subject_t;

/* All metrics of the rows: one by one, of all subjects. Values are read as they
 * are now, other threads may be counting. */
void ldr_figures_put(ldr_exposition_t *e, const ldr_row_t *rows,
                     const ldr_subject_t *subjects, size_t count);
/* What has a key, into the object that is begun. A key with a dot is one of an
 * object of its own, which the next key may be in as well. What is below 0,
 * since two threads that count up and down were seen the other way round, is
 * shown as 0. */
void ldr_figures_json(ldr_json_t *j, const ldr_row_t *rows, const void *at);

/* ---- what tiers show of themselves ---- */

typedef struct ldr_disk_figures {
    larder_disk_stats_t s;
    const ldr_histogram_t *reads, *writes;
} ldr_disk_figures_t;

typedef struct ldr_shared_figures {
    larder_shared_stats_t s;
    const ldr_histogram_t *reads, *writes;
    uint64_t live_bytes, open, stuck;
    ldr_milli_t polled;
} ldr_shared_figures_t;

/* What this node did with another member of its cluster. */
typedef struct ldr_peer_counts {
    uint64_t asked, answered, unanswered; /* parts of asks */
    uint64_t fetched, fetched_bytes, fetch_failed;
    uint64_t sent, sent_bytes, present, send_failed;
    uint64_t served, served_bytes; /* shards that it got of this node */
    uint64_t sent_on; /* that it was told to get from another member */
    uint64_t taken, taken_bytes; /* and brought to it */
    uint64_t met, meet_failed;
    uint64_t wrong; /* shards whose bytes were not right */
    uint64_t homes_announced, homes_heard, home_wrong; /* chunks */
} ldr_peer_counts_t;

typedef struct ldr_peer_figures {
    ldr_peer_counts_t n;
    uint64_t well, behind, leased;
    uint64_t same_view, knows, skew_s;
    ldr_micro_t trip;
} ldr_peer_figures_t;

extern const ldr_row_t ldr_rows_disk[], ldr_rows_shared[], ldr_rows_peer[];
