#!/usr/bin/env python3
"""Writes schemas.json: 216 JSON Schemas as applications send them, {name: schema}.

Twenty-seven subjects, each in eight manners: a function's arguments, OpenAI's strict form, a record to be extracted from text, pydantic's
export of models in each other, a union told apart by a const, draft 7 with definitions, OpenAPI 3.0, and a nested payload of an API.
Which fields, limits and choices a schema has is drawn with a fixed seed. Needs pydantic."""
import json
import os
import random
from datetime import date, datetime
from decimal import Decimal
from enum import Enum
from typing import Annotated, Literal, Optional, Union
from uuid import UUID

from pydantic import ConfigDict, Field, create_model

# subject: fields of (name, kind); kinds are those of plain().
SUBJECTS = {
    "invoice": "number:code issued_on:date due_on:date currency:currency net:money vat:money total:money note:text paid:flag lines:list",
    "order": "order_id:uuid placed_at:moment status:choice quantity:count unit_price:money gift:flag address:text tags:words priority:small",
    "customer": "name:text email:email phone:phone born:date country:country vip:flag score:ratio notes:words segment:choice",
    "booking": "guest:text arrival:date departure:date rooms:small breakfast:flag rate:money reference:code wishes:words source:choice",
    "flight": "carrier:code flight_no:code departs_at:moment arrives_at:moment seats:count cabin:choice fare:money stops:small origin:airport",
    "patient": "id:uuid name:text born:date sex:choice weight_kg:ratio allergies:words pulse:count diagnosis:code admitted:moment smoker:flag",
    "prescription": "drug:text dose_mg:ratio times_per_day:small start:date days:count repeat:flag route:choice warnings:words code:code",
    "recipe": "title:text servings:small minutes:count difficulty:choice ingredients:words steps:words vegan:flag calories:count rating:ratio",
    "movie": "title:text year:year genres:words rating:ratio runtime:count director:text released:date seen:flag language:country",
    "job": "title:text company:text remote:flag salary_min:money salary_max:money skills:words level:choice posted:date url:uri openings:small",
    "resume": "name:text email:email summary:text skills:words years:small available:date relocate:flag links:words seniority:choice",
    "ticket": "subject:text body:text severity:choice opened_at:moment assignee:email labels:words resolved:flag effort:ratio ref:code",
    "event": "title:text starts_at:moment ends_at:moment location:text capacity:count online:flag kind:choice price:money host:email",
    "weather": "city:text country:country unit:choice days:small lat:latitude lon:longitude hourly:flag at:moment fields:words",
    "search": "query:text limit:count offset:count sort:choice filters:words since:date exact:flag min_score:ratio lang:country",
    "device": "serial:code model:text ip:ip host:host firmware:version online:flag battery:percent sensors:words seen_at:moment kind:choice",
    "alert": "rule:text level:choice value:ratio threshold:ratio fired_at:moment silenced:flag labels:words runbook:uri count:count",
    "payment": "amount:money currency:currency method:choice card_last4:digits captured:flag paid_at:moment payer:email reference:uuid fee:money",
    "shipment": "tracking:code weight:ratio carrier:choice parcels:small insured:flag sent_on:date eta:moment stops:words cost:money zip:zip",
    "contract": "title:text parties:words signed_on:date expires_on:date value:money currency:currency renewable:flag clauses:words kind:choice",
    "property": "street:text city:text zip:zip rooms:small area:ratio price:money built:year balcony:flag kind:choice features:words",
    "vehicle": "vin:code make:text model:text year:year mileage:count fuel:choice price:money accident_free:flag color:color plates:code",
    "article": "headline:text body:text author:text published:moment tags:words words:count sentiment:choice score:ratio url:uri draft:flag",
    "survey": "question:text answer:choice scale:small comment:text respondent:uuid taken_on:date anonymous:flag topics:words nps:percent",
    "experiment": "name:text seed:count lr:ratio epochs:count optimizer:choice metrics:words started:moment converged:flag loss:ratio sha:hex",
    "calendar": "summary:text start:moment duration:span attendees:words recurring:flag color:color visibility:choice reminder:count room:text",
    "geo": "name:text lat:latitude lon:longitude kind:choice population:count elevation:ratio code:airport aliases:words capital:flag zip:zip",
}
CHOICES = [["low", "medium", "high"], ["new", "open", "in_progress", "done", "cancelled"], ["a", "b", "c", "d"], ["daily", "weekly", "monthly"],
           ["card", "cash", "transfer", "voucher"], ["first", "business", "economy"], ["positive", "neutral", "negative"],
           ["petrol", "diesel", "electric", "hybrid", "other"], ["celsius", "fahrenheit"], ["sgd", "adam", "adamw", "lion"]]
PATTERNS = {"code": "^[A-Z]{2,4}-[0-9]{3,6}$", "phone": r"^\+?[0-9 ()-]{7,20}$", "currency": "^[A-Z]{3}$", "country": "^[a-z]{2}$",
            "airport": "^[A-Z]{3}$", "digits": "^[0-9]{4}$", "zip": "^[0-9]{5}(-[0-9]{4})?$", "version": r"^v?[0-9]+\.[0-9]+\.[0-9]+$",
            "color": "^#[0-9a-fA-F]{6}$", "hex": "^[0-9a-f]{40}$"}
FORMATS = {"date": "date", "moment": "date-time", "uuid": "uuid", "email": "email", "uri": "uri", "ip": "ipv4", "host": "hostname", "span": "duration"}
NUMBERS = {"money": (0, 1000000, "number"), "ratio": (0, 1, "number"), "count": (0, 100000, "integer"), "small": (1, 12, "integer"),
           "year": (1900, 2100, "integer"), "percent": (0, 100, "integer"), "latitude": (-90, 90, "number"), "longitude": (-180, 180, "number")}


def plain(kind, draw):
    """A schema of one field."""
    if kind in PATTERNS:
        return {"type": "string", "pattern": PATTERNS[kind]}
    if kind in FORMATS:
        return {"type": "string", "format": FORMATS[kind]}
    if kind in NUMBERS:
        low, high, name = NUMBERS[kind]
        limits = [{}, {"minimum": low}, {"minimum": low, "maximum": high}, {"exclusiveMinimum": low - 1, "maximum": high * 2}]
        field = {"type": name, **draw.choice(limits)}
        if kind == "money" and draw.random() < 0.5:
            field["multipleOf"] = 0.01
        return field
    if kind == "choice":
        return {"type": "string", "enum": draw.choice(CHOICES)}
    if kind == "flag":
        return {"type": "boolean"}
    if kind == "words":
        return {"type": "array", "items": {"type": "string", **draw.choice([{}, {"maxLength": 40}, {"minLength": 1}])},
                **draw.choice([{}, {"maxItems": 10}, {"minItems": 1}, {"minItems": 1, "maxItems": 5}])}
    if kind == "list":
        return {"type": "array", "items": {"type": "object", "required": ["sku", "quantity"], "properties": {
            "sku": {"type": "string", "minLength": 3, "maxLength": 20}, "quantity": {"type": "integer", "minimum": 1}, "price": {"type": "number"}}}}
    return {"type": "string", **draw.choice([{}, {"maxLength": 200}, {"minLength": 1, "maxLength": 80}, {"minLength": 1}])}


def some(fields, draw, least=4):
    return draw.sample(fields, draw.randint(least, len(fields)))


def described(subject, name, schema, draw):
    texts = [f"The {name} of the {subject}.", f"{name.replace('_', ' ').capitalize()}, as written in the text", "Leave out if unknown.", ""]
    return {**schema, "description": draw.choice(texts)}


def arguments(subject, fields, draw):
    chosen = some(fields, draw)
    required = [name for name, _ in chosen if draw.random() < 0.5]
    return {"type": "object", "properties": {name: described(subject, name, plain(kind, draw), draw) for name, kind in chosen},
            **({"required": required} if required else {})}


def strict(subject, fields, draw):
    def nullable(schema):
        if "enum" in schema:
            return {"anyOf": [schema, {"type": "null"}]}
        return {**schema, "type": [schema["type"], "null"]} if draw.random() < 0.4 else schema

    chosen = some(fields, draw)
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": subject.capitalize(), "type": "object", "additionalProperties": False,
            "properties": {name: nullable(closed(plain(kind, draw))) for name, kind in chosen}, "required": [name for name, _ in chosen]}


def closed(schema):
    """As OpenAI's strict form wants it: nothing else, everything required."""
    if schema.get("type") == "object":
        return {**schema, "additionalProperties": False, "required": list(schema["properties"])}
    return {**schema, "items": closed(schema["items"])} if "items" in schema else schema


def extraction(subject, fields, draw):
    """Each field with where it was found and how sure one is."""
    found = {"type": "object", "additionalProperties": False, "required": ["value", "confidence"]}
    properties = {}
    for name, kind in some(fields, draw):
        properties[name] = {**found, "properties": {"value": plain(kind, draw), "confidence": {"type": "number", "minimum": 0, "maximum": 1},
                                                    "span": {"type": "array", "prefixItems": [{"type": "integer", "minimum": 0}] * 2, "items": False}}}
    return {"type": "object", "properties": {f"{subject}s": {"type": "array", "minItems": draw.randint(0, 2), "items": {
        "type": "object", "properties": properties, "required": [draw.choice(list(properties))], "additionalProperties": False}}},
        "required": [f"{subject}s"], "additionalProperties": False}


TYPES = {"date": date, "moment": datetime, "uuid": UUID, "money": Decimal, "ratio": float, "count": int, "small": Annotated[int, Field(ge=1, le=12)],
         "year": Annotated[int, Field(gt=1899, lt=2101)], "percent": Annotated[int, Field(ge=0, le=100)], "flag": bool, "words": list[str],
         "latitude": Annotated[float, Field(ge=-90, le=90)], "longitude": Annotated[float, Field(ge=-180, le=180)]}


def pydantic_type(name, kind, draw):
    if kind == "choice":
        values = draw.choice(CHOICES)
        return Enum(name.capitalize() + "Choice", {value.upper(): value for value in values}, type=str) if draw.random() < 0.5 else Literal[tuple(values)]
    if kind in PATTERNS:
        return Annotated[str, Field(pattern=PATTERNS[kind])]
    return TYPES.get(kind, str)


def exported(subject, fields, draw):
    def model(name, chosen, more):
        made = {}
        for field, kind in chosen:
            of = pydantic_type(field, kind, draw)
            made[field] = draw.choice([(of, ...), (Optional[of], None), (of, Field(description=f"The {field}"))])
        return create_model(name, __config__=ConfigDict(extra=draw.choice(["forbid", "ignore"])), **made, **more)

    part = model(subject.capitalize() + "Part", some(fields, draw, 2)[:4], {})
    other = model(subject.capitalize() + "Other", some(fields, draw, 2)[:3], {})
    more = {"part": (part, ...), "parts": (list[part], Field(default_factory=list, max_length=draw.randint(2, 8))),
            "other": (Union[part, other, None], None), "by_name": (dict[str, other], Field(default_factory=dict))}
    whole = model(subject.capitalize(), some(fields, draw)[:6], dict(draw.sample(sorted(more.items()), draw.randint(2, 4))))
    return whole.model_json_schema()


def union(subject, fields, draw):
    kinds = draw.sample(["created", "changed", "removed", "moved", "merged", "archived"], draw.randint(2, 5))
    options = []
    for kind in kinds:
        chosen = some(fields, draw, 2)[:5]
        options.append({"type": "object", "properties": {"type": draw.choice([{"const": kind}, {"type": "string", "enum": [kind]}]),
                                                         **{name: plain(of, draw) for name, of in chosen}},
                        "required": ["type", *[name for name, _ in chosen if draw.random() < 0.5]], "additionalProperties": draw.random() < 0.2})
    event = {draw.choice(["oneOf", "anyOf"]): options}
    return draw.choice([event, {"type": "object", "properties": {"subject": {"const": subject}, "event": event}, "required": ["subject", "event"]},
                        {"type": "array", "items": event, "minItems": 1, "maxItems": 20}])


def draft7(subject, fields, draw):
    names = {name: plain(kind, draw) for name, kind in fields}
    needed = draw.sample(list(names), 2)
    return {"$schema": "http://json-schema.org/draft-07/schema#", "definitions": {
        "base": {"type": "object", "properties": dict(list(names.items())[:4]), "required": [list(names)[0]]},
        "node": {"type": "object", "properties": {"name": {"type": "string"}, "children": {"type": "array", "items": {"$ref": "#/definitions/node"}}},
                 "required": ["name"], "additionalProperties": False}},
        "allOf": [{"$ref": "#/definitions/base"}], "type": "object", "properties": {**dict(list(names.items())[4:]), "tree": {"$ref": "#/definitions/node"}},
        "required": [draw.choice(list(names)[4:])], **draw.choice([{}, {"dependencies": {needed[0]: [needed[1]]}}])}


def openapi(subject, fields, draw):
    properties = {}
    for name, kind in some(fields, draw):
        field = plain(kind, draw)
        if field["type"] == "integer":
            field["format"] = draw.choice(["int32", "int64"])
        properties[name] = {**field, "nullable": draw.random() < 0.3, "readOnly": False, "example": None, "x-order": len(properties)}
    return {"type": "object", "title": subject, "properties": properties, "required": draw.sample(list(properties), 2), "deprecated": False,
            "externalDocs": {"url": "https://example.com"}, **draw.choice([{"additionalProperties": False}, {"additionalProperties": {"type": "string"}}, {}])}


def payload(subject, fields, draw):
    leaf = arguments(subject, fields, draw)
    page = {"type": "object", "properties": {"data": {"type": "array", "items": {"$ref": f"#/$defs/{subject}"}, "maxItems": draw.randint(5, 50)},
                                             "next": {"type": ["string", "null"]}, "total": {"type": "integer", "minimum": 0}},
            "required": ["data", "total"], "additionalProperties": False}
    problem = {"type": "object", "properties": {"error": {"type": "object", "properties": {
        "code": {"type": "integer", "enum": [400, 401, 403, 404, 409, 429, 500]}, "message": {"type": "string"}}, "required": ["code", "message"]}},
        "required": ["error"], "additionalProperties": False}
    return {"$defs": {subject: leaf, "page": page, "problem": problem}, "anyOf": [{"$ref": "#/$defs/page"}, {"$ref": "#/$defs/problem"}],
            **draw.choice([{}, {"type": "object"}])}


MANNERS = [arguments, strict, extraction, exported, union, draft7, openapi, payload]


def main():
    schemas = {}
    for subject, words in SUBJECTS.items():
        fields = [tuple(word.split(":")) for word in words.split()]
        for manner in MANNERS:
            schemas[f"{subject}: {manner.__name__}"] = manner(subject, fields, random.Random(f"{subject} {manner.__name__}"))
    path = os.path.join(os.path.dirname(os.path.abspath(__file__)), "schemas.json")
    with open(path, "w", encoding="utf-8") as file:
        file.write("{\n" + ",\n".join(f"{json.dumps(name)}: {json.dumps(schema, default=str)}" for name, schema in schemas.items()) + "\n}\n")


if __name__ == "__main__":
    main()
