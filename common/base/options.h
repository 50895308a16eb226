// options.h: a program's settings. A flag takes precedence over the FD_* environment, that over a file (--config), and that over
// the default.
//
// A program declares a table; options_parse() fills the targets. `--kv-type` is FD_KV_TYPE and `kv-type = f16` in a file.
// Every program also has --help, --version, --check, --config FILE, --log-level, --log-json, --log-file, --log-max-size, --log-keep.
#ifndef FD_BASE_OPTIONS_H
#define FD_BASE_OPTIONS_H

#include <stdbool.h>
#include <stdint.h>

#include "common/base/status.h"

enum option_kind {
    OPTION_STRING,       // const char ** : the text lives as long as the process
    OPTION_U32,          // uint32_t *
    OPTION_U64,          // uint64_t *
    OPTION_SIZE,         // uint64_t * : bytes; accepts K, M, G (powers of 1024)
    OPTION_F64,          // double *
    OPTION_BOOL,         // bool * : --name, --no-name, --name on, --name=off
    OPTION_CHOICE,       // const char ** : one of the words in value_name, "sls|greedy"
    OPTION_READ_PATH,    // const char ** : a file or folder that is read, in which case whatever lies beside it may be, too
    OPTION_WRITTEN_PATH, // const char ** : one that is read and written
};

struct option {
    const char *name; // without dashes
    enum option_kind kind;
    void *target;           // holds the default before the call
    const char *value_name; // in help: "FILE", "N"; "N|auto": the word auto sets 0; NULL for a switch
    const char *help;
    double min, max; // inclusive limits of numbers; both 0: none
};

struct program {
    const char *name;     // as the user types it: "s-part", "fastdecode-s-part"
    const char *log_name; // the service of log lines: "s-part"; NULL: name
    const char *purpose;  // one line
    const struct option *options;
    uint32_t option_count;
    const char *operand_name; // NULL: no operands are taken
    // results
    bool check_only;      // --check: validate and exit
    bool log_json;        // set when logs are JSON lines
    const char *log_file; // NULL: stderr
    uint64_t log_max_bytes;
    uint32_t log_keep;
    char **operands; // points to argv + 1, where the operands have been moved
    uint32_t operand_count;
};

#define FASTDECODE_VERSION "0.1.0"

// Parses the settings and sets up logging. --help and --version print and exit(0). If a setting is bad, *error has one line that
// names it, its source and the accepted values. argv[0] is skipped.
enum status options_parse(struct program *program, int argc, char **argv, struct error *error) MUST_CHECK;

// Appends options to a table that is made of several, where `count` of at most `most` are. Returns how many there are then.
uint32_t options_append(struct option *table, uint32_t count, uint32_t most, const struct option *more, uint32_t more_count);

// Unsets the FD_ variables of the program's settings, so that programs it starts do not read them as their own.
void options_forget_environment(const struct program *program);

// Reads a file of `name = value` lines and `#` comments into the targets, as --config does. A setting that is not in the table is an
// error. option_name: the option that named the file, for errors. once: a setting that comes twice is an error, too; else the last one counts,
// so that lines can be appended. At most 160 options. NOT_FOUND if it cannot be opened.
enum status options_read_file(const struct option *options, uint32_t count, const char *option_name, const char *path, bool once,
                              struct error *error) MUST_CHECK;

// Returns whether the value of a path is none, but one of the words behind it in value_name: "none" of "FILE|none".
bool options_is_word(const struct option *option, const char *value);

// "512M" -> bytes.
enum status options_parse_size(const char *text, uint64_t *out) MUST_CHECK;

#endif
