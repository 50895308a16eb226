// handover.h: hands a sequence's pages from the service that holds them to the one that takes them over: KV workers and the s-part.
//
//     scheduler ──Fetch──▶ taker ──ReadPage, a page at a time──▶ giver
//                             │                                    │ export
//                             ▼ import                             ▼
//                         its pages                            its pages
//
// The taker gets what is complete at the giver when the last page is read. The scheduler asks for no more than it knows to be complete,
// and the sequence waits meanwhile. What a failed or cancelled Fetch has brought is freed again.
//
// Two loops: the control loop has the calls of the scheduler, the tensor loop has the pages. They may be one. Pages may be on a device that
// copies by itself: copies run one after the other, and handover_advance() polls the one under way.
#ifndef FD_MESH_HANDOVER_H
#define FD_MESH_HANDOVER_H

#include <stdbool.h>
#include <stdint.h>

#include "attend.pb-c.h"
#include "common/kv/kv_shape.h"
#include "common/rpc/rpc.h"

// The owner of the pages. Called on the tensor loop's thread.
struct handover_pages {
    uint64_t (*page_bytes)(void *user);          // 0: none can be given or taken, yet
    const struct kv_shape *(*shape)(void *user); // of the pages, once there are any
    // As kv_store_export_page and kv_store_import_page. If copied is not NULL, the copy is done only when that, polled, is true: until
    // then no other copy begins and `page` stays.
    enum status (*export_page)(void *user, uint64_t sequence, uint32_t page_index, void *page, uint32_t *positions,
                               struct error *error);
    enum status (*import_page)(void *user, uint64_t sequence, uint32_t page_index, const void *page, uint32_t positions,
                               struct error *error);
    bool (*copied)(void *user);
    void (*stop_copy)(void *user); // gives up the copy under way; NULL if copied is
    // Before a sequence is taken over: frees what an earlier try left of it. A failure: it cannot be taken over now.
    enum status (*make_way)(void *user, uint64_t sequence, struct error *error);
    void (*free_pages)(void *user, uint64_t sequence);
    void (*publish)(void *user); // pages came or went; may be NULL
};

struct handover_fetch;
struct handover_copy;

// Set the first five; zero the rest.
struct handover {
    const struct handover_pages *pages;
    void *user;
    struct rpc_loop *control_loop, *tensor_loop;
    struct rpc_hello hello; // what the giver is told

    struct handover_fetch *fetches;             // under way
    bool closed;                                // none is begun any more
    struct handover_copy *copies, **copies_end; // the first is under way; end NULL: there was none yet
};

// Handler of KvHandover.ReadPage, on the tensor loop; user: the handover.
void handover_read_page(struct rpc_call *call, void *handover);

// Serves a KvControl.Fetch whose caller has been checked; on the control loop. Ends the call, sooner or later.
void handover_fetch(struct handover *handover, struct rpc_call *call, const Fastdecode__FetchRequest *request);

// Ends what is being fetched and given of a sequence: its pages are to be freed, and nothing of it may come later, when the sequence
// may be here for another reason. On the tensor loop.
void handover_drop(struct handover *handover, uint64_t sequence);

// Goes on with the copy under way; true: there is one still. On the tensor loop.
bool handover_advance(struct handover *handover);

// As handover_drop() of all sequences, before the pages become those of another model. On the tensor loop.
void handover_drop_all(struct handover *handover);

// Ends all: the service ends. On the tensor loop; afterwards the control loop is to be run once more, before its server is closed.
void handover_close_all(struct handover *handover);

#endif
