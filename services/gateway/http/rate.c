// rate.c: see rate.h.
#include "services/gateway/http/rate.h"

#include "common/base/checked.h"

// Forgets the seconds that count no longer.
static void advance(struct rate *rate, uint64_t now_s)
{
    uint64_t gone = now_s > rate->now_s ? MIN(now_s - rate->now_s, (uint64_t)RATE_SECONDS) : 0;

    for (uint64_t i = 1; i <= gone; i++) {
        uint64_t *second = &rate->taken[(rate->now_s + i) % RATE_SECONDS];
        rate->sum -= *second;
        *second = 0;
    }
    rate->now_s = MAX(rate->now_s, now_s);
}

bool rate_take(struct rate *rate, uint64_t now_s, uint64_t amount)
{
    advance(rate, now_s);
    if (rate->limit && (amount > rate->limit || rate->sum > rate->limit - amount))
        return false;
    rate->taken[rate->now_s % RATE_SECONDS] += amount;
    rate->sum += amount;
    return true;
}

void rate_give_back(struct rate *rate, uint64_t now_s, uint64_t taken_s, uint64_t amount)
{
    advance(rate, now_s);
    if (taken_s + RATE_SECONDS <= rate->now_s)
        return;
    uint64_t *second = &rate->taken[taken_s % RATE_SECONDS];
    amount = MIN(amount, *second);
    *second -= amount;
    rate->sum -= amount;
}

uint64_t rate_left(struct rate *rate, uint64_t now_s)
{
    advance(rate, now_s);
    if (!rate->limit)
        return UINT64_MAX;
    return rate->limit - MIN(rate->sum, rate->limit); // the limit may have been lowered
}

uint32_t rate_wait_s(struct rate *rate, uint64_t now_s, uint64_t amount)
{
    uint64_t left = rate_left(rate, now_s), sum = rate->sum;

    if (amount <= left)
        return 0;
    for (uint32_t s = 1; s < RATE_SECONDS; s++) {
        sum -= rate->taken[(rate->now_s + s) % RATE_SECONDS]; // the oldest first
        if (amount <= rate->limit && sum <= rate->limit - amount)
            return s;
    }
    return RATE_SECONDS;
}
