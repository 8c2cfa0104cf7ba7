/* In every test program a broken invariant aborts, and the tables of nodes are
 * walked now and then. */
#include "base/check.h"
#include "support/storecheck.h"
#include "tier/host.h"

static void walk(const ldr_host_t *host)
{
    store_check(&host->store);
}

__attribute__((constructor)) static void check_always(void)
{
    ldr_check_abort();
    ldr_host_walker = walk;
}
