/* The table of simulated caches. Constants only. */
#include "plan/sim.h"

#include <stddef.h>
#include <string.h>

static const ldr_sim_ops_t *const all[] = {
    &ldr_sim_lru,
    &ldr_sim_default,
    &ldr_sim_optimal,
};

const ldr_sim_ops_t *ldr_sim_at(unsigned number)
{
    return number < sizeof(all) / sizeof(all[0]) ? all[number] : NULL;
}

const ldr_sim_ops_t *ldr_sim_find(const char *name)
{
    for (unsigned i = 0; ldr_sim_at(i) != NULL; i++) {
        if (strcmp(all[i]->name, name) == 0) {
            return all[i];
        }
    }
    return NULL;
}
