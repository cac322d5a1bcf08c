"""The document as a file, with the name of a workflow that is there where it says only what the name is not."""

import json
import sys

source, target = sys.argv[1:]
document = json.load(open(source))
content = document["paths"]["/orders"]["post"]["requestBody"]["content"]["application/json"]
_, other = content["schema"]["oneOf"]
other["properties"]["workflow"] = {"const": "free"}
json.dump(document, open(target, "w"))
