// step_extents.h: runs of sequences that lie at several places. See step_extents.c.
#ifndef FD_SERVICES_S_PART_STEP_EXTENTS_H
#define FD_SERVICES_S_PART_STEP_EXTENTS_H

#include "services/s-part/step_rows.h"

// check: whether the run may lie where its extents say; adds the bytes of its rows' partials to *partial_bytes. read:
// plans reads and partials once the rows are there. first: of a run that was checked, the first position at its place. at: the
// index of its extent at a place of the request; the last one, its own, if it has none there.
enum status step_extents_check(const Fastdecode__StepRequest *request, const Fastdecode__Run *run, uint32_t row_count,
                               const struct step_limits *limits, uint64_t *partial_bytes, struct error *error) MUST_CHECK;
void step_extents_read(struct step_plan *plan);
uint32_t step_extents_first(const Fastdecode__Run *run);
uint32_t step_extents_at(const Fastdecode__Run *run, uint32_t place);

#endif
