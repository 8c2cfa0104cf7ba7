/* tests/client/test_prefix_place.c, with engines whose memory is a GPU's. */
#include "gpu/prefix_memory.h"

#include "client/test_prefix_place.c"
