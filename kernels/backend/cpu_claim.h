// cpu_claim.h: how the threads of a phase share its items.
//
// Items of a phase. Each thread has a share of them that lies together, and begins with the first part of it: what it reads
// first is known before the phase begins, and its reading runs on. What is left of the shares goes in pieces to whoever comes,
// so that a slow core takes fewer.
//
// With few rows a weight, memory decides, and long runs are read faster: three quarters of a share are taken at once.
// Measured at one row of the default model, two threads: 1.2 times the tokens a second of pieces of an eighth.
#ifndef FD_KERNELS_BACKEND_CPU_CLAIM_H
#define FD_KERNELS_BACKEND_CPU_CLAIM_H

#include <stdbool.h>
#include <stdint.h>

#include "common/base/checked.h"
#include "common/base/thread_pool.h"

struct claim {
    struct thread_pool *pool; // NULL: nothing is shared
    uint32_t item_count, share, head, piece;
    uint32_t number; // of the first range
    bool begun;
};

enum { CLAIM_FEW_ROWS = 4 };

static inline struct claim claim_begin(struct thread_pool *pool, uint32_t thread_index, uint32_t item_count, bool long_runs)
{
    uint32_t threads = thread_pool_threads(pool), share = (item_count + threads - 1) / threads;
    return (struct claim){
        .pool = pool,
        .item_count = item_count,
        .share = share,
        .head = MAX(1u, long_runs ? share * 3 / 4 : share / 8),
        .piece = MAX(1u, share / (long_runs ? 12 : 8)),
        .number = thread_index,
    };
}

// All items at once, for a thread that does them for itself.
static inline struct claim claim_all(uint32_t item_count) { return (struct claim){.item_count = item_count}; }

// The next range [begin, begin + *count); false when none is left.
static inline bool claim_range(struct claim *claim, uint32_t *begin, uint32_t *count)
{
    if (!claim->pool) {
        *begin = 0, *count = claim->item_count;
        claim->item_count = 0;
        return *count > 0;
    }
    uint32_t threads = thread_pool_threads(claim->pool), end;
    do {
        uint32_t number = claim->begun ? threads + thread_pool_claim(claim->pool) : claim->number;
        uint32_t first = number % threads * claim->share, turn = number / threads; // 0: the head, then the pieces
        uint64_t at = turn ? claim->head + (turn - 1ull) * claim->piece : 0;
        claim->begun = true;
        if (at >= claim->share)
            return false;
        *begin = first + (uint32_t)at;
        end = MIN(MIN(*begin + (turn ? claim->piece : claim->head), first + claim->share), claim->item_count);
    } while (*begin >= end);
    *count = end - *begin;
    return true;
}

#endif
