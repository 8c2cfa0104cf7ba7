/*
 * Anything that others can put into a tier: names and what lies under them.
 * The input is a list of objects: one byte for the kind of name, one for a
 * number in it, two for the length, then the bytes. A node joins, cleans up for
 * a while, saves and resets; none of it is believed, and what the node itself
 * saved is what it finds.
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tier/shared/objects_rig.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

static const char *const names[] = {
    RIG_TENANT "/m/00112233445566%02x-0000000000000000",
    RIG_TENANT "/m/%02x",
    RIG_TENANT "/e/50505050505050505050505050505050-000000%02x",
    RIG_TENANT "/e/50505050505050505050505050505050-ffffff%02x",
    RIG_TENANT "/e/%02x-1",
    RIG_TENANT "/o/00/000102030405060708090a0b0c0d0e%02x",
    RIG_TENANT "/o/%02x/junk",
    RIG_TENANT "/cleaner",
    RIG_TENANT "/o/%02x/ffffffffffffffffffffffffffffffff",
    "junk/%02x",
};

#define NAMES (sizeof(names) / sizeof(names[0]))

static void scatter(world_t *w, const uint8_t *data, size_t bytes)
{
    char name[LDR_OBJECT_NAME_MAX + 1];

    for (unsigned i = 0; bytes >= 4 && i < 32; i++) {
        size_t length = ldr_get16(data + 2);

        length = length < bytes - 4 ? length : bytes - 4;
        snprintf(name, sizeof(name), names[data[0] % NAMES], data[1]);
        simstore_write(w->store, name, data + 4, length);
        data += 4 + length;
        bytes -= 4 + length;
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    static const unsigned keys[] = {1, 2, 3};
    world_t w;

    world_open(&w, 1, 1);
    scatter(&w, data, bytes);
    node_t *n = &w.nodes[0];
    node_open(n);
    world_pass(&w, 2 * RIG_SECOND, 500 * RIG_MS);
    RIG_CHECK(n->epoch[0] == 0);
    RIG_CHECK(node_put(n, 0, keys, 3) == 0);
    scatter(&w, data, bytes);
    world_pass(&w, 6 * RIG_SECOND, 20 * RIG_MS);
    RIG_CHECK(n->epoch[0] == 0);
    for (unsigned i = 0; i < 3; i++) {
        RIG_CHECK(node_get(n, 0, keys[i], NULL) != 0);
    }
    RIG_CHECK(node_reset(n, 0) == LARDER_OK);
    RIG_CHECK(node_get(n, 0, 1, NULL) == 0);
    world_close(&w);
    return 0;
}
