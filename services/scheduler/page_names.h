// page_names.h: names of the full pages of a sequence's tokens. Sequences with the same beginning have the same names there.
//
// A page's name is a keyed hash (SipHash-2-4, 128 bits; libsodium) of the previous page's name and its own tokens. The first page's
// predecessor is a name made of the request's tenant and salt. The key is random and drawn at start, so that nobody outside can
// produce a collision, and no tenant can detect what another has computed. Owned by the scheduler's thread.
#ifndef FD_SERVICES_SCHEDULER_PAGE_NAMES_H
#define FD_SERVICES_SCHEDULER_PAGE_NAMES_H

#include "common/sched/sched.h"
#include "services/scheduler/token_logs.h"

struct page_names {
    unsigned char key[16];
    uint32_t page_tokens;
    // Only pages of the prompt have names, because generated tokens have attended to a part of their context: their K and V are not
    // those of the same tokens in a prompt.
    bool prompt_only;
};

// Draws the key. UNAVAILABLE: the system provides no random bytes.
enum status page_names_open(struct page_names *names, uint32_t page_tokens, bool prompt_only, struct error *error) MUST_CHECK;

// Returns the name that stands before a log's first page.
struct sched_page_name page_names_root(const struct page_names *names, const char *tenant, const char *salt);

// Names the log's full pages that have no name yet, as far as the log has room for names. Returns how many pages have a name.
uint32_t page_names_extend(const struct page_names *names, struct token_log *log);

#endif
