// rate_search.c: see rate_search.h.
#include "common/capacity/rate_search.h"

#include <math.h>

#include "common/base/checked.h"
#include "common/base/status.h"

void rate_search_begin(struct rate_search *s, double guess, double least, double most, double precision, bool confirm)
{
    assert_always(least > 0 && most >= least && precision > 0 && precision < 1);
    *s = (struct rate_search){.least = least, .most = most, .precision = precision, .confirm = confirm, .stride = 2};
    s->rate = MIN(MAX(guess, least), most);
}

// Chooses what to try with both ends known. 0: nothing more.
static double between(const struct rate_search *s)
{
    if (s->missed > s->met * (1 + s->precision))
        return sqrt(s->met * s->missed);
    if (!s->confirm || s->reversals >= RATE_REVERSALS_MAX)
        return 0;
    return !s->met_twice ? s->met : !s->missed_twice ? s->missed : 0;
}

double rate_search_next(struct rate_search *s)
{
    if (s->trials == 0)
        return s->rate;
    if (s->trials >= RATE_TRIALS_MAX)
        s->rate = 0;
    else if (s->met > 0 && s->missed > 0)
        s->rate = between(s);
    else if (s->met > 0)
        s->rate = s->met < s->most ? MIN(s->stride * s->met, s->most) : 0;
    else
        s->rate = s->missed > s->least ? MAX(s->missed / s->stride, s->least) : 0;
    return s->rate;
}

// An end did not hold: the limit cannot be far.
static void look_nearby(struct rate_search *s)
{
    s->stride = (1 + s->precision) * (1 + s->precision);
    s->reversals++;
}

void rate_search_take(struct rate_search *s, bool met)
{
    const double rate = s->rate;

    assert_always(rate > 0);
    s->trials++;
    if (met && rate == s->met) {
        s->met_twice = true;
    } else if (!met && rate == s->missed) {
        s->missed_twice = true;
    } else {
        s->stride = MIN(s->stride * s->stride, 2);
        if (rate == s->met || rate == s->missed)
            look_nearby(s);
        if (met && rate == s->missed) // it was missed by chance: what is above is not known
            s->missed = 0;
        if (!met && rate == s->met) // it was met by chance
            s->met = 0;
        *(met ? &s->met : &s->missed) = rate;
        *(met ? &s->met_twice : &s->missed_twice) = false;
    }
}
