/*
 * Manifests that hold anything. The first byte of the input chooses: the rest
 * is a whole manifest (0), what follows a good head under a good seal (1), or
 * that twice over (2). What parses is told to a map, in which all sums must be
 * right and all places in range.
 */
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/bytes.h"
#include "base/hash.h"
#include "tier/shared/map.h"

enum { HEAD = 64, MAC = 32, INPUT_MAX = 1 << 16 };

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

static void require(bool ok)
{
    if (!ok) {
        abort();
    }
}

static void told(void *arg, const ldr_manifest_entry_t *e)
{
    ldr_map_t *map = arg;
    ldr_object_place_t place;
    uint32_t space;

    switch (e->kind) {
    case LDR_MANIFEST_OBJECT:
        require(ldr_map_add(map, &e->object, e->used_s, e->rows));
        space = ldr_map_space_find(map, e->object.space_id);
        for (uint32_t i = 0; i < e->object.rows; i++) {
            const ldr_manifest_row_t *r = &e->rows[i];

            require(r->blocks >= 2 &&
                    r->block + r->blocks <= e->object.used_blocks);
            if (ldr_map_find(map, space, r->key, r->group, r->shard, &place)) {
                const ldr_map_object_t *o = ldr_map_at(map, place.object);

                require(o != NULL && place.block + place.blocks <= o->blocks);
                require(memcmp(o->id, place.id, LDR_ID_BYTES) == 0);
            }
        }
        break;
    case LDR_MANIFEST_GONE:
        ldr_map_drop(map, ldr_map_object(map, e->object.id));
        break;
    case LDR_MANIFEST_REMOVED:
        space = ldr_map_space(map, e->object.space_id);
        ldr_map_remove(map, space, e->rows, e->object.written_s);
        require(!ldr_map_remove(map, space, e->rows, e->object.written_s));
        break;
    case LDR_MANIFEST_USED:
        if (ldr_map_at(map, ldr_map_object(map, e->object.id)) != NULL) {
            ldr_map_at(map, ldr_map_object(map, e->object.id))->used_s =
                e->used_s;
        }
        break;
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    static uint8_t whole[HEAD + INPUT_MAX + MAC];
    ldr_seal_t keys = {.mac = {1}};
    ldr_manifest_head_t head = {.tenant_id = {2}};
    size_t all;

    if (bytes < 2 || bytes > INPUT_MAX) {
        return 0;
    }
    unsigned mode = data[0] % 3;
    unsigned count = data[1];
    data += 2;
    bytes -= 2;
    if (mode == 0) {
        memcpy(whole, data, bytes);
        all = bytes;
    } else {
        ldr_manifest_t empty = {0};

        require(ldr_manifest_finish(&empty, &head, &keys));
        require(empty.bytes == HEAD + MAC);
        memcpy(whole, empty.data, HEAD);
        ldr_manifest_clear(&empty);
        memcpy(whole + HEAD, data, bytes);
        ldr_put32(whole + 12, count);
        ldr_put64(whole + 48, bytes);
        const ldr_piece_t signed_part = {whole, HEAD + bytes};
        require(ldr_hmac_sha256(keys.mac, sizeof(keys.mac), &signed_part, 1,
                                whole + HEAD + bytes));
        all = HEAD + bytes + MAC;
    }
    ldr_map_t *map = ldr_map_create(1);
    require(map != NULL);
    bool ok = ldr_manifest_parse(whole, all, &keys, &head, told, map);
    if (ok && mode == 2) {
        require(ldr_manifest_parse(whole, all, &keys, &head, told, map));
    }
    require(ldr_map_check(map));
    ldr_map_destroy(map);
    return 0;
}
