"""cfn-lint, SAM's validation and checkov, on the template as it is and as SAM transforms it. What they find is mended, or
waived in waivers.yaml with the reason; a waiver that waives nothing fails as well."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from template import FILE, ROOT, read, transform

HERE = Path(__file__).parent
BIN = Path(sys.executable).parent
WAIVERS = yaml.safe_load((HERE / "waivers.yaml").read_text())
REGION = "eu-west-1"
# No credentials, and nobody is called.
ENVIRONMENT = {**os.environ, "SAM_CLI_TELEMETRY": "0", "AWS_DEFAULT_REGION": REGION, "AWS_EC2_METADATA_DISABLED": "true"}
used = set()


@pytest.fixture(scope="module", params=["raw", "transformed", *read().nested])
def file(request, tmp_path_factory):
    """The raw template hides wrong values inside SAM's resources; the transformed one shows them. Those that it nests have no transform."""
    if request.param != "transformed":
        return FILE if request.param == "raw" else ROOT / request.param
    path = tmp_path_factory.mktemp("transformed") / "template.json"
    path.write_text(json.dumps(transform(read()), indent=1))
    return path


def run(*command):
    return subprocess.run(command, capture_output=True, text=True, env=ENVIRONMENT, cwd=FILE.parent, timeout=300)


def not_waived(tool, findings):
    """Findings as (rule, logical id, type, text), without those that are waived."""
    left = []
    for rule, name, kind, text in findings:
        for n, waiver in enumerate(WAIVERS):
            if waiver["tool"] == tool and waiver["rule"] == rule and {name, kind} & set(waiver["for"]):
                used.add(n)
                break
        else:
            left.append(f"{rule} {name}: {text}")
    return "\n".join(left)


def cfn_lint(file):
    answer = run(BIN / "cfn-lint", "--include-checks", "I", "--regions", REGION, "--format", "json", "--template", file)
    assert answer.stderr == ""
    resources = read(FILE.read_text() if file.suffix == ".json" else file.read_text())["Resources"]
    for match in json.loads(answer.stdout or "[]"):
        path = match["Location"].get("Path") or []
        name = path[1] if len(path) > 1 and path[0] == "Resources" else "-"
        kind = resources.get(name, {}).get("Type", "-")
        yield match["Rule"]["Id"], name, kind, match["Message"]


def checkov(file):
    answer = run(
        BIN / "checkov", "--framework", "cloudformation", "--skip-download", "--output", "json", "--file", file
    )
    report = json.loads(answer.stdout)
    # It has no rule for alarms.
    summary = report.get("summary", report)
    assert summary.get("parsing_errors", 0) == 0
    assert summary["passed"] > (0 if file.parent == ROOT / "infra" else 50) or file.name == "alarms.yaml", "checkov looked at too little to mean anything"
    for finding in report.get("results", {}).get("failed_checks", []):
        kind, name = finding["resource"].rsplit(".", 1)
        yield finding["check_id"], name, kind, finding["check_name"]


def test_cfn_lint(file):
    assert not not_waived("cfn-lint", cfn_lint(file))


def test_sam_validate():
    answer = run(BIN / "sam", "validate", "--lint", "--template", FILE, "--region", REGION)
    assert answer.returncode == 0, answer.stdout + answer.stderr


def test_checkov(file):
    assert not not_waived("checkov", checkov(file))


@pytest.mark.parametrize("lint", [cfn_lint, checkov])
def test_lint_sees_defect(lint, tmp_path):
    raw = read()
    raw["Resources"]["Agent"]["Properties"]["LoggingConfig"]["LogFormat"] = "Json"
    raw["Resources"]["State"]["Properties"]["PointInTimeRecoverySpecification"] = {"PointInTimeRecoveryEnabled": False}
    path = tmp_path / "template.json"
    path.write_text(json.dumps(transform(raw), indent=1))
    wanted = {cfn_lint: "E3030 Agent", checkov: "CKV_AWS_28 State"}[lint]
    assert wanted in not_waived(lint.__name__.replace("_", "-"), lint(path))


def test_every_waiver_has_a_reason_and_waives_something():
    for n, waiver in enumerate(WAIVERS):
        assert set(waiver) == {"tool", "rule", "for", "reason"}, waiver
        assert len(waiver["reason"]) > 40, f"say why: {waiver}"
        assert n in used, f"nothing to waive any more: {waiver}"
