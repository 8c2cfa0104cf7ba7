/* tier: makes a shared tier, checks whether there is one, lists what is in
 * it. */
#include <errno.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "cli/cli.h"
#include "shared/backend.h"

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

static int create(tier_t *t)
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

static int check(tier_t *t)
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
static void count(tier_t *t, const char *name, uint64_t bytes)
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

static int show(void *arg, const char *name, uint64_t bytes)
{
    tier_t *t = arg;

    if (bytes == 0) {
        int error = t->backend->ops->size(t->backend, name, &bytes, deadline());

        if (error != 0) {
            t->error = error == -ENOENT ? t->error : error;
            return error == -ENOENT ? 0 : error; /* gone meanwhile */
        }
    }
    count(t, name, bytes);
    if (t->json) {
        printf("{\"name\":\"%s\",\"bytes\":%llu}\n", name,
               (unsigned long long)bytes);
    } else {
        printf("%12llu  %s\n", (unsigned long long)bytes, name);
    }
    return ferror(stdout) ? -EPIPE : 0;
}

static int list(tier_t *t)
{
    char total[32];
    int error = t->backend->ops->health(t->backend, deadline());

    if (error == 0) {
        error =
            t->backend->ops->list(t->backend, "", NULL, show, t, UINT64_MAX);
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

/* ---- the command ---- */

int ldr_cmd_tier(const ldr_args_t *args)
{
    const char *verb = args->operands[0];
    tier_t t = {.args = args,
                .url = args->operands[1],
                .json = ldr_args_has(args, LDR_FLAG_JSON)};
    ldr_backend_params_t p = {.url = t.url,
                              .login = login(args),
                              .lanes = 1,
                              .clock = &ldr_clock_real};
    bool checks = strcmp(verb, "check") == 0;

    if (strcmp(verb, "create") == 0) {
        return create(&t);
    }
    if (!checks && strcmp(verb, "ls") != 0) {
        return ldr_cli_usage(args, "%s: give create, check or ls", verb);
    }
    if (ldr_backend_open(&p, &t.backend) != LARDER_OK) {
        return ldr_cli_usage(args, "%s", ldr_fail_text());
    }
    int code = checks ? check(&t) : list(&t);
    t.backend->ops->destroy(t.backend);
    return code;
}
