"""infra/external-agent.yaml makes what template.yaml and the code expect of an agent's queue, and gives no right beyond it."""

import json

import pytest
import source
from template import ROOT, Stack, read, target
from test_lint import BIN, run

FILE = ROOT / "infra/external-agent.yaml"
GIVEN = {"Stack": "shop", "Agent": "gift-wrap", "AlarmTopicArn": "arn:aws:sns:eu-west-1:111122223333:shop-alerts"}
KEY = "arn:aws:kms:eu-west-1:111122223333:key/1234"


@pytest.fixture(params=[{}, {"KmsKeyArn": KEY}], ids=["default", "key"])
def stack(request):
    return Stack(read(FILE.read_text()), **GIVEN, **request.param)


def rights(stack, policy):
    return {
        (action, json.dumps(s["Resource"]).strip('"'))
        for s in stack.properties(policy)["PolicyDocument"]["Statement"]
        for action in (s["Action"] if isinstance(s["Action"], list) else [s["Action"]])
    }


def test_its_queues_are_those_of_the_code(stack):
    queue, dead = stack.properties("Queue"), stack.properties("Dead")
    name = f"shop-{source.AGENT_QUEUE}gift-wrap"
    assert (queue["QueueName"], dead["QueueName"]) == (name, name + source.DEAD_QUEUE)
    assert target(queue["RedrivePolicy"]["deadLetterTargetArn"]) == "Dead"
    assert queue["RedrivePolicy"]["maxReceiveCount"] == source.MAX_RECEIVES
    assert dead["RedriveAllowPolicy"]["sourceQueueArns"] == [f"arn:aws:sqs:eu-west-1:111122223333:{name}"]
    for p in (queue, dead):
        assert p["MessageRetentionPeriod"] == source.RETENTION_S and p["ReceiveMessageWaitTimeSeconds"] == 20
        assert p.get("KmsMasterKeyId") == (stack.parameters["KmsKeyArn"] or None)


def test_nobody_may_more_than_he_needs(stack):
    agent = rights(stack, "AgentPolicy")
    assert {r for a, r in agent if a == "sqs:SendMessage"} == {f"arn:aws:sqs:eu-west-1:111122223333:shop-{source.QUEUE['REPLIES']}"}
    assert {r for a, r in agent if a == "sqs:ReceiveMessage"} == {"<Queue.Arn>"}
    assert {a.split(":")[0] for a, _ in agent} == {"sqs"} | ({"kms"} if stack.parameters["KmsKeyArn"] else set())
    assert rights(stack, "SchedulerPolicy") == {("sqs:SendMessage", "<Queue.Arn>")}
    assert "*" not in "".join(r for p in ("AgentPolicy", "SchedulerPolicy", "OperatorPolicy") for _, r in rights(stack, p))
    exported = {o["Export"]["Name"]["Fn::Sub"] for o in read()["Outputs"].values() if "Export" in o}
    imported = {stack.properties(p)["Roles"][0]["Fn::ImportValue"] for p in ("SchedulerPolicy", "OperatorPolicy")}
    assert {name.replace("${AWS::StackName}", "shop") for name in exported} == imported


def test_its_alarms_name_the_runbook(stack):
    sections = source.runbook_sections()
    alarms = stack.of_type("AWS::CloudWatch::Alarm")
    assert {a["AlarmDescription"].rsplit("#", 1)[1] for a in alarms.values()} == {"dead-letters", "queue-age"} <= sections


def test_cfn_lint():
    answer = run(BIN / "cfn-lint", "--regions", "eu-west-1", "--template", FILE)
    assert answer.returncode == 0, answer.stdout + answer.stderr
