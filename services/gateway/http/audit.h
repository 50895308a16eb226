// audit.h: who asked for what: one line of JSON a request in a file, without keys and without texts.
//
//     {"time":"2026-01-31T12:00:00.123Z","request":"9f…","key":"team-a","client":"192.0.2.7","method":"POST",
//      "path":"/v1/chat/completions","model":"default","status":200,"prompt_tokens":812,"completion_tokens":64,"seconds":1.734}
//
// "key" is the owner's name, the tenant of a plain key, or null. A path is cut at 200 bytes; its query is not there.
#ifndef FD_GATEWAY_HTTP_AUDIT_H
#define FD_GATEWAY_HTTP_AUDIT_H

#include "common/base/status.h"
#include "services/gateway/http/http.h"

struct audit;

// Opens the file to append to it. The caller closes *out.
enum status audit_open(const char *path, struct audit **out, struct error *error) MUST_CHECK;
void audit_close(struct audit *audit); // NULL is allowed

// Appends the line of an exchange that is over. A line that cannot be written is logged, once a minute at most. Any thread.
void audit_add(struct audit *audit, struct exchange *exchange, int status, const char *model);

// Returns how many lines were lost, or attempts to open the file again failed, since the start. Any thread.
uint64_t audit_failures(struct audit *audit);

// Opens the file again, because it has been moved away. Any thread.
void audit_reopen(struct audit *audit);

#endif
