"""The deployer's role of infra/deployer.yaml may do what a deployment does, on the resources of its stack, and nothing on others. What a
type needs is what its schema in the registry of CloudFormation says under `handlers`, for the properties that are set here."""

import re
from fnmatch import fnmatchcase

import pytest
from template import ROOT, Stack, read
from test_agent import FOLDERS, folder_of
from test_checks import SETTINGS
from test_lint import BIN, run

FILE = ROOT / "infra/deployer.yaml"
REGION = "eu-west-1:111122223333"
API = ["POST", "PATCH", "GET", "DELETE"]
# Type -> actions that create, change, read and delete it, its ARN by its properties.
NEEDS = {
    "AWS::ApiGatewayV2::Api": ([f"apigateway:{a}" for a in API], lambda p: "arn:aws:apigateway:eu-west-1::/apis"),
    **{
        f"AWS::ApiGatewayV2::{kind}": ([f"apigateway:{a}" for a in API], lambda p: "arn:aws:apigateway:eu-west-1::/apis/a1b2c3/x")
        for kind in ("Authorizer", "Integration", "Route", "Stage")
    },
    "AWS::CloudWatch::Alarm": ("cloudwatch:PutMetricAlarm cloudwatch:DeleteAlarms cloudwatch:DescribeAlarms cloudwatch:TagResource".split(), lambda p: f"arn:aws:cloudwatch:{REGION}:alarm:{p['AlarmName']}"),
    "AWS::CloudWatch::Dashboard": ("cloudwatch:PutDashboard cloudwatch:GetDashboard cloudwatch:DeleteDashboards".split(), lambda p: f"arn:aws:cloudwatch::111122223333:dashboard/{p['DashboardName']}"),
    "AWS::DynamoDB::Table": ("dynamodb:CreateTable dynamodb:DescribeTable dynamodb:UpdateTable dynamodb:DeleteTable dynamodb:UpdateTimeToLive dynamodb:UpdateContinuousBackups dynamodb:DescribeContinuousBackups dynamodb:DescribeTimeToLive dynamodb:TagResource".split(), lambda p: f"arn:aws:dynamodb:{REGION}:table/{p['TableName']}"),
    "AWS::Events::EventBus": ("events:CreateEventBus events:DescribeEventBus events:UpdateEventBus events:DeleteEventBus".split(), lambda p: f"arn:aws:events:{REGION}:event-bus/{p['Name']}"),
    "AWS::Events::Rule": ("events:PutRule events:DescribeRule events:DeleteRule events:PutTargets events:RemoveTargets events:ListTargetsByRule".split(), lambda p: f"arn:aws:events:{REGION}:rule/shop/{p['Name']}"),
    "AWS::IAM::ManagedPolicy": ("iam:CreatePolicy iam:GetPolicy iam:DeletePolicy iam:CreatePolicyVersion iam:DeletePolicyVersion iam:ListPolicyVersions".split(), lambda p: "arn:aws:iam::111122223333:policy/shop-Api-1ABC-Policy-2DEF"),
    "AWS::IAM::Policy": ("iam:PutRolePolicy iam:GetRolePolicy iam:DeleteRolePolicy".split(), lambda p: "arn:aws:iam::111122223333:role/shop-SubmitRole-1ABC"),
    "AWS::IAM::Role": ("iam:CreateRole iam:GetRole iam:DeleteRole iam:PutRolePolicy iam:AttachRolePolicy iam:DetachRolePolicy iam:DeleteRolePolicy iam:UpdateAssumeRolePolicy iam:PutRolePermissionsBoundary iam:PassRole iam:TagRole".split(), lambda p: "arn:aws:iam::111122223333:role/shop-SubmitRole-1ABC"),
    "AWS::Lambda::Alias": ("lambda:CreateAlias lambda:GetAlias lambda:UpdateAlias lambda:DeleteAlias lambda:PublishVersion".split(), lambda p: f"arn:aws:lambda:{REGION}:function:shop-submit"),
    "AWS::Lambda::EventInvokeConfig": ("lambda:PutFunctionEventInvokeConfig lambda:UpdateFunctionEventInvokeConfig lambda:DeleteFunctionEventInvokeConfig".split(), lambda p: f"arn:aws:lambda:{REGION}:function:shop-supervisor"),
    "AWS::Lambda::EventSourceMapping": ("lambda:CreateEventSourceMapping lambda:UpdateEventSourceMapping lambda:GetEventSourceMapping lambda:DeleteEventSourceMapping".split(), lambda p: f"arn:aws:lambda:{REGION}:event-source-mapping:1"),
    "AWS::Lambda::Function": ("lambda:CreateFunction lambda:GetFunction lambda:UpdateFunctionCode lambda:UpdateFunctionConfiguration lambda:DeleteFunction lambda:PutFunctionRecursionConfig lambda:GetFunctionRecursionConfig lambda:TagResource".split(), lambda p: f"arn:aws:lambda:{REGION}:function:{p['FunctionName']}"),
    "AWS::Lambda::LayerVersion": ("lambda:PublishLayerVersion lambda:GetLayerVersion lambda:DeleteLayerVersion".split(), lambda p: f"arn:aws:lambda:{REGION}:layer:{p['LayerName']}:1"),
    # AWS, "Custom resources": CloudFormation invokes the function with the rights of whoever deploys.
    "Custom::Workflows": (["lambda:InvokeFunction"], lambda p: p["ServiceToken"]),
    "AWS::Lambda::Permission": ("lambda:AddPermission lambda:RemovePermission lambda:GetPolicy".split(), lambda p: f"arn:aws:lambda:{REGION}:function:shop-submit"),
    "AWS::Logs::LogGroup": ("logs:CreateLogGroup logs:DeleteLogGroup logs:PutRetentionPolicy logs:AssociateKmsKey logs:DescribeLogGroups logs:TagResource".split(), lambda p: f"arn:aws:logs:{REGION}:log-group:{re.sub('<[A-Za-z]+>', 'shop-agent', p['LogGroupName'])}"),
    "AWS::Logs::MetricFilter": ("logs:PutMetricFilter logs:DeleteMetricFilter logs:DescribeMetricFilters".split(), lambda p: f"arn:aws:logs:{REGION}:log-group:/aws/lambda/shop-submit"),
    "AWS::SNS::Subscription": ("sns:Subscribe sns:Unsubscribe sns:GetSubscriptionAttributes".split(), lambda p: f"arn:aws:sns:{REGION}:shop-alerts"),
    "AWS::SNS::Topic": ("sns:CreateTopic sns:DeleteTopic sns:GetTopicAttributes sns:SetTopicAttributes".split(), lambda p: f"arn:aws:sns:{REGION}:{p['TopicName']}"),
    "AWS::SNS::TopicPolicy": (["sns:SetTopicAttributes"], lambda p: f"arn:aws:sns:{REGION}:shop-alerts"),
    "AWS::SQS::Queue": ("sqs:CreateQueue sqs:DeleteQueue sqs:GetQueueUrl sqs:GetQueueAttributes sqs:SetQueueAttributes sqs:TagQueue sqs:ListQueueTags".split(), lambda p: f"arn:aws:sqs:{REGION}:{p['QueueName']}"),
    "AWS::SQS::QueuePolicy": (["sqs:SetQueueAttributes"], lambda p: f"arn:aws:sqs:{REGION}:shop-alerts-dead"),
    "AWS::Scheduler::Schedule": ("scheduler:CreateSchedule scheduler:GetSchedule scheduler:UpdateSchedule scheduler:DeleteSchedule".split(), lambda p: f"arn:aws:scheduler:{REGION}:schedule/default/{p['Name']}"),
    "AWS::CloudFormation::Stack": ("cloudformation:CreateStack cloudformation:UpdateStack cloudformation:DeleteStack cloudformation:DescribeStacks".split(), lambda p: f"arn:aws:cloudformation:{REGION}:stack/shop-Api-1ABC/5"),
}


def statements(raw=None):
    stack = Stack(raw or read(FILE.read_text()), "Own", Stack="shop", Subject="repo:example/shop:environment:production")
    return stack.properties("OwnDeployer")["Policies"][0]["PolicyDocument"]["Statement"]


def is_allowed(rights, action, arn):
    listed = lambda value: value if isinstance(value, list) else [value]  # noqa: E731
    return any(action in listed(s["Action"]) and any(fnmatchcase(arn, r) for r in listed(s["Resource"])) for s in rights)


def missing(rights, stack):
    for name, resource in stack.resources.items():
        actions, arn = NEEDS[resource["Type"]]
        yield from ((name, action) for action in actions if not is_allowed(rights, action, arn(resource.get("Properties", {}))))


@pytest.mark.parametrize("setting", ["default", "company", "classes", "key-email-unprotected", "jwt", "standby", "canary"])
def test_every_resource_can_be_made_changed_and_deleted(setting):
    assert not list(missing(statements(), Stack(read(), **SETTINGS[setting])))


@pytest.mark.parametrize("folder", FOLDERS)
def test_so_can_those_of_a_folder_of_ones_own(folder):
    assert not list(missing(statements(), folder_of(folder)))


def test_a_missing_right_is_seen():
    for number in range(len(statements())):
        rights = statements()
        sid = rights.pop(number)["Sid"]
        # The archives are no resource of the stack, and layers are those of others.
        seen = [*missing(rights, Stack(read(), **SETTINGS["key-email-unprotected"])), *missing(rights, folder_of("new"))]
        assert seen or sid == "Archives", sid


def test_nothing_of_others_can_be_touched():
    reading = ("Get", "Describe", "List", "Validate", "GET")
    for s in statements():
        for resource in s["Resource"] if isinstance(s["Resource"], list) else [s["Resource"]]:
            if resource != "*":
                assert "shop" in resource or "aws-sam-cli" in resource or resource.startswith(("arn:aws:apigateway:", "arn:aws:lambda:eu-west-1:*:layer:")) or ":transform/" in resource, resource
                continue
            # AWS lets no resource be named for these.
            more = [a for a in s["Action"] if not a.split(":")[1].startswith(reading)]
            assert all(a.startswith(("lambda:", "logs:")) and ("EventSourceMapping" in a or "LogDelivery" in a or "ResourcePolicy" in a) for a in more), more
    rights = statements()
    assert not is_allowed(rights, "dynamodb:DeleteTable", f"arn:aws:dynamodb:{REGION}:table/other-orders")
    assert not is_allowed(rights, "iam:PassRole", "arn:aws:iam::111122223333:role/admin")
    assert {s["Sid"]: s.get("Condition") for s in rights if s["Action"] == ["iam:PassRole"] or s["Action"] == "iam:PassRole"} == {
        "RolesOfFunctionsAndSchedule": {"StringEquals": {"iam:PassedToService": ["lambda.amazonaws.com", "scheduler.amazonaws.com"]}}
    }


def test_only_one_repository_takes_the_role():
    stack = Stack(read(FILE.read_text()), "Own", Subject="repo:example/shop:environment:production")
    (trust,) = stack.properties("OwnDeployer")["AssumeRolePolicyDocument"]["Statement"]
    assert trust["Condition"] == {
        "StringEquals": {
            "token.actions.githubusercontent.com:aud": "sts.amazonaws.com",
            "token.actions.githubusercontent.com:sub": "repo:example/shop:environment:production",
        }
    }


def test_it_fits_into_a_role_and_cfn_lint_has_nothing_to_say():
    import json

    assert len(json.dumps(statements(), separators=(",", ":"))) < 10_240
    answer = run(BIN / "cfn-lint", "--regions", "eu-west-1", "--template", FILE)
    assert answer.returncode == 0, answer.stdout + answer.stderr
