"""Every check holds for template.yaml, whatever the parameters."""

import re

import pytest
from checks import CHECKS
from documented import TABLE
from template import ROOT, Stack, read

KEY = "arn:aws:kms:eu-west-1:111122223333:key/1234"
JWT = {"JwtIssuer": "https://issuer.example", "JwtAudience": "shop"}
POLICIES = "arn:aws:iam::111122223333:policy/shop-steps,arn:aws:iam::aws:policy/AmazonSNSFullAccess"
SETTINGS = {
    "default": {},
    "alone": {"Sample": "false", "InventoryUrl": "", "FraudUrl": "", "PaymentUrl": "", "ShippingUrl": ""},
    "jwt": JWT,
    "open": {"OpenOrders": "true"},
    "callbacks": {"PublicUrl": "https://orders.example"},
    "jwt-open": {**JWT, "OpenOrders": "true"},
    "key-email-unprotected": {"KmsKeyArn": KEY, "AlarmEmail": "ops@shop.example", "DeletionProtection": "false"},
    "classes": {"PriorityClasses": "true"},
    "secrets-external": {"HttpSecretArn": "arn:aws:secretsmanager:eu-west-1:111122223333:secret:shop-http-AbCdEf", "HttpPolicyArns": POLICIES, "ExternalAgents": "gift-wrap"},
    "traces": {"OtlpEndpoint": "https://collector.example:4318", "OtlpHeadersSecretArn": "arn:aws:secretsmanager:eu-west-1:111122223333:secret:shop-otlp-AbCdEf"},
    "batches": {"BatchSeconds": "2", "PriorityClasses": "true"},
    **{f"status-{n}": {"StatusRateLimit": n} for n in read()["Parameters"]["StatusRateLimit"]["AllowedValues"]},
    "versions": {"SubmitVersion": "7", "OperatorVersion": "3"},
    "canary": {"SubmitVersion": "7", "SubmitCanaryVersion": "8", "OperatorVersion": "3", "OperatorCanaryVersion": "4", "CanaryWeight": "0.25"},
    "standby": {"Active": "false", "PriorityClasses": "true"},
    "arm64": {"Architecture": "arm64"},
    "retention": {"RetentionDays": "30"},
    "company": {
        "SubnetIds": "subnet-0123456789abcdef0,subnet-0123456789abcdef1",
        "SecurityGroupIds": "sg-0123456789abcdef0",
        "PermissionsBoundaryArn": "arn:aws:iam::111122223333:policy/boundary",
        "Layers": "arn:aws:lambda:eu-west-1:111122223333:layer:collector:3",
        "AccessLogClass": "INFREQUENT_ACCESS",
        "DocsUrl": "https://git.example/stepwarden/blob/main/",
        "HttpPolicyArns": POLICIES,
        "ReplyQueues": "audit=*;acme=acme,beta",
    },
    **{f"agent-{s}-s": {"AgentTimeoutSeconds": s} for s in read()["Parameters"]["AgentTimeoutSeconds"]["AllowedValues"]},
    **{f"every-{m}-min": {"SupervisorRateMinutes": m} for m in read()["Parameters"]["SupervisorRateMinutes"]["AllowedValues"]},
}


@pytest.fixture(scope="module", params=SETTINGS, ids=list(SETTINGS))
def stack(request):
    return Stack(read(), **SETTINGS[request.param])


@pytest.mark.parametrize("check", CHECKS, ids=lambda c: c.__name__)
def test_template(stack, check):
    problems = list(check(stack))
    assert not problems, "\n".join(problems)


@pytest.mark.parametrize("row", TABLE, ids=lambda row: row.check)
def test_every_row_of_what_aws_documents_has_its_check(row):
    assert row.service and row.says and row.page
    if "::" not in row.check:
        assert row.check in {check.__name__ for check in CHECKS}
        return
    path, name = row.check.split("::")
    assert re.search(rf"\bfn {name}\b", (ROOT / path).read_text())


def test_every_check_of_what_aws_documents_is_in_the_table():
    ours = {check.__name__ for check in CHECKS if check.__module__ == "documented"}
    assert ours - {row.check for row in TABLE} == {"counts_in_documents_are_those_of_the_template"}
