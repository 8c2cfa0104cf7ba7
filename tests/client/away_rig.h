/*
 * A daemon that a test stops, kills and starts again, and a handle on it.
 * LARDER_TEST_TRANSPORT says by which transport; without a daemon tests skip.
 */
#pragma once

#include "client/support.h"

enum { BYTES = 100000, SLACK_MS = 15000, PATIENCE_MS = 30000 };

typedef struct rig {
    char dir[200];
    test_daemon_t d;
    larder_t *lar;
    larder_space_t *space;
} rig_t;

static rig_t rig; /* of the test that runs */

static int rig_setup(void **state)
{
    memset(&rig, 0, sizeof(rig));
    make_dir(rig.dir, sizeof(rig.dir));
    *state = &rig;
    return 0;
}

static int rig_teardown(void **state)
{
    rig_t *r = *state;

    if (r->d.pid > 0) {
        kill(r->d.pid, SIGCONT);
    }
    larder_space_close(&r->space);
    larder_close(&r->lar, 1000);
    daemon_stop(&r->d, SIGTERM);
    if (r->d.dir[0] != '\0') {
        daemon_clean(&r->d);
    }
    remove_dir(r->dir);
    return 0;
}

static void start(rig_t *r)
{
    if (!daemon_start(&r->d)) {
        daemon_show_log(&r->d);
        fail();
    }
}
