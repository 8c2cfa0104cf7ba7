/* tier: makes a shared tier, checks whether there is one, lists what is in it,
 * or drops a tenant's part of it. */
#include <errno.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "cli/cli.h"
#include "node/node.h"
#include "tier/shared/backend.h"

#define TIMEOUT_MS 30000u

typedef struct tier {
    const ldr_args_t *args;
    const char *url;
    ldr_backend_t *backend;
    bool json;
    uint64_t objects, manifests, others, bytes;
    int error; /* of a size that could not be had */
} tier_t;

static uint64_t deadline(void)
{
    return ldr_now_ns(&ldr_clock_real) + TIMEOUT_MS * (uint64_t)1000000;
}

static const char *login(const ldr_args_t *args)
{
    const char *path = args->values[LDR_FLAG_LOGIN];

    return path != NULL ? path : "";
}

static void say_result(const tier_t *t, const char *key, const char *text)
{
    if (t->json) {
        printf("{\"url\":");
        ldr_json_string(stdout, t->url);
        printf(",\"%s\":true}\n", key);
    } else {
        printf("%s: %s\n", t->url, text);
    }
}

/* ---- create ---- */

static int tier_make(tier_t *t)
{
    larder_status_t st =
        larder_shared_create(t->url, login(t->args), TIMEOUT_MS);

    if (st == LARDER_OK) {
        say_result(t, "made", "is a shared tier now");
    } else if (st == LARDER_PRESENT) {
        say_result(t, "present", "is a shared tier already");
    } else if (st == LARDER_E_INVALID) {
        return ldr_cli_usage(t->args, "%s", larder_last_error());
    } else {
        return ldr_cli_status(t->args, st);
    }
    return LDR_EXIT_OK;
}

/* ---- check ---- */

/* An object put, got and removed. */
static int try_write(tier_t *t)
{
    ldr_backend_t *b = t->backend;
    uint64_t sent = ldr_rand_entropy(), got = 0;
    struct iovec out = {&sent, sizeof(sent)}, in = {&got, sizeof(got)};
    char name[40];

    snprintf(name, sizeof(name), "probe/%016llx", (unsigned long long)sent);
    int error = b->ops->put(b, name, &out, 1, LDR_OBJECT_NEW, deadline());
    if (error == 0) {
        error = b->ops->get(b, name, 0, &in, 1, deadline());
        if (error == 0 && got != sent) {
            ldr_fail(LARDER_E_IO, "%s: gave other bytes than were put", name);
            error = -EIO;
        }
        int removed = b->ops->remove(b, name, deadline());
        error = error != 0 ? error : removed;
    }
    return error;
}

static int tier_check(tier_t *t)
{
    int error = t->backend->ops->health(t->backend, deadline());

    if (error == 0) {
        error = try_write(t);
    }
    if (error != 0) {
        ldr_cli_fail(t->args, "%s", ldr_fail_text());
        return error == -ENODEV ? LDR_EXIT_NO : LDR_EXIT_FAILED;
    }
    say_result(t, "ok",
               "is a shared tier that can be read and written (`larder doctor "
               "--shared URL` says more)");
    return LDR_EXIT_OK;
}

/* ---- ls ---- */

/* What follows the tenant's id in the name says what it is. */
static void tier_count(tier_t *t, const char *name, uint64_t bytes)
{
    const char *slash = strchr(name, '/');

    if (slash != NULL && strncmp(slash, "/o/", 3) == 0) {
        t->objects++;
    } else if (slash != NULL && strncmp(slash, "/m/", 3) == 0) {
        t->manifests++;
    } else {
        t->others++;
    }
    t->bytes += bytes;
}

static int tier_show(void *arg, const char *name, uint64_t bytes)
{
    tier_t *t = arg;

    if (bytes == 0) {
        int error = t->backend->ops->size(t->backend, name, &bytes, deadline());

        if (error != 0) {
            t->error = error == -ENOENT ? t->error : error;
            return error == -ENOENT ? 0 : error; /* gone meanwhile */
        }
    }
    tier_count(t, name, bytes);
    if (t->json) {
        printf("{\"name\":\"%s\",\"bytes\":%llu}\n", name,
               (unsigned long long)bytes);
    } else {
        printf("%12llu  %s\n", (unsigned long long)bytes, name);
    }
    return ferror(stdout) ? -EPIPE : 0;
}

static int tier_list(tier_t *t)
{
    char total[32];
    int error = t->backend->ops->health(t->backend, deadline());

    if (error == 0) {
        error = t->backend->ops->list(t->backend, "", NULL, tier_show, t,
                                      UINT64_MAX);
    }
    if (error != 0) {
        ldr_cli_fail(t->args, "%s", ldr_fail_text());
        return error == -ENODEV ? LDR_EXIT_NO : LDR_EXIT_FAILED;
    }
    if (!t->json) {
        ldr_human_bytes(t->bytes, total, sizeof(total));
        printf("%llu objects, %llu manifests, %llu others: %s\n",
               (unsigned long long)t->objects, (unsigned long long)t->manifests,
               (unsigned long long)t->others, total);
    }
    return LDR_EXIT_OK;
}

/* ---- wipe: one tenant's part ---- */

#define NAMES 256u /* removed between two listings */

typedef struct sweep {
    tier_t *tier;
    char hex[LDR_HEX_BYTES(LDR_ID_BYTES)]; /* the tenant's id */
    char check[LDR_OBJECT_NAME_MAX + 1];   /* goes last */
    char names[NAMES][LDR_OBJECT_NAME_MAX + 1];
    unsigned count;
    uint64_t removed;
} sweep_t;

/* Whether a node cleans up there, and so uses it: T/cleaner, as
 * src/tier/shared/clean.c writes it. */
static int in_use(const sweep_t *w, bool *used_p)
{
    ldr_backend_t *b = w->tier->backend;
    char name[LDR_OBJECT_NAME_MAX + 1], text[26];
    struct iovec iov = {text, sizeof(text)};
    uint64_t until_s = 0;

    *used_p = false;
    snprintf(name, sizeof(name), "%s/cleaner", w->hex);
    int error = b->ops->get(b, name, 0, &iov, 1, deadline());
    if (error == 0 && ldr_unhex64(text + 17, 8, &until_s)) {
        *used_p = until_s > ldr_wall_s(&ldr_clock_real);
    }
    return error == -ENOENT || error == -ENODATA ? 0 : error;
}

static int name_gather(void *arg, const char *name, uint64_t bytes)
{
    sweep_t *w = arg;

    (void)bytes;
    if (strcmp(name, w->check) != 0) {
        snprintf(w->names[w->count++], sizeof(w->names[0]), "%s", name);
    }
    return w->count == NAMES ? 1 : 0;
}

static int take_away(sweep_t *w, const char *name)
{
    ldr_backend_t *b = w->tier->backend;
    int error = b->ops->remove(b, name, deadline());

    w->removed += error == 0;
    return error == -ENOENT ? 0 : error;
}

/* Nodes keep off until its check value is gone: that is the last. */
static int tenant_sweep(sweep_t *w)
{
    ldr_backend_t *b = w->tier->backend;
    char name[LDR_OBJECT_NAME_MAX + 1];
    int error;

    do {
        w->count = 0;
        snprintf(name, sizeof(name), "%s/", w->hex);
        error = b->ops->list(b, name, NULL, name_gather, w, UINT64_MAX);
        error = error > 0 ? 0 : error;
        for (unsigned i = 0; i < w->count && error == 0; i++) {
            error = take_away(w, w->names[i]);
        }
    } while (error == 0 && w->count > 0);
    snprintf(name, sizeof(name), "sizes/%s", w->hex);
    if (error == 0) {
        error = take_away(w, name);
    }
    return error == 0 ? take_away(w, w->check) : error;
}

static int wipe_part(sweep_t *w, const char *tenant)
{
    const tier_t *t = w->tier;
    bool used;
    int error = t->backend->ops->health(t->backend, deadline());

    if (error == 0) {
        error = in_use(w, &used);
    }
    if (error == 0 && used && !ldr_args_has(t->args, LDR_FLAG_FORCE)) {
        return ldr_cli_fail(t->args,
                            "%s: a node uses what it holds of tenant '%s': end "
                            "all that do (one that was killed counts for a "
                            "minute more; --force does not ask)",
                            t->url, tenant);
    }
    if (error == 0) {
        error = tenant_sweep(w);
    }
    if (error != 0) {
        ldr_cli_fail(t->args, "%s", ldr_fail_text());
        return error == -ENODEV ? LDR_EXIT_NO : LDR_EXIT_FAILED;
    }
    if (t->json) {
        printf("{\"url\":");
        ldr_json_string(stdout, t->url);
        printf(",\"tenant\":\"%s\",\"removed\":%llu}\n", tenant,
               (unsigned long long)w->removed);
    } else {
        printf("%s: %llu object%s of tenant '%s' removed\n", t->url,
               (unsigned long long)w->removed, w->removed == 1 ? "" : "s",
               tenant);
    }
    return LDR_EXIT_OK;
}

static int wipe(tier_t *t)
{
    const char *tenant = t->args->values[LDR_FLAG_WHOSE];
    uint8_t id[LDR_ID_BYTES];

    if (tenant == NULL) {
        return ldr_cli_usage(t->args, "wipe: say whose part: --tenant NAME");
    }
    int code = ldr_cli_tenant(t->args, tenant);
    if (code == LDR_EXIT_OK) {
        code = ldr_cli_sure(t->args, t->url,
                            "Delete all that it holds of tenant '%s'", tenant);
    }
    sweep_t *w = code == LDR_EXIT_OK ? ldr_alloc(sizeof(*w)) : NULL;
    if (code == LDR_EXIT_OK && w == NULL) {
        code = ldr_cli_fail(t->args, "not enough memory");
    }
    if (w != NULL) {
        w->tier = t;
        ldr_tenant_id(tenant, id);
        ldr_hex(id, LDR_ID_BYTES, w->hex);
        snprintf(w->check, sizeof(w->check), "%s/check", w->hex);
        code = wipe_part(w, tenant);
    }
    ldr_free(w);
    return code;
}

/* ---- the command ---- */

int ldr_cmd_tier(const ldr_args_t *args)
{
    const char *verb = args->operands[0];
    tier_t t = {.args = args,
                .url = args->operands[1],
                .json = ldr_args_has(args, LDR_FLAG_JSON)};
    ldr_backend_params_t p = {.url = t.url,
                              .login = login(args),
                              .threads = 1,
                              .clock = &ldr_clock_real};
    static const struct {
        const char *name;
        int (*run)(tier_t *t);
    } verbs[] = {{"check", tier_check}, {"ls", tier_list}, {"wipe", wipe}};
    unsigned i = 0;

    if (strcmp(verb, "create") == 0) {
        return tier_make(&t);
    }
    while (i < sizeof(verbs) / sizeof(verbs[0]) &&
           strcmp(verb, verbs[i].name) != 0) {
        i++;
    }
    if (i == sizeof(verbs) / sizeof(verbs[0])) {
        return ldr_cli_usage(args, "%s: give create, check, ls or wipe", verb);
    }
    if (ldr_backend_open(&p, &t.backend) != LARDER_OK) {
        return ldr_cli_usage(args, "%s", ldr_fail_text());
    }
    int code = verbs[i].run(&t);
    t.backend->ops->destroy(t.backend);
    return code;
}
