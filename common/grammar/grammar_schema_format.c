// grammar_schema_format.c: the formats of strings that are regular languages.
//
// A format narrows what the standard calls an annotation: whoever gives one wants such strings. Where a format allows texts that readers of
// it do not agree on, there are fewer of them: no leap seconds, no year 0000, at most nine digits behind a second's point. Host names have at most 253
// characters: four labels of up to 63 or nine of up to 25 each, so that counting both is small.
#include <stdio.h>
#include <string.h>

#include "common/grammar/grammar_schema_internal.h"
#include "common/grammar/grammar_text.h"

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
// At most 64 characters before the @.
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

static uint32_t find(const char *name)
{
    uint32_t i;

    for (i = 0; i < FORMATS && (!name || strcmp(formats[i].name, name) != 0); i++) {}
    return i;
}

enum jschema_format jschema_format_kind(const char *name)
{
    uint32_t i = find(name);

    if (i == FORMATS)
        return JSCHEMA_FORMAT_UNKNOWN;
    return formats[i].regex ? JSCHEMA_FORMAT_KNOWN : JSCHEMA_FORMAT_REFUSED;
}

uint32_t jschema_format_content(struct jschema *schema, const char *name)
{
    uint32_t i = find(name);

    assert_always(i < JSCHEMA_FORMATS && formats[i].regex);
    if (!schema->format_contents[i])
        schema->format_contents[i] = grammar_add_regex(schema->builder, formats[i].regex, strlen(formats[i].regex), true);
    return schema->format_contents[i];
}

uint32_t jschema_format_text(struct jschema *schema, const char *name)
{
    uint32_t i = find(name);

    assert_always(i < JSCHEMA_FORMATS && formats[i].regex);
    if (!schema->format_texts[i])
        schema->format_texts[i] = jschema_rule(schema, name, jschema_quoted(schema, jschema_format_content(schema, name)));
    return schema->format_texts[i];
}

void jschema_format_lengths(const char *name, uint64_t *shortest, uint64_t *longest)
{
    uint32_t i = find(name);

    *shortest = i < FORMATS ? formats[i].min : 0;
    *longest = i < FORMATS && formats[i].max ? formats[i].max : UINT64_MAX;
}

// --- short ones ----------------------------------------------------------------------------------------------------------------

enum { MIN_SHORT = 24, MAX_LOCAL = 64, MAX_LABEL = 63, SCHEME = 15, REST = 12, MAX_SHORT_URI = 1 << 16 };

// Two labels, or four shorter ones, of at most so many characters in all.
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

// A scheme, then half of the length for the path, and a sixth each for host, query and fragment.
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

uint32_t jschema_format_short_text(struct jschema *schema, const char *name, uint64_t max)
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
