"""infra/agent.yaml makes what template.yaml and the code expect of an agent, and gives no right beyond it. What template.yaml nests is
checked with it; here is what stands alone."""
# N2

import json
from fnmatch import fnmatchcase

import pytest
import source
from checks import LAYERS, outlasting, visibility_is_six_times_the_timeout
from template import ROOT, Stack, read, target
from test_lint import BIN, run

FILE = ROOT / "infra/agent.yaml"
KEY = "arn:aws:kms:eu-west-1:111122223333:key/1234"
FOLDERS = ["new", "new-rust", "new-none"]
FUNCTION = {"Function": "shop-gift-wrap", "Role": "gift-wrap-role"}


def stack_of(**parameters):
    return Stack(read(FILE.read_text()), "Wrap", Stack="shop", Agent="gift-wrap", **parameters)


@pytest.fixture(params=[{}, {"KmsKeyArn": KEY}, FUNCTION], ids=["default", "key", "function"])
def stack(request):
    return stack_of(**request.param)


def rights(stack):
    return {
        (action, json.dumps(resource).strip('"'))
        for s in stack.properties("WrapPolicy")["PolicyDocument"]["Statement"]
        for action in (s["Action"] if isinstance(s["Action"], list) else [s["Action"]])
        for resource in (s["Resource"] if isinstance(s["Resource"], list) else [s["Resource"]])
    }


def test_it_is_plain_cloudformation():
    """A transform or an import would tie it to the system's stack, and so would a parameter that SSM resolves."""
    text = FILE.read_text()
    assert not {"Transform", "Export", "ImportValue", "AWS::SSM"} & {w for w in ("Transform", "Export", "ImportValue", "AWS::SSM") if f"{w}:" in text or f"!{w}" in text}
    assert {"AWS::SSM::Parameter::Value<String>"}.isdisjoint(p["Type"] for p in read(text)["Parameters"].values())
    required = {name for name, p in read(text)["Parameters"].items() if "Default" not in p}
    assert required == {"Stack", "Agent"}


def test_its_queues_are_those_of_the_code(stack):
    queue, dead = stack.properties("WrapQueue"), stack.properties("WrapDead")
    name = f"shop-{source.AGENT_QUEUE}gift-wrap"
    assert (queue["QueueName"], dead["QueueName"]) == (name, name + source.DEAD_QUEUE)
    assert target(queue["RedrivePolicy"]["deadLetterTargetArn"]) == "WrapDead"
    assert queue["RedrivePolicy"]["maxReceiveCount"] == source.MAX_RECEIVES
    assert dead["RedriveAllowPolicy"]["sourceQueueArns"] == [f"arn:aws:sqs:eu-west-1:111122223333:{name}"]
    for p in (queue, dead):
        assert p["MessageRetentionPeriod"] == source.RETENTION_S and p["ReceiveMessageWaitTimeSeconds"] == 20
        assert p.get("KmsMasterKeyId") == (stack.parameters["KmsKeyArn"] or None)
        assert p["Tags"] == [{"Key": "stepwarden", "Value": "shop"}]


@pytest.mark.parametrize("seconds", read(FILE.read_text())["Parameters"]["TimeoutSeconds"]["AllowedValues"])
def test_its_queues_hide_a_request_for_six_times_the_timeout(seconds):
    """90 minutes are there for functions on Managed Instances: nine hours, of the twelve for which SQS hides a message."""
    for batch in read(FILE.read_text())["Parameters"]["BatchSeconds"]["AllowedValues"]:
        stack = stack_of(**FUNCTION, PriorityClasses="true", TimeoutSeconds=seconds, BatchSeconds=batch)
        hidden = {stack.properties(f"Wrap{queue}")["VisibilityTimeout"] for queue in ("Queue", "HighQueue", "LowQueue")}
        assert hidden == {6 * int(seconds) + int(batch)} and max(hidden) <= 12 * 3600


def test_nobody_may_more_than_he_needs(stack):
    agent = rights(stack)
    sends = {"shop-replies", "shop-set-aside"} if stack.parameters["Function"] else {"shop-replies"}
    assert {r.rsplit(":", 1)[1] for a, r in agent if a == "sqs:SendMessage"} == sends
    assert {r for a, r in agent if a == "sqs:ReceiveMessage"} == {"<WrapQueue.Arn>"}
    more = {"kms"} if stack.parameters["KmsKeyArn"] else {"events", "logs"} if stack.parameters["Function"] else set()
    assert {a.split(":")[0] for a, _ in agent} == {"sqs"} | more
    assert "*" not in "".join(r for _, r in agent)


def test_a_program_of_yours_gets_a_queue_and_no_event_source():
    assert not stack_of().of_type("AWS::Lambda::EventSourceMapping") and not stack_of().of_type("AWS::Logs::LogGroup")
    assert "Roles" not in stack_of().properties("WrapPolicy")
    mine = stack_of(**FUNCTION)
    assert mine.properties("WrapSource")["FunctionName"] == "shop-gift-wrap"
    assert mine.properties("WrapLogs")["LogGroupName"] == "/aws/lambda/shop-gift-wrap"
    assert mine.properties("WrapPolicy")["Roles"] == ["gift-wrap-role"]
    assert len(stack_of(**FUNCTION, PriorityClasses="true").of_type("AWS::Lambda::EventSourceMapping")) == 3


def test_it_has_one_alarm_that_names_the_runbook(stack):
    (alarm,) = stack.of_type("AWS::CloudWatch::Alarm").values()
    assert alarm["AlarmDescription"].rsplit("#", 1)[1] in source.runbook_sections()


def test_cfn_lint():
    answer = run(BIN / "cfn-lint", "--regions", "eu-west-1", "--template", FILE)
    assert answer.returncode == 0, answer.stdout + answer.stderr


@pytest.mark.parametrize("folder", FOLDERS)
def test_cfn_lint_of_what_stepwarden_new_makes(folder, tmp_path):
    (tmp_path / "agent.yaml").write_text(FILE.read_text())
    file = tmp_path / "template.yaml"
    file.write_text((ROOT / "examples" / folder / "template.yaml").read_text())
    for part in ("agents", "workflows", ".aws-sam/lambda/stock"):
        (tmp_path / part).mkdir(parents=True)
    answer = run(BIN / "cfn-lint", "--regions", "eu-west-1", "--template", file)
    assert answer.returncode == 0, answer.stdout + answer.stderr


def folder_of(name):
    """The stack of a folder that `stepwarden new` makes, for the system `shop`."""
    text = (ROOT / "examples" / name / "template.yaml").read_text()
    return Stack(read(text.replace("Location: agent.yaml", "Location: infra/agent.yaml")), Stack="shop")


@pytest.mark.parametrize("folder", FOLDERS)
def test_a_folder_brings_its_workflows_and_the_system_may_read_them(folder):
    stack = folder_of(folder)
    ((name, layer),) = stack.of_type("AWS::Lambda::LayerVersion").items()
    ((activation, p),) = stack.of_type("Custom::Workflows").items()
    # What the system's function reads, and what it answers.
    assert fnmatchcase(f"arn:aws:lambda:eu-west-1:111122223333:layer:{layer['LayerName']}:1", LAYERS)
    assert p["ServiceToken"] == f"arn:aws:lambda:eu-west-1:111122223333:function:{Stack(read()).properties('Operator')['FunctionName']}"
    assert p["Layer"] == f"<{name}>"
    assert stack.value(stack.transformed["Outputs"]["Workflows"]["Value"]) == f"<{activation}.Changes>"
    # A failure is told long before CloudFormation's hour is over, and not before Lambda has tried again.
    assert 200 <= int(p["ServiceTimeout"]) <= 600
    # A version in use never goes before its successor: CloudFormation deletes after the update. But none stays behind.
    assert stack.resources[name].get("DeletionPolicy", "Delete") == "Delete"
    # The function takes a Delete for the rollback of a Create.
    assert stack.resources[activation]["DeletionPolicy"] == "RetainExceptOnCreate"
    # Orders may come as soon as a workflow is active, so its agent is there first.
    assert stack.resources[activation].get("DependsOn", []) == (["StockAgent"] if "StockAgent" in stack.transformed["Resources"] else [])


LONG = {"name": "render", "agent": "stock", "timeout": "12h", "heartbeat": "1m"}


@pytest.mark.parametrize("folder", ["new", "new-rust"])
def test_a_function_of_a_folder_runs_as_long_as_its_steps_and_its_queue_knows(folder):
    stack = folder_of(folder)
    assert not [*visibility_is_six_times_the_timeout(stack)]
    steps = [step for step in source.workflow_steps("examples/new/workflows") if step.get("agent") == "stock"]
    assert steps and not [*outlasting(steps, "Stock", stack.properties("Stock"))]
    # Each can fail: a queue that knows another timeout, long work in Lambda, a function for which it has no time.
    function = stack.resources["Stock"]["Properties"]
    function["Timeout"] = 900
    assert [*visibility_is_six_times_the_timeout(stack)]
    assert len([*outlasting([*steps, LONG], "Stock", function)]) == 1
    function["Timeout"] = 5400
    assert len([*outlasting(steps, "Stock", function)]) == 1
    assert not [*outlasting(steps, "Stock", {**function, "CapacityProviderConfig": {}})]
    assert len([*outlasting([LONG], "Stock", {**function, "CapacityProviderConfig": {}})]) == 1
