"""Every check holds for template.yaml, whatever the parameters."""

import pytest
from checks import CHECKS
from template import Stack, read

KEY = "arn:aws:kms:eu-west-1:111122223333:key/1234"
JWT = {"JwtIssuer": "https://issuer.example", "JwtAudience": "shop"}
SETTINGS = {
    "default": {},
    "jwt": JWT,
    "open": {"OpenOrders": "true"},
    "jwt-open": {**JWT, "OpenOrders": "true"},
    "key-email-unprotected": {"KmsKeyArn": KEY, "AlarmEmail": "ops@shop.example", "DeletionProtection": "false"},
    "classes": {"PriorityClasses": "true"},
    "secrets-external": {"HttpSecretArn": "arn:aws:secretsmanager:eu-west-1:111122223333:secret:shop-http-AbCdEf", "ExternalAgents": "gift-wrap"},
    "traces": {"OtlpEndpoint": "https://collector.example:4318", "OtlpHeadersSecretArn": "arn:aws:secretsmanager:eu-west-1:111122223333:secret:shop-otlp-AbCdEf"},
    "standby": {"Active": "false", "PriorityClasses": "true"},
    "arm64": {"Architecture": "arm64"},
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
