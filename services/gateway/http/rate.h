// rate.h: how much of something may happen in a minute.
//
// A window of 60 seconds slides by whole seconds: what was taken in second s counts until second s + 60 begins, so no 60 seconds ever
// see more than the limit. What was taken too much is given back to the second it was taken in.
//
//     limit 100:  s = 0 takes 70 ── s = 20 takes 30 ── s = 59 takes nothing ── s = 60 has 70 again
//
// Plain values, without a lock of their own.
#ifndef FD_GATEWAY_HTTP_RATE_H
#define FD_GATEWAY_HTTP_RATE_H

#include <stdbool.h>
#include <stdint.h>

enum { RATE_SECONDS = 60 };

// Zero, but for the limit, is a rate of which nothing was taken.
struct rate {
    uint64_t limit;               // in RATE_SECONDS; 0: none
    uint64_t sum;                 // of taken
    uint64_t now_s;               // the latest second that was seen
    uint64_t taken[RATE_SECONDS]; // of each second, at second % RATE_SECONDS
};

// Takes an amount, all or nothing. Returns false if that would be more than the limit. now_s never decreases.
bool rate_take(struct rate *rate, uint64_t now_s, uint64_t amount);

// Gives back a part of what was taken in a second, unless it counts no longer.
void rate_give_back(struct rate *rate, uint64_t now_s, uint64_t taken_s, uint64_t amount);

// Returns how much could be taken now; UINT64_MAX without a limit.
uint64_t rate_left(struct rate *rate, uint64_t now_s);

// Returns the seconds until so much can be taken, if nothing else is: 0, if it can be now, and RATE_SECONDS if it is more than the limit.
uint32_t rate_wait_s(struct rate *rate, uint64_t now_s, uint64_t amount);

#endif
