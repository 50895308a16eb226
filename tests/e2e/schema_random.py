"""Random JSON Schemas and values over few keys and texts, so that keywords meet."""

KEYS = ["a", "b", "c", "ab"]
SCALARS = [None, True, False, 0, 1, 2, 3, 5, -1, 1.5, 0.25, 10, "", "a", "ab", "b", "abc", "é"]
NUMBERS = [0, 1, 2, 3, 5, -1, 1.5, 0.25, 10]
TYPES = ["object", "array", "string", "integer", "number", "null", "boolean"]
PATTERNS = ["^a", "b$", "^[ab]*$", "a", "^$", "^.b"]
COUNTS = ["minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties"]
BOUNDS = ["minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"]
KEYWORDS = ["type", "type", "type", "enum", "const", *BOUNDS, "multipleOf", *COUNTS, "pattern", "items", "prefixItems", "contains", "properties", "properties",
            "properties", "required", "additionalProperties", "patternProperties", "propertyNames", "dependentRequired", "dependentSchemas", "allOf",
            "anyOf", "oneOf", "not", "if", "$ref", "uniqueItems"]


class Maker:
    def __init__(self, random):
        self.random = random

    def value(self, depth):
        if depth == 0 or self.random.random() < 0.5:
            return self.random.choice(SCALARS)
        if self.random.random() < 0.5:
            return [self.value(depth - 1) for _ in range(self.random.choice([0, 1, 1, 2, 3]))]
        return {key: self.value(depth - 1) for key in self.random.sample(KEYS, self.random.randint(0, 3))}

    def document(self):
        """A schema with definitions, one of which may refer to itself."""
        schema = {}
        while not schema:
            schema = self.schema(self.random.randint(1, 3))
            schema = schema if isinstance(schema, dict) else {}
        schema["$defs"] = {name: self.schema(1) for name in "xyz"}
        if self.random.random() < 0.3:
            schema["$defs"]["x"] = {"type": "object", "properties": {"a": {"$ref": "#/$defs/x"}, "b": self.schema(0)}}
        return schema

    def schema(self, depth):
        if self.random.random() < 0.06:
            return self.random.choice([True, False, {}])
        schema = {}
        for _ in range(self.random.choice([1, 1, 2, 2, 3])):
            keyword = self.random.choice(KEYWORDS)
            schema[keyword] = self.held(keyword, depth)
            if keyword == "if":
                for branch in ("then", "else"):
                    if self.random.random() < 0.7:
                        schema[branch] = self.sub(depth)
        return schema

    def sub(self, depth):
        return self.schema(depth - 1) if depth else self.random.choice([True, False, {"type": "integer"}, {"type": "string"}, {"const": 1}, {"minimum": 2}])

    def held(self, keyword, depth):
        """What a keyword may have."""
        choice, sample, some = self.random.choice, self.random.sample, self.random.randint
        if keyword in COUNTS:
            return choice([0, 1, 1, 2, 2, 3])
        if keyword in BOUNDS:
            return choice(NUMBERS)
        if keyword in ("prefixItems", "allOf", "anyOf", "oneOf"):
            return [self.sub(depth) for _ in range(some(1, 3))]
        if keyword in ("items", "contains", "additionalProperties", "not", "if"):
            return self.sub(depth)
        return {"type": lambda: choice([choice(TYPES), sample(TYPES, 2)]),
                "enum": lambda: [self.value(1) for _ in range(some(1, 4))],
                "const": lambda: self.value(1),
                "multipleOf": lambda: choice([1, 2, 3, 0.5, 0.25, 5, 10]),
                "pattern": lambda: choice(PATTERNS),
                "properties": lambda: {key: self.sub(depth) for key in sample(KEYS, some(1, 3))},
                "required": lambda: sample(KEYS, some(1, 2)),
                "patternProperties": lambda: {choice(["^a", "b$", "a"]): self.sub(depth)},
                "propertyNames": lambda: choice([{"maxLength": 1}, {"pattern": "^a"}, {"enum": ["a", "b"]}, self.sub(depth)]),
                "dependentRequired": lambda: {choice(KEYS): [choice(KEYS)]},
                "dependentSchemas": lambda: {choice(KEYS): self.sub(depth)},
                "uniqueItems": lambda: some(0, 3) > 0,
                "$ref": lambda: "#/$defs/" + choice("xyz")}[keyword]()
