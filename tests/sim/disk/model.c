// model.c: see model.h.
#include "tests/sim/disk/model.h"

#include <stdio.h>
#include <string.h>

#include "common/base/checked.h"

struct model model;

void model_begin(void) { memset(&model, 0, sizeof model); }

void model_end(void)
{
    for (uint32_t i = 0; i < model.file_count; i++)
        sim_free(model.files[i].content);
    for (uint32_t i = 0; i < model.batch_count; i++) {
        sim_free(model.batches[i].content[0]);
        sim_free(model.batches[i].content[1]);
    }
    model_begin();
}

struct file_model *model_add_file(void)
{
    static const uint32_t pads[] = {0, 10, 300, 3000, 20000};
    const uint32_t index = model.file_count++, pad = pads[sim_below(sim_chance(20) ? 5 : 4)];
    struct file_model *file = &model.files[index];
    size_t room;

    assert_always(index < FILES_MAX);
    *file = (struct file_model){.tenant = (uint32_t)sim_below(TENANTS), .lines = 1 + (uint32_t)sim_below(LINES_MAX)};
    room = file->lines * (pad + 200);
    file->content = sim_alloc(room);
    for (uint32_t line = 1; line <= file->lines; line++) {
        char *at = file->content + file->bytes;
        file->is_request[line] = !sim_chance(8);
        const int bytes =
            file->is_request[line]
                ? snprintf(
                      at, room - file->bytes,
                      "{\"custom_id\":\"c%u-%u\",\"method\":\"POST\",\"url\":\"/v1/completions\",\"body\":{\"prompt\":\"p#%u#%u#%*s\"}}\n",
                      index, line, index, line, (int)pad, "")
                : snprintf(at, room - file->bytes, "no request %u\n", index);
        file->bytes += (size_t)bytes;
        assert_always(file->bytes < room);
    }
    return file;
}

struct batch_model *model_batch(const char *id)
{
    for (uint32_t i = 0; i < model.batch_count; i++)
        if (model.batches[i].id[0] && strcmp(model.batches[i].id, id) == 0)
            return &model.batches[i];
    return NULL;
}

bool model_is_needed(const struct file_model *file)
{
    for (uint32_t i = 0; i < model.batch_count; i++)
        if (&model.files[model.batches[i].file] == file && model.batches[i].is != GONE && !model.batches[i].over[0])
            return true;
    return false;
}

void model_cut(void)
{
    for (uint32_t i = 0; i < model.batch_count; i++)
        if (!model.batches[i].over[0])
            memset(model.batches[i].stored, 0, sizeof model.batches[i].stored);
}

int model_answer(uint32_t file, uint32_t line, char *out, size_t out_bytes)
{
    const uint32_t kind = file * 7 + line * 5, pad = kind % 11 == 0 ? 12000 : kind % 6 == 0 ? 2500 : kind % 4 * 90;

    snprintf(out, out_bytes, "{\"answer\":\"a#%u#%u\",\"pad\":\"%0*u\"}", file, line, (int)pad + 1, kind % 10);
    return kind % 5 == 0 ? 400 : 200;
}
