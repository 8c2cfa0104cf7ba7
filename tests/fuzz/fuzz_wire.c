/*
 * The parsers of the protocol on any bytes. The first byte says which; what is
 * accepted must be the only way to write what was read, and nothing outside of
 * the bytes is touched.
 */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "wire/forms.h"
#include "wire/wire.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

static void check_frame(const uint8_t *data, size_t bytes)
{
    static const uint32_t limits[] = {LDR_BODY_HELLO_MAX, LDR_BODY_MAX, 0, 100};
    ldr_frame_t frame;

    if (bytes < LDR_FRAME_BYTES) {
        return;
    }
    uint8_t *exact = malloc(bytes);
    form_require(exact != NULL);
    memcpy(exact, data, bytes);
    for (unsigned i = 0; i < 4; i++) {
        if (ldr_frame_get(exact, limits[i], &frame) != LDR_FRAME_OK) {
            continue;
        }
        form_require(frame.body <= limits[i]);
        form_require(frame.payload <= LDR_PAYLOAD_MAX);
        form_require(frame.payload == 0 || limits[i] > LDR_BODY_HELLO_MAX);
        if ((frame.flags & LDR_FRAME_REPLY) != 0) {
            form_require(strcmp(larder_status_text(ldr_frame_status(&frame)),
                                "unknown status") != 0);
        }
        if (frame.body > bytes - LDR_FRAME_BYTES) {
            continue; /* as a reader that waits for the rest */
        }
        bool right = ldr_frame_check(exact, &frame);
        uint8_t *again = malloc(bytes);
        form_require(again != NULL);
        memcpy(again, exact, bytes);
        ldr_frame_put(again, &frame, true);
        /* The checksum is the only thing that may differ. */
        form_require(memcmp(again, exact, LDR_FRAME_BYTES - 4) == 0);
        form_require(right == (memcmp(again, exact, bytes) == 0));
        free(again);
    }
    free(exact);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    if (bytes == 0) {
        return 0;
    }
    unsigned which = data[0] % (FORM_COUNT + 1);
    if (which == FORM_COUNT) {
        check_frame(data + 1, bytes - 1);
    } else {
        (void)form_try(&forms[which], data + 1, bytes - 1);
    }
    return 0;
}
