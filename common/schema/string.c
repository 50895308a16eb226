// string.c: strings: by length, pattern, format, and choices of them; and the keys of an object that are not declared.
//
// Content is what a string says; patterns, formats and lengths are about that. Combined they are one regular language, whose characters are then
// written as JSON does: themselves, but for those that JSON wants escaped (grammar_json_escaped()). A string without pattern, format or choices
// may have any of JSON's escapes, each of which counts as one character.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/grammar/fsa.h"
#include "common/schema/internal.h"

enum { MAX_TREE_DEPTH = 128 }; // bytes of a key

// --- formats ------------------------------------------------------------------------------------------------------------

// A format narrows what the standard calls an annotation: whoever gives one wants such strings. Where a format allows texts that readers of
// it do not agree on, there are fewer of them: no leap seconds, no year 0000, at most nine digits behind a second's point. Host names have
// at most 253 characters: four labels of up to 63 or nine of up to 25 each, so that counting both is small.

#define YEAR "(?:[0-9]{3}[1-9]|[0-9]{2}[1-9][0-9]|[0-9][1-9][0-9]{2}|[1-9][0-9]{3})"
#define LEAP_YEAR "(?:[0-9]{2}(?:0[48]|[2468][048]|[13579][26])|(?:0[48]|[2468][048]|[13579][26])00)"
#define LONG_MONTHS "(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])"
#define SHORT_MONTHS "(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)"
#define DATE "(?:" YEAR "-(?:" LONG_MONTHS "|" SHORT_MONTHS "|02-(?:0[1-9]|1[0-9]|2[0-8]))|" LEAP_YEAR "-02-29)"
#define HOUR "(?:[01][0-9]|2[0-3])"
#define TIME HOUR ":[0-5][0-9]:[0-5][0-9](?:\\.[0-9]{1,9})?(?:[Zz]|[+-]" HOUR ":[0-5][0-9])"

#define N "[0-9]{1,9}"
#define DURATION_TIME "T(?:" N "H(?:" N "M(?:" N "S)?)?|" N "M(?:" N "S)?|" N "S)"
#define DURATION_DATE "(?:" N "Y(?:" N "M(?:" N "D)?)?|" N "M(?:" N "D)?|" N "D)"
#define DURATION "P(?:" N "W|" DURATION_DATE "(?:" DURATION_TIME ")?|" DURATION_TIME ")"

#define HEX "[0-9a-fA-F]"
#define UUID HEX "{8}-" HEX "{4}-" HEX "{4}-" HEX "{4}-" HEX "{12}"

#define OCTET "(?:25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])"
#define IPV4 OCTET "(?:\\." OCTET "){3}"
#define H HEX "{1,4}"
#define LAST_32 "(?:" H ":" H "|" IPV4 ")"
#define BEFORE(n) "(?:(?:" H ":){0," #n "}" H ")?::" // at most n + 1 groups, then those that are left out
#define IPV6                                                                                                                      \
    "(?:(?:" H ":){6}" LAST_32 "|::(?:" H ":){5}" LAST_32 "|(?:" H ")?::(?:" H ":){4}" LAST_32                                    \
    "|" BEFORE(1) "(?:" H ":){3}" LAST_32 "|" BEFORE(2) "(?:" H ":){2}" LAST_32 "|" BEFORE(3) H ":" LAST_32 "|" BEFORE(4) LAST_32 \
        "|" BEFORE(5) H "|" BEFORE(6) ")"

// Labels of up to n + 2 characters.
#define LABEL(n) "[a-zA-Z0-9](?:[a-zA-Z0-9-]{0," #n "}[a-zA-Z0-9])?"
#define HOSTNAME "(?:" LABEL(61) "(?:\\." LABEL(61) "){0,2}(?:\\." LABEL(59) ")?|" LABEL(23) "(?:\\." LABEL(23) "){0,8})"

#define ATOM "[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]"
#define QUOTED "\"(?:[\\x20\\x21\\x23-\\x5b\\x5d-\\x7e]|\\\\[\\x20-\\x7e]){0,30}\""
// At most 64 characters before the @, and 254 in all.
#define LOCAL "(?:" ATOM "{1,64}|" ATOM "(?:\\.?" ATOM "){0,31}|" QUOTED ")"
#define DOMAIN "(?:" LABEL(61) "(?:\\." LABEL(61) ")?(?:\\." LABEL(58) ")?|" LABEL(24) "(?:\\." LABEL(24) "){0,6})"
#define EMAIL LOCAL "@(?:" DOMAIN "|\\[" IPV4 "\\]|\\[IPv6:" IPV6 "\\])"

#define PERCENT "%" HEX "{2}"
#define PCHAR "(?:[A-Za-z0-9._~!$&'()*+,;=:@-]|" PERCENT ")"
#define NO_COLON "(?:[A-Za-z0-9._~!$&'()*+,;=@-]|" PERCENT ")"
#define IP_LITERAL "\\[(?:" IPV6 "|[vV]" HEX "+\\.[A-Za-z0-9._~!$&'()*+,;=:-]+)\\]"
#define REG_NAME "(?:[A-Za-z0-9._~!$&'()*+,;=-]|" PERCENT ")*"
#define AUTHORITY "(?:(?:[A-Za-z0-9._~!$&'()*+,;=:-]|" PERCENT ")*@)?(?:" IP_LITERAL "|" REG_NAME ")(?::[0-9]{0,5})?"
#define SEGMENTS "(?:/" PCHAR "*)*"
#define AFTER_PATH "(?:\\?(?:" PCHAR "|[/?])*)?(?:#(?:" PCHAR "|[/?])*)?"
#define ABSOLUTE "//" AUTHORITY SEGMENTS "|/(?:" PCHAR "+" SEGMENTS ")?"
#define URI "[A-Za-z][A-Za-z0-9+.-]*:(?:" ABSOLUTE "|" PCHAR "+" SEGMENTS "|)" AFTER_PATH
#define RELATIVE "(?:" ABSOLUTE "|" NO_COLON "+" SEGMENTS "|)" AFTER_PATH

#define POINTER "(?:/(?:[^~/]|~[01])*)*"

static const struct {
    const char *name, *regex; // regex NULL: no regular language, or a very large one
    uint32_t min, max;        // characters; max 0: any number
} formats[] = {
    {"date", DATE, 10, 10},
    {"time", TIME, 9, 24},
    {"date-time", DATE "[Tt]" TIME, 20, 35},
    {"duration", DURATION, 3, 62},
    {"uuid", UUID, 36, 36},
    {"ipv4", IPV4, 7, 15},
    {"ipv6", IPV6, 2, 45},
    {"hostname", HOSTNAME, 1, 253},
    {"email", EMAIL, 3, 254},
    {"uri", URI, 2, 0},
    {"uri-reference", "(?:" URI "|" RELATIVE ")", 0, 0},
    {"json-pointer", POINTER, 0, 0},
    {"relative-json-pointer", "(?:0|[1-9][0-9]{0,9})(?:#|" POINTER ")", 1, 0},
    {"regex", NULL, 0, 0},
    {"iri", NULL, 0, 0},
    {"iri-reference", NULL, 0, 0},
    {"idn-email", NULL, 0, 0},
    {"idn-hostname", NULL, 0, 0},
    {"uri-template", NULL, 0, 0},
};
enum { FORMATS = sizeof formats / sizeof formats[0] };

static uint32_t format_find(const char *name)
{
    uint32_t i;

    for (i = 0; i < FORMATS && (!name || strcmp(formats[i].name, name) != 0); i++) {}
    return i;
}

enum jschema_format jschema_format_kind(const char *name)
{
    uint32_t i = format_find(name);

    if (i == FORMATS)
        return JSCHEMA_FORMAT_UNKNOWN;
    return formats[i].regex ? JSCHEMA_FORMAT_KNOWN : JSCHEMA_FORMAT_REFUSED;
}

static uint32_t format_content(struct jschema *schema, const char *name)
{
    uint32_t i = format_find(name);

    assert_always(i < JSCHEMA_FORMATS && formats[i].regex);
    if (!schema->format_contents[i])
        schema->format_contents[i] = grammar_add_regex(schema->builder, formats[i].regex, strlen(formats[i].regex), true);
    return schema->format_contents[i];
}

// Returns the texts between quotes. All uses of a format share a rule.
static uint32_t format_text(struct jschema *schema, const char *name)
{
    uint32_t i = format_find(name);

    assert_always(i < JSCHEMA_FORMATS && formats[i].regex);
    if (!schema->format_texts[i])
        schema->format_texts[i] = jschema_rule(schema, name, jschema_quoted(schema, format_content(schema, name)));
    return schema->format_texts[i];
}

// Says how many characters the texts of a format have at least and at most; 0 and UINT64_MAX if that is not known.
static void format_lengths(const char *name, uint64_t *shortest, uint64_t *longest)
{
    uint32_t i = format_find(name);

    *shortest = i < FORMATS ? formats[i].min : 0;
    *longest = i < FORMATS && formats[i].max ? formats[i].max : UINT64_MAX;
}

enum { MIN_SHORT = 24, MAX_LOCAL = 64, MAX_LABEL = 63, SCHEME = 15, REST = 12, MAX_SHORT_URI = 1 << 16 };

// Writes two labels, or four shorter ones, of at most so many characters in all.
static void short_hostname(char *out, size_t capacity, uint32_t max)
{
    uint32_t two = (max - 1) / 2 < MAX_LABEL ? (max - 1) / 2 : MAX_LABEL,
             four = (max - 3) / 4 < MAX_LABEL ? (max - 3) / 4 : MAX_LABEL;

    snprintf(out, capacity,
             "(?:[a-zA-Z0-9](?:[a-zA-Z0-9-]{0,%u}[a-zA-Z0-9])?(?:\\.[a-zA-Z0-9](?:[a-zA-Z0-9-]{0,%u}[a-zA-Z0-9])?)?|"
             "[a-zA-Z0-9](?:[a-zA-Z0-9-]{0,%u}[a-zA-Z0-9])?(?:\\.[a-zA-Z0-9](?:[a-zA-Z0-9-]{0,%u}[a-zA-Z0-9])?){0,3})",
             two - 2, two - 2, four - 2, four - 2);
}

// Characters of a set, or bytes in percent-encoding, which count for three: at most so many bytes.
static uint32_t uri_characters(struct jschema *schema, const char *set, uint64_t bytes)
{
    uint32_t hex = jschema_class(schema, "0-9a-fA-F");
    uint32_t encoded = JSCHEMA_SEQUENCE(schema, grammar_text(schema->builder, "%"), hex, hex);
    uint32_t unit = JSCHEMA_EITHER(schema, jschema_class(schema, set), grammar_text(schema->builder, "-"), encoded);

    return jschema_times(schema, unit, 0, bytes / 3);
}

// Writes a scheme, then half of the length for the path, and a sixth each for host, query and fragment.
static uint32_t short_uri(struct jschema *schema, uint32_t max)
{
    static const char in_host[] = "A-Za-z0-9._~!$&'()*+,;=", in_path[] = "A-Za-z0-9._~!$&'()*+,;=:@/",
                      in_query[] = "A-Za-z0-9._~!$&'()*+,;=:@/?";
    struct grammar_builder *builder = schema->builder;
    uint32_t rest = max - SCHEME - REST, path = uri_characters(schema, in_path, rest / 2), slash = grammar_text(builder, "/");
    uint32_t scheme = JSCHEMA_SEQUENCE(schema, jschema_class(schema, "A-Za-z"),
                                       grammar_repeat(builder, jschema_class(schema, "A-Za-z0-9+."), 0, SCHEME - 2),
                                       grammar_text(builder, ":"));
    uint32_t port =
        JSCHEMA_SEQUENCE(schema, grammar_text(builder, ":"), grammar_repeat(builder, jschema_class(schema, "0-9"), 1, 5));
    uint32_t host = JSCHEMA_SEQUENCE(schema, grammar_text(builder, "//"), uri_characters(schema, in_host, rest / 6),
                                     jschema_optional(schema, port));
    uint32_t first = jschema_class(schema, "A-Za-z0-9._~!$&'()*+,;=:@");
    uint32_t hierarchy =
        JSCHEMA_EITHER(schema, JSCHEMA_SEQUENCE(schema, host, jschema_optional(schema, JSCHEMA_SEQUENCE(schema, slash, path))),
                       JSCHEMA_SEQUENCE(schema, jschema_optional(schema, slash), first, path), slash, grammar_empty(builder));
    uint32_t query = JSCHEMA_SEQUENCE(schema, grammar_text(builder, "?"), uri_characters(schema, in_query, rest / 6));
    uint32_t fragment = JSCHEMA_SEQUENCE(schema, grammar_text(builder, "#"), uri_characters(schema, in_query, rest / 6));

    return JSCHEMA_SEQUENCE(schema, scheme, hierarchy, jschema_optional(schema, query), jschema_optional(schema, fragment));
}

// Returns the texts of a format, between quotes, of at most so many characters, where a product with the length would be too large: not
// quite all of them, for the parts (of an address, of a uri) share the length. `nothing`: there is no such thing for this format.
static uint32_t format_short_text(struct jschema *schema, const char *name, uint64_t max)
{
    char regex[1024], host[512];
    uint32_t quote = grammar_text(schema->builder, "\""), local;

    if (max < MIN_SHORT || max > MAX_SHORT_URI)
        return schema->nothing;
    if (strcmp(name, "uri") == 0 && max >= SCHEME + REST + MIN_SHORT)
        return JSCHEMA_SEQUENCE(schema, quote, short_uri(schema, (uint32_t)max), quote);
    if (strcmp(name, "hostname") == 0) {
        short_hostname(regex, sizeof regex, (uint32_t)max);
    } else if (strcmp(name, "email") == 0) {
        local = (max - 1) / 2 < MAX_LOCAL ? (uint32_t)(max - 1) / 2 : MAX_LOCAL;
        short_hostname(host, sizeof host, (uint32_t)max - 1 - local);
        snprintf(regex, sizeof regex, "(?:%s{1,%u}|%s(?:\\.?%s){0,%u})@%s", ATOM, local, ATOM, ATOM, (local - 1) / 2, host);
    } else {
        return schema->nothing;
    }
    return jschema_quoted(schema, grammar_add_regex(schema->builder, regex, strlen(regex), true));
}

// --- lengths ------------------------------------------------------------------------------------------------------------

// A product with a count has as many states as both together, times each other. Most of them are not needed: what a language's own shortest and
// longest texts keep to says nothing, and then there is nothing to count. Where the count remains and is large, fewer characters are allowed than
// it would allow, so that the product stays bearable.

// MAX_COUNT: of any characters, each of which takes some eight states of GRAMMAR_MAX_REGULAR_STATES.
enum { MAX_STATES = 6000, LEAST = 64, MAX_COUNT = 1900 };

// Characters are counted by their first bytes.
static uint32_t weight_of(const struct grammar_arc *arc) { return arc->first < 0x80 || arc->first >= 0xc0; }

// Returns the fewest characters on a way from the start to an end. States are taken in the order of their distance.
static uint64_t shortest_way(struct jschema *schema, const struct grammar_fsa *fsa)
{
    uint32_t *here = jschema_take(schema, 2 * (size_t)fsa->arc_count + 2, sizeof *here), *next = here + fsa->arc_count + 1, *swap;
    uint32_t here_count = 1, next_count = 0;
    bool *is_done = jschema_take(schema, fsa->state_count, sizeof *is_done);

    if (!here || !is_done)
        return 0;
    here[0] = fsa->start;
    for (uint64_t distance = 0; here_count; distance++) {
        while (here_count) {
            uint32_t state = here[--here_count];
            if (is_done[state])
                continue;
            if (fsa->accepts[state])
                return distance;
            is_done[state] = true;
            for (uint32_t a = fsa->index[state]; a < fsa->index[state + 1]; a++)
                if (weight_of(&fsa->arcs[a]))
                    next[next_count++] = fsa->arcs[a].to;
                else
                    here[here_count++] = fsa->arcs[a].to;
        }
        swap = here;
        here = next;
        next = swap;
        here_count = next_count;
        next_count = 0;
    }
    return 0;
}

// Returns the most characters on a way from the start; UINT64_MAX: it goes in circles, all of which lead to an end.
static uint64_t longest_way(struct jschema *schema, const struct grammar_fsa *fsa)
{
    uint32_t *entries = jschema_take(schema, fsa->state_count, sizeof *entries),
             *queue = jschema_take(schema, fsa->state_count, sizeof *queue);
    uint64_t *distances = jschema_take(schema, fsa->state_count, sizeof *distances), most = 0;
    uint32_t count = 0;

    if (!entries || !queue || !distances)
        return UINT64_MAX;
    for (uint32_t a = 0; a < fsa->arc_count; a++)
        entries[fsa->arcs[a].to]++;
    for (uint32_t s = 0; s < fsa->state_count; s++)
        if (entries[s] == 0)
            queue[count++] = s;
    for (uint32_t i = 0; i < count; i++)
        for (uint32_t a = fsa->index[queue[i]]; a < fsa->index[queue[i] + 1]; a++) {
            const struct grammar_arc *arc = &fsa->arcs[a];
            uint64_t distance = distances[queue[i]] + weight_of(arc);
            if (distance > distances[arc->to])
                distances[arc->to] = distance;
            if (distances[arc->to] > most)
                most = distances[arc->to];
            if (--entries[arc->to] == 0)
                queue[count++] = arc->to;
        }
    return count == fsa->state_count ? most : UINT64_MAX;
}

// Returns the texts of a regular node of min to max characters. Where max is large, it may be fewer. entry: what errors are about.
static uint32_t of_length(struct jschema *schema, uint32_t entry, uint32_t content, uint64_t min, uint64_t max)
{
    struct grammar_builder *builder = schema->builder;
    uint32_t any = grammar_chars(builder, NULL, 0, true), states = 1;

    content = jschema_both(schema, content, jschema_any_content(schema)); // as an automaton
    if (content == schema->nothing || jschema_failed(schema))
        return schema->nothing;
    const struct grammar_fsa *fsa = grammar_node_fsa(builder, content);
    if (fsa) {
        states = fsa->state_count;
        min = shortest_way(schema, fsa) >= min ? 0 : min;
        max = longest_way(schema, fsa) <= max ? UINT64_MAX : max;
    }
    if (min == 0 && max == UINT64_MAX)
        return content;
    if (max != UINT64_MAX && max > LEAST && max > MAX_STATES / states)
        max = MAX_STATES / states > LEAST ? MAX_STATES / states : LEAST;
    if (max != UINT64_MAX && max > MAX_COUNT)
        max = MAX_COUNT;
    if (min > max || min > MAX_COUNT)
        return jschema_fail(schema, entry, "minLength", STATUS_RESOURCE_EXHAUSTED, "is too large beside pattern, format or enum");
    return jschema_both(schema, content,
                        grammar_repeat(builder, any, (uint32_t)min, max == UINT64_MAX ? GRAMMAR_NO_LIMIT : (uint32_t)max));
}

// --- strings ------------------------------------------------------------------------------------------------------------

uint32_t jschema_pattern(struct jschema *schema, const json_t *pattern, uint32_t entry, const char *keyword)
{
    uint32_t node = schema->nothing;

    if (jschema_charge(schema, 0))
        node = grammar_add_regex(schema->builder, json_string_value(pattern), json_string_length(pattern), false);
    jschema_blame(schema, entry, keyword);
    return node;
}

// Returns what a pattern or format allows. If it says nothing *counts is false, and `nothing` is returned.
static uint32_t content_of_term(struct jschema *schema, const struct jschema_term *term, bool *counts)
{
    *counts = true;
    if (strcmp(term->keyword, "pattern") == 0)
        return jschema_pattern(schema, term->value, term->entry, "pattern");
    if (strcmp(term->keyword, "format") == 0) {
        const char *name = json_string_value(term->value);
        switch (jschema_format_kind(name)) {
        case JSCHEMA_FORMAT_KNOWN: return format_content(schema, name);
        case JSCHEMA_FORMAT_REFUSED:
            return jschema_fail(schema, term->entry, "format", STATUS_UNIMPLEMENTED,
                                "\"%.40s\" cannot be said by a grammar: leave it out", name);
        case JSCHEMA_FORMAT_UNKNOWN: break;
        }
    }
    *counts = false;
    return schema->nothing;
}

static uint32_t contents_of_values(struct jschema *schema, const json_t **values, uint32_t count)
{
    uint32_t *nodes = jschema_take(schema, count, sizeof *nodes), node_count = 0;

    for (uint32_t i = 0; nodes && i < count; i++)
        if (json_is_string(values[i]))
            nodes[node_count++] = grammar_bytes(schema->builder, json_string_value(values[i]), json_string_length(values[i]));
    return nodes ? grammar_either(schema->builder, nodes, node_count) : schema->nothing;
}

struct lengths {
    uint64_t min, max;
};

static bool has_lengths(struct lengths lengths) { return lengths.min > 0 || lengths.max != UINT64_MAX; }

// Returns the lengths that a form has, without what its format says anyway.
static struct lengths lengths_of(const struct jschema_form *form)
{
    struct lengths lengths = {form->min_length, form->max_length};
    uint64_t shortest, longest;

    for (uint32_t i = 0; i < form->term_count; i++) {
        if (strcmp(form->terms[i].keyword, "format") != 0 || form->terms[i].is_negative)
            continue;
        format_lengths(json_string_value(form->terms[i].value), &shortest, &longest);
        if (lengths.min <= shortest)
            lengths.min = 0;
        if (lengths.max >= longest)
            lengths.max = UINT64_MAX;
    }
    return lengths;
}

// Takes out of the content what patterns, formats and lengths do not allow. *is_narrow: they have said something so far.
static uint32_t apply_terms(struct jschema *schema, const struct jschema_form *form, uint32_t content, bool *is_narrow)
{
    struct lengths lengths = lengths_of(form);
    bool counts;

    for (int negative = 0; negative < 2; negative++)
        for (uint32_t i = 0; i < form->term_count; i++) {
            const struct jschema_term *term = &form->terms[i];
            uint32_t node;
            if (term->is_negative != negative)
                continue;
            node = content_of_term(schema, term, &counts);
            if (!counts)
                continue;
            if (negative)
                content = jschema_without(schema, content, node);
            else
                content = *is_narrow ? jschema_both(schema, content, node) : node;
            *is_narrow = true;
        }
    if (!has_lengths(lengths))
        return content;
    if (*is_narrow)
        return of_length(schema, form->leaves.ids[0], content, lengths.min, lengths.max);
    *is_narrow = true;
    return of_length(schema, form->leaves.ids[0], jschema_any_content(schema), lengths.min, lengths.max);
}

uint32_t jschema_string_content(struct jschema *schema, const struct jschema_form *form)
{
    bool is_narrow = form->has_values;
    uint32_t content, others;

    if (!(form->types & JSCHEMA_STRING) || form->min_length > form->max_length)
        return schema->nothing;
    content = form->has_values ? contents_of_values(schema, form->values, form->value_count) : jschema_any_content(schema);
    content = apply_terms(schema, form, content, &is_narrow);
    others = contents_of_values(schema, form->not_values, form->not_value_count);
    return others == schema->nothing ? content : jschema_without(schema, content, others);
}

// Returns the texts of values, as they are.
static uint32_t texts_of_values(struct jschema *schema, const struct jschema_form *form)
{
    uint32_t *nodes = jschema_take(schema, form->value_count, sizeof *nodes), count = 0;

    for (uint32_t i = 0; nodes && i < form->value_count; i++) {
        size_t bytes;
        const char *text = json_is_string(form->values[i]) ? jschema_scalar_text(schema, form->values[i], &bytes) : NULL;
        if (text)
            nodes[count++] = grammar_bytes(schema->builder, text, bytes);
    }
    return nodes ? grammar_either(schema->builder, nodes, count) : schema->nothing;
}

uint32_t jschema_string(struct jschema *schema, const struct jschema_form *form)
{
    struct lengths lengths = lengths_of(form);
    bool is_long = has_lengths(lengths), is_narrow = false;
    uint32_t quote = grammar_text(schema->builder, "\""), term_count = 0;
    const char *format = NULL;

    if (!(form->types & JSCHEMA_STRING) || form->min_length > form->max_length)
        return schema->nothing;
    for (uint32_t i = 0; i < form->term_count; i++) {
        const struct jschema_term *term = &form->terms[i];
        bool is_format = strcmp(term->keyword, "format") == 0 &&
                         jschema_format_kind(json_string_value(term->value)) != JSCHEMA_FORMAT_UNKNOWN;
        if (!is_format && strcmp(term->keyword, "pattern") != 0)
            continue;
        is_narrow = true;
        term_count++;
        if (is_format && !term->is_negative && jschema_format_kind(json_string_value(term->value)) == JSCHEMA_FORMAT_KNOWN)
            format = json_string_value(term->value);
    }
    for (uint32_t i = 0; i < form->not_value_count; i++)
        if (json_is_string(form->not_values[i])) {
            is_narrow = true;
            term_count++;
        }
    if (format && term_count == 1 && !is_long && !form->has_values)
        return format_text(schema, format);
    if (format && term_count == 1 && !form->has_values && lengths.min == 0) {
        uint32_t texts = format_short_text(schema, format, lengths.max);
        if (texts != schema->nothing)
            return texts;
    }
    if (!is_narrow && form->has_values && !is_long)
        return texts_of_values(schema, form);
    if (!is_narrow && !form->has_values && !is_long)
        return jschema_any_string(schema);
    if (!is_narrow && !form->has_values)
        return JSCHEMA_SEQUENCE(schema, quote,
                                jschema_times(schema, jschema_any_character(schema), form->min_length, form->max_length), quote);
    return jschema_quoted(schema, jschema_string_content(schema, form));
}

// --- keys that are not declared -----------------------------------------------------------------------------------------

// States of UTF-8: any characters may come, so many bytes of one are still to come, or its next byte has fewer choices.
enum { ANY, TAIL_1, TAIL_2, TAIL_3, AFTER_E0, AFTER_ED, AFTER_F0, AFTER_F4, UTF8_STATES, ASCII = 0x80 };

static void add_utf8(struct grammar_fsa *fsa)
{
    static const uint32_t arcs[][4] = {{TAIL_1, 0x80, 0xbf, ANY},      {TAIL_2, 0x80, 0xbf, TAIL_1},
                                       {TAIL_3, 0x80, 0xbf, TAIL_2},   {AFTER_E0, 0xa0, 0xbf, TAIL_1},
                                       {AFTER_ED, 0x80, 0x9f, TAIL_1}, {AFTER_F0, 0x90, 0xbf, TAIL_2},
                                       {AFTER_F4, 0x80, 0x8f, TAIL_2}};

    for (uint32_t i = 0; i < UTF8_STATES; i++)
        grammar_fsa_add_state(fsa, i == ANY);
    for (uint32_t i = 0; i < sizeof arcs / sizeof arcs[0]; i++)
        grammar_fsa_add_arc(fsa, arcs[i][0], arcs[i][1], arcs[i][2], arcs[i][3]);
}

// Adds arcs from a state to ANY for all characters but the ASCII ones that are taken.
static void add_others(struct grammar_fsa *fsa, uint32_t state, const bool *is_taken)
{
    static const uint32_t arcs[][3] = {{0xc2, 0xdf, TAIL_1}, {0xe0, 0xe0, AFTER_E0}, {0xe1, 0xec, TAIL_2}, {0xed, 0xed, AFTER_ED},
                                       {0xee, 0xef, TAIL_2}, {0xf0, 0xf0, AFTER_F0}, {0xf1, 0xf3, TAIL_3}, {0xf4, 0xf4, AFTER_F4}};

    for (uint32_t i = 0; i < sizeof arcs / sizeof arcs[0]; i++)
        grammar_fsa_add_arc(fsa, state, arcs[i][0], arcs[i][1], arcs[i][2]);
    for (uint32_t first = 0, last; first < ASCII; first = last + 1) {
        for (last = first; last < ASCII && !is_taken[last]; last++) {}
        if (last > first)
            grammar_fsa_add_arc(fsa, state, first, last - 1, ANY);
    }
}

static int compare_keys(const void *left, const void *right)
{
    return strcmp(*(const char *const *)left, *(const char *const *)right);
}

// Adds the state that the keys, which are sorted, have reached after `depth` bytes, and those behind it. Returns it.
static uint32_t add_branch(struct grammar_fsa *fsa, const char **keys, uint32_t count, size_t depth)
{
    uint32_t state = grammar_fsa_add_state(fsa, keys[0][depth] != '\0');
    bool is_taken[ASCII] = {false};

    for (uint32_t first = keys[0][depth] == '\0', last; first < count && !fsa->failure; first = last) {
        unsigned char byte = (unsigned char)keys[first][depth];
        for (last = first; last < count && (unsigned char)keys[last][depth] == byte; last++) {}
        is_taken[byte] = true;
        grammar_fsa_add_arc(fsa, state, byte, byte, add_branch(fsa, keys + first, last - first, depth + 1));
    }
    add_others(fsa, state, is_taken);
    return state;
}

// Returns all strings but the declared keys. Keys of ASCII, as most are, make a tree, which is quicker than a difference of languages.
static uint32_t undeclared(struct jschema *schema, const struct jschema_keys *keys)
{
    struct grammar_fsa fsa = {.max_states = GRAMMAR_MAX_REGULAR_STATES, .max_arcs = GRAMMAR_MAX_EDGES};
    const char **sorted = jschema_take(schema, keys->declared_count, sizeof *sorted);
    uint32_t *texts = jschema_take(schema, keys->declared_count, sizeof *texts);
    bool is_simple = true;

    if (!sorted || !texts)
        return schema->nothing;
    for (uint32_t i = 0; i < keys->declared_count; i++) {
        sorted[i] = keys->declared[i];
        is_simple &= strlen(sorted[i]) <= MAX_TREE_DEPTH;
        for (const char *c = sorted[i]; *c; c++)
            is_simple &= (unsigned char)*c < ASCII;
    }
    if (!is_simple) {
        for (uint32_t i = 0; i < keys->declared_count; i++)
            texts[i] = grammar_text(schema->builder, keys->declared[i]);
        return jschema_without(schema, jschema_any_content(schema), grammar_either(schema->builder, texts, keys->declared_count));
    }
    qsort(sorted, keys->declared_count, sizeof *sorted, compare_keys);
    add_utf8(&fsa);
    add_others(&fsa, ANY, (const bool[ASCII]){false});
    fsa.start = add_branch(&fsa, sorted, keys->declared_count, 0);
    if (grammar_fsa_seal(&fsa))
        grammar_fsa_trim(&fsa);
    if (jschema_charge(schema, fsa.state_count))
        return grammar_add_regular(schema->builder, &fsa);
    grammar_fsa_free(&fsa);
    return schema->nothing;
}

uint32_t jschema_additional_keys(struct jschema *schema, const struct jschema_keys *keys, uint32_t matched, uint32_t among)
{
    uint32_t content;

    if (keys->declared_count == 0 && keys->any_name && keys->pattern_count == 0 && among == schema->nothing)
        return jschema_any_string(schema);
    content = keys->declared_count ? undeclared(schema, keys) : jschema_any_content(schema);
    if (!keys->any_name)
        content = jschema_both(schema, content, keys->names);
    if (among != schema->nothing)
        content = jschema_both(schema, content, among);
    for (uint32_t p = 0; p < keys->pattern_count; p++)
        content = matched >> p & 1 ? jschema_both(schema, content, keys->patterns[p].content)
                                   : jschema_without(schema, content, keys->patterns[p].content);
    return jschema_failed(schema) || jschema_is_nothing(schema, content) ? schema->nothing : jschema_quoted(schema, content);
}
