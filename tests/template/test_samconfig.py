"""What samconfig.toml says is what template.yaml takes."""

import re
import tomllib

import pytest
from template import ROOT, read

CONFIG = tomllib.loads((ROOT / "samconfig.toml").read_text())
ENVIRONMENTS = {name: e["deploy"]["parameters"] for name, e in CONFIG.items() if name != "version"}


def refused(text, parameters):
    name, _, value = text.partition("=")
    p = parameters.get(name)
    if p is None:
        return f"no parameter {name}"
    if "AllowedValues" in p and value not in map(str, p["AllowedValues"]):
        return f"{text}: not one of {p['AllowedValues']}"
    if not p.get("MinValue", 0) <= (int(value) if p["Type"] == "Number" else 0) <= p.get("MaxValue", 10**9):
        return f"{text}: out of bounds"
    return None if re.search(p.get("AllowedPattern", ""), value) else f"{text}: has another form"


@pytest.mark.parametrize("name", ENVIRONMENTS)
def test_the_template_takes_what_an_environment_sets(name):
    own = ENVIRONMENTS[name]
    assert own["resolve_s3"] and set(own["capabilities"]) == {"CAPABILITY_IAM", "CAPABILITY_AUTO_EXPAND"}
    assert not list(filter(None, (refused(text, read()["Parameters"]) for text in own.get("parameter_overrides", []))))


def test_staging_and_production_are_apart_and_production_asks():
    staging, production = ENVIRONMENTS["staging"], ENVIRONMENTS["production"]
    assert staging["stack_name"] != production["stack_name"] and production["confirm_changeset"]
    assert "DeletionProtection=true" in production["parameter_overrides"]
    # The functions find queues by the tag `stepwarden`.
    assert not any(tag.startswith("stepwarden=") for e in ENVIRONMENTS.values() for tag in e.get("tags", []))


def test_a_wrong_value_is_seen():
    parameters = read()["Parameters"]
    for text in ("DeletionProtect=true", "DeletionProtection=yes", "ApiRateLimit=0", "KmsKeyArn=alias/x"):
        assert refused(text, parameters)
    assert not refused("LogRetentionDays=7", parameters)
