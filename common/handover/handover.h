/* handover.h: a sequence's pages from who holds them to who takes them over: a KV worker or the s-part, both ways.
 *
 *     scheduler ──Fetch──▶ taker ──ReadPage, a page at a time──▶ giver
 *                             │                                    │ export
 *                             ▼ import                             ▼
 *                         its pages                            its pages
 *
 * What is complete at the old place when the last page is read is what counts; the scheduler asks for no more than it knows to be
 * complete, and lets the sequence wait meanwhile. What a failed or unwanted Fetch has brought is freed again.
 *
 * Two loops: the control loop has the calls of the scheduler, the tensor loop the pages. They may be one. Pages may be on a device that
 * copies by itself: copies are begun one after the other, and handover_advance() looks whether the one under way is done.
 */
#ifndef FD_HANDOVER_HANDOVER_H
#define FD_HANDOVER_HANDOVER_H

#include <stdbool.h>
#include <stdint.h>

#include "attend.pb-c.h"
#include "common/rpc/rpc.h"

/* Who keeps pages. Called on the tensor loop's thread. */
struct handover_pages {
    uint64_t (*page_bytes)(void *user); /* 0: none can be given or taken, yet */
    uint32_t (*max_context)(void *user);
    /* As kv_store_export_page and kv_store_import_page; where copied is not NULL the copy is done only when that says so, after
     * having been asked again and again. No other is begun before, and `page` stays. */
    enum status (*export_page)(void *user, uint64_t sequence, uint32_t page_index, void *page, uint32_t *positions,
                               struct error *error);
    enum status (*import_page)(void *user, uint64_t sequence, uint32_t page_index, const void *page, uint32_t positions,
                               struct error *error);
    bool (*copied)(void *user);
    void (*stop_copy)(void *user); /* the one under way; NULL if copied is */
    /* The sequence is to be taken over: what an earlier try left of it goes. A failure: not now. */
    enum status (*make_way)(void *user, uint64_t sequence, struct error *error);
    void (*free_pages)(void *user, uint64_t sequence);
    void (*publish)(void *user); /* pages came or went; NULL: nobody wants to know */
};

struct handover_fetch;
struct handover_copy;

/* Set the first five; zero the rest. */
struct handover {
    const struct handover_pages *pages;
    void *user;
    struct rpc_loop *control_loop, *tensor_loop;
    struct rpc_hello hello; /* what the giver is told */

    struct handover_fetch *fetches;             /* under way */
    bool closed;                                /* none is begun any more */
    struct handover_copy *copies, **copies_end; /* the first is under way; end NULL: there was none yet */
};

/* Handler of KvHandover.ReadPage, on the tensor loop; user: the handover. */
void handover_read_page(struct rpc_call *call, void *handover);

/* Serves a KvControl.Fetch whose caller has been checked; on the control loop. Ends the call, sooner or later. */
void handover_fetch(struct handover *handover, struct rpc_call *call, const Fastdecode__FetchRequest *request);

/* Ends what is being fetched and given of a sequence: its pages are to be freed, and nothing of it may come later, when the sequence
 * may be here for another reason. On the tensor loop. */
void handover_drop(struct handover *handover, uint64_t sequence);

/* Goes on with the copy under way; true: there is one still. On the tensor loop. */
bool handover_advance(struct handover *handover);

/* Ends all: the service ends. On the tensor loop; afterwards the control loop is to be run once more, before its server is closed. */
void handover_close_all(struct handover *handover);

#endif
