// main.c: the s-part's program: weights, the forward pass, sampling, the local KV pool.
#include <stdio.h>
#include <stdlib.h>

#include "common/base/memory.h"
#include "common/rpc/rpc.h"
#include "services/s-part/s_part.h"

static enum status configure(struct service *service, void *state, struct error *error)
{
    return settings_parse(service, &((struct s_part *)state)->settings, error);
}

static enum status probe(void *state, bool alive, struct error *error)
{
    const struct s_part_settings *s = &((struct s_part *)state)->settings;
    return rpc_probe_self(s->listen, &s->security, alive, error);
}

static void wake(void *state) { rpc_loop_wake(((struct s_part *)state)->control.loop); }

static void reload(void *state) { rpc_tls_reload(((struct s_part *)state)->security.tls); }

int main(int argc, char **argv)
{
    static const struct service_program program = {.name = "s-part",
                                                   .purpose = "weights, forward pass, sampling and the local KV pool",
                                                   .configure = configure,
                                                   .probe = probe,
                                                   .check = serve_check,
                                                   .start = serve_open,
                                                   .serve = serve_run,
                                                   .wake = wake,
                                                   .reload = reload,
                                                   .close = serve_close};
    memory_spare_blas_threads(argv);
    struct s_part *s_part = calloc(1, sizeof *s_part);

    if (!s_part) {
        fprintf(stderr, "s-part: cannot allocate %zu bytes\n", sizeof *s_part);
        return EXIT_CODE_ENVIRONMENT;
    }
    int code = service_run(&program, s_part, argc, argv);
    free(s_part);
    return code;
}
