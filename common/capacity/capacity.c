// capacity.c: see capacity.h.
#include "common/capacity/capacity.h"

#include <math.h>
#include <string.h>

#include "common/base/checked.h"
#include "common/base/median.h"

struct capacity_times capacity_times_of(double *values, uint32_t count)
{
    struct capacity_times times = {.count = count};

    if (count == 0)
        return times;
    times.p50_s = median_of(values, count); // sorts
    times.p99_s = values[(uint32_t)ceil(0.99 * count) - 1];
    times.max_s = values[count - 1];
    for (uint32_t i = 0; i < count; i++)
        times.mean_s += values[i] / count;
    return times;
}

struct capacity_targets capacity_targets_of(const char *tbt_slo, double tbt_p99_s, double ttft_p99_s, double delay_p50_s,
                                            double error_share, double step_s, double load_s)
{
    double steps = !tbt_slo || !strcmp(tbt_slo, "strict") ? CAPACITY_STRICT_STEPS
                   : !strcmp(tbt_slo, "relaxed")          ? CAPACITY_RELAXED_STEPS
                                                          : 0;

    return (struct capacity_targets){
        .tbt_p99_s = tbt_p99_s > 0 ? tbt_p99_s : steps * step_s,
        .ttft_p99_s = ttft_p99_s,
        .delay_p50_s = delay_p50_s >= 0 ? delay_p50_s : MIN(CAPACITY_DELAY_MAX_S, CAPACITY_DELAY_SHARE * load_s),
        .error_share = error_share,
    };
}

double capacity_lone_ttft_s(const struct capacity_undisturbed *u, double prompt_tokens)
{
    uint32_t i = 1;

    if (u->count == 0)
        return 0;
    if (u->count == 1 || prompt_tokens <= u->prompt_tokens[0])
        return u->ttft_s[0];
    while (i + 1 < u->count && u->prompt_tokens[i] < prompt_tokens)
        i++;
    double span = u->prompt_tokens[i] - u->prompt_tokens[i - 1];
    double share = span > 0 ? (prompt_tokens - u->prompt_tokens[i - 1]) / span : 1;
    return MAX(u->ttft_s[i - 1] + share * (u->ttft_s[i] - u->ttft_s[i - 1]), u->ttft_s[0]);
}

double capacity_delay_s(const struct capacity_undisturbed *u, double prompt_tokens, double ttft_s)
{
    return MAX(ttft_s - capacity_lone_ttft_s(u, prompt_tokens), 0);
}

enum capacity_bound capacity_judge(const struct capacity_targets *t, const struct capacity_probe *p)
{
    if ((double)p->refused + p->failed > t->error_share * p->requests)
        return CAPACITY_ERRORS;
    if (t->tbt_p99_s > 0 && p->tbt.p99_s > t->tbt_p99_s)
        return CAPACITY_TBT;
    if (t->delay_p50_s > 0 && p->delay.p50_s > t->delay_p50_s)
        return CAPACITY_DELAY;
    if (t->ttft_p99_s > 0 && p->ttft.p99_s > t->ttft_p99_s)
        return CAPACITY_TTFT;
    return CAPACITY_MET;
}

const char *capacity_bound_name(enum capacity_bound bound)
{
    static const char *const names[CAPACITY_BOUNDS] = {NULL, "errors", "streams", "tbt_p99", "delay_p50", "ttft_p99"};

    return bound < CAPACITY_BOUNDS ? names[bound] : NULL;
}
