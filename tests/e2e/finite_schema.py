"""Schemas of applications, narrowed to finitely many texts, and how long these can be: an answer that may take as many tokens must end by itself."""
import json

CHARACTER_BYTES = 12  # two \uXXXX are one character
STRING, ITEMS = 8, 2  # characters and items where the schema has no smaller limit
NUMBER = 1000  # bounds where the schema has none
NUMBER_BYTES = {"integer": 20, "number": 60}  # limited ones have neither an exponent nor more than 32 digits behind the point
FORMAT_BYTES = {"date": 12, "date-time": 40, "uuid": 38, "ipv4": 17}
PATTERN_BYTES = {"^[A-Z]{2,4}-[0-9]{3,6}$": 13, "^[A-Z]{3}$": 5, "^[a-z]{2}$": 4, "^[0-9]{5}(-[0-9]{4})?$": 12, "^#[0-9a-fA-F]{6}$": 9, "^[0-9]{4}$": 6,
                 "^[0-9a-f]{40}$": 42}
SPACE = 1  # behind `:` and `,`


def text_bytes(value):
    return len(json.dumps(value, ensure_ascii=False).encode())


def finite(schema):
    """(a schema with finitely many texts, all of which are valid under this one too, the bytes of the longest at most). KeyError: it has
    keywords that are not known here."""
    for name in ("anyOf", "oneOf"):
        if name in schema:
            parts = [finite(part) for part in schema[name]]
            return {name: [part for part, _ in parts]}, max(size for _, size in parts)
    if "const" in schema or "enum" in schema:
        return schema, max(map(text_bytes, [schema["const"]] if "const" in schema else schema["enum"]))
    types = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
    parts = [KINDS[kind](schema, kind) for kind in types]
    narrowed = {}
    for part, _ in parts:
        narrowed |= part
    return narrowed | {"type": schema["type"]}, max(size for _, size in parts)


def narrow_object(schema, _):
    properties = {name: finite(part) for name, part in schema["properties"].items()}
    size = 2 + sum(text_bytes(name) + part + 2 + 2 * SPACE for name, (_, part) in properties.items())
    return {"properties": {name: part for name, (part, _) in properties.items()}, "required": schema.get("required", []),
            "additionalProperties": False}, size


def narrow_array(schema, _):
    first = [finite(part) for part in schema.get("prefixItems", [])]
    least, most = schema.get("minItems", 0), max(schema.get("minItems", 0), min(schema.get("maxItems", ITEMS), ITEMS))
    narrowed, sizes = {"minItems": least, "maxItems": most}, [size for _, size in first]
    if first:
        narrowed |= {"prefixItems": [part for part, _ in first], "items": False}
    else:
        narrowed["items"], size = finite(schema["items"])
        sizes = [size] * most
    return narrowed, 2 + sum(size + 1 + SPACE for size in sizes)


def narrow_string(schema, _):
    for name, sizes in (("pattern", PATTERN_BYTES), ("format", FORMAT_BYTES)):
        if name in schema:
            return {name: schema[name]}, sizes[schema[name]]
    least = schema.get("minLength", 0)
    most = max(least, min(schema.get("maxLength", STRING), STRING))
    return {"minLength": least, "maxLength": most}, 2 + most * CHARACTER_BYTES


def narrow_number(schema, kind):
    limits = {name: schema[name] for name in ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf") if name in schema}
    if not {"minimum", "exclusiveMinimum"} & set(limits):
        limits["minimum"] = min(-NUMBER, limits.get("maximum", 0), limits.get("exclusiveMaximum", 0) - 1)
    if not {"maximum", "exclusiveMaximum"} & set(limits):
        limits["maximum"] = max(NUMBER, limits.get("minimum", 0), limits.get("exclusiveMinimum", 0) + 1)
    return limits, NUMBER_BYTES[kind]


KINDS = {"object": narrow_object, "array": narrow_array, "string": narrow_string, "integer": narrow_number, "number": narrow_number,
         "boolean": lambda *_: ({}, 5), "null": lambda *_: ({}, 4)}
