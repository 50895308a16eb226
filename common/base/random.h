// random.h: chance that comes out the same everywhere, for loads, simulations and weights that are made up. Not for secrets.
#ifndef FD_BASE_RANDOM_H
#define FD_BASE_RANDOM_H

#include <stdint.h>

// Returns the next 64 bits; any state is a good seed. splitmix64: Steele, Lea, Flood, OOPSLA 2014.
static inline uint64_t random_next(uint64_t *state)
{
    uint64_t z = *state += 0x9e3779b97f4a7c15u;

    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

#endif
