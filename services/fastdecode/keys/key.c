// key.c: `fastdecode key`: makes an API key, and the line by which a gateway's --api-key-file knows it.
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

#include <sodium.h>

#include "common/api/apikey.h"
#include "common/base/checked.h"
#include "common/base/file.h"
#include "common/base/options.h"
#include "services/fastdecode/keys/commands.h"

enum { LINE_BYTES = 640 }; // more than any line has: a name, a hash, three numbers, a class and a list of models

struct key_settings {
    const char *add, *class, *models;
    uint32_t requests, tokens, open;
};

static void add_number(char *line, const char *name, uint32_t value)
{
    size_t at = strlen(line);
    if (value)
        snprintf(line + at, LINE_BYTES - at, " %s=%u", name, value);
}

static void add_word(char *line, const char *name, const char *value)
{
    size_t at = strlen(line);
    snprintf(line + at, LINE_BYTES - at, " %s=%s", name, value);
}

static void make_line(const struct key_settings *s, const char *name, const char *key, char line[LINE_BYTES])
{
    char hash[APIKEY_HASH_TEXT_BYTES];

    apikey_hash_text(key, hash);
    snprintf(line, LINE_BYTES, "%s %s", name, hash);
    add_number(line, "requests", s->requests);
    add_number(line, "tokens", s->tokens);
    add_number(line, "open", s->open);
    if (strcmp(s->class, "interactive"))
        add_word(line, "class", s->class);
    if (*s->models)
        add_word(line, "models", s->models);
}

// Whether a gateway will take the file with this line behind it.
static enum status check_file(int fd, const char *path, const char *line, struct error *error)
{
    struct apikey_file known = {0};
    char text[LINE_BYTES];
    enum status status = file_check_secret(path, error);
    FILE *file = status ? NULL : fdopen(dup(fd), "r");

    if (!status && !file)
        status = error_set(error, STATUS_RESOURCE_EXHAUSTED, "%s: %s", path, strerror(errno));
    if (!status)
        status = apikey_file_read(file, path, &known, error);
    snprintf(text, sizeof text, "%s", line);
    if (!status)
        status = apikey_file_add(&known, path, text, error);
    apikey_file_close(&known);
    if (file)
        fclose(file);
    return status;
}

// Appends the line in one write, so that a gateway that reads the file meanwhile sees all of it or none.
static int append(const char *path, const char *line)
{
    char text[LINE_BYTES + 2];
    int fd = open(path, O_RDWR | O_APPEND | O_CREAT | O_CLOEXEC, 0600), length, failed;
    struct error error = {.status = STATUS_OK};
    char last = '\n';
    off_t bytes;

    if (fd < 0 || flock(fd, LOCK_EX)) {
        error.status = status_of_path(errno);
        fprintf(stderr, "fastdecode key: %s: %s\n", path, strerror(errno));
        if (fd >= 0)
            close(fd);
        return error_exit_code(&error);
    }
    if (check_file(fd, path, line, &error)) {
        fprintf(stderr, "fastdecode key: nothing was added: %s\n", error.text);
        close(fd);
        return error.status == STATUS_RESOURCE_EXHAUSTED ? EXIT_CODE_ENVIRONMENT : EXIT_CODE_SETTINGS;
    }
    bytes = lseek(fd, 0, SEEK_END);
    if (bytes > 0)
        (void)!pread(fd, &last, 1, bytes - 1);
    length = snprintf(text, sizeof text, "%s%s\n", last == '\n' ? "" : "\n", line);
    failed = write(fd, text, (size_t)length) != length;
    if (failed)
        fprintf(stderr, "fastdecode key: %s: %s\n", path, strerror(errno));
    close(fd);
    return failed ? EXIT_CODE_ENVIRONMENT : EXIT_CODE_OK;
}

int key_main(int argc, char **argv)
{
    struct key_settings s = {.add = "", .class = "interactive", .models = ""};
    const struct option options[] = {
        {"add", OPTION_STRING, &s.add, "FILE", "append the line to this file, which a running gateway reads again by itself", 0, 0},
        {"requests", OPTION_U32, &s.requests, "N", "requests in any 60 seconds; 0: no limit", 0, UINT32_MAX},
        {"tokens", OPTION_U32, &s.tokens, "N", "tokens of prompts and answers in any 60 seconds; 0: no limit", 0, UINT32_MAX},
        {"open", OPTION_U32, &s.open, "N", "requests at a time; 0: no limit", 0, UINT32_MAX},
        {"class", OPTION_CHOICE, &s.class, "interactive|batch",
         "batch: served after all interactive requests, like service_tier \"flex\"", 0, 0},
        {"models", OPTION_STRING, &s.models, "NAME,NAME", "models that the key may use; default: all", 0, 0},
    };
    struct program program = {.name = "fastdecode key",
                              .purpose = "makes an API key, which is shown once, and the line for --api-key-file",
                              .options = options,
                              .option_count = ARRAY_COUNT(options),
                              .operand_name = "NAME"};
    char key[APIKEY_TEXT_BYTES], line[LINE_BYTES];
    struct error error;

    if (options_parse(&program, argc, argv, &error)) {
        fprintf(stderr, "fastdecode key: %s\n", error.text);
        return error_exit_code(&error);
    }
    if (program.operand_count != 1 || !apikey_is_name(program.operands[0])) {
        fprintf(stderr, "fastdecode key: want one NAME of the key's owner: letters, digits and ._-@, at most 63\n");
        return EXIT_CODE_SETTINGS;
    }
    if (strpbrk(s.models, " \t\r\n") || strlen(s.models) >= APIKEY_MODELS_BYTES) {
        fprintf(stderr, "fastdecode key: --models is a list of names with commas between them, at most 255 bytes\n");
        return EXIT_CODE_SETTINGS;
    }
    if (program.check_only)
        return 0;
    if (sodium_init() < 0) {
        fprintf(stderr, "fastdecode key: libsodium finds no source of random bytes\n");
        return EXIT_CODE_ENVIRONMENT;
    }
    apikey_make(key);
    make_line(&s, program.operands[0], key, line);
    int code = *s.add ? append(s.add, line) : 0;
    if (code == 0)
        printf("%s\n", key);
    if (code == 0 && !*s.add)
        fprintf(stderr, "for --api-key-file:\n%s\n", line);
    sodium_memzero(key, sizeof key);
    return code;
}
