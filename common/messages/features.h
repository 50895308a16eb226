// features.h: what a Sampling asks for, and what a service of the mesh can do (SamplingFeature), as a mask with bit 1 << feature.
//
// A service of an older release skips fields that it does not know, and would draw other tokens. So s-parts announce their features
// when they register, the scheduler what all of them and itself have, and a gateway refuses a request that needs more.
#ifndef FD_MESSAGES_FEATURES_H
#define FD_MESSAGES_FEATURES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "generate.pb-c.h"

enum {
    FEATURES_MAX = 4,
    FEATURES_BANS = 1 << FASTDECODE__SAMPLING_FEATURE__SAMPLING_FEATURE_BANS,
    FEATURES_GRAMMAR = 1 << FASTDECODE__SAMPLING_FEATURE__SAMPLING_FEATURE_GRAMMAR,
    FEATURES_POOLING = 1 << FASTDECODE__SAMPLING_FEATURE__SAMPLING_FEATURE_POOLING,
    FEATURES_OURS = FEATURES_BANS | FEATURES_GRAMMAR | FEATURES_POOLING,
};

// Returns the features that a request needs.
uint32_t features_of(const Fastdecode__Sampling *sampling);
// Returns a list as a mask, and fills in a mask's list ([FEATURES_MAX]; returns its length). Features that are not known here are left out.
uint32_t features_read(const Fastdecode__SamplingFeature *list, size_t count);
size_t features_list(uint32_t mask, Fastdecode__SamplingFeature *list);
// Returns a field of the API that needs one of the features in the mask, for messages.
const char *features_name(uint32_t mask);

#endif
