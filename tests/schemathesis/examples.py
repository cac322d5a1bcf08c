"""Whether the examples of an OpenAPI document are of the shape that it says."""

import json
import sys

import jsonschema_rs

document = json.load(open(sys.argv[1]))
checked = 0


def resolved(part):
    if "$ref" not in part:
        return part
    _, _, kind, name = part["$ref"].split("/")
    return document["components"][kind][name]


def check(content, where):
    global checked
    for media_type, one in content.items():
        schema = {**one["schema"], "components": document["components"]}
        validator = jsonschema_rs.Draft202012Validator(schema)
        examples = [one["example"]] if "example" in one else [resolved(e)["value"] for e in one.get("examples", {}).values()]
        for example in examples:
            for error in validator.iter_errors(example):
                sys.exit(f"{where} {media_type}: {error}")
            checked += 1


for path, operations in document["paths"].items():
    for method, operation in operations.items():
        check(operation.get("requestBody", {}).get("content", {}), f"{method} {path}")
        for status, answer in operation["responses"].items():
            answer = resolved(answer)
            check(answer.get("content", {}), f"{method} {path} {status}")
print(f"{checked} examples are of the shape that the document says")
