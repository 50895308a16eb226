// names.h: which place a KV worker gets whose name is new. Pure: no clock, no state.
//
// A worker keeps its place by its name, over restarts. Containers that are made anew have new names, and those of the old ones never come back:
// such a place is given to the next new name, once its worker has been gone for NAMES_KEPT_US. Until then metrics and the view still show what
// became of it. Before that a place that nobody has had is taken, and where there is none the one whose worker has been gone longest.
#ifndef FD_SCHEDULER_NAMES_H
#define FD_SCHEDULER_NAMES_H

#include <stdbool.h>
#include <stdint.h>

#define NAMES_KEPT_US UINT64_C(3600000000)

#define NAMES_NO_PLACE UINT32_MAX

struct names_place {
    bool is_free;      // its worker is gone, and nothing of it is left anywhere
    uint64_t heard_us; // at most now_us
};

// Returns the index of the place: below `count` another worker's, which is forgotten, `count` a new one. NAMES_NO_PLACE: there are `most`, and
// none is free.
uint32_t names_choose(const struct names_place *places, uint32_t count, uint32_t most, uint64_t now_us);

#endif
