/*
 * A line of a trace on any bytes. What is accepted keeps its promises, and
 * reads as the same once it is written in the plain form.
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "plan/line.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

static void require(int ok)
{
    if (!ok) {
        abort();
    }
}

static size_t compose(const ldr_line_t *line, char *text, size_t room)
{
    int used = snprintf(text, room,
                        "{\"timestamp\":%llu,\"input_length\":%u,"
                        "\"output_length\":%u,\"hint\":%u,\"hash_ids\":[",
                        (unsigned long long)line->at_ms, line->input_tokens,
                        line->output_tokens, line->hint);

    for (uint32_t i = 0; i < line->count; i++) {
        used += snprintf(text + used, room - (size_t)used, "%s%llu",
                         i > 0 ? "," : "", (unsigned long long)line->ids[i]);
    }
    used += snprintf(text + used, room - (size_t)used, "]}");
    return (size_t)used;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    ldr_line_t line = {0}, again = {0};
    const char *why = ldr_line_parse(&line, (const char *)data, bytes);

    if (why != NULL) {
        require(why[0] != '\0');
    } else {
        size_t room = 200 + (size_t)line.count * 24;
        char *text = malloc(room);

        require(line.count <= line.capacity && line.count <= LDR_LINE_IDS_MAX);
        require(line.count <= bytes);
        require(text != NULL);
        require(ldr_line_parse(&again, text, compose(&line, text, room)) ==
                NULL);
        require(again.at_ms == line.at_ms && again.count == line.count &&
                again.input_tokens == line.input_tokens &&
                again.output_tokens == line.output_tokens &&
                again.hint == line.hint);
        require(line.count == 0 || memcmp(again.ids, line.ids,
                                          line.count * sizeof(*line.ids)) == 0);
        free(text);
    }
    ldr_line_free(&line);
    ldr_line_free(&again);
    return 0;
}
