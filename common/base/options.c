// options.c: reads options of the command line, the environment and files. Files are lines of `name = value`; `#` starts a comment.
#include "common/base/options.h"

#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/checked.h"
#include "common/base/log.h"

enum { FILE_LINE_BYTES = 4096, COMMON_COUNT = 6, OPTIONS_MOST = 160 };

enum status options_parse_size(const char *text, uint64_t *out)
{
    char *end;
    double value;
    uint64_t unit = 1;

    errno = 0;
    value = strtod(text, &end);
    if (end == text || errno || !isfinite(value) || value < 0)
        return STATUS_INVALID_ARGUMENT;
    switch (toupper((unsigned char)*end)) {
    case 'K':
        unit = 1ull << 10;
        end++;
        break;
    case 'M':
        unit = 1ull << 20;
        end++;
        break;
    case 'G':
        unit = 1ull << 30;
        end++;
        break;
    case 'T':
        unit = 1ull << 40;
        end++;
        break;
    default: break;
    }
    if (unit > 1 && *end == 'i')
        end++;
    if (*end == 'B' || *end == 'b')
        end++;
    if (*end || value * (double)unit > 9e18)
        return STATUS_INVALID_ARGUMENT;
    *out = (uint64_t)(value * (double)unit);
    return STATUS_OK;
}

// source: where the value is from, up to the option's name: "flag: --", "FD_PORT: --", "here.conf:3: ".
static enum status bad_value(const struct option *option, const char *value, const char *source, const char *wanted,
                             struct error *error)
{
    char quoted[128];
    return error_set(error, STATUS_INVALID_ARGUMENT, "%s%s is %s, want %s", source, option->name,
                     log_quote(quoted, sizeof quoted, value), wanted);
}

static enum status check_range(const struct option *option, double value, const char *text, const char *source, struct error *error)
{
    char wanted[96];
    if ((option->min == 0 && option->max == 0) || (value >= option->min && value <= option->max))
        return STATUS_OK;
    snprintf(wanted, sizeof wanted, "a number from %.15g to %.15g", option->min, option->max);
    return bad_value(option, text, source, wanted, error);
}

// True for a value name such as "TOKENS|auto".
static bool takes_auto(const struct option *option)
{
    const char *bar = option->value_name ? strchr(option->value_name, '|') : NULL;
    return bar && !strcmp(bar, "|auto");
}

static enum status set_number(const struct option *option, const char *value, const char *source, struct error *error)
{
    char *end;
    double number = 0;

    if (!takes_auto(option) || strcmp(value, "auto") != 0) {
        errno = 0;
        number = strtod(value, &end);
        if (end == value || *end || errno || !isfinite(number))
            return bad_value(option, value, source, takes_auto(option) ? "a number or auto" : "a number", error);
    }
    if (option->kind == OPTION_U32 && (number < 0 || number > UINT32_MAX || number != floor(number)))
        return bad_value(option, value, source, "a whole number", error);
    if (check_range(option, number, value, source, error))
        return STATUS_INVALID_ARGUMENT;
    if (option->kind == OPTION_U32)
        *(uint32_t *)option->target = (uint32_t)number;
    else
        *(double *)option->target = number;
    return STATUS_OK;
}

// Returns a copy that lives as long as the process; NULL without memory.
static const char *keep_text(const char *text)
{
    static struct kept {
        struct kept *next;
        char text[];
    } * all;
    size_t size = strlen(text) + 1;
    struct kept *kept = malloc(sizeof *kept + size);

    if (!kept)
        return NULL;
    memcpy(kept->text, text, size);
    kept->next = all;
    all = kept;
    return kept->text;
}

static bool is_word_of(const char *words, const char *word)
{
    size_t length = strlen(word);

    for (; *words; words += strcspn(words, "|"), words += *words == '|')
        if (strcspn(words, "|") == length && !memcmp(words, word, length))
            return true;
    return false;
}

bool options_is_word(const struct option *option, const char *value)
{
    const char *bar = option->value_name ? strchr(option->value_name, '|') : NULL;
    return bar && is_word_of(bar + 1, value);
}

// "auto|local|workers" becomes "auto, local or workers".
static void list_words(const char *words, char *out, size_t out_bytes)
{
    size_t at = 0;

    out[0] = '\0';
    while (*words && at + 1 < out_bytes) {
        size_t length = strcspn(words, "|");
        const char *between = at == 0 ? "" : strchr(words, '|') ? ", " : " or ";
        at += (size_t)snprintf(out + at, out_bytes - at, "%s%.*s", between, (int)length, words);
        words += length + (words[length] == '|');
    }
}

static enum status set_value(const struct option *option, const char *value, const char *source, struct error *error)
{
    char wanted[128], *end;

    switch (option->kind) {
    case OPTION_CHOICE:
        if (!is_word_of(option->value_name, value)) {
            list_words(option->value_name, wanted, sizeof wanted);
            return bad_value(option, value, source, wanted, error);
        }
        // fall through
    case OPTION_STRING:
    case OPTION_READ_PATH:
    case OPTION_WRITTEN_PATH:
        *(const char **)option->target = keep_text(value);
        return *(const char **)option->target ? STATUS_OK
                                              : error_set(error, STATUS_RESOURCE_EXHAUSTED, "no memory for --%s", option->name);
    case OPTION_U64:
        errno = 0;
        *(uint64_t *)option->target = strtoull(value, &end, 10);
        if (!isdigit((unsigned char)*value) || *end || errno)
            return bad_value(option, value, source, "a whole number", error);
        return check_range(option, (double)*(uint64_t *)option->target, value, source, error);
    case OPTION_SIZE:
        if (options_parse_size(value, option->target))
            return bad_value(option, value, source, "bytes such as 512M or 2G", error);
        return check_range(option, (double)*(uint64_t *)option->target, value, source, error);
    case OPTION_BOOL:
        if (is_word_of("on|true|1", value))
            *(bool *)option->target = true;
        else if (is_word_of("off|false|0", value))
            *(bool *)option->target = false;
        else
            return bad_value(option, value, source, "on or off", error);
        return STATUS_OK;
    case OPTION_U32:
    case OPTION_F64: return set_number(option, value, source, error);
    }
    return STATUS_INTERNAL;
}

static const struct option *find(const struct option *options, uint32_t count, const char *name, size_t length)
{
    for (uint32_t i = 0; i < count; i++)
        if (strlen(options[i].name) == length && !memcmp(options[i].name, name, length))
            return &options[i];
    return NULL;
}

static void print_option(const struct option *option)
{
    char left[64], value[64] = "";
    const char *value_name = option->kind == OPTION_BOOL ? "on|off" : option->value_name;

    snprintf(left, sizeof left, "--%s %s", option->name, value_name);
    switch (option->kind) {
    case OPTION_CHOICE:
    case OPTION_STRING:
    case OPTION_READ_PATH:
    case OPTION_WRITTEN_PATH:
        if (*(const char **)option->target)
            snprintf(value, sizeof value, " [%s]", *(const char **)option->target);
        break;
    case OPTION_U32: snprintf(value, sizeof value, " [%u]", *(uint32_t *)option->target); break;
    case OPTION_U64:
    case OPTION_SIZE: snprintf(value, sizeof value, " [%llu]", (unsigned long long)*(uint64_t *)option->target); break;
    case OPTION_F64: snprintf(value, sizeof value, " [%g]", *(double *)option->target); break;
    case OPTION_BOOL: snprintf(value, sizeof value, " [%s]", *(bool *)option->target ? "on" : "off"); break;
    }
    if (takes_auto(option) && !strcmp(value, " [0]"))
        snprintf(value, sizeof value, " [auto]");
    printf("  %-28s %s%s\n", left, option->help, value);
}

static void print_help(const struct program *program, const struct option *options, uint32_t count)
{
    printf("%s: %s\n\nusage: %s [options]%s%s\n\noptions [default]:\n", program->name, program->purpose, program->name,
           program->operand_name ? " " : "", program->operand_name ? program->operand_name : "");
    for (uint32_t i = 0; i < count; i++)
        print_option(&options[i]);
    printf("  %-28s %s\n  %-28s %s\n  %-28s %s\n", "--check", "validate the settings and exit", "--help", "print this", "--version",
           "print the version");
    printf("\nEach option is read from the flag, then FD_NAME (FD_LOG_LEVEL for --log-level), then the file of\n"
           "--config (lines of `name = value`), then the default. --NAME alone turns a switch on, --no-NAME off.\n");
}

static void env_name(const char *name, char *out, size_t out_bytes)
{
    size_t at = (size_t)snprintf(out, out_bytes, "FD_");
    for (; *name && at + 1 < out_bytes; name++)
        out[at++] = *name == '-' ? '_' : (char)toupper((unsigned char)*name);
    out[at] = '\0';
}

static enum status read_env(const struct option *options, uint32_t count, struct error *error)
{
    for (uint32_t i = 0; i < count; i++) {
        char name[96], source[104];
        env_name(options[i].name, name, sizeof name);
        const char *value = getenv(name);
        snprintf(source, sizeof source, "%s: --", name);
        if (value && set_value(&options[i], value, source, error))
            return STATUS_INVALID_ARGUMENT;
    }
    return STATUS_OK;
}

// place: "here.conf:3: ". seen: the options of the lines before; NULL: one may come again.
static enum status read_file_line(const struct option *options, uint32_t count, char *line, const char *place, bool *seen,
                                  struct error *error)
{
    char *equals, *key, *value, *end;

    line[strcspn(line, "#\r\n")] = '\0';
    key = line + strspn(line, " \t");
    if (!*key)
        return STATUS_OK;
    equals = strchr(key, '=');
    if (!equals)
        return error_set(error, STATUS_INVALID_ARGUMENT, "%swant `name = value`", place);
    for (end = equals; end > key && isspace((unsigned char)end[-1]); end--)
        ;
    const struct option *option = find(options, count, key, (size_t)(end - key));
    if (!option)
        return error_set(error, STATUS_INVALID_ARGUMENT, "%sunknown setting '%.*s'", place, (int)(end - key), key);
    if (seen && seen[option - options])
        return error_set(error, STATUS_INVALID_ARGUMENT, "%s%s is there twice", place, option->name);
    if (seen)
        seen[option - options] = true;
    value = equals + 1 + strspn(equals + 1, " \t");
    for (end = value + strlen(value); end > value && isspace((unsigned char)end[-1]); end--)
        ;
    *end = '\0';
    return set_value(option, value, place, error);
}

enum status options_read_file(const struct option *options, uint32_t count, const char *option_name, const char *path, bool once,
                              struct error *error)
{
    char line[FILE_LINE_BYTES], place[512];
    bool seen[OPTIONS_MOST] = {0};
    enum status status = STATUS_OK;
    FILE *file = fopen(path, "r");

    if (!file)
        return error_set(error, STATUS_NOT_FOUND, "--%s %s: %s", option_name, path, strerror(errno));
    for (int number = 1; !status && fgets(line, sizeof line, file); number++) {
        snprintf(place, sizeof place, "%s:%d: ", path, number);
        status = read_file_line(options, count, line, place, once ? seen : NULL, error);
    }
    if (!status && ferror(file)) // a folder, for example
        status = error_set(error, STATUS_INVALID_ARGUMENT, "--%s %s: %s", option_name, path, strerror(errno));
    fclose(file);
    return status;
}

uint32_t options_append(struct option *table, uint32_t count, uint32_t most, const struct option *more, uint32_t more_count)
{
    assert_always(count <= most && more_count <= most - count);
    if (more_count)
        memcpy(table + count, more, more_count * sizeof *more);
    return count + more_count;
}

void options_forget_environment(const struct program *program)
{
    char name[96];

    for (uint32_t i = 0; i < program->option_count; i++) {
        env_name(program->options[i].name, name, sizeof name);
        unsetenv(name);
    }
    static const char *const shared[] = {"FD_CONFIG",   "FD_LOG_LEVEL",    "FD_LOG_JSON",
                                         "FD_LOG_FILE", "FD_LOG_MAX_SIZE", "FD_LOG_KEEP"};
    for (size_t i = 0; i < ARRAY_COUNT(shared); i++)
        unsetenv(shared[i]);
}

// Reads argv[*at], and its value if that is the next one.
static enum status read_flag(struct program *program, const struct option *options, uint32_t count, int argc, char **argv, int *at,
                             bool apply, struct error *error)
{
    const char *arg = argv[*at];
    if (strncmp(arg, "--", 2) || !arg[2]) {
        if (!program->operand_name)
            return error_set(error, STATUS_INVALID_ARGUMENT, "unexpected argument '%s' (see --help)", arg);
        if (apply)
            argv[1 + program->operand_count++] = argv[*at]; // of those before, none is read again
        return STATUS_OK;
    }
    const char *name = arg + 2;
    size_t length = strcspn(name, "=");
    const char *value = name[length] ? name + length + 1 : NULL;
    if (!strcmp(name, "help")) {
        print_help(program, options, count);
        exit(0);
    }
    if (!strcmp(name, "version")) {
        printf("%s %s\n", program->name, FASTDECODE_VERSION);
        exit(0);
    }
    if (!strcmp(name, "check")) {
        program->check_only = true;
        return STATUS_OK;
    }
    const struct option *option = find(options, count, name, length);
    bool negated = !option && !strncmp(name, "no-", 3);
    if (negated)
        option = find(options, count, name + 3, length - 3);
    if (!option || (negated && (option->kind != OPTION_BOOL || value)))
        return error_set(error, STATUS_INVALID_ARGUMENT, "unknown option '--%.*s' (see --help)", (int)length, name);
    if (option->kind == OPTION_BOOL && !value && !negated && *at + 1 < argc && is_word_of("on|off|true|false", argv[*at + 1]))
        value = argv[++*at];
    else if (option->kind == OPTION_BOOL && !value)
        value = negated ? "off" : "on";
    else if (!value && ++*at < argc)
        value = argv[*at];
    if (!value)
        return error_set(error, STATUS_INVALID_ARGUMENT, "--%s wants a value: %s", option->name, option->value_name);
    const bool is_config = option == &options[program->option_count]; // the first of the shared ones
    // Switches are set at once, so that an error that comes first can be told as --json wants it.
    return apply || is_config || option->kind == OPTION_BOOL ? set_value(option, value, "flag: --", error) : STATUS_OK;
}

// Scans argv to its end, and returns the first error. With apply=false it only looks for --config, --help, --version and switches.
static enum status read_flags(struct program *program, const struct option *options, uint32_t count, int argc, char **argv,
                              bool apply, struct error *error)
{
    enum status status = STATUS_OK;

    program->operand_count = 0;
    for (int i = 1; i < argc; i++) {
        const enum status one = read_flag(program, options, count, argc, argv, &i, apply, status ? NULL : error);
        status = status ? status : one;
    }
    return status;
}

enum status options_parse(struct program *program, int argc, char **argv, struct error *error)
{
    const char *config_path = NULL, *log_level = "info";
    enum log_level level;
    enum status status;

    const struct option shared[COMMON_COUNT] = {
        {"config", OPTION_STRING, &config_path, "FILE", "settings file", 0, 0},
        {"log-level", OPTION_STRING, &log_level, "LEVEL", "debug, info, warn or error", 0, 0},
        {"log-json", OPTION_BOOL, &program->log_json, NULL, "write log lines as JSON", 0, 0},
        {"log-file", OPTION_STRING, &program->log_file, "FILE", "append logs and all other output to this file; default: stderr", 0,
         0},
        {"log-max-size", OPTION_SIZE, &program->log_max_bytes, "SIZE", "with --log-file: start a new file at this size", 4096,
         1e15},
        {"log-keep", OPTION_U32, &program->log_keep, "N", "with --log-file: old files to keep (FILE.1 is the newest)", 0, 1000},
    };
    struct option all[OPTIONS_MOST];
    uint32_t count = options_append(all, 0, OPTIONS_MOST, program->options, program->option_count);
    count = options_append(all, count, OPTIONS_MOST, shared, COMMON_COUNT);
    program->operands = argv + 1;
    program->log_json = false;
    program->log_file = NULL;
    program->log_max_bytes = 16 << 20;
    program->log_keep = 3;

    if ((status = read_flags(program, all, count, argc, argv, false, error)))
        return status;
    if (!config_path)
        config_path = getenv("FD_CONFIG");
    if (config_path && (status = options_read_file(all, count, "config", config_path, false, error)))
        return status;
    if ((status = read_env(all, count, error)) || (status = read_flags(program, all, count, argc, argv, true, error)))
        return status;
    if (log_parse_level(log_level, &level))
        return error_set(error, STATUS_INVALID_ARGUMENT, "--log-level is '%s', want debug, info, warn or error", log_level);
    log_init(program->log_name ? program->log_name : program->name, level, program->log_json);
    if (program->log_file && !program->check_only)
        return log_to_file(program->log_file, program->log_max_bytes, program->log_keep, error);
    return STATUS_OK;
}
