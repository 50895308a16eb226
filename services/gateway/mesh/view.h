// view.h: the scheduler's view of the mesh (proto/view.proto) as the JSON that the page /mesh reads.
#ifndef FD_GATEWAY_MESH_VIEW_H
#define FD_GATEWAY_MESH_VIEW_H

#include "view.pb-c.h"

// Returns one JSON object, with the names of view.proto; the caller frees it. Ids are strings, because JSON's numbers end at 2^53. NULL: no
// memory.
char *mesh_view_json(const Fastdecode__MeshView *view);

#endif
