"""template.yaml as data: read, transformed as SAM does it, and evaluated for given parameters as CloudFormation does it. The stacks
that it nests are evaluated with it: their resources join its own, under the name of the nesting resource and their own."""

import copy
import os
import re
from pathlib import Path

import yaml
from samtranslator.parser.parser import Parser
from samtranslator.translator.translator import Translator

ROOT = Path(__file__).resolve().parents[2]
FILE = ROOT / "template.yaml"

# The whole reference system with its example, and what AWS knows.
GIVEN = {f"{name}Url": f"https://{name.lower()}.example" for name in ("Inventory", "Fraud", "Payment", "Shipping")}
GIVEN["Sample"] = "true"
PSEUDO = {
    "AWS::StackName": "shop",
    "AWS::Region": "eu-west-1",
    "AWS::AccountId": "111122223333",
    "AWS::Partition": "aws",
    "AWS::URLSuffix": "amazonaws.com",
    "AWS::StackId": "arn:aws:cloudformation:eu-west-1:111122223333:stack/shop/0",
}
NO_VALUE = object()
NESTED = "AWS::Serverless::Application"
# SAM wants a Region to know the partition; nothing is called there.
os.environ.setdefault("AWS_DEFAULT_REGION", PSEUDO["AWS::Region"])


class _Loader(yaml.SafeLoader):
    pass


def _intrinsic(loader, suffix, node):
    name = suffix if suffix in ("Ref", "Condition") else f"Fn::{suffix}"
    if isinstance(node, yaml.ScalarNode):
        value = loader.construct_scalar(node)
        if name == "Fn::GetAtt":
            value = value.split(".", 1)
    elif isinstance(node, yaml.SequenceNode):
        value = loader.construct_sequence(node, deep=True)
    else:
        value = loader.construct_mapping(node, deep=True)
    return {name: value}


_Loader.add_multi_constructor("!", _intrinsic)


class Template(dict):
    """A template with intrinsic functions in their long form, and in `nested` the templates that it nests, by their paths."""

    nested: dict


def read(text=None):
    raw = Template(yaml.load(FILE.read_text() if text is None else text, _Loader))
    paths = {r["Properties"]["Location"] for r in raw["Resources"].values() if r["Type"] == NESTED}
    raw.nested = {path: read((ROOT / path).read_text()) for path in sorted(paths)}
    return raw


def transform(raw, parameters=None):
    """What CloudFormation gets after SAM's transform, which puts in the values of some parameters."""
    raw = copy.deepcopy(raw)
    # `sam deploy` uploads the folders first.
    for resource in raw["Resources"].values():
        if resource["Type"] == "AWS::Serverless::Function":
            resource["Properties"]["CodeUri"] = "s3://bucket/key"
        if resource["Type"] == "AWS::Serverless::LayerVersion":
            resource["Properties"]["ContentUri"] = "s3://bucket/key"
        if resource["Type"] == NESTED:
            resource["Properties"]["Location"] = f"https://bucket.s3.amazonaws.com/{resource['Properties']['Location']}"
    # The template names no managed policy, so that SAM need not ask IAM for their ARNs.
    return Translator({}, Parser()).translate(raw, dict(parameters or GIVEN))


class Stack:
    """The transformed template with all parameters filled in. `Ref` and `GetAtt` of a resource become text that names it."""

    def __init__(self, raw, name="", **parameters):
        self.raw = raw
        self.name = name
        given = {} if name or "Sample" not in raw["Parameters"] else GIVEN
        self.parameters = {
            name: parameters.get(name, given.get(name, p.get("Default"))) for name, p in raw["Parameters"].items()
        }
        unknown = set(parameters) - set(self.parameters)
        assert not unknown, f"no such parameter: {unknown}"
        missing = {name for name, value in self.parameters.items() if value is None}
        assert not missing, f"parameters without a value: {missing}"
        self.transformed = transform(raw, self.parameters) if "Transform" in raw else raw
        self.mappings = self.transformed.get("Mappings", {})
        self.conditions = self.transformed.get("Conditions", {})
        self.resources = {}
        for name, resource in self.transformed["Resources"].items():
            if "Condition" not in resource or self.holds(resource["Condition"]):
                body = {k: v for k, v in resource.items() if k != "Condition"}
                if needs := body.get("DependsOn"):
                    body["DependsOn"] = [self.name + n for n in ([needs] if isinstance(needs, str) else needs)]
                self.resources[self.name + name] = self.value(body)
        # What a nested stack says of itself is in its own parameters.
        self.nested = {}
        for name, p in self.of_type("AWS::CloudFormation::Stack").items():
            path = raw["Resources"][name]["Properties"]["Location"]
            self.nested[name] = Stack(raw.nested[path], name, **p["Parameters"])
            self.resources |= self.nested[name].resources

    def of_type(self, kind):
        """Resources of a type by logical id, as (id, properties)."""
        return {n: r.get("Properties", {}) for n, r in self.resources.items() if r["Type"] == kind}

    def properties(self, name):
        return self.resources[name]["Properties"]

    def holds(self, condition):
        return self._test(self.conditions[condition])

    def _test(self, node):
        (name, arg), = node.items()
        match name:
            case "Fn::Equals":
                return str(self.value(arg[0])) == str(self.value(arg[1]))
            case "Fn::Not":
                return not self._test(arg[0])
            case "Fn::And":
                return all(self._test(a) for a in arg)
            case "Fn::Or":
                return any(self._test(a) for a in arg)
            case "Condition":
                return self.holds(arg)
        raise ValueError(f"unknown condition {name}")

    def value(self, node):
        if isinstance(node, list):
            return [v for v in map(self.value, node) if v is not NO_VALUE]
        if not isinstance(node, dict):
            return node
        if len(node) == 1:
            (name, arg), = node.items()
            match name:
                case "Ref":
                    return self._ref(arg)
                case "Fn::GetAtt":
                    return f"<{self.name}{'.'.join(arg) if isinstance(arg, list) else arg}>"
                case "Fn::If":
                    return self.value(arg[1] if self.holds(arg[0]) else arg[2])
                case "Fn::FindInMap":
                    top, first, second = (self.value(a) for a in arg)
                    return self.value(self.mappings[top][str(first)][second])
                case "Fn::Sub":
                    text, own = (arg, {}) if isinstance(arg, str) else (arg[0], self.value(arg[1]))
                    return re.sub(r"\$\{([^}!]+)\}", lambda m: own[m[1]] if m[1] in own else self._substitute(m[1]), text)
                case "Fn::Split":
                    return str(self.value(arg[1])).split(arg[0])
                case "Fn::Join":
                    return arg[0].join(str(self.value(a)) for a in arg[1])
        return {k: v for k, v in ((k, self.value(v)) for k, v in node.items()) if v is not NO_VALUE}

    def _ref(self, name):
        if name == "AWS::NoValue":
            return NO_VALUE
        if name in PSEUDO:
            return PSEUDO[name]
        if name in self.parameters:
            return self.parameters[name]
        return f"<{self.name}{name}>"

    def _substitute(self, name):
        return f"<{self.name}{name}>" if "." in name else str(self._ref(name))


def target(reference):
    """The logical id in what `Ref` or `GetAtt` of a resource became: `<Queue.Arn>` is `Queue`."""
    found = re.fullmatch(r"<([A-Za-z0-9]+)(\.[A-Za-z0-9.]+)?>", str(reference))
    return found[1] if found else None
