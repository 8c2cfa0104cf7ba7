/* For tests of prefixes in a GPU's memory: the arena that is registered with
 * the driver. After client/fetch_rig.h. */
#pragma once

#define REGISTERED_MS 60000

static inline larder_gpu_stats_t gpu_stats(void)
{
    larder_gpu_stats_t s = {.struct_bytes = sizeof(s)};

    assert_status(larder_gpu_stats(prefix_gpu(), &s), LARDER_OK);
    return s;
}

/* By shared memory: the arena, once there is one, is registered in the
 * background. */
static inline void wait_registered(fix_t *f)
{
    uint64_t end_ms = transport_now_ms() + REGISTERED_MS;

    assert_status(put_n(f->space, 1, 1000), LARDER_OK);
    while (transport_is("shm") && gpu_stats().registered_bytes == 0 &&
           transport_now_ms() < end_ms) {
        transport_pause();
    }
    assert_true(!transport_is("shm") || gpu_stats().registered_bytes > 0);
}
