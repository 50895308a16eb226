// grammar_schema_format.c: the formats of strings that are regular languages.
//
// A format narrows what the standard calls an annotation: whoever gives one wants such strings. Where a format allows texts that readers of
// it do not agree on, there are fewer of them: no leap seconds, no year 0000, at most nine digits behind a second's point. Host names have at most 253
// characters: four labels of up to 63, eight of up to 30, or fifteen of up to 15, so that counting both is small.
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
#define HOSTNAME                                                                                                    \
    "(?:" LABEL(61) "(?:\\." LABEL(61) "){0,2}(?:\\." LABEL(59) ")?|" LABEL(28) "(?:\\." LABEL(28) "){0,7}|" LABEL( \
        13) "(?:\\." LABEL(13) "){0,14})"

#define ATOM "[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]"
#define QUOTED "\"(?:[\\x20\\x21\\x23-\\x5b\\x5d-\\x7e]|\\\\[\\x20-\\x7e]){0,30}\""
// At most 64 characters before the @.
#define EMAIL                                                                                                               \
    "(?:" ATOM "{1,64}|" ATOM "{1,31}\\." ATOM "{1,32}|" ATOM "(?:\\.?" ATOM "){0,31}|" QUOTED ")@(?:" HOSTNAME "|\\[" IPV4 \
    "\\]|\\[IPv6:" IPV6 "\\])"

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
} formats[] = {
    {"date", DATE},
    {"time", TIME},
    {"date-time", DATE "[Tt]" TIME},
    {"duration", DURATION},
    {"uuid", UUID},
    {"ipv4", IPV4},
    {"ipv6", IPV6},
    {"hostname", HOSTNAME},
    {"email", EMAIL},
    {"uri", URI},
    {"uri-reference", "(?:" URI "|" RELATIVE ")"},
    {"json-pointer", POINTER},
    {"relative-json-pointer", "(?:0|[1-9][0-9]{0,9})(?:#|" POINTER ")"},
    {"regex", NULL},
    {"iri", NULL},
    {"iri-reference", NULL},
    {"idn-email", NULL},
    {"idn-hostname", NULL},
    {"uri-template", NULL},
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
