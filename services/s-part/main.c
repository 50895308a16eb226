// main.c: the s-part's program: weights, the forward pass, sampling, the local KV pool.
#include <stdio.h>
#include <stdlib.h>

#include <pthread.h>
#include <unistd.h>

#include "common/base/memory.h"
#include "common/rpc/rpc.h"
#include "services/s-part/s_part.h"

struct s_part_program {
    struct s_part s_part; // first
    pthread_t engine_thread;
    atomic_bool stop; // of the engine's thread; relaxed: its loop is woken after it is set
};

static void *engine_main(void *arg)
{
    struct s_part_program *program = arg;

    while (!atomic_load_explicit(&program->stop, memory_order_relaxed))
        s_part_turn_engine(&program->s_part);
    s_part_close_engine(&program->s_part);
    return NULL;
}

static enum status check(void *state, struct error *error) { return s_part_check(state, error); }

static enum status start(void *state, struct error *error)
{
    struct s_part_program *program = state;
    enum status status = s_part_open(&program->s_part, error);

    if (status)
        return status;
    if (pthread_create(&program->engine_thread, NULL, engine_main, program))
        return error_set(error, STATUS_RESOURCE_EXHAUSTED, "no thread for the engine");
    return STATUS_OK;
}

static enum status serve(struct service *service, void *state, struct error *error)
{
    enum status status = STATUS_OK;

    while (!status && !service_stop_count(service))
        status = s_part_turn_control(state, error);
    if (status == STATUS_DEADLINE_EXCEEDED)
        _exit(EXIT_CODE_ENVIRONMENT); // no handlers: they would wait for the device, too
    return status;
}

static void finish(void *state)
{
    struct s_part_program *program = state;

    atomic_store_explicit(&program->stop, true, memory_order_relaxed);
    rpc_loop_wake(program->s_part.engine.loop);
    pthread_join(program->engine_thread, NULL);
    s_part_close(&program->s_part);
}

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
                                                   .check = check,
                                                   .start = start,
                                                   .serve = serve,
                                                   .wake = wake,
                                                   .reload = reload,
                                                   .close = finish};
    memory_spare_blas_threads(argv);
    struct s_part_program *s_part = calloc(1, sizeof *s_part);

    if (!s_part) {
        fprintf(stderr, "s-part: cannot allocate %zu bytes\n", sizeof *s_part);
        return EXIT_CODE_ENVIRONMENT;
    }
    int code = service_run(&program, s_part, argc, argv);
    free(s_part);
    return code;
}
