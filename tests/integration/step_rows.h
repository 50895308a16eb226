// step_rows.h: a step's rows of sequences that follow one another, one each, and what opens them.
#ifndef FD_TESTS_STEP_ROWS_H
#define FD_TESTS_STEP_ROWS_H

#include "step.pb-c.h"

// Makes the runs of `count` sequences from `first` on, at position 0, and what opens them, with sampling that is the caller's.
static inline void step_rows_fill(uint64_t first, uint32_t count, Fastdecode__Sampling *sampling, Fastdecode__SequenceOpen *opens,
                                  Fastdecode__SequenceOpen **open_pointers, Fastdecode__Run *runs, Fastdecode__Run **run_pointers)
{
    static uint32_t tokens[] = {3};

    fastdecode__sampling__init(sampling);
    sampling->top_p = 1;
    for (uint32_t i = 0; i < count; i++) {
        fastdecode__sequence_open__init(&opens[i]);
        opens[i].sequence = first + i;
        opens[i].sampling = sampling;
        opens[i].prompt_tokens = opens[i].n_tokens = 1;
        opens[i].tokens = tokens;
        open_pointers[i] = &opens[i];
        fastdecode__run__init(&runs[i]);
        runs[i].sequence = first + i;
        runs[i].n_tokens = 1;
        runs[i].tokens = tokens;
        runs[i].sample = true;
        run_pointers[i] = &runs[i];
    }
}

#endif
