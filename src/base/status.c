/* The texts of statuses, causes and tiers. Constant tables only. */
#include "larder/larder.h"

const char *larder_status_text(larder_status_t status)
{
    switch (status) {
#define X(name, value, text)                                                   \
    case name:                                                                 \
        return text;
        LARDER_STATUS_MAP(X)
#undef X
    }
    return "unknown status";
}

const char *larder_cause_text(larder_cause_t cause)
{
    switch (cause) {
#define X(name, text)                                                          \
    case name:                                                                 \
        return text;
        LARDER_CAUSE_MAP(X)
#undef X
    case LARDER_CAUSE_COUNT:
        break;
    }
    return "unknown cause";
}

const char *larder_tier_text(larder_tier_t tier)
{
    switch (tier) {
#define X(name, text)                                                          \
    case name:                                                                 \
        return text;
        LARDER_TIER_MAP(X)
#undef X
    case LARDER_TIER_COUNT:
        break;
    }
    return "unknown tier";
}
