// services.c: nodes start, have their turns, are closed or killed as main() or the kernel would have it.
#include "tests/sim/services.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "common/base/checked.h"
#include "kernels/dispatch/kernels.h"
#include "tests/sim/clients.h"
#include "tests/unit/gguf_build.h"

struct mesh_settings mesh_settings;
struct sim_files sim_files;

const struct service_kind *service_of(const struct node *node)
{
    static const struct service_kind *const kinds[NODE_KINDS] = {[NODE_SCHEDULER] = &scheduler_kind,
                                                                 [NODE_S_PART] = &s_part_kind,
                                                                 [NODE_WORKER] = &worker_kind,
                                                                 [NODE_GATEWAY] = &gateway_kind};
    return kinds[node->kind];
}

static void write_file(const char *path, const void *bytes, size_t count)
{
    FILE *file = fopen(path, "wb");
    assert_always(file && fwrite(bytes, 1, count, file) == count && fclose(file) == 0);
}

void services_prepare(void)
{
    static const char chat[] = "{% for m in messages %}{{ m.content }}{% endfor %}";
    struct gguf_build build = {0};
    struct tiny_llama tiny = TINY_LLAMA;
    struct error error;
    size_t count;

    tiny.context = SIM_CONTEXT;
    gguf_build_llama(&build, &tiny);
    unsigned char *bytes = gguf_build_finish(&build, &count);
    snprintf(sim_files.folder, sizeof sim_files.folder, "/tmp/fd-sim-XXXXXX");
    assert_always(mkdtemp(sim_files.folder));
    snprintf(sim_files.model, sizeof sim_files.model, "%s/tiny.gguf", sim_files.folder);
    snprintf(sim_files.template, sizeof sim_files.template, "%s/chat.jinja", sim_files.folder);
    write_file(sim_files.model, bytes, count);
    write_file(sim_files.template, chat, sizeof chat - 1);
    free(bytes);
    if (kernels_init(NULL, &error)) {
        fprintf(stderr, "mesh: %s\n", error.text);
        exit(1);
    }
    gateway_prepare();
}

void services_end(void)
{
    unlink(sim_files.model);
    unlink(sim_files.template);
    rmdir(sim_files.folder);
}

// If start() fails, the kernel takes back what it got.
enum status node_start(struct node *node, struct error *error)
{
    assert_always(!node->up);
    if (node->vanished && !node->moves)
        network_back(node);
    node->vanished = false;
    node->starts++;
    node->up = true;
    node->busy_ns = 0;
    node->now_ns = world.now_ns;
    world_note("start", node->index, node->starts);
    world_say("start %s", node->name);
    struct node *before = node_enter(node);
    const enum status status = service_of(node)->start(node, error);
    node_leave(before);
    if (status) {
        world_say("%s does not start: %s", node->name, error->text);
        node_kill(node, false);
        return status;
    }
    node_wake(node);
    return STATUS_OK;
}

void node_turn(struct node *node)
{
    struct error error = {0};
    bool ends = false;
    const enum status status = service_of(node)->turn(node, &ends, &error);

    if (status) {
        world_say("ends: %s", error.text);
        node_kill(node, false);
    } else if (ends) {
        node_close(node);
    }
}

void node_kill(struct node *node, bool silent)
{
    if (!node->up)
        return;
    world_note("kill", node->index, silent);
    world_say("kill %s%s", node->name, silent ? ", silently" : "");
    if (node->kind == NODE_GATEWAY)
        clients_lost(node);
    if (node->kind == NODE_SCHEDULER)
        clients_scheduler_goes(node);
    network_drop(node, silent);
    node->vanished = silent;
    node_drop(node);
}

void node_close(struct node *node)
{
    struct node *before = node_enter(node);

    world_note("close", node->index, 0);
    world_say("close %s", node->name);
    service_of(node)->close(node);
    node->leaked = node->memory.count;
    node_leave(before);
    network_drop(node, false);
    node_drop(node);
}
