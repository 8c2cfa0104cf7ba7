/*
 * The layers of the configuration: defaults, file, environment, flags. Flags
 * are read first, since one of them names the file, and applied last.
 */
#include "base/config.h"

#include <stdlib.h>
#include <string.h>

#include "base/config_int.h"
#include "base/log.h"
#include "base/mem.h"

#define ENVIRONMENT "LARDER_"
#define NAME_MAX_BYTES 32
#define SHOWN_MAX 60

/* The flags, taken apart. All of it points into argv. */
typedef struct flags {
    const char *config;
    const char *dirs[LDR_DISKS_MAX + 1];
    unsigned dir_count;
    const char *values[LDR_OPTION_COUNT];
    const char *names[LDR_OPTION_COUNT]; /* as they were written */
} flags_t;

larder_status_t ldr_config_fail(const char *source, larder_status_t st)
{
    char why[512]; /* as long as the text it moves */

    snprintf(why, sizeof(why), "%s", ldr_fail_text());
    return ldr_fail(st, "%s: %s", source, why);
}

larder_status_t ldr_config_set(ldr_config_t *c, size_t index, const char *value,
                               const char *source)
{
    larder_status_t st = ldr_option_set(&c->options, index, value);

    if (st == LARDER_OK) {
        snprintf(c->source[index], sizeof(c->source[index]), "%s", source);
    }
    return st;
}

int ldr_config_option(const char *name, size_t length, const char *what)
{
    int i = ldr_option_find(name, length);
    const char *near;
    char where[128];

    if (i >= 0 && (ldr_option_table[i].where & LDR_WHERE_SERVE) != 0) {
        return i;
    }
    if (i >= 0) {
        ldr_where_text(ldr_option_table[i].where, where, sizeof(where));
        return ldr_fail(LARDER_E_INVALID,
                        "option %s has no meaning in larder serve; it is for "
                        "%s",
                        ldr_option_table[i].name, where);
    }
    near = ldr_option_nearest(name, length, LDR_WHERE_SERVE);
    return ldr_fail(LARDER_E_INVALID,
                    "unknown %s%.*s%s%s%s; `larder options --serve` lists them",
                    what, (int)(length < SHOWN_MAX ? length : SHOWN_MAX), name,
                    near != NULL ? "; did you mean " : "",
                    near != NULL ? near : "", near != NULL ? "?" : "");
}

larder_status_t ldr_config_dir(ldr_config_t *c, const char *dir,
                               const char *source, bool first)
{
    if (first) {
        memset(c->options.dirs, 0, sizeof(c->options.dirs));
        c->options.dir_count = 0;
        snprintf(c->dir_source, sizeof(c->dir_source), "%s", source);
    }
    return ldr_options_add_dir(&c->options, dir);
}

ldr_config_t *ldr_config_new(void)
{
    ldr_config_t *c = ldr_alloc(sizeof(*c));

    if (c == NULL) {
        return NULL;
    }
    if (!ldr_grow(&c->tenants, &c->tenant_capacity, 1, sizeof(*c->tenants))) {
        ldr_free(c);
        return NULL;
    }
    ldr_options_default(&c->options);
    for (size_t i = 0; i < ldr_option_count; i++) {
        snprintf(c->source[i], sizeof(c->source[i]), "default");
    }
    snprintf(c->dir_source, sizeof(c->dir_source), "default");
    snprintf(c->tenants[0].name, sizeof(c->tenants[0].name), "default");
    c->tenant_count = 1;
    return c;
}

void ldr_config_free(ldr_config_t *c)
{
    if (c == NULL) {
        return;
    }
    for (int i = 0; c->argv != NULL && i < c->argc; i++) {
        ldr_free(c->argv[i]);
    }
    ldr_free(c->argv);
    ldr_free(c->tenants);
    ldr_free(c);
}

/* ---- flags ---- */

/* --name with dashes is --name with underscores. */
static void name_fold(const char *text, size_t length,
                      char name[NAME_MAX_BYTES + 1], size_t *length_p)
{
    *length_p = length <= NAME_MAX_BYTES ? length : 0;
    for (size_t i = 0; i < *length_p; i++) {
        name[i] = text[i] == '-' ? '_' : text[i];
    }
    name[*length_p] = '\0';
}

static larder_status_t flag_value(flags_t *f, const char *flag,
                                  const char *name, const char *value)
{
    int i;

    if (strcmp(name, "config") == 0) {
        if (f->config != NULL) {
            return ldr_fail(LARDER_E_INVALID, "--config is given twice");
        }
        f->config = value;
        return LARDER_OK;
    }
    if (strcmp(name, "dir") == 0) {
        if (f->dir_count <= LDR_DISKS_MAX) { /* one too many is refused later */
            f->dirs[f->dir_count++] = value;
        }
        return LARDER_OK;
    }
    i = ldr_option_find(name, strlen(name));
    if (f->values[i] != NULL) {
        return ldr_fail(LARDER_E_INVALID, "%.*s is given twice",
                        (int)strcspn(flag, "="), flag);
    }
    f->values[i] = value;
    f->names[i] = flag;
    return LARDER_OK;
}

/* One flag. *used_p: how many of the arguments it took. */
static larder_status_t flag_read(flags_t *f, ldr_config_t *c, int argc,
                                 char **argv, int *used_p)
{
    const char *flag = argv[0];
    size_t written = strcspn(flag, "=");
    char name[NAME_MAX_BYTES + 1];
    bool known;
    size_t length;
    int i = 0;

    *used_p = 1;
    if (strncmp(flag, "--", 2) != 0 || written == 2) {
        return ldr_fail(LARDER_E_INVALID,
                        "'%.*s' is no flag; write --name VALUE, and --dir DIR "
                        "for a directory",
                        SHOWN_MAX, flag);
    }
    name_fold(flag + 2, written - 2, name, &length);
    if (flag[written] == '\0' && strcmp(name, "takeover") == 0) {
        c->takeover = true;
        return LARDER_OK;
    }
    known = strcmp(name, "config") == 0 || strcmp(name, "dir") == 0;
    if (!known) {
        /* A name that was too long is shown as it was written. */
        i = ldr_config_option(length > 0 ? name : flag + 2,
                              length > 0 ? length : written - 2, "flag --");
    }
    if (i < 0) {
        return (larder_status_t)i;
    }
    if (flag[written] == '=') {
        return flag_value(f, flag, name, flag + written + 1);
    }
    if (argc < 2) {
        char range[128] = "a path";

        if (!known) {
            ldr_option_range((size_t)i, range, sizeof(range));
        }
        return ldr_fail(LARDER_E_INVALID, "%s needs a value: %s", flag, range);
    }
    *used_p = 2;
    return flag_value(f, flag, name, argv[1]);
}

static larder_status_t flags_read(flags_t *f, ldr_config_t *c)
{
    larder_status_t st = LARDER_OK;
    int used;

    for (int i = 0; i < c->argc && st == LARDER_OK; i += used) {
        used = 1;
        if (strcmp(c->argv[i], "--help") == 0 ||
            strcmp(c->argv[i], "-h") == 0) {
            c->help = true;
            return LARDER_OK;
        }
        st = flag_read(f, c, c->argc - i, c->argv + i, &used);
    }
    return st;
}

static larder_status_t flags_apply(ldr_config_t *c, const flags_t *f)
{
    larder_status_t st = LARDER_OK;
    char source[LDR_SOURCE_MAX] = "--dir";

    for (unsigned i = 0; i < f->dir_count && st == LARDER_OK; i++) {
        st = ldr_config_dir(c, f->dirs[i], source, i == 0);
    }
    for (size_t i = 0; i < ldr_option_count && st == LARDER_OK; i++) {
        if (f->values[i] != NULL) {
            snprintf(source, sizeof(source), "%.*s",
                     (int)strcspn(f->names[i], "="), f->names[i]);
            st = ldr_config_set(c, i, f->values[i], source);
        }
    }
    return st == LARDER_OK ? st : ldr_config_fail(source, st);
}

/* ---- the environment ---- */

static void variable_name(const char *option, char name[64])
{
    size_t used = (size_t)snprintf(name, 64, ENVIRONMENT "%s", option);

    for (size_t i = strlen(ENVIRONMENT); i < used; i++) {
        if (name[i] >= 'a' && name[i] <= 'z') {
            name[i] = (char)(name[i] & ~0x20);
        }
    }
}

/* Names that are no option are not ours to judge: Kubernetes, for one, sets
 * LARDER_PORT in the pods beside a service of that name. */
static larder_status_t environment_apply(ldr_config_t *c)
{
    const char *dirs = getenv(ENVIRONMENT "DIR");
    larder_status_t st = LARDER_OK;
    char name[64] = ENVIRONMENT "DIR";
    bool first = true;

    while (dirs != NULL && dirs[0] != '\0' && st == LARDER_OK) {
        char dir[LDR_PATH_MAX + 1];
        size_t length = strcspn(dirs, ",");

        snprintf(dir, sizeof(dir), "%.*s",
                 (int)(length < sizeof(dir) ? length : sizeof(dir)), dirs);
        st = ldr_config_dir(c, dir, name, first);
        first = false;
        dirs = dirs[length] == ',' ? dirs + length + 1 : NULL;
        if (dirs != NULL && dirs[0] == '\0' && st == LARDER_OK) {
            st = ldr_options_add_dir(&c->options, ""); /* refused */
        }
    }
    for (size_t i = 0; i < ldr_option_count && st == LARDER_OK; i++) {
        if ((ldr_option_table[i].where & LDR_WHERE_SERVE) == 0) {
            continue;
        }
        variable_name(ldr_option_table[i].name, name);
        const char *value = getenv(name);
        if (value != NULL) {
            st = ldr_config_set(c, i, value, name);
        }
    }
    return st == LARDER_OK ? st : ldr_config_fail(name, st);
}

/* ---- loading ---- */

static bool flags_copy(ldr_config_t *c, int argc, char **argv)
{
    c->argv = ldr_alloc((size_t)(argc + 1) * sizeof(*c->argv));
    for (int i = 0; c->argv != NULL && i < argc; i++) {
        size_t bytes = strlen(argv[i]) + 1;

        c->argv[i] = ldr_alloc(bytes);
        if (c->argv[i] == NULL) {
            return false;
        }
        memcpy(c->argv[i], argv[i], bytes);
        c->argc = i + 1;
    }
    return c->argv != NULL;
}

static larder_status_t file_name(ldr_config_t *c, const flags_t *f)
{
    const char *file = f->config;
    const char *source = "--config";

    if (file == NULL) {
        file = getenv(ENVIRONMENT "CONFIG");
        source = ENVIRONMENT "CONFIG";
        if (file == NULL || file[0] == '\0') {
            return LARDER_OK;
        }
    }
    if (file[0] == '\0' || strlen(file) >= sizeof(c->file)) {
        return ldr_fail(LARDER_E_INVALID,
                        "%s '%.*s': write the path of a file, at most %zu "
                        "bytes",
                        source, SHOWN_MAX, file, sizeof(c->file) - 1);
    }
    snprintf(c->file, sizeof(c->file), "%s", file);
    return LARDER_OK;
}

static larder_status_t layers_apply(ldr_config_t *c, const flags_t *f)
{
    larder_status_t st = file_name(c, f);

    if (st == LARDER_OK && c->file[0] != '\0') {
        st = ldr_config_read(c);
    }
    if (st == LARDER_OK) {
        st = environment_apply(c);
    }
    if (st == LARDER_OK) {
        st = flags_apply(c, f);
    }
    if (st == LARDER_OK) {
        st = ldr_config_check(c);
    }
    /* One place says who may be tenant default, and under which secret. */
    if (st == LARDER_OK && c->options.uids[0] != '\0') {
        memcpy(c->tenants[0].uids, c->options.uids, sizeof(c->tenants[0].uids));
    }
    if (st == LARDER_OK && c->options.secret_file[0] != '\0') {
        memcpy(c->tenants[0].secret_file, c->options.secret_file,
               sizeof(c->tenants[0].secret_file));
    }
    return st;
}

larder_status_t ldr_config_load(int argc, char **argv, ldr_config_t **config_p)
{
    ldr_config_t *c = ldr_config_new();
    flags_t flags = {0};
    larder_status_t st;

    *config_p = NULL;
    if (c == NULL || !flags_copy(c, argc, argv)) {
        ldr_config_free(c);
        return ldr_fail(LARDER_E_NO_MEMORY, "no memory for the configuration");
    }
    st = flags_read(&flags, c);
    if (st == LARDER_OK && !c->help) {
        st = layers_apply(c, &flags);
    }
    if (st != LARDER_OK) {
        ldr_config_free(c);
        return st;
    }
    *config_p = c;
    return LARDER_OK;
}

/* ---- reloading ---- */

static void restart_add(ldr_config_t *c, const char *name)
{
    size_t used = strlen(c->restart);

    snprintf(c->restart + used, sizeof(c->restart) - used, "%s%s",
             used > 0 ? " " : "", name);
}

larder_status_t ldr_config_reload(const ldr_config_t *old, ldr_config_t **new_p)
{
    char value[LDR_OPTION_TEXT], before[LDR_OPTION_TEXT];
    ldr_config_t *c;
    larder_status_t st = ldr_config_load(old->argc, old->argv, new_p);

    if (st != LARDER_OK) {
        return st;
    }
    c = *new_p;
    for (size_t i = 0; i < ldr_option_count; i++) {
        ldr_option_get(&c->options, i, value, sizeof(value));
        ldr_option_get(&old->options, i, before, sizeof(before));
        if (strcmp(value, before) != 0 &&
            (ldr_option_table[i].where & LDR_WHERE_RELOAD) == 0) {
            restart_add(c, ldr_option_table[i].name);
            ldr_config_set(c, i, before, old->source[i]);
        }
    }
    if (c->options.dir_count != old->options.dir_count ||
        memcmp(c->options.dirs, old->options.dirs, sizeof(c->options.dirs)) !=
            0) {
        restart_add(c, "dir");
        memcpy(c->options.dirs, old->options.dirs, sizeof(c->options.dirs));
        c->options.dir_count = old->options.dir_count;
        memcpy(c->dir_source, old->dir_source, sizeof(c->dir_source));
    }
    /* What stays and what is new have to go together as well: without their
     * tokens, addresses that are open still are open to everybody. */
    st = ldr_config_check(c);
    if (st != LARDER_OK) {
        ldr_config_free(c);
        *new_p = NULL;
    }
    return st;
}
