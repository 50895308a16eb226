/* page_names.h: names of the full pages of a sequence's tokens, by which equal beginnings are found.
 *
 * A page's name is a keyed hash (SipHash-2-4, 128 bits; libsodium) of the name before it and its own tokens; the first follows a
 * name made of the tenant and the salt that the request asks for. The key is drawn at start: nobody outside can make two beginnings
 * meet, and what one tenant has computed is never found by another. Owned by the scheduler's thread.
 */
#ifndef FD_SERVICES_SCHEDULER_PAGE_NAMES_H
#define FD_SERVICES_SCHEDULER_PAGE_NAMES_H

#include "common/sched/sched.h"
#include "services/scheduler/token_logs.h"

struct page_names {
    unsigned char key[16];
    uint32_t page_tokens;
};

/* Draws the key. UNAVAILABLE: the system gives no random bytes. */
enum status page_names_open(struct page_names *names, uint32_t page_tokens, struct error *error) MUST_CHECK;

/* What a log's first page follows. */
struct sched_page_name page_names_root(const struct page_names *names, const char *tenant, const char *salt);

/* Names the pages of the log that are full and have none yet, as far as it has room; returns how many have one. */
uint32_t page_names_extend(const struct page_names *names, struct token_log *log);

#endif
