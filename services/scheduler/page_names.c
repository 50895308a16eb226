// page_names.c: see page_names.h.
#include "services/scheduler/page_names.h"

#include <sodium.h>
#include <string.h>

#include "common/base/checked.h"

_Static_assert(sizeof(struct sched_page_name) == crypto_shorthash_siphashx24_BYTES, "a name is a hash");
_Static_assert(sizeof(((struct page_names *)0)->key) == crypto_shorthash_siphashx24_KEYBYTES, "the hash's key");

enum { PAGE_TOKENS_MAX = 32 };

enum status page_names_open(struct page_names *names, uint32_t page_tokens, bool prompt_only, struct error *error)
{
    assert_always(page_tokens > 0 && page_tokens <= PAGE_TOKENS_MAX);
    if (sodium_init() < 0)
        return error_set(error, STATUS_UNAVAILABLE, "libsodium finds no source of random bytes");
    names->page_tokens = page_tokens;
    names->prompt_only = prompt_only;
    randombytes_buf(names->key, sizeof names->key);
    return STATUS_OK;
}

static struct sched_page_name hash(const struct page_names *names, const void *bytes, size_t length)
{
    struct sched_page_name name;
    crypto_shorthash_siphashx24((unsigned char *)&name, bytes, length, names->key);
    return name;
}

struct sched_page_name page_names_root(const struct page_names *names, const char *tenant, const char *salt)
{
    const struct sched_page_name both[2] = {hash(names, tenant, strlen(tenant)), hash(names, salt, strlen(salt))};
    return hash(names, both, sizeof both);
}

uint32_t page_names_extend(const struct page_names *names, struct token_log *log)
{
    struct {
        struct sched_page_name before;
        uint32_t tokens[PAGE_TOKENS_MAX];
    } link;
    uint32_t tokens = names->prompt_only ? log->prompt_count : log->token_count;
    uint32_t full = MIN(tokens / names->page_tokens, log->name_capacity);

    for (; log->name_count < full; log->name_count++) {
        link.before = log->name_count ? log->names[log->name_count - 1] : log->root;
        memcpy(link.tokens, log->tokens + (size_t)log->name_count * names->page_tokens, names->page_tokens * sizeof *link.tokens);
        log->names[log->name_count] = hash(names, &link, sizeof link.before + names->page_tokens * sizeof *link.tokens);
    }
    return log->name_count;
}
