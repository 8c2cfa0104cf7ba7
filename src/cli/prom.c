/*
 * Samples of a Prometheus text, cut up in place.
 *
 * A reading owns its text and its samples; names and labels point into the
 * text, where NULs have taken the place of what ended them. One thread.
 */
#include "cli/prom.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"

/* ---- reading ---- */

/* The end of the labels: the brace that closes them, quotes minded. */
static char *labels_end(char *s)
{
    bool quoted = false;

    for (; *s != '\0' && *s != '\n'; s++) {
        if (quoted && *s == '\\' && s[1] != '\0') {
            s++;
        } else if (*s == '"') {
            quoted = !quoted;
        } else if (*s == '}' && !quoted) {
            return s;
        }
    }
    return NULL;
}

/* One line, which it cuts up; false: it is none. */
static bool parse_line(char *line, ldr_sample_t *out)
{
    char *at = line + strcspn(line, "{ "), *end;

    out->name = line;
    out->labels = "";
    if (*at == '{') {
        *at++ = '\0';
        out->labels = at;
        at = labels_end(at);
        if (at == NULL) {
            return false;
        }
        *at++ = '\0';
    }
    if (*at != ' ') {
        return false;
    }
    *at++ = '\0';
    out->value = strtod(at, &end);
    return end != at && *end == '\0';
}

bool ldr_prom_parse(char *text, ldr_prom_t *out)
{
    size_t lines = 1;

    *out = (ldr_prom_t){.text = text};
    for (const char *s = text; *s != '\0'; s++) {
        lines += *s == '\n';
    }
    out->samples = ldr_alloc(lines * sizeof(*out->samples));
    if (out->samples == NULL) {
        ldr_prom_free(out);
        return false;
    }
    for (char *line = text; *line != '\0';) {
        char *next = line + strcspn(line, "\n");

        if (*next == '\n') {
            *next++ = '\0';
        }
        if (*line != '#' && *line != '\0') {
            if (!parse_line(line, &out->samples[out->count])) {
                ldr_prom_free(out);
                return false;
            }
            out->count++;
        }
        line = next;
    }
    return true;
}

void ldr_prom_free(ldr_prom_t *p)
{
    ldr_free(p->text);
    ldr_free(p->samples);
    *p = (ldr_prom_t){0};
}

/* ---- asking ---- */

bool ldr_prom_label(const ldr_sample_t *sample, const char *label,
                    char value[LDR_PROM_VALUE])
{
    size_t length = strlen(label), n = 0;
    const char *s = sample->labels;

    while (*s != '\0') {
        bool it = strncmp(s, label, length) == 0 && s[length] == '=';

        s += strcspn(s, "\"");
        for (s += *s == '"'; *s != '\0' && *s != '"'; s++) {
            if (*s == '\\' && s[1] != '\0') {
                s++;
            }
            if (it && n + 1 < LDR_PROM_VALUE) {
                value[n++] = *s == 'n' && s[-1] == '\\' ? '\n' : *s;
            }
        }
        if (it) {
            value[n] = '\0';
            return true;
        }
        s += *s == '"';
        s += *s == ',';
    }
    return false;
}

static bool fits(const ldr_sample_t *sample, const char *name,
                 const char *const *where)
{
    char value[LDR_PROM_VALUE];

    if (strcmp(sample->name, name) != 0) {
        return false;
    }
    for (; *where != NULL; where += 2) {
        if (!ldr_prom_label(sample, where[0], value) ||
            strcmp(value, where[1]) != 0) {
            return false;
        }
    }
    return true;
}

void ldr_prom_text(const ldr_prom_t *p, const char *name,
                   const char *const *where, const char *label,
                   char value[LDR_PROM_VALUE])
{
    value[0] = '\0';
    for (size_t i = 0; i < p->count; i++) {
        if (fits(&p->samples[i], name, where)) {
            ldr_prom_label(&p->samples[i], label, value);
            return;
        }
    }
}

double ldr_prom_sum(const ldr_prom_t *p, const char *name,
                    const char *const *where)
{
    double sum = 0;

    for (size_t i = 0; i < p->count; i++) {
        if (fits(&p->samples[i], name, where)) {
            sum += p->samples[i].value;
        }
    }
    return sum;
}

size_t ldr_prom_values(const ldr_prom_t *p, const char *name, const char *label,
                       char (*values)[LDR_PROM_VALUE], size_t max)
{
    size_t count = 0;

    for (size_t i = 0; i < p->count && count < max; i++) {
        bool known = false;

        if (strcmp(p->samples[i].name, name) != 0 ||
            !ldr_prom_label(&p->samples[i], label, values[count])) {
            continue;
        }
        for (size_t k = 0; k < count && !known; k++) {
            known = strcmp(values[k], values[count]) == 0;
        }
        count += !known;
    }
    return count;
}

/* ---- histograms ---- */

/* The place of this bound. All series of a histogram have the same, rising. */
static size_t bound_place(ldr_buckets_t *b, double bound)
{
    size_t at = 0;

    while (at < b->count && b->bounds[at] < bound) {
        at++;
    }
    if (at == b->count && at < LDR_PROM_BOUNDS) {
        b->bounds[b->count++] = bound;
    }
    return at < LDR_PROM_BOUNDS ? at : LDR_PROM_BOUNDS - 1;
}

static void add_buckets(const ldr_prom_t *p, const char *series,
                        const char *const *where, double sign, ldr_buckets_t *b)
{
    char le[LDR_PROM_VALUE];

    for (size_t i = 0; i < p->count; i++) {
        if (fits(&p->samples[i], series, where) &&
            ldr_prom_label(&p->samples[i], "le", le)) {
            b->below[bound_place(b, strtod(le, NULL))] +=
                sign * p->samples[i].value;
        }
    }
}

void ldr_prom_buckets(const ldr_prom_t *now, const ldr_prom_t *before,
                      const char *name, const char *const *where,
                      ldr_buckets_t *out)
{
    char series[LDR_PROM_VALUE];

    memset(out, 0, sizeof(*out));
    snprintf(series, sizeof(series), "%s_bucket", name);
    add_buckets(now, series, where, 1, out);
    add_buckets(before, series, where, -1, out);
}

double ldr_buckets_count(const ldr_buckets_t *b)
{
    return b->count > 0 ? b->below[b->count - 1] : 0;
}

double ldr_buckets_quantile(const ldr_buckets_t *b, double q)
{
    double want = q * ldr_buckets_count(b), low = 0, seen = 0;

    if (want <= 0) {
        return 0;
    }
    for (size_t i = 0; i + 1 < b->count; i++) {
        if (b->below[i] >= want) {
            double part = (want - seen) / (b->below[i] - seen);

            return low + (b->bounds[i] - low) * part;
        }
        seen = b->below[i];
        low = b->bounds[i];
    }
    return low; /* beyond the last bound: no more is known */
}
