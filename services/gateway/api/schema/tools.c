// tools.c: functions that a model may call, which of them it must, and what else a chat template is given.
#include <stdio.h>
#include <string.h>

#include "common/base/checked.h"
#include "common/json/json_text.h"
#include "services/gateway/api/schema/schema_internal.h"
#include "services/gateway/jinja/chat_template.h"

enum { PATH_BYTES = 128 };

bool schema_check_function_name(struct schema_run *run, const char *where, const json_t *name)
{
    const char *text = json_string_value(name);
    size_t i, length = json_string_length(name);

    if (!json_is_string(name))
        return schema_wrong_type(run->error, where, "a string", name);
    for (i = 0; i < length; i++)
        if (!((text[i] >= 'a' && text[i] <= 'z') || (text[i] >= 'A' && text[i] <= 'Z') || (text[i] >= '0' && text[i] <= '9') ||
              text[i] == '_' || text[i] == '-' || text[i] == '.'))
            break;
    if (length == 0 || length > API_MAX_FUNCTION_NAME || i < length)
        return api_fail(run->error, 400, "invalid_value", where,
                        "'%s' must be 1 to %d letters, digits, underscores, dashes or dots", where, API_MAX_FUNCTION_NAME);
    return true;
}

// --- tools ----------------------------------------------------------------------------------------------------------------
static bool read_function(struct schema_run *run, const char *where, const json_t *function)
{
    const json_t *name = json_object_get(function, "name"), *description = json_object_get(function, "description");
    const json_t *parameters = json_object_get(function, "parameters"), *strict = json_object_get(function, "strict");
    char field[PATH_BYTES];

    snprintf(field, sizeof field, "%s.name", where);
    if (!name)
        return api_missing(run->error, field);
    if (!schema_check_function_name(run, field, name))
        return false;
    snprintf(field, sizeof field, "%s.description", where);
    if (description && !json_is_string(description) && !json_is_null(description))
        return schema_wrong_type(run->error, field, "a string", description);
    snprintf(field, sizeof field, "%s.parameters", where);
    if (parameters && !json_text_is_object(parameters) && !json_is_null(parameters))
        return schema_wrong_type(run->error, field, "a JSON Schema, which is an object", parameters);
    snprintf(field, sizeof field, "%s.strict", where);
    if (strict && !json_is_boolean(strict) && !json_is_null(strict))
        return schema_wrong_type(run->error, field, "a boolean", strict);
    return true;
}

// Returns the name in one of `tools`, or in an object that names one.
static const json_t *tool_name_of(const json_t *tool)
{
    const json_t *function = json_object_get(tool, "function");

    return json_object_get(function ? function : json_object_get(tool, "custom"), "name");
}

static const char *tool_name(const json_t *tool) { return json_string_value(tool_name_of(tool)); }

// --- custom tools, whose input is a text: functions with one parameter ------------------------------------------------------
// The schema of the text. format: {"type": "text"}, {"type": "grammar", "grammar": {"syntax": "regex", "definition": ...}} or NULL.
static json_t *custom_input(struct schema_run *run, const char *where, const json_t *format)
{
    const json_t *grammar = json_object_get(format, "grammar"), *definition = json_object_get(grammar, "definition");
    const json_t *type = json_object_get(format, "type");
    json_t *schema = json_pack("{s:s,s:s}", "type", "string", "description", "The input of the tool, as plain text");

    if (!schema)
        (void)api_no_memory(run->error);
    else if (!format || json_is_null(format) || schema_is_string(type, "text"))
        return schema;
    else if (!schema_is_string(type, "grammar"))
        (void)api_fail(run->error, 400, "invalid_value", where, "'%s.type' must be 'text' or 'grammar'", where);
    else if (!schema_is_string(json_object_get(grammar, "syntax"), "regex"))
        (void)api_fail(run->error, 400, "unsupported_parameter", where,
                       "'%s': only grammars with the syntax 'regex' are supported; without a format the input is any text", where);
    else if (!json_is_string(definition) || schema_has_zero(definition))
        (void)api_fail(run->error, 400, "invalid_type", where, "'%s.grammar.definition' must be a regular expression", where);
    else if (json_object_set_new(schema, "pattern", json_sprintf("^(?:%s)$", json_string_value(definition))) == 0)
        return schema;
    else
        (void)api_no_memory(run->error);
    json_decref(schema);
    return NULL;
}

// Makes a custom tool a function, and notes its name. Does nothing with others.
static bool unfold_custom_tool(struct schema_run *run, const char *where, json_t *tool)
{
    json_t *custom = json_object_get(tool, "custom"), *name = json_object_get(custom, "name"), *function, *input;
    char field[PATH_BYTES];

    if (!schema_is_string(json_object_get(tool, "type"), "custom"))
        return true;
    snprintf(field, sizeof field, "%s.custom", where);
    if (!json_is_object(custom))
        return schema_wrong_type(run->error, field, "an object", custom);
    snprintf(field, sizeof field, "%s.custom.name", where);
    if (!name)
        return api_missing(run->error, field);
    if (!schema_check_function_name(run, field, name))
        return false;
    snprintf(field, sizeof field, "%s.custom.format", where);
    input = custom_input(run, field, json_object_get(custom, "format"));
    if (!input)
        return false;
    function = json_pack("{s:O,s:O*,s:{s:s,s:{s:o},s:[s],s:b}}", "name", name, "description",
                         json_object_get(custom, "description"), "parameters", "type", "object", "properties", "input", input,
                         "required", "input", "additionalProperties", 0);
    if (!run->out->chat.custom_tools)
        run->out->chat.custom_tools = json_object();
    return (function && json_object_set(run->out->chat.custom_tools, json_string_value(name), json_true()) == 0 &&
            json_object_set_new(tool, "function", function) == 0 &&
            json_object_set_new(tool, "type", json_string("function")) == 0 && json_object_del(tool, "custom") == 0) ||
           api_no_memory(run->error);
}

bool schema_unfold_custom_call(struct schema_run *run, const char *where, json_t *call)
{
    const json_t *custom = json_object_get(call, "custom"), *input = json_object_get(custom, "input");
    json_t *arguments, *name = json_object_get(custom, "name");
    char field[PATH_BYTES];

    if (!schema_is_string(json_object_get(call, "type"), "custom"))
        return true;
    snprintf(field, sizeof field, "%s.custom", where);
    if (!json_is_string(name) || !json_is_string(input))
        return api_fail(run->error, 400, "invalid_type", field, "'%s' must have the strings 'name' and 'input'", field);
    arguments = json_pack("{s:O}", "input", input);
    return (arguments && json_object_set_new(call, "function", json_pack("{s:O,s:o}", "name", name, "arguments", arguments)) == 0 &&
            json_object_set_new(call, "type", json_string("function")) == 0) ||
           api_no_memory(run->error);
}

bool schema_read_tools(struct schema_run *run, const char *name, const json_t *value)
{
    size_t i, j, count = json_array_size(value);
    char where[PATH_BYTES], field[PATH_BYTES + 16];

    if (!json_is_array(value))
        return schema_wrong_type(run->error, name, "an array of tools", value);
    if (count > API_MAX_TOOLS)
        return api_fail(run->error, 400, "invalid_value", name, "'%s' has %zu tools, at most %d are allowed", name, count,
                        API_MAX_TOOLS);
    for (i = 0; i < count; i++) {
        snprintf(where, sizeof where, "%s[%zu]", name, i);
        if (!unfold_custom_tool(run, where, json_array_get(value, i)))
            return false;
        const json_t *tool = json_array_get(value, i), *type = json_object_get(tool, "type");
        const json_t *function = json_object_get(tool, "function");
        if (!json_text_is_object(tool))
            return schema_wrong_type(run->error, where, "an object", tool);
        snprintf(field, sizeof field, "%s.type", where);
        if (!type)
            return api_missing(run->error, field);
        if (!schema_is_string(type, "function"))
            return api_fail(run->error, 400, "unsupported_parameter", field,
                            "'%s': only tools of type 'function' and 'custom' are supported", field);
        snprintf(field, sizeof field, "%s.function", where);
        if (!function)
            return api_missing(run->error, field);
        if (!json_text_is_object(function))
            return schema_wrong_type(run->error, field, "an object", function);
        if (!read_function(run, field, function))
            return false;
        snprintf(field, sizeof field, "%s.function.name", where);
        for (j = 0; j < i; j++)
            if (strcmp(tool_name(json_array_get(value, j)), tool_name(tool)) == 0)
                return api_fail(run->error, 400, "invalid_value", field, "'%s' is '%s', as is that of %s[%zu]", field,
                                tool_name(tool), name, j);
    }
    run->out->chat.tools = count > 0 ? (json_t *)(uintptr_t)value : NULL;
    return true;
}

// --- which of them --------------------------------------------------------------------------------------------------------
// {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [{"type": "function", "function": {"name": ...}}]}}
static bool read_allowed(struct schema_run *run, const json_t *value)
{
    static const char where[] = "tool_choice.allowed_tools";
    const json_t *mode = json_object_get(value, "mode"), *tools = json_object_get(value, "tools");

    if (!json_text_is_object(value))
        return schema_wrong_type(run->error, where, "an object", value);
    if (!schema_is_string(mode, "auto") && !schema_is_string(mode, "required"))
        return api_fail(run->error, 400, "invalid_value", "tool_choice.allowed_tools.mode",
                        "'%s.mode' must be 'auto' or 'required'", where);
    if (!json_is_array(tools) || json_array_size(tools) == 0 || json_array_size(tools) > API_MAX_TOOLS)
        return api_fail(run->error, 400, "invalid_value", "tool_choice.allowed_tools.tools",
                        "'%s.tools' must be an array that names at least one of 'tools', and at most %d", where, API_MAX_TOOLS);
    run->out->chat.tool_choice = schema_is_string(mode, "required") ? API_TOOLS_REQUIRED : API_TOOLS_AUTO;
    run->out->chat.allowed = tools;
    return true;
}

bool schema_read_tool_choice(struct schema_run *run, const char *name, const json_t *value)
{
    static const char *const words[] = {[API_TOOLS_AUTO] = "auto", [API_TOOLS_NONE] = "none", [API_TOOLS_REQUIRED] = "required"};
    const json_t *type = json_object_get(value, "type"), *function = json_object_get(value, "function");
    size_t i;

    for (i = 0; i < ARRAY_COUNT(words); i++)
        if (schema_is_string(value, words[i])) {
            run->out->chat.tool_choice = (enum api_tool_choice)i;
            return true;
        }
    if (json_is_string(value))
        return api_fail(run->error, 400, "invalid_value", name,
                        "'%s' must be 'auto', 'none', 'required' or an object that names a function", name);
    if (!json_text_is_object(value))
        return schema_wrong_type(run->error, name, "a string or an object that names a function", value);
    if (schema_is_string(type, "allowed_tools"))
        return read_allowed(run, json_object_get(value, "allowed_tools"));
    if (schema_is_string(type, "custom"))
        function = json_object_get(value, "custom");
    else if (!schema_is_string(type, "function"))
        return api_fail(run->error, 400, "unsupported_parameter", "tool_choice.type",
                        "'tool_choice.type' must be 'function', 'custom' or 'allowed_tools'");
    if (!json_text_is_object(function))
        return api_fail(run->error, 400, "missing_required_parameter", "tool_choice.function",
                        "'tool_choice.function' must be an object with the 'name' of a function");
    if (!json_object_get(function, "name"))
        return api_missing(run->error, "tool_choice.function.name");
    if (!schema_check_function_name(run, "tool_choice.function.name", json_object_get(function, "name")))
        return false;
    run->out->chat.tool_choice = API_TOOLS_NAMED;
    run->out->chat.tool_name = json_string_value(json_object_get(function, "name"));
    return true;
}

// The older names of 'tools' and 'tool_choice', which have another form of answer.
bool schema_read_functions(struct schema_run *run, const char *name, const json_t *value)
{
    const bool calls = strcmp(name, "function_call") == 0;

    if ((json_is_array(value) && json_array_size(value) == 0) || (calls && schema_is_string(value, "none")) || json_is_false(value))
        return true;
    return api_fail(run->error, 400, "unsupported_parameter", name, "'%s' is not supported: use '%s', which has taken its place",
                    name, calls ? "tool_choice" : "tools");
}

static bool names_tool(const json_t *named, const json_t *tool)
{
    const char *name = tool_name(named);

    return name && json_string_length(tool_name_of(named)) == strlen(name) && strcmp(name, tool_name(tool)) == 0;
}

// The model is told of the functions that it may call, and so calls no others.
static bool keep_allowed(struct schema_run *run)
{
    struct api_request *out = run->out;
    const size_t count = json_array_size(out->chat.allowed);

    if (!out->chat.tools)
        return api_fail(run->error, 400, "invalid_value", "tool_choice", "'tool_choice' needs 'tools'");
    for (size_t i = 0, j; i < count; i++) {
        for (j = 0; j < json_array_size(out->chat.tools) &&
                    !names_tool(json_array_get(out->chat.allowed, i), json_array_get(out->chat.tools, j));)
            j++;
        if (j == json_array_size(out->chat.tools))
            return api_fail(run->error, 400, "invalid_value", "tool_choice.allowed_tools.tools",
                            "'tool_choice.allowed_tools.tools[%zu]' is none of 'tools'", i);
    }
    for (size_t j = json_array_size(out->chat.tools); j-- > 0;) {
        bool allowed = false;
        for (size_t i = 0; i < count && !allowed; i++)
            allowed = names_tool(json_array_get(out->chat.allowed, i), json_array_get(out->chat.tools, j));
        if (!allowed)
            json_array_remove(out->chat.tools, j);
    }
    return true;
}

bool schema_check_tools(struct schema_run *run)
{
    const struct api_request *out = run->out;
    size_t i;

    if (out->chat.allowed && !keep_allowed(run))
        return false;
    if (out->chat.tool_choice != API_TOOLS_REQUIRED && out->chat.tool_choice != API_TOOLS_NAMED)
        return true;
    if (!out->chat.tools)
        return api_fail(run->error, 400, "invalid_value", "tool_choice", "'tool_choice' needs 'tools'");
    for (i = 0; i < json_array_size(out->chat.tools); i++)
        if (out->chat.tool_choice == API_TOOLS_REQUIRED ||
            strcmp(tool_name(json_array_get(out->chat.tools, i)), out->chat.tool_name) == 0)
            return true;
    return api_fail(run->error, 400, "invalid_value", "tool_choice.function.name",
                    "'tool_choice' names '%s', which none of 'tools' is", out->chat.tool_name);
}

// --- variables of the template --------------------------------------------------------------------------------------------
static bool set_variable(struct schema_run *run, const char *name, json_t *value)
{
    if (!run->out->chat.variables)
        run->out->chat.variables = json_object();
    return (run->out->chat.variables && json_object_set(run->out->chat.variables, name, value) == 0) || api_no_memory(run->error);
}

bool schema_read_template_variables(struct schema_run *run, const char *name, const json_t *value)
{
    json_t *owner = (json_t *)(uintptr_t)value;
    void *at;

    if (!json_text_is_object(value))
        return schema_wrong_type(run->error, name, "an object", value);
    if (json_object_size(value) > API_MAX_VARIABLES)
        return api_fail(run->error, 400, "invalid_value", name, "'%s' has %zu members, at most %d are allowed", name,
                        json_object_size(value), API_MAX_VARIABLES);
    for (at = json_object_iter(owner); at; at = json_object_iter_next(owner, at)) {
        const char *key = json_object_iter_key(at);
        if (chat_template_owns(key))
            return api_fail(run->error, 400, "invalid_value", name, "'%s.%s' is not allowed: the request itself says it", name,
                            key);
        if (!set_variable(run, key, json_object_iter_value(at)))
            return false;
    }
    return true;
}

// The name of one of the model's templates. A template itself is not taken: what it renders would be the client's, special tokens included.
bool schema_read_chat_template(struct schema_run *run, const char *name, const json_t *value)
{
    if (json_is_false(value) || (json_is_string(value) && json_string_length(value) == 0) ||
        (json_is_array(value) && !json_array_size(value)) || (json_text_is_object(value) && !json_object_size(value)))
        return true; // changes nothing
    if (!json_is_string(value))
        return schema_wrong_type(run->error, name, "the name of a chat template", value);
    if (strpbrk(json_string_value(value), "{}\n") || schema_has_zero(value))
        return api_fail(run->error, 400, "unsupported_parameter", name,
                        "'%s' is not supported but for the name of one of the model's own templates", name);
    run->out->chat.chat_template = json_string_value(value);
    return true;
}

bool schema_read_reasoning_effort(struct schema_run *run, const char *name, const json_t *value)
{
    static const char *const efforts[] = {"none", "minimal", "low", "medium", "high", "xhigh", "max"};
    size_t i;

    if (!json_is_string(value))
        return schema_wrong_type(run->error, name, "a string", value);
    for (i = 0; i < ARRAY_COUNT(efforts); i++)
        if (schema_is_string(value, efforts[i]))
            break;
    if (i == ARRAY_COUNT(efforts))
        return api_fail(run->error, 400, "invalid_value", name,
                        "'%s' must be 'none', 'minimal', 'low', 'medium', 'high', 'xhigh' or 'max'", name);
    run->out->chat.reasoning_effort = efforts[i];
    return true;
}

// An effort as templates know it: its name, or, of none, their switches for thinking. What the client itself has set stays.
bool schema_apply_effort(struct schema_run *run)
{
    static const char *const switches[] = {"enable_thinking", "thinking"};
    const char *effort = run->out->chat.reasoning_effort;
    json_t *text;
    bool ok = true;

    if (!effort)
        return true;
    for (size_t i = 0; strcmp(effort, "none") == 0 && i < ARRAY_COUNT(switches) && ok; i++)
        ok = json_object_get(run->out->chat.variables, switches[i]) || set_variable(run, switches[i], json_false());
    if (!ok || strcmp(effort, "none") == 0 || json_object_get(run->out->chat.variables, "reasoning_effort"))
        return ok;
    text = json_string(effort);
    ok = text ? set_variable(run, "reasoning_effort", text) : api_no_memory(run->error);
    json_decref(text);
    return ok;
}

bool schema_read_documents(struct schema_run *run, const char *name, const json_t *value)
{
    char where[PATH_BYTES];

    if (!json_is_array(value))
        return schema_wrong_type(run->error, name, "an array of documents", value);
    if (json_array_size(value) > API_MAX_DOCUMENTS)
        return api_fail(run->error, 400, "invalid_value", name, "'%s' has %zu documents, at most %d are allowed", name,
                        json_array_size(value), API_MAX_DOCUMENTS);
    for (size_t i = 0; i < json_array_size(value); i++) {
        snprintf(where, sizeof where, "%s[%zu]", name, i);
        if (!json_text_is_object(json_array_get(value, i)))
            return schema_wrong_type(run->error, where, "an object", json_array_get(value, i));
    }
    run->out->chat.documents = json_array_size(value) > 0 ? (json_t *)(uintptr_t)value : NULL;
    return true;
}

void schema_free_chat(struct api_request *request)
{
    json_decref(request->chat.conversation);
    json_decref(request->chat.variables);
    json_decref(request->chat.custom_tools);
    request->chat.conversation = request->chat.variables = request->chat.custom_tools = NULL;
}
