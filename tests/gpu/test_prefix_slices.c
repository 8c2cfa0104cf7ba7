/* tests/client/test_slices.c, with engines whose memory is a GPU's. */
#include "gpu/prefix_memory.h"

#include "client/test_slices.c"
