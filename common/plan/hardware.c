// hardware.c: see hardware.h.
#include "common/plan/hardware.h"

#include <dirent.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/base/checked.h"
#include "common/base/options.h"

enum { SETTINGS = 41, CURVE_BYTES = 32 * COST_POINTS_MAX, NODES_BYTES = 12 * HARDWARE_NODES_MAX * HARDWARE_NODES_MAX };

// Curves, and what is known of NUMA nodes, as a file has them.
struct curve_texts {
    const char *layer, *head, *rest, *nodes, *node_rates;
};

static void settings(struct hardware *h, struct curve_texts *curves, struct option table[SETTINGS])
{
    const struct option all[SETTINGS] = {
        {"name", OPTION_STRING, &h->name, "TEXT", "", 0, 0},
        {"memory", OPTION_SIZE, &h->memory_bytes, "SIZE", "", 0, 0},
        {"memory_gb_per_second", OPTION_F64, &h->memory_gb_per_second, "N", "", 0, 1e6},
        {"f16_tflops", OPTION_F64, &h->f16_tflops, "N", "", 0, 1e6},
        {"f32_tflops", OPTION_F64, &h->f32_tflops, "N", "", 0, 1e6},
        {"int8_tops", OPTION_F64, &h->int8_tops, "N", "", 0, 1e6},
        {"prompt_attention_tflops", OPTION_F64, &h->prompt_attention_tflops, "N", "", 0, 1e6},
        {"weights_share", OPTION_F64, &h->weights_share, "N", "", HARDWARE_SHARE_LEAST, 2},
        {"products_share", OPTION_F64, &h->products_share, "N", "", HARDWARE_SHARE_LEAST, 2},
        {"attention_share", OPTION_F64, &h->attention_share, "N", "", HARDWARE_SHARE_LEAST, 2},
        {"layer_us", OPTION_F64, &h->layer_us, "N", "", 0, 1e6},
        {"step_us", OPTION_F64, &h->step_us, "N", "", 0, 1e7},
        {"link_gb_per_second", OPTION_F64, &h->link_gb_per_second, "N", "", 0, 1e6},
        {"link_round_trip_us", OPTION_F64, &h->link_round_trip_us, "N", "", 0, 1e7},
        {"link_exchange_us", OPTION_F64, &h->link_exchange_us, "N", "", 0, 1e7},
        {"price_per_hour", OPTION_F64, &h->price_per_hour, "N", "", 0, 1e6},
        {"watts", OPTION_F64, &h->watts, "N", "", 0, 1e6},
        {"compute_capability", OPTION_F64, &h->compute_capability, "N", "", 0, 100},
        {"shares_cores", OPTION_BOOL, &h->shares_cores, NULL, "", 0, 0},
        {"measured_model", OPTION_STRING, &h->model.name, "FILE", "", 0, 0},
        {"layer_us_at", OPTION_STRING, &curves->layer, "ROWS:US ...", "", 0, 0},
        {"head_us_at", OPTION_STRING, &curves->head, "ROWS:US ...", "", 0, 0},
        {"rest_us_at", OPTION_STRING, &curves->rest, "ROWS:US ...", "", 0, 0},
        {"attend_call_us", OPTION_F64, &h->model.attention.call_us, "N", "", 0, 1e7},
        {"attend_row_us", OPTION_F64, &h->model.attention.row_us, "N", "", 0, 1e7},
        {"attend_token_us", OPTION_F64, &h->model.attention.token_us, "N", "", 0, 1e7},
        {"attend_prefill_row_us", OPTION_F64, &h->model.attention.prefill_row_us, "N", "", 0, 1e7},
        {"attend_pair_us", OPTION_F64, &h->model.attention.pair_us, "N", "", 0, 1e7},
        {"copy_in_gb_per_second", OPTION_F64, &h->offload.copy_in_gb_per_second, "N", "", 0, 1e6},
        {"copy_out_gb_per_second", OPTION_F64, &h->offload.copy_out_gb_per_second, "N", "", 0, 1e6},
        {"copy_out_kv_gb_per_second", OPTION_F64, &h->offload.copy_out_kv_gb_per_second, "N", "", 0, 1e6},
        {"disk_read_gb_per_second", OPTION_F64, &h->offload.disk_read_gb_per_second, "N", "", 0, 1e6},
        {"disk_write_gb_per_second", OPTION_F64, &h->offload.disk_write_gb_per_second, "N", "", 0, 1e6},
        {"disk_write_kv_gb_per_second", OPTION_F64, &h->offload.disk_write_kv_gb_per_second, "N", "", 0, 1e6},
        {"decode_tflops", OPTION_F64, &h->offload.decode_tflops, "N", "", 0, 1e6},
        {"host_attention_gb_per_second", OPTION_F64, &h->offload.host_attention_gb_per_second, "N", "", 0, 1e6},
        {"host_attention_loss", OPTION_F64, &h->offload.host_attention_loss, "N", "", 0, 0.15},
        {"usable_share", OPTION_F64, &h->offload.usable_share, "N", "", 0.1, 1},
        {"copies_wait", OPTION_BOOL, &h->offload.copies_wait, NULL, "", 0, 0},
        {"numa_nodes", OPTION_STRING, &curves->nodes, "NODE NODE ...", "", 0, 0},
        {"numa_gb_per_second", OPTION_STRING, &curves->node_rates, "N N ..., N N ...", "", 0, 0},
    };
    memcpy(table, all, sizeof all);
}

// Parses "1:66.5 8:132": rows and microseconds.
static enum status read_curve(const char *text, const char *name, const char *path, struct cost_curve *out, struct error *error)
{
    for (const char *at = text; at && *at;) {
        char *end, *after;
        double rows = strtod(at, &end), us = *end == ':' ? strtod(end + 1, &after) : 0;
        if (*end != ':' || after == end + 1 || (*after && *after != ' ') || !(rows >= 1 && rows < 1e6) || !(us >= 0 && us < 1e9) ||
            out->count == COST_POINTS_MAX)
            return error_set(error, STATUS_INVALID_ARGUMENT, "%s: %s: '%s', want at most %d of ROWS:MICROSECONDS", path, name, at,
                             COST_POINTS_MAX);
        cost_curve_add(out, rows, us);
        at = after + strspn(after, " ");
    }
    return STATUS_OK;
}

static void write_curve(const struct cost_curve *curve, char out[CURVE_BYTES], const char **text)
{
    int at = 0;
    for (uint32_t i = 0; i < curve->count; i++)
        at += snprintf(out + at, CURVE_BYTES - (size_t)at, "%s%.6g:%.5g", i ? " " : "", curve->rows[i], curve->us[i]);
    *text = curve->count ? out : NULL;
}

// Parses "0 1" and "150 61, 60 149": nodes, and a row of rates for each.
static enum status read_nodes(const struct curve_texts *texts, const char *path, struct hardware_nodes *out, struct error *error)
{
    struct hardware_nodes nodes = {0};
    const char *at = texts->nodes ? texts->nodes : "";
    char *end;

    if (!texts->nodes && !texts->node_rates)
        return STATUS_OK;
    for (; *at && nodes.count < HARDWARE_NODES_MAX; at = end + strspn(end, " ")) {
        unsigned long id = strtoul(at, &end, 10);
        if (*at < '0' || *at > '9' || (*end && *end != ' ') || id > UINT32_MAX)
            break;
        nodes.id[nodes.count++] = (uint32_t)id;
    }
    if (*at || nodes.count < 2)
        return error_set(error, STATUS_INVALID_ARGUMENT, "%s: numa_nodes: '%s', want 2 to %d numbers of nodes", path,
                         texts->nodes ? texts->nodes : "", HARDWARE_NODES_MAX);
    at = texts->node_rates ? texts->node_rates : "";
    for (uint32_t i = 0; i < nodes.count * nodes.count; i++) {
        double rate = strtod(at, &end);
        const bool ends_row = i % nodes.count == nodes.count - 1, ends = i == nodes.count * nodes.count - 1;
        if (end == at || !(rate > 0 && rate < 1e6) || *end != (ends ? '\0' : ends_row ? ',' : ' '))
            return error_set(error, STATUS_INVALID_ARGUMENT,
                             "%s: numa_gb_per_second: want %u rows of %u rates, such as 150 61, 60 149", path, nodes.count,
                             nodes.count);
        nodes.gb_per_second[i / nodes.count][i % nodes.count] = rate;
        at = end + (*end == ',');
    }
    *out = nodes;
    return STATUS_OK;
}

static void write_nodes(const struct hardware_nodes *nodes, char out[2][NODES_BYTES], struct curve_texts *texts)
{
    int at = 0, rate_at = 0;

    for (uint32_t i = 0; i < nodes->count; i++) {
        at += snprintf(out[0] + at, NODES_BYTES - (size_t)at, "%s%u", i ? " " : "", nodes->id[i]);
        for (uint32_t j = 0; j < nodes->count; j++)
            rate_at += snprintf(out[1] + rate_at, NODES_BYTES - (size_t)rate_at, "%s%.4g",
                                j   ? " "
                                : i ? ", "
                                    : "",
                                nodes->gb_per_second[i][j]);
    }
    texts->nodes = nodes->count ? out[0] : NULL;
    texts->node_rates = nodes->count ? out[1] : NULL;
}

uint32_t hardware_take_node(struct hardware *h)
{
    double slowest = h->nodes.gb_per_second[0][0];
    const uint32_t count = h->nodes.count;

    if (count < 2 || h->shares_cores)
        return 1;
    for (uint32_t i = 1; i < count; i++)
        slowest = MIN(slowest, h->nodes.gb_per_second[i][i]);
    const double longer = h->memory_gb_per_second / slowest;
    h->model.attention.token_us *= longer;
    h->model.attention.pair_us *= count; // work of cores
    h->model.attention.prefill_row_us *= count;
    h->model.attention.row_us *= count;
    h->memory_gb_per_second = slowest;
    h->memory_bytes /= count;
    h->f16_tflops /= count;
    h->f32_tflops /= count;
    h->int8_tops /= count;
    h->prompt_attention_tflops /= count;
    h->price_per_hour /= count;
    h->watts /= count;
    h->nodes.count = 0;
    return count;
}

enum { FOLDERS_MAX = 3 };

// Lists the folders to look in: the one that was given, or those of HARDWARE_FOLDERS. Returns how many.
static uint32_t list_folders(const struct shipped_files *files, char folders[FOLDERS_MAX][SHIPPED_PATH_BYTES])
{
    char program[SHIPPED_PATH_BYTES - 64];
    ssize_t length;
    uint32_t count = 0;

    if (files->folder) {
        snprintf(folders[0], SHIPPED_PATH_BYTES, "%s", files->folder);
        return 1;
    }
    length = readlink("/proc/self/exe", program, sizeof program - 1);
    if (length > 0) {
        program[length] = '\0';
        *strrchr(program, '/') = '\0';
        snprintf(folders[count++], SHIPPED_PATH_BYTES, "%s/../../deploy/%s", program, files->kind);
        snprintf(folders[count++], SHIPPED_PATH_BYTES, "%s/../share/fastdecode/%s", program, files->kind);
    }
    snprintf(folders[count++], SHIPPED_PATH_BYTES, "deploy/%s", files->kind);
    return count;
}

static bool has_suffix(const char *name, const char *suffix)
{
    size_t length = strlen(name), end = strlen(suffix);
    return length > end && !strcmp(name + length - end, suffix);
}

// Lists the names of what the option is for, in the first folder that has some, "a10, h200"; "none" if there is none.
static void list_names(const struct shipped_files *files, char folders[FOLDERS_MAX][SHIPPED_PATH_BYTES], uint32_t count, char *out,
                       size_t out_bytes)
{
    struct dirent **entries;
    size_t at = 0;

    snprintf(out, out_bytes, "none");
    for (uint32_t i = 0; i < count && at == 0; i++) {
        int entry_count = scandir(folders[i], &entries, NULL, alphasort);
        for (int j = 0; j < entry_count; j++) {
            const char *name = entries[j]->d_name;
            if (has_suffix(name, files->suffix) && at < out_bytes &&
                (!files->suits || files->suits(files->option_name, folders[i], name)))
                at += (size_t)snprintf(out + at, out_bytes - at, "%s%.*s", at ? ", " : "",
                                       (int)(strlen(name) - strlen(files->suffix)), name);
            free(entries[j]);
        }
        if (entry_count >= 0)
            free(entries);
    }
}

enum status shipped_find(const struct shipped_files *files, const char *name, char path[SHIPPED_PATH_BYTES], struct error *error)
{
    char folders[FOLDERS_MAX][SHIPPED_PATH_BYTES], names[400];
    uint32_t count;

    if (strchr(name, '/') || has_suffix(name, files->suffix)) {
        snprintf(path, SHIPPED_PATH_BYTES, "%s", name);
        return STATUS_OK;
    }
    count = list_folders(files, folders);
    for (uint32_t i = 0; i < count; i++)
        if ((size_t)snprintf(path, SHIPPED_PATH_BYTES, "%s/%s%s", folders[i], name, files->suffix) < SHIPPED_PATH_BYTES &&
            !access(path, R_OK))
            return STATUS_OK;
    list_names(files, folders, count, names, sizeof names);
    return error_set(error, STATUS_NOT_FOUND, "--%s %s: no such description; there are: %s. Or name a file with its path",
                     files->option_name, name, names);
}

// Whether a file is one of those that an option is for: --gpu for GPUs and hosts, --worker for hosts, --link for links.
static bool suits(const char *option_name, const char *folder, const char *file_name)
{
    char path[SHIPPED_PATH_BYTES];
    struct hardware h;

    if ((size_t)snprintf(path, sizeof path, "%s/%s", folder, file_name) >= sizeof path ||
        hardware_read(path, NULL, option_name, &h, NULL))
        return false;
    if (!strcmp(option_name, "link"))
        return h.link_gb_per_second != 0 && h.memory_bytes == 0;
    return h.memory_bytes != 0 && (!strcmp(option_name, "gpu") || !hardware_is_gpu(&h));
}

enum status hardware_read(const char *name, const char *folder, const char *option_name, struct hardware *out, struct error *error)
{
    struct hardware hardware = {.weights_share = 1, .products_share = 1, .attention_share = 1, .offload.usable_share = 0.8};
    struct curve_texts curves = {0};
    struct option table[SETTINGS];
    const struct shipped_files files = {
        .kind = "hardware", .suffix = ".conf", .option_name = option_name, .folder = folder, .suits = suits};
    char path[SHIPPED_PATH_BYTES];
    enum status status = shipped_find(&files, name, path, error);

    settings(&hardware, &curves, table);
    if (!status)
        status = options_read_file(table, SETTINGS, option_name, path, true, error);
    if (status || (status = read_curve(curves.layer, "layer_us_at", path, &hardware.model.layer, error)) ||
        (status = read_curve(curves.head, "head_us_at", path, &hardware.model.head, error)) ||
        (status = read_curve(curves.rest, "rest_us_at", path, &hardware.model.rest, error)) ||
        (status = read_nodes(&curves, path, &hardware.nodes, error)))
        return status;
    if (hardware.model.name && (!hardware.model.layer.count || !hardware.model.head.count))
        return error_set(error, STATUS_INVALID_ARGUMENT, "%s: measured_model without layer_us_at and head_us_at", path);
    if (!hardware.name)
        return error_set(error, STATUS_INVALID_ARGUMENT, "%s: no `name`", path);
    *out = hardware;
    return STATUS_OK;
}

static enum status missing(const struct hardware *hardware, const char *name, const char *role, const char *what,
                           struct error *error)
{
    return error_set(error, STATUS_INVALID_ARGUMENT, "%s (%s) cannot be %s: it says no %s", name, hardware->name, role, what);
}

enum status hardware_check_s_part(const struct hardware *hardware, const char *name, struct error *error)
{
    const char *what = hardware->memory_bytes == 0                              ? "memory"
                       : hardware->memory_gb_per_second == 0                    ? "memory_gb_per_second"
                       : hardware->f16_tflops == 0 && hardware->f32_tflops == 0 ? "f16_tflops or f32_tflops"
                                                                                : NULL;
    return what ? missing(hardware, name, "an S-part", what, error) : STATUS_OK;
}

enum status hardware_check_worker(const struct hardware *hardware, const char *name, struct error *error)
{
    const char *what = hardware->memory_bytes == 0           ? "memory"
                       : hardware->memory_gb_per_second == 0 ? "memory_gb_per_second"
                       : hardware->f32_tflops == 0 && hardware->f16_tflops == 0 && hardware->prompt_attention_tflops == 0
                           ? "f32_tflops"
                           : NULL;
    return what ? missing(hardware, name, "a worker", what, error) : STATUS_OK;
}

enum status hardware_check_link(const struct hardware *hardware, const char *name, struct error *error)
{
    return hardware->link_gb_per_second == 0 ? missing(hardware, name, "a link", "link_gb_per_second", error) : STATUS_OK;
}

double hardware_share(double part, double whole) { return whole > 0 ? MIN(MAX(part / whole, HARDWARE_SHARE_LEAST), 1) : 1; }

void hardware_write(FILE *file, const struct hardware *hardware, const char *comment)
{
    struct hardware copy = *hardware;
    struct curve_texts curves = {0};
    struct option table[SETTINGS];
    char text[3][CURVE_BYTES], nodes[2][NODES_BYTES];

    while (comment && *comment) {
        size_t length = strcspn(comment, "\n");
        fprintf(file, "# %.*s\n", (int)length, comment);
        comment += length + (comment[length] == '\n');
    }
    write_curve(&copy.model.layer, text[0], &curves.layer);
    write_curve(&copy.model.head, text[1], &curves.head);
    write_curve(&copy.model.rest, text[2], &curves.rest);
    write_nodes(&copy.nodes, nodes, &curves);
    settings(&copy, &curves, table);
    for (uint32_t i = 0; i < SETTINGS; i++) {
        const struct option *option = &table[i];
        if (option->kind == OPTION_STRING && *(const char **)option->target)
            fprintf(file, "%s = %s\n", option->name, *(const char **)option->target);
        else if (option->kind == OPTION_STRING)
            continue;
        else if (option->kind == OPTION_SIZE)
            fprintf(file, "%s = %lluM\n", option->name, (unsigned long long)*(uint64_t *)option->target >> 20);
        else if (option->kind == OPTION_BOOL && *(bool *)option->target)
            fprintf(file, "%s = on\n", option->name);
        else if (option->kind == OPTION_F64 && *(double *)option->target != 0)
            fprintf(file, "%s = %.4g\n", option->name, *(double *)option->target);
    }
}
