// schema.h: turns JSON bodies into requests: types, ranges, defaults. No other file knows the API's field names.
//
// Every field of an endpoint is a row of a table. A row says how the field is read, or which neutral value it may have: any other
// value is refused because it would change the answer. Unknown fields are ignored, as other
// compatible servers do, and their names are kept for whoever asks: a misspelt one changes nothing, and that is to be seen.
//
// Pure: no thread, no clock, no I/O. Safe from any thread.
#ifndef FD_GATEWAY_API_SCHEMA_SCHEMA_H
#define FD_GATEWAY_API_SCHEMA_SCHEMA_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "generate.pb-c.h"
#include "services/gateway/api/schema/stop_match.h"
#include "services/gateway/http/api_error.h"

struct json_t; // jansson's

enum api_kind {
    API_COMPLETION = 1,
    API_CHAT = 2,
    API_TOKENIZE = 4,
    API_DETOKENIZE = 8,
    API_EMBED = 256,
    API_RERANK = 512,
};
enum { API_POOLS = API_EMBED | API_RERANK, API_MESH = API_COMPLETION | API_CHAT | API_POOLS }; // API_MESH: what the mesh computes

enum {
    API_MAX_PROMPTS = 2048, // or inputs, or documents
    API_MAX_CHOICES = 128,  // the most prompts x n of one request that generates
    API_MAX_MESSAGES = 4096,
    API_MAX_TOOLS = 128,
    API_MAX_CALLS = 128, // of one message
    API_MAX_FUNCTION_NAME = 64,
    API_MAX_CALL_ID_BYTES = 256,
    API_MAX_VARIABLES = 64, // of a chat template
    API_MAX_DOCUMENTS = 1024,
    API_MAX_STOPS = 16,
    API_MAX_STOP_BYTES = 1024,
    API_MAX_BIAS = 1024,
    API_MAX_STOP_TOKENS = 128,
    API_MAX_BAD_WORDS = 512, // of at most API_MAX_STOP_BYTES each
    API_MAX_DRY_BREAKERS = 64,
    API_MAX_SALT_BYTES = 1024, // kept as long as its request, here and in the scheduler
    API_MAX_LOGPROBS = 20,
    API_MAX_DEPTH = 64,       // the deepest nesting in a body
    API_MAX_VALUES = 1 << 20, // the most values in a body
    API_DEFAULT_COMPLETION_TOKENS = 16,
    API_IGNORED_BYTES = 92, // of the names of a body's fields that are ignored
};

// The limits that a request is checked against, and how it samples where it does not say.
struct api_model {
    uint32_t vocab;
    Fastdecode__Sampling sampling; // the numbers alone
};

// With the defaults that the API documents.
struct api_model api_model_of(uint32_t vocab);

// Sets what requests get that do not have that field: a number of the sampler, within the field's limits. NOT_FOUND: there is no such field.
// INVALID_ARGUMENT: *error names the field, the value and the limits.
enum status api_model_set(struct api_model *model, const char *name, double value, struct error *error) MUST_CHECK;
// Sets those of "temperature=0.2,top_p=0.9"; the empty text sets none. A failure may leave some of them set. INVALID_ARGUMENT: *error says why.
enum status api_model_set_all(struct api_model *model, const char *text, struct error *error) MUST_CHECK;
// Finds the next default that is not the API's own. *at: 0 at first. False: there is none.
bool api_model_next(const struct api_model *model, size_t *at, const char **name, double *value);

// A prompt as the client sent it: text, or ids (text is NULL).
struct api_prompt {
    const char *text;
    size_t bytes;
    uint32_t *ids;
    uint32_t id_count;
};

struct api_chat_message {
    const char *role;    // terminated; one of the known roles
    const char *content; // NULL: null
    size_t bytes;
    char *joined; // owned: content of several parts
};

enum api_tool_choice {
    API_TOOLS_AUTO, // the model's choice
    API_TOOLS_NONE,
    API_TOOLS_REQUIRED, // at least one call
    API_TOOLS_NAMED,    // a call of tool_name
};

struct json_t; // jansson's
struct api_ids {
    uint32_t *ids; // owned; NULL: none
    uint32_t count;
};

struct api_strings {
    struct stop_string *strings; // owned; NULL: none
    uint32_t count;
};

// Which form an answer has to have.
enum api_form_kind { API_FORM_NONE, API_FORM_OBJECT, API_FORM_SCHEMA, API_FORM_REGEX, API_FORM_CHOICE, API_FORM_GBNF };
enum api_space { API_SPACE_ONE, API_SPACE_NONE, API_SPACE_LINES }; // between the tokens of JSON

struct api_form {
    enum api_form_kind kind;
    enum api_space space;
    bool is_strict;    // OpenAI's
    bool in_any_order; // keys of small objects; in calls, too
    bool open_objects; // objects take properties that their schema does not name, unless it closes them; in calls, too
    const void *json;  // json_t: of a schema, or the list of choices. In the body, or `owned`
    void *owned;       // json_t
    const char *text;  // [bytes] of a regular expression or grammar
    size_t bytes;
    char param[64]; // the field that says so
};

struct api_bias {
    uint32_t token;
    float bias;
};

// Fields of a body that are not known and ignored: "a, b", as many as there is room for. Characters that no field has are left out.
struct api_ignored {
    char names[API_IGNORED_BYTES];
};
void api_ignored_add(struct api_ignored *ignored, const char *name);

// Fields of /v1/embeddings and /v1/rerank alone. Inputs and documents are prompts.
struct api_pool {
    bool base64, return_documents;
    bool truncates, scales; // what is too long is cut; vectors have length 1 whatever the model says. Of Ollama's form alone
    int64_t dimensions;     // 0: all
    int64_t top_n;          // 0: all
    const char *query;      // NULL: not given
    size_t query_bytes;
};

// The input of a chat template, and which calls the answer may make. NULL: not given.
struct api_chat {
    struct json_t *conversation;      // owned: the messages, with calls, results and reasoning (message.c)
    struct json_t *tools, *documents; // in root
    struct json_t *variables;         // owned: chat_template_kwargs and reasoning_effort
    struct json_t *custom_tools;      // owned: names of `tools` whose input is a text, as an object's
    enum api_tool_choice tool_choice;
    const char *tool_name; // of API_TOOLS_NAMED
    const struct json_t
        *allowed; // in root: the functions of `tools` that may be called; NULL: all. Others are taken out of `tools`
    const char *reasoning_effort; // static
    const char *chat_template;    // the name of one of the model's
    bool parallel_tool_calls, include_reasoning;
    bool add_generation_prompt, generation_prompt_asked, continue_final_message;
};

// How much is computed, and when.
struct api_limits {
    int64_t max_tokens;            // -1: not given
    int64_t max_completion_tokens; // -1: not given; max_tokens is set to it
    bool caps;                     // where max_tokens do not fit, as many as fit are taken. Of Ollama's form alone
    int64_t min_tokens;            // before an answer may end
    int64_t
        truncate_prompt_tokens; // 0: not asked for; -1: to what the model takes; else the most tokens, of which the last are kept
    int64_t n, best_of;         // choices of a prompt that are made, of which the n best are shown; best_of is at least n
    bool flex;                  // the client asks for the latency class "batch"
    bool yields;                // it takes that class by its priority
};

// Settings of the sampler beside the numbers of `sampling`.
struct api_draw {
    bool has_seed, ignore_eos;
    int64_t seed;
    struct stop_string stops[API_MAX_STOPS];
    uint32_t stop_count;
    struct api_bias *bias;
    uint32_t bias_count;
    int64_t dry_allowed_length, dry_last_tokens; // dry_last_tokens -1: all
    struct api_ids stop_tokens, allowed_tokens;
    struct api_strings bad_words, dry_breakers;
};

// How much the client is shown.
struct api_shown {
    bool stream, include_usage, echo;
    bool continuous_usage; // each chunk of a stream says the usage so far
    bool logprobs;         // of the generated tokens, not of the prompt
    int64_t top_logprobs;
    int64_t prompt_logprobs; // -1: not asked for; else the number of alternatives of each token of the prompt
    bool include_stop_str_in_output, return_token_ids, return_tokens_as_token_ids, return_token_strs;
};

struct api_request {
    enum api_kind kind;
    void *root;             // the parsed body; strings below point into it
    const char *model;      // NULL: not given
    const char *cache_salt; // NULL: not given
    struct api_prompt *prompts;
    uint32_t prompt_count;
    struct api_chat_message *messages;
    uint32_t message_count;
    const char *suffix; // the text that comes after the completion; NULL: none
    bool add_special_tokens, parse_special;
    Fastdecode__Sampling sampling; // fields that are passed on to the s-part unchanged; seed, logprobs and biases are set later
    struct api_chat chat;
    struct api_limits limits;
    struct api_draw draw;
    struct api_shown shown;
    struct api_form form;
    struct api_pool pool;
    struct api_ignored ignored;
};

// A field that a body may have, as the tables have it.
enum api_field_type {
    API_FIELD_CUSTOM, // a reader of its own
    API_FIELD_BOOL,
    API_FIELD_INTEGER,
    API_FIELD_NUMBER,
    API_FIELD_STRING,
    API_FIELD_IGNORE,  // any value, which changes nothing
    API_FIELD_REFUSED, // only a value that changes nothing
};

struct api_field {
    const char *name;
    enum api_field_type type;
    double min, max; // INTEGER, NUMBER
    bool above_min;
};

typedef void api_field_fn(void *arg, const struct api_field *field);
// Calls for each field of bodies of that kind.
void api_each_field(enum api_kind kind, api_field_fn *each, void *arg);

// Reads a parsed body of `kind`, and takes over the reference, even on failure. On failure *error says what is wrong and *out is empty. Ids
// are checked against the model's vocab (0: not checked). The caller frees *out with api_request_free().
bool api_request_read(enum api_kind kind, struct json_t *root, const struct api_model *model, struct api_request *out,
                      struct api_error *error);
void api_request_free(struct api_request *request);

#endif
