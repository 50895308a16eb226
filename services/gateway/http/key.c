// key.c: see key.h.
#include "services/gateway/http/key.h"

#include <string.h>

#include "common/base/checked.h"
#include "common/base/clock.h"

static uint64_t now_s(void) { return clock_now_us() / 1000000; }

bool key_permits_model(struct key *key, const char *model, struct api_error *error)
{
    size_t length = strlen(model);
    bool permitted;

    pthread_mutex_lock(&key->lock);
    permitted = key->limits.models[0] == '\0';
    for (const char *at = key->limits.models; *at && !permitted; at += strcspn(at, ",")) {
        at += *at == ',';
        permitted = strcspn(at, ",") == length && memcmp(at, model, length) == 0;
    }
    pthread_mutex_unlock(&key->lock);
    return permitted || api_fail(error, 403, "model_not_allowed", "model", "this API key may not use this model");
}

bool key_is_batch(struct key *key)
{
    pthread_mutex_lock(&key->lock);
    bool batch = key->limits.batch;
    pthread_mutex_unlock(&key->lock);
    return batch;
}

bool key_begin(struct key *key, struct key_grant *grant, struct api_error *error)
{
    bool ok = true;

    *grant = (struct key_grant){0};
    if (!key)
        return true;
    pthread_mutex_lock(&key->lock);
    uint64_t now = now_s();
    if (key->limits.open && key->open >= key->limits.open) {
        ok = api_fail(error, 429, "rate_limit_exceeded", NULL, "this API key may have %u open requests, and has them",
                      key->limits.open);
        error->retry_after_s = 1;
    } else if (!rate_take(&key->requests, now, 1)) {
        ok = api_fail(error, 429, "rate_limit_exceeded", NULL, "this API key may send %llu requests a minute",
                      (unsigned long long)key->limits.requests);
        error->retry_after_s = rate_wait_s(&key->requests, now, 1);
    } else {
        key->open++;
        grant->key = key;
    }
    pthread_mutex_unlock(&key->lock);
    return ok;
}

bool key_take_tokens(struct key_grant *grant, uint64_t tokens, struct api_error *error)
{
    struct key *key = grant->key;
    bool ok;

    if (!key)
        return true;
    pthread_mutex_lock(&key->lock);
    uint64_t now = now_s();
    ok = rate_take(&key->tokens, now, tokens);
    if (ok) {
        grant->second = now;
        grant->tokens = tokens;
    } else {
        (void)api_fail(
            error, 429, "rate_limit_exceeded", NULL,
            "this API key may use %llu tokens a minute, of which %llu are left; the request needs up to %llu, its prompt and "
            "'max_tokens' together",
            (unsigned long long)key->limits.tokens, (unsigned long long)rate_left(&key->tokens, now), (unsigned long long)tokens);
        error->retry_after_s = rate_wait_s(&key->tokens, now, tokens);
    }
    pthread_mutex_unlock(&key->lock);
    return ok;
}

void key_end(struct key_grant *grant, uint64_t used_tokens)
{
    struct key *key = grant->key;

    if (!key)
        return;
    pthread_mutex_lock(&key->lock);
    if (grant->tokens > used_tokens)
        rate_give_back(&key->tokens, now_s(), grant->second, grant->tokens - used_tokens);
    key->open--;
    pthread_mutex_unlock(&key->lock);
    *grant = (struct key_grant){0};
}

void key_state(struct key *key, struct key_state *out)
{
    pthread_mutex_lock(&key->lock);
    uint64_t now = now_s();
    *out = (struct key_state){.requests_limit = key->limits.requests,
                              .requests_left = rate_left(&key->requests, now),
                              .tokens_limit = key->limits.tokens,
                              .tokens_left = rate_left(&key->tokens, now),
                              .requests_reset_s = rate_wait_s(&key->requests, now, key->limits.requests),
                              .tokens_reset_s = rate_wait_s(&key->tokens, now, key->limits.tokens)};
    pthread_mutex_unlock(&key->lock);
}
