// cursor.h: follows a text through a grammar token by token, and says which tokens may come next.
//
// A tracker is a grammar over a vocabulary, with what has been found out about it: the automaton's configurations, made deterministic as they are
// met, and the masks of those for which one was asked. It is shared by all sequences with this grammar, and its memory is
// allocated when it is opened: when that is full, what no cursor needs is forgotten. A cursor is a place in the grammar.
// A cursor's place depends on the tokens that it has taken and on nothing else.
//
// Rules may be nested about 1,000 levels deep (a configuration has a limit, tracker_state.h); a token that would go deeper is not allowed. Nor is
// one after which many rules could be under way at once, if their levels of nesting come to more than about 1,000 together.
//
// A mask that is not ready takes 20 to 100 us at most places of a JSON text, about a millisecond where nearly everything is allowed but for a few
// characters. An expression that is ambiguous on purpose may take as much as a limit allows (GRAMMAR_MAX_MASK_WORK); beyond that there is no
// mask. bench_grammar has figures.
//
// Threads: a tracker and its cursors are used by one thread at a time. Only the functions named open allocate.
#ifndef FD_GRAMMAR_CURSOR_H
#define FD_GRAMMAR_CURSOR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/status.h"
#include "common/grammar/grammar.h"

struct grammar_tracker;
struct grammar_cursor;

// Takes over `grammar` on success. vocab outlives the tracker. bytes: what it may allocate for configurations and masks, at least
// GRAMMAR_TRACKER_MIN_BYTES plus eight masks. Half of that is for masks. UNAVAILABLE: no memory.
enum { GRAMMAR_TRACKER_MIN_BYTES = 1 << 20, GRAMMAR_CURSOR_BYTES = 1 << 15 };
enum status grammar_tracker_open(struct grammar *grammar, const struct grammar_vocab *vocab, size_t bytes,
                                 struct grammar_tracker **out, struct error *error) MUST_CHECK;
// Frees a tracker, whose cursors have all been closed.
void grammar_tracker_close(struct grammar_tracker *tracker);
const struct grammar *grammar_tracker_grammar(const struct grammar_tracker *tracker);
// Returns what it has cost so far to follow texts and to find masks, in units of some 20 ns.
uint64_t grammar_tracker_work(const struct grammar_tracker *tracker);

// Opens a cursor at the start of the text; NULL: no memory. A tracker has room for any place that a cursor can be in, so the tracker grows
// once it has more cursors than a sixth of its bytes has GRAMMAR_CURSOR_BYTES.
struct grammar_cursor *grammar_cursor_open(struct grammar_tracker *tracker);
void grammar_cursor_close(struct grammar_cursor *cursor);
// Puts `to` where `from` is; both are of one tracker.
void grammar_cursor_copy(struct grammar_cursor *to, const struct grammar_cursor *from);

// Takes a token. Returns false if the grammar does not allow it here: the cursor is dead then, and stays so until it is copied to.
bool grammar_cursor_take(struct grammar_cursor *cursor, uint32_t token);
// Takes bytes, for tests and tools.
bool grammar_cursor_take_bytes(struct grammar_cursor *cursor, const char *bytes, size_t count);
bool grammar_cursor_is_dead(const struct grammar_cursor *cursor);
// Returns whether the text may end here, and whether it must (no byte may follow).
bool grammar_cursor_may_end(struct grammar_cursor *cursor);
bool grammar_cursor_must_end(struct grammar_cursor *cursor);

// Writes which tokens may come next, bit t % 32 of word t / 32. words: [(tokens + 31) / 32]. End tokens are the caller's business (may_end).
// A dead cursor allows none. A token counts only if the text can still be completed after it. Returns false, and allows none, if that takes
// too long to find out: so many ways through the grammar are under way at once. Whoever has asked for the same before may have made it shorter.
bool grammar_cursor_mask(struct grammar_cursor *cursor, uint32_t *words);
// Returns whether the mask is known already, so that grammar_cursor_mask() only copies it.
bool grammar_cursor_mask_is_ready(const struct grammar_cursor *cursor);

#endif
