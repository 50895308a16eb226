// tuning.h: the constants of the scheduling core that were found by trial: name, value, [unit] and reason. Limits of the
// configuration are in sched.h, sizes of tables beside the tables. Private to common/sched.
#ifndef FD_SCHED_TUNING_H
#define FD_SCHED_TUNING_H

// clang-format off

// --- tick and queue
#define TUNE_TICK_ROUNDS_MAX           16         // [rounds] of one tick, at most: resolving a shortage may free pages for others; further rounds wait for the next tick
#define TUNE_QUEUE_ROW_US              100        // [us] per row, until steps are measured
#define TUNE_QUEUE_LISTED              64         // [sequences] in the queue whose rows are counted for a predicted wait; the others count as the mean of these
#define TUNE_QUEUE_LIFE_STEPS          128        // [steps] of the target time that a sequence is expected to run, until one has ended
#define TUNE_QUEUE_LIFE_GAIN           0.1        // [share] weight of one sequence in the mean time from placement to end

// --- places
#define TUNE_PLACE_PENDING             0.01       // [share] of a mini-batch's attention that another one's prompts at a worker must add to it to count: less is no reason for an uneven load
#define TUNE_PLACE_MARGIN_PAGES        2          // [pages] reserved beyond the known tokens at placement: a sequence soon needs them
#define TUNE_PLACE_LOST_AVOID_US       1000000    // [us] for which a place that lost rows gets no new sequences: it may be failing
#define TUNE_PLACE_LOST_DOUBLINGS      6          // [times] that time doubles while the place loses rows again: a minute at most
#define TUNE_PLACE_RETURN_US           60000000   // [us] for which a place that went down is expected back: sequences that only it can hold wait
#define TUNE_PLACE_START_US            5000000    // [us] within which other places are expected to follow the first one

// --- step times
#define TUNE_MODEL_AGE_STEPS           256        // [steps] after which an unused size class weighs a quarter
#define TUNE_MODEL_AWAY_STEPS          16         // [steps] after which an unused size class moves with the classes in use
#define TUNE_MODEL_RETURN_GAIN         0.5        // [share] weight of one step after a long absence of its class
#define TUNE_MODEL_ERROR_GAIN          0.02       // [share] weight of one step in the mean error: about the last fifty count
#define TUNE_MODEL_GAIN                0.1        // [share] weight of one step in its class: about the last ten count
#define TUNE_MODEL_OLD_AGES            4          // [ages] older classes do not bound the slope
#define TUNE_MODEL_CONFIRMED           3          // [steps] of a size class after which its time is believed, whatever that of others is
#define TUNE_MODEL_DISTURBED           1.5        // [times] a larger class's time from which on one that is not confirmed is taken for disturbed
#define TUNE_MODEL_DRIFT_MOST          2          // [times] by which classes in use may have moved one that was not seen meanwhile, up or down
#define TUNE_MODEL_DRIFT_NOISE         0.05       // [share] of drift that is taken for noise

// --- speed of places
#define TUNE_SPEED_SLOW                1.6        // [times] the fastest worker's time on the same cores: above that a worker counts as slow
#define TUNE_SPEED_SLOW_NO_MORE        1.3        // [times] the same: below that it no longer does
#define TUNE_SPEED_GAIN_CHANGED        0.1        // [share] weight of one step where noise does not explain the change: about the last ten count
#define TUNE_SPEED_GAIN_STEADY         0.03       // [share] weight of one step otherwise: about the last thirty count
#define TUNE_SPEED_TOKENS_MIN          256        // [tokens] with fewer, clock and link weigh more than the memory
#define TUNE_SPEED_RATIO_MAX           4          // [times] the expected time, or its inverse, that one step counts for: it may be disturbed
#define TUNE_SPEED_NOISE_GAIN          0.05       // [share] weight of one step in the noise
#define TUNE_SPEED_LINK_GAIN           0.1        // [share] weight of one step in the round trips

// --- lengths
#define TUNE_LENGTHS_STARTS            256        // [starts] remembered
#define TUNE_SURVIVAL_FORGET           0.998      // [share] of earlier lengths that is kept with each new one: half is gone after about 350
#define TUNE_SURVIVAL_ALIVE_MIN        1e-6       // [share] P(L >= l) never falls below: some sequence may live that long

// --- load and starts
#define TUNE_LOAD_POINTS_DENSE         48         // [points] of the projection up to the expected length, evenly spaced
#define TUNE_LOAD_POINTS_GROWTH        1.2        // [times] the previous distance between points, beyond that
#define TUNE_LOAD_LIFE_PARTS           8          // [parts] of a life, with about equally many starts in each
#define TUNE_LOAD_WEIGHT               8          // [mean contexts] that a sequence counts for beside its present context, see sched_load_weight()
#define TUNE_LOAD_TRIAL_STEPS          32         // [steps] into which an expected length is divided when both ways of starting are computed
#define TUNE_LOAD_TRIAL_ROUNDS         24         // [batches] of the queue, at most, that are computed to their end: more of them show the same
#define TUNE_LOAD_TRIAL_LEAST          8          // [steps] of each mini-batch, at least, between two such computations
#define TUNE_LOAD_TRIAL_SEEN           0.875      // [times] the expected length that some sequence must have lived: max_tokens alone says little of how long they will live
#define TUNE_LOAD_TRIAL_BINS           128        // [steps] of ages; those who are older count as that old
#define TUNE_LOAD_TRIAL_REST           64         // [parts] of a full batch, the last of which need not be computed to its end
#define TUNE_LOAD_TRIAL_ERROR          0.02       // [share] by which the other way must be predicted to be faster: less may be an error, and turning back halfway gains nothing
#define TUNE_LOAD_CLOSER               (1.0 / 32) // [share] by which starts may come closer than evenly spread
#define TUNE_LOAD_SPACING_PART         32         // [parts] of the expected length, one of which is the default spacing F

// --- local pool or workers
#define TUNE_OVERLAP_SHARES            16         // [shares] of the load between local pool and workers that are compared
#define TUNE_OVERLAP_JUDGE_STEPS       8          // [steps] between two comparisons
#define TUNE_OVERLAP_CHANGED           0.1        // [share] by which the number of sequences must have changed to compare earlier
#define TUNE_OVERLAP_MIGRATE_GAIN      1.1        // [times] the rate that running sequences must gain before any is handed over
#define TUNE_OVERLAP_STAY              1.02       // [times] the rate of the present choice, in its favour, so that noise does not change it
#define TUNE_OVERLAP_LOCAL_ODDS        1.12       // [times] the local pool's rate that both together must promise, see choice.c
#define TUNE_OVERLAP_WORKERS_ODDS      1.06       // [times] the workers' rate that both together must promise

// --- mini-batches
#define TUNE_BATCHES_JUDGE_ROUNDS      4          // [rounds] between two comparisons
#define TUNE_BATCHES_ERROR             0.01       // [share] of the present round by which another number's may be mispredicted: less is no gain
#define TUNE_BATCHES_PROMPTS_ERROR     0.2        // [share] of the present round by which what prompts change in another number's may be mispredicted
#define TUNE_BATCHES_CHANGE_ROUNDS     4          // [rounds] that another number must have been predicted to save: twice what a change costs, which drains the steps in flight, so that noise causes none

// --- equal steps
#define TUNE_MICRO_BATCH_JUDGE_STEPS   16         // [steps] of each mini-batch between two choices of the rows that all steps are to have
#define TUNE_MICRO_BATCH_CHANGE        0.125      // [share] by which that number must change to count: each change makes unequal steps
#define TUNE_MICRO_BATCH_FIRST_TILES   4          // [tiles] of prefill in a step until steps are measured

// --- prefill chunks
#define TUNE_CHUNK_STRETCH             2.4        // [times] the decode rows' time that a step may take whatever the target that was set
#define TUNE_CHUNK_AUTO_STRETCH        2.2        // [times] the same that a step may take if no target was set
#define TUNE_CHUNK_EXCESS_QUANTILE     0.9        // [share] of steps with prefill that are to keep to that
#define TUNE_CHUNK_EXCESS_GAIN         0.05       // [share] by which one step moves that quantile: a machine that becomes less steady is known after some twenty
#define TUNE_CHUNK_EXCESS_MAX          1.3        // [times] its prediction that a step is taken for at most, so that prompts are not starved
#define TUNE_CHUNK_WAITING_STRETCH_MAX 4          // [times] the target at most, while more sequences wait than run
#define TUNE_CHUNK_LEAST_TILE_PART     2          // [parts] of a tile, one of which is the smallest chunk: even a few rows read a prompt's whole context
#define TUNE_CHUNK_AS_GOOD             0.98       // [times] the best rate that a larger chunk must reach to be taken
#define TUNE_CHUNK_DECODE_GAIN         0.1        // [share] weight of one step among those without prefill
#define TUNE_CHUNK_GAIN                0.25       // [share] weight of one step in the correction factors
#define TUNE_CHUNK_DECODE_FACTOR_MAX   64.0       // [times] the factor of decode rows at most, before any step without prefill was seen
#define TUNE_CHUNK_FACTOR_MAX          4.0        // [times] the factors of prefill at most: its rows and pairs have been measured
#define TUNE_CHUNK_FACTOR_DECAY        0.01       // [share] of its distance from 1 that a factor of prefill loses with each step
#define TUNE_CHUNK_DECODE_ROOM         1.1        // [times] the growth of contexts by which the factor of decode rows may grow
#define TUNE_CHUNK_DECODE_MOVE         0.02       // [share] the most by which one step moves the time of decode rows, which so stays near their median
#define TUNE_CHUNK_DECODE_BEYOND       4          // [times] that of the nearest number of decode rows that was seen, that others may be taken for at most
#define TUNE_CHUNK_ROW_CONTEXT         2e3        // [tokens] of context whose attention takes as long as a row's products, until it is measured

// --- prompts in steps of their own
#define TUNE_ASIDE_STRETCH             1.8        // [times] the decode rows' time from one of their steps to the next, if no target was set: prompts take 2.25 times as long then
#define TUNE_ASIDE_SEGMENT             0.25       // [times] the decode rows' time that a segment of them may take: half of it is by how much a step may come late

// --- rows of class batch in steps of interactive ones
#define TUNE_LATE_SHARE                (1.0 / 12) // [share] by which they may lengthen a step: predictions and noise are to leave it below 1.15 times
#define TUNE_LATE_SAVED                1.5        // [times] that share that may be saved for a row that takes longer: beside 8 rows a ninth may take an eighth of their time
#define TUNE_LATE_REFUSED              16         // [sequences] for whose row there was no time: the others are not asked
#define TUNE_LATE_PROBE_STEPS          16         // [steps] one of which has no such row, so that the time of such steps is not forgotten
#define TUNE_LATE_PROBE_FIRST          2          // [steps] the same, until that time is known
#define TUNE_LATE_LEAST_STEPS          128        // [steps] one of which has such a row whatever it takes: less than a hundredth is not seen in a 99th percentile

// --- drafts
#define TUNE_DRAFT_SEQUENCES_MAX       32         // [sequences] of a mini-batch with drafts: with more, a row costs as much as a token is worth
#define TUNE_DRAFT_GAIN                0.1        // [share] weight of one step in smoothed values
#define TUNE_DRAFT_WORTH               1.05       // [times] the rate without drafts that drafts must promise before steps wait for one another
#define TUNE_DRAFT_SLOWEST             1.1        // [times] the time without drafts that a sequence may wait for a token
#define TUNE_DRAFT_PROBE_STEPS         16         // [steps] of which one has no drafts, so that the time of such steps is not forgotten
#define TUNE_DRAFT_STEP_MAX            2          // [times] a step's time without drafts that one with drafts may take, if that is above the target
#define TUNE_DRAFT_GAP_US              200        // [us] between a step's answer and the next step, until it is measured
#define TUNE_DRAFT_FORGET              0.97       // [share] of earlier steps that is kept with each new one
#define TUNE_DRAFT_FADE                0.99       // [share] of the slope that is kept with each step of a run whose row counts are alike
#define TUNE_DRAFT_SPREAD              0.01       // [share] of the mean row count, squared: with less variance the slope is not known

// --- handing over
#define TUNE_MOVE_RELABELS_MAX         64         // [sequences] that may change their mini-batch at once
#define TUNE_MOVE_STAY_STEPS           64         // [steps] before a sequence may move again, to prevent ping-pong
#define TUNE_MOVE_TIME_PART            8          // [parts] of a place's time, one of which hand-overs may take
#define TUNE_MOVE_PASSES               2          // [passes] over its pages that handing a sequence over takes
#define TUNE_MOVE_PAYS                 2          // [times] its cost that a move must gain
#define TUNE_MOVE_LIFE_STEPS           256        // [steps] that a sequence is expected to live while nothing is known of lengths

// --- balancing workers
#define TUNE_BALANCE_MOVES             4          // [moves] of a mini-batch at one time
#define TUNE_BALANCE_LISTED            64         // [sequences] of a cell that are considered
#define TUNE_BALANCE_RELABEL_ABOVE     0.03       // [share] of its level by which a cell must exceed it before a sequence changes its mini-batch
#define TUNE_BALANCE_MOVE_ABOVE        0.05       // [share] the same, before pages move
#define TUNE_BALANCE_SHARING_ABOVE     0.15       // [share] the same, among workers that share cores and slow each other down
#define TUNE_BALANCE_STEP_ABOVE        0.02       // [share] of the whole step: a cell that exceeds its level by less makes no difference
#define TUNE_BALANCE_NOISE             0.5        // [times] the noise of measurements: about three standard deviations of the smoothed mean
#define TUNE_BALANCE_URGENT_ABOVE      0.2        // [share] of its level: a cell that exceeds it by more may spend more of a worker's time on moves
#define TUNE_BALANCE_GAIN_LEVEL        0.01       // [share] of its level that an exchange must take away, or TUNE_BALANCE_GAIN if that is less
#define TUNE_BALANCE_GAIN              0.4        // [share] of the excess over its level that an exchange must take away

// --- migration
#define TUNE_MIGRATE_STEPS             8          // [steps] between two checks, plus one for every TUNE_MIGRATE_SEQUENCES_A_STEP running sequences
#define TUNE_MIGRATE_SEQUENCES_A_STEP  64         // [sequences] that are considered per step, on average
#define TUNE_MIGRATE_LISTED            64         // [sequences] that are considered to hand one over
#define TUNE_MIGRATE_ROOM_TOKENS       256        // [tokens] that each sequence is expected to generate at least, because lengths seen early are those of short sequences

// --- shared pages
#define TUNE_PREFIX_LOOKS_MAX          64         // [holders] and pages, beside the asker's own, that are considered in the search for a sequence that has its pages

// clang-format on

#endif
