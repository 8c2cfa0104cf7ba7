/*
 * Loading libcurl. Any thread may call: the table ldr_curl is filled once,
 * under load_lock, is constant after that, and is read without a lock. The
 * library is never unloaded.
 */
#define _GNU_SOURCE
#include "net/curl.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdbool.h>
#include <string.h>

#include "base/log.h"
#include "base/thread.h"

ldr_curl_api_t ldr_curl;

static pthread_mutex_t load_lock = PTHREAD_MUTEX_INITIALIZER;
static bool loaded; /* under load_lock */

static bool symbol_find(void *library, const char *name, void *slot)
{
    void *symbol = dlsym(library, name);

    /* POSIX has it that a pointer to a function fits. */
    memcpy(slot, &symbol, sizeof(symbol));
    return symbol != NULL;
}

static bool symbols_find(void *library, ldr_curl_api_t *api)
{
    return symbol_find(library, "curl_global_init", &api->global_init) &&
           symbol_find(library, "curl_easy_init", &api->easy_init) &&
           symbol_find(library, "curl_easy_cleanup", &api->easy_cleanup) &&
           symbol_find(library, "curl_easy_reset", &api->easy_reset) &&
           symbol_find(library, "curl_easy_setopt", &api->easy_setopt) &&
           symbol_find(library, "curl_easy_perform", &api->easy_perform) &&
           symbol_find(library, "curl_easy_getinfo", &api->easy_getinfo) &&
           symbol_find(library, "curl_easy_strerror", &api->easy_strerror) &&
           symbol_find(library, "curl_slist_append", &api->slist_append) &&
           symbol_find(library, "curl_slist_free_all", &api->slist_free_all) &&
           symbol_find(library, "curl_version_info", &api->version_info);
}

/* Initialised once and never unloaded: others in the process may use it. */
static larder_status_t library_load(const char *what)
{
    static const char *const names[] = {"libcurl.so.4", "libcurl-gnutls.so.4"};
    ldr_curl_api_t api;
    void *library = NULL;

    for (size_t i = 0; i < 2 && library == NULL; i++) {
        library = dlopen(names[i], RTLD_NOW | RTLD_LOCAL);
    }
    if (library == NULL) {
        return ldr_fail(LARDER_E_UNSUPPORTED,
                        "%s needs libcurl.so.4, which is not here: install "
                        "the package libcurl4",
                        what);
    }
    if (!symbols_find(library, &api)) {
        dlclose(library);
        return ldr_fail(LARDER_E_UNSUPPORTED,
                        "libcurl.so.4 is not libcurl, or is broken");
    }
    if (api.global_init(LDR_CURL_GLOBAL_DEFAULT) != LDR_CURLE_OK) {
        return ldr_fail(LARDER_E_UNSUPPORTED, "libcurl cannot be initialised");
    }
    ldr_curl = api;
    loaded = true;
    return LARDER_OK;
}

larder_status_t ldr_curl_load(const char *what, unsigned oldest)
{
    const ldr_curl_version_t *version = NULL;
    larder_status_t st = LARDER_OK;

    ldr_mutex_lock(&load_lock);
    if (!loaded) {
        st = library_load(what);
    }
    ldr_mutex_unlock(&load_lock);
    if (st == LARDER_OK) {
        version = ldr_curl.version_info(LDR_CURL_VERSION_NOW);
    }
    if (version != NULL && version->number < oldest) {
        st = ldr_fail(LARDER_E_UNSUPPORTED,
                      "%s needs libcurl %u.%u or newer; this is %s", what,
                      oldest >> 16, oldest >> 8 & 255, version->version);
    }
    return st;
}
