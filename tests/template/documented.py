"""What AWS documents and no emulator enforces: each row with what holds us to it. `Row.check` is a check of this folder, which
runs under every setting and has to see a defect, or a test elsewhere as `path::name`, which has to be there.

Where AWS's pages disagree, the row says so and takes the form that all of them allow. Pages are below docs.aws.amazon.com.
"""

import json
import re
import subprocess
from dataclasses import dataclass
from functools import cache

import source
from checks import as_list, check, documents, functions, policies_of, queue_names, rights, sources
from template import FILE, ROOT, read, target

# The longest name of a stack that docs/deploy.md allows.
LONGEST_STACK = 50
# Longer ARNs than those of any resource here, in place of what the evaluator knows of them.
ARN = "arn:aws-us-gov:dynamodb:us-gov-west-1:111122223333:table/" + "x" * (LONGEST_STACK + 30)


@dataclass(frozen=True)
class Row:
    service: str
    says: str
    page: str
    check: str


def longest(name):
    """How long a name becomes that begins with the stack's."""
    return len(name) - len("shop") + LONGEST_STACK if name.startswith("shop") else len(name)


def properties(stack, kind, *names):
    for name, p in stack.of_type(kind).items():
        yield (name, *(p.get(n) for n in names))


# ------------------------------------------------------------------ names

# Type, property, most characters, what they are.
NAMES = (
    ("AWS::SQS::Queue", "QueueName", 80, r"[A-Za-z0-9_-]+"),
    ("AWS::Lambda::Function", "FunctionName", 64, r"[A-Za-z0-9_-]+"),
    ("AWS::DynamoDB::Table", "TableName", 255, r"[A-Za-z0-9_.-]{3,}"),
    ("AWS::Logs::LogGroup", "LogGroupName", 512, r"[.\-_/#A-Za-z0-9]+"),
    ("AWS::Events::EventBus", "Name", 256, r"[/.\-_A-Za-z0-9]+"),
    ("AWS::Events::Rule", "Name", 64, r"[.\-_A-Za-z0-9]+"),
    ("AWS::Scheduler::Schedule", "Name", 64, r"[0-9a-zA-Z\-_.]+"),
    ("AWS::SNS::Topic", "TopicName", 256, r"[A-Za-z0-9_-]+"),
    ("AWS::CloudWatch::Alarm", "AlarmName", 255, r".+"),
    ("AWS::CloudWatch::Dashboard", "DashboardName", 255, r"[A-Za-z0-9_-]+"),
    ("AWS::ApiGatewayV2::Api", "Name", 128, r".+"),
)


@check
def names_fit_with_the_longest_stack_name(stack):
    if f"at most {LONGEST_STACK} characters" not in source.document("docs/deploy.md"):
        yield f"docs/deploy.md: does not say that a stack's name has at most {LONGEST_STACK} characters"
    for kind, field, most, pattern in NAMES:
        for logical, name in properties(stack, kind, field):
            # A function that is named by reference stands for its name.
            name = re.sub(r"<(\w+)>", lambda found: stack.properties(found[1])["FunctionName"], name)
            if longest(name) > most:
                yield f"{logical}: {field} has {longest(name)} characters, at most {most} are allowed"
            if not re.fullmatch(pattern, name):
                yield f"{logical}: {field} is {name}"
    for logical, resource in stack.resources.items():
        if resource["Type"].startswith("AWS::IAM::") and "RoleName" in resource["Properties"]:
            yield f"{logical}: CAPABILITY_IAM allows no names of one's own"


@check
def the_stack_stays_within_cloudformations_quotas(stack):
    counts = {"Resources": 500, "Outputs": 200, "Parameters": 200, "Mappings": 200}
    for part, most in counts.items():
        if len(stack.transformed[part]) > most:
            yield f"{part}: {len(stack.transformed[part])}, at most {most}"
    for what, size in (("template.yaml", FILE.stat().st_size), ("transformed", len(json.dumps(stack.transformed)))):
        if size > 1_000_000:
            yield f"{what}: {size} bytes, at most 1 MB"
    if len(stack.raw["Description"].encode()) > 1024:
        yield "Description: more than 1,024 bytes"
    for name, p in stack.raw["Parameters"].items():
        if len(p["Description"]) > 4000:
            yield f"{name}: its description has more than 4,000 characters"


# ------------------------------------------------------------------ SQS


@check
def queues_stay_within_the_limits_of_sqs(stack):
    bounds = {"VisibilityTimeout": (0, 43_200), "MessageRetentionPeriod": (60, 1_209_600), "ReceiveMessageWaitTimeSeconds": (0, 20), "DelaySeconds": (0, 900)}
    for name, p in stack.of_type("AWS::SQS::Queue").items():
        for field, (least, most) in bounds.items():
            if field in p and not least <= int(p[field]) <= most:
                yield f"{name}: {field} is {p[field]}"
        if p.get("SqsManagedSseEnabled") and p.get("KmsMasterKeyId"):
            yield f"{name}: SQS takes one kind of encryption"
        if len(p.get("RedriveAllowPolicy", {}).get("sourceQueueArns", [])) > 10:
            yield f"{name}: byQueue names at most ten queues"
        # The clock of a standard queue's message goes on from when it was first sent.
        dead = target(p.get("RedrivePolicy", {}).get("deadLetterTargetArn"))
        if dead and stack.properties(dead)["MessageRetentionPeriod"] < p["MessageRetentionPeriod"]:
            yield f"{dead}: keeps messages for less than {name}, so they may be gone when they arrive"


@check
def a_name_is_free_again_after_a_minute(stack):
    if "60 seconds" not in source.document("docs/deploy.md").split("\n## Delete\n")[1].split("\n## ")[0]:
        yield "docs/deploy.md: a queue cannot be made for 60 seconds after one of its name was deleted"


@check
def dead_letters_can_be_moved_back(stack):
    """A move task needs rights at both ends of whoever starts it."""
    may = {(a, target(r)) for a, r in rights(stack, "Operator")}
    for *_, queue in sources(stack):
        dead = target(stack.properties(queue)["RedrivePolicy"]["deadLetterTargetArn"])
        wanted = {(f"sqs:{a}", dead) for a in ("StartMessageMoveTask", "ListMessageMoveTasks", "ReceiveMessage", "DeleteMessage", "GetQueueAttributes")}
        if missing := (wanted | {("sqs:SendMessage", queue)}) - may:
            yield f"Operator: cannot move {dead} back: {sorted(missing)}"
    if int(re.search(r"MAX_RATE: i32 = (\d+);", source.document("infra/aws/src/redrive.rs"))[1]) > 500:
        yield "infra/aws/src/redrive.rs: a move has at most 500 messages a second"


# ------------------------------------------------------------------ Lambda

# Lambda sets these itself.
RESERVED = {"_HANDLER", "_X_AMZN_TRACE_ID", "LAMBDA_TASK_ROOT", "LAMBDA_RUNTIME_DIR"}


@check
def functions_stay_within_the_limits_of_lambda(stack):
    for name, p in stack.of_type("AWS::Lambda::Function").items():
        if not 1 <= int(p["Timeout"]) <= 900 or not 128 <= int(p["MemorySize"]) <= 10_240:
            yield f"{name}: {p['Timeout']} s, {p['MemorySize']} MB"
        for variable in p["Environment"]["Variables"]:
            if variable in RESERVED or variable.startswith(("AWS_", "LAMBDA_")):
                yield f"{name}: {variable} is Lambda's own"
    for name, p in stack.of_type("AWS::Lambda::EventInvokeConfig").items():
        if not 60 <= int(p["MaximumEventAgeInSeconds"]) <= 21_600 or not 0 <= int(p["MaximumRetryAttempts"]) <= 2:
            yield f"{name}: {p}"


# Seconds that a call to a silent service of AWS takes at most, all its attempts together.
CALL_S = int(re.search(r"const CALL_TIMEOUT: Duration = Duration::from_secs\((\d+)\);", source.document("infra/aws/src/clients.rs"))[1])


@check
def functions_outlive_calls_to_silent_services(stack):
    """What has loaded, saved and not sent has to say so: a function that is killed says nothing."""
    for name, p in stack.of_type("AWS::Lambda::Function").items():
        if int(p["Timeout"]) <= 4 * CALL_S:
            yield f"{name}: {p['Timeout']} s, and a call to a silent service takes {CALL_S} s"
    last = re.search(r"const LAST_PAGE: Duration = Duration::from_secs\((\d+)\);", source.document("functions/supervisor/src/main.rs"))
    if int(last[1]) <= CALL_S:
        yield f"Supervisor: its last page has {last[1]} s, and a call to a silent service takes {CALL_S} s"


def longest_value(stack, name):
    """How many characters a parameter may have."""
    p = stack.raw["Parameters"][name]
    if "AllowedValues" in p:
        return max(len(str(v)) for v in p["AllowedValues"])
    if p["Type"] == "Number":
        return len(str(p["MaxValue"]))
    bound = re.fullmatch(r"\^\[[^\]]+\]\{\d+,(\d+)\}\$", p.get("AllowedPattern", ""))
    return int(p["MaxLength"]) if "MaxLength" in p else int(bound[1]) if bound else 4096


@check
def variables_fit_into_four_kilobytes(stack):
    """Of all parameters at their longest."""
    shared = stack.raw["Globals"]["Function"]["Environment"]["Variables"]
    for function in functions(stack):
        own = stack.raw["Resources"][function]["Properties"].get("Environment", {}).get("Variables", {})
        size = 0
        for name, value in {**shared, **own}.items():
            named = re.findall(r'"Ref": "([A-Za-z]+)"', json.dumps(value))
            parameters = [n for n in named if n in stack.raw["Parameters"]]
            size += len(name) + (max(longest_value(stack, n) for n in parameters) if parameters else 120)
        if size > 4096:
            yield f"{function}: its variables may have {size} bytes, at most 4,096"


@check
def event_sources_stay_within_the_limits_of_lambda(stack):
    for name, p, _, _ in sources(stack):
        window = int(p.get("MaximumBatchingWindowInSeconds", 0))
        if not 1 <= p["BatchSize"] <= (10 if window == 0 else 10_000):
            yield f"{name}: a batch of more than ten needs a window"
        if not 0 <= window <= 300:
            yield f"{name}: waits {window} s for a batch"
    for name in ("SchedulerConcurrency", "RepliesConcurrency", "SubmissionsConcurrency", "AgentConcurrency", "HighPriorityConcurrency", "LowPriorityConcurrency"):
        p = stack.raw["Parameters"][name]
        if (p["MinValue"], p["MaxValue"]) != (2, 1000):
            yield f"{name}: MaximumConcurrency is 2 to 1,000"


@check
def a_batch_window_is_explained(stack):
    if "20 seconds" not in stack.raw["Parameters"]["BatchSeconds"]["Description"]:
        yield "BatchSeconds: with few messages Lambda may wait 20 seconds whatever the window is"


# ------------------------------------------------------------------ DynamoDB


@cache
def expressions(folders=("infra/aws/src", "shared/leader/src", "shared/retry-queue/src", "functions")):
    """Every expression in the sources, as (file, text)."""
    found = []
    for folder in folders:
        for path in sorted((ROOT / folder).rglob("*.rs")):
            for call in re.findall(r'\w+_expression\(\s*(?:format!\()?"([^"]*)"', path.read_text()):
                found.append((path.relative_to(ROOT), call))
    return found


RESERVED_WORDS = set((ROOT / "tests/template/reserved-words.txt").read_text().split())
# The words of the expressions themselves.
SYNTAX = set("SET REMOVE ADD DELETE AND OR NOT BETWEEN IN".split())
CALLS = {"attribute_exists", "attribute_not_exists", "attribute_type", "begins_with", "contains", "size", "if_not_exists"}


def reserved_in(text):
    words = re.findall(r"(?<![#:\w])[A-Za-z_]\w*", text)
    return {w for w in words if w.upper() in RESERVED_WORDS and w not in SYNTAX and w not in CALLS}


@check
def no_expression_names_a_reserved_word(stack):
    found = expressions()
    if len(found) < 15:
        yield f"only {len(found)} expressions were found; this check looks for them in the wrong place"
    for path, text in found:
        if words := reserved_in(text):
            yield f"{path}: `{text}` names {sorted(words)} without `#`"
        if len(text) > 4096:
            yield f"{path}: an expression of more than 4 KB"
    # Keys are named in key conditions, by the sources and by people.
    text = source.document("docs/runbook.md") + source.document("docs/deploy.md")
    for condition in re.findall(r"--\w+-\w*-?expression '([^']*)'", text):
        if words := reserved_in(condition):
            yield f"docs: `{condition}` names {sorted(words)}"


@check
def every_attribute_defined_is_a_key(stack):
    for name, p in stack.of_type("AWS::DynamoDB::Table").items():
        schemas = [p["KeySchema"], *(i["KeySchema"] for i in p.get("GlobalSecondaryIndexes", []))]
        keys = {k["AttributeName"] for schema in schemas for k in schema}
        if (defined := {a["AttributeName"] for a in p["AttributeDefinitions"]}) != keys:
            yield f"{name}: attributes {sorted(defined ^ keys)} are defined and no key, or a key and not defined"


@check
def an_index_is_read_as_it_is(stack):
    """An index cannot be read consistently."""
    for path in sorted((ROOT / "infra/aws/src").rglob("*.rs")):
        for request in re.findall(r"\.index_name\([^;]*;", path.read_text()):
            if "consistent_read" in request:
                yield f"{path.name}: a consistent read of an index is refused"


@check
def a_protected_table_is_made_unprotected_first(stack):
    """DynamoDB deletes no protected table, not for a rollback either: RetainExceptOnCreate alone would not help."""
    for page in ("README.md", "docs/deploy.md"):
        lines = source.document(page).replace("\\\n", " ").splitlines()
        deploys = [line for line in lines if "sam deploy --template-file template.yaml --stack-name shop " in line]
        steps = [("Sample=true" in line, re.findall(r"DeletionProtection=(\w+)", line)) for line in deploys]
        # `sam deploy` keeps what is not named: a later command with false would take the protection away.
        if steps[:2] != [(True, ["false"]), (False, ["true"])] or any(is_first or "false" in to for is_first, to in steps[2:]):
            yield f"{page}: DeletionProtection is not false in the first deployment, true in the second and never false again: {steps}"


@check
def tables_that_stayed_can_be_adopted(stack):
    """An import wants names without functions, and tables that are not deleted if the rest of the stack cannot be created."""
    adopt = source.document("docs/deploy.md").split("\n### Adopt tables that stayed\n")[1].split("\n## ")[0]
    found = re.search(r"^sed '(.+)' template.yaml > (\S+)$", adopt, flags=re.MULTILINE)
    if not found or f"sam package --template-file {found[2]} " not in adopt or "--import-existing-resources" not in adopt:
        yield "docs/deploy.md: does not adopt tables by a template with their names in full"
        return
    adopted = subprocess.run(["sed", found[1]], input=FILE.read_text(), capture_output=True, text=True, check=True).stdout
    for name, resource in read(adopted)["Resources"].items():
        if resource["Type"] == "AWS::DynamoDB::Table":
            if resource["Properties"]["TableName"] != stack.properties(name)["TableName"]:
                yield f"{name}: is adopted as {resource['Properties']['TableName']}"
            if resource["DeletionPolicy"] != "Retain":
                yield f"{name}: may be deleted if its adoption fails"


# ------------------------------------------------------------------ EventBridge, SNS


@check
def targets_stay_within_the_limits_of_eventbridge(stack):
    targets = [(n, t) for n, p in stack.of_type("AWS::Events::Rule").items() for t in p["Targets"]]
    targets += [(n, p["Target"]) for n, p in stack.of_type("AWS::Scheduler::Schedule").items()]
    for name, t in targets:
        retry = t.get("RetryPolicy", {})
        age, attempts = retry.get("MaximumEventAgeInSeconds", 86_400), retry.get("MaximumRetryAttempts", 185)
        if not 60 <= age <= 86_400 or not 0 <= attempts <= 185:
            yield f"{name}: {retry}"
    for name, p in stack.of_type("AWS::Events::Rule").items():
        if len(p["Targets"]) > 5:
            yield f"{name}: more than five targets"
        if any("RoleArn" in t for t in p["Targets"]):
            yield f"{name}: a role for a target that has a policy of its own"
        if len(json.dumps(p["EventPattern"])) > 2048:
            yield f"{name}: a pattern of more than 2,048 characters"
        for transformer in (t["InputTransformer"] for t in p["Targets"] if "InputTransformer" in t):
            if len(transformer["InputTemplate"]) > 8192 or len(transformer["InputPathsMap"]) > 100:
                yield f"{name}: a template of more than 8,192 characters or 100 variables"
    text = source.document("infra/aws/src/messenger.rs")
    for kind in re.findall(r'pub const [A-Z]+_ALERT: &str = "([^"]+)";', text):
        if len(kind) > 128:
            yield f"detail-type `{kind}`: more than 128 characters"
    if source.EVENT_SOURCE.startswith("aws."):
        yield "source: `aws.` is AWS's own"


@check
def a_bus_with_a_key_of_yours_has_dead_letters(stack):
    allowed = [s for p in stack.of_type("AWS::SQS::QueuePolicy").values() for s in p["PolicyDocument"]["Statement"]]
    for name, dead in properties(stack, "AWS::Events::EventBus", "DeadLetterConfig"):
        queue = (dead or {}).get("Arn")
        if target(queue) not in queue_names(stack):
            yield f"{name}: events that cannot be encrypted are lost"
        if not any(s["Resource"] == queue and f"<{name}.Arn>" in as_list(s["Condition"]["ArnEquals"]["aws:SourceArn"]) for s in allowed):
            yield f"{name}: may not write to its dead-letter queue"


@check
def the_schedules_role_trusts_a_group(stack):
    """EventBridge Scheduler takes the ARN of a group in a trust policy, and not that of a schedule."""
    role = target(stack.properties("SupervisorSchedule")["Target"]["RoleArn"])
    for s in stack.properties(role)["AssumeRolePolicyDocument"]["Statement"]:
        arn = s.get("Condition", {}).get("StringEquals", {}).get("aws:SourceArn", "")
        group = stack.properties("SupervisorSchedule").get("GroupName", "default")
        if not arn.endswith(f":schedule-group/{group}"):
            yield f"{role}: trusts {arn}"


KEY_POLICY = ROOT / "infra/key-policy.json"


@check
def the_key_policy_lets_everybody_in_who_needs_it(stack):
    statements = json.loads(KEY_POLICY.read_text())["Statement"]
    of = {s["Principal"].get("Service", s["Principal"].get("AWS")): s for s in statements}
    use = {"kms:GenerateDataKey*", "kms:Decrypt"}
    wanted = {
        "arn:aws:iam::ACCOUNT:root": {"kms:*"},
        # DescribeKey is for the bus.
        "events.amazonaws.com": use | {"kms:DescribeKey"},
        "cloudwatch.amazonaws.com": use,
        "logs.REGION.amazonaws.com": {"kms:Encrypt*", "kms:Decrypt*", "kms:ReEncrypt*", "kms:GenerateDataKey*", "kms:Describe*"},
    }
    if set(of) != set(wanted):
        yield f"infra/key-policy.json: for {sorted(set(of) ^ set(wanted))}"
    for principal, actions in wanted.items():
        statement = of.get(principal, {})
        if set(statement.get("Action", []) if isinstance(statement.get("Action"), list) else [statement.get("Action")]) != actions:
            yield f"infra/key-policy.json: {principal} may {statement.get('Action')}"
    # AWS: aws:SourceAccount, aws:SourceArn and aws:SourceOrgID in a key's policy are not supported for EventBridge and an
    # encrypted topic. CloudWatch's own page has its statement without a condition too.
    for principal in ("events.amazonaws.com", "cloudwatch.amazonaws.com"):
        if "Condition" in of.get(principal, {}):
            yield f"infra/key-policy.json: a condition for {principal}, which could publish nothing then"
    for name in ("ACCOUNT", "REGION"):
        if f"s/{name}/" not in source.document("docs/deploy.md"):
            yield f"docs/deploy.md: does not say how {name} of infra/key-policy.json is filled in"


# ------------------------------------------------------------------ CloudWatch

RETENTIONS = {1, 3, 5, 7, 14, 30, 60, 90, 120, 150, 180, 365, 400, 545, 731, 1096, 1827, 2192, 2557, 2922, 3288, 3653}


@check
def alarms_stay_within_the_limits_of_cloudwatch(stack):
    for name, p in stack.of_type("AWS::CloudWatch::Alarm").items():
        period, periods = int(p["Period"]), int(p["EvaluationPeriods"])
        if period % 60:
            yield f"{name}: a period of {period} s; metrics of services have a minute at least"
        if period * periods > 86_400:
            yield f"{name}: looks back more than a day"
        if int(p.get("DatapointsToAlarm", 1)) > periods:
            yield f"{name}: needs more data points than there are periods"
        if p.get("TreatMissingData") not in ("breaching", "notBreaching", "ignore", "missing"):
            yield f"{name}: TreatMissingData is {p.get('TreatMissingData')}"
        if len(p["AlarmDescription"]) > 1024 or len(p["AlarmActions"]) > 5:
            yield f"{name}: a description of more than 1,024 characters, or more than five actions"
        if len(p.get("Dimensions", [])) > 30:
            yield f"{name}: more than 30 dimensions"
    for name, p in stack.of_type("AWS::Logs::MetricFilter").items():
        if len(p["FilterPattern"]) > 1024 or any(re.search(r"[:*$]", t["MetricName"]) for t in p["MetricTransformations"]):
            yield f"{name}: a pattern of more than 1,024 characters, or a name with one of :*$"
    if not set(stack.raw["Parameters"]["LogRetentionDays"]["AllowedValues"]) <= RETENTIONS:
        yield "LogRetentionDays: CloudWatch Logs knows fewer numbers of days"


@check
def the_dashboard_stays_within_its_limits(stack):
    body = stack.properties("AlarmsDashboard")["DashboardBody"]
    widgets = json.loads(body)["widgets"]
    if len(widgets) > 500 or sum(len(w["properties"]["metrics"]) for w in widgets) > 2500:
        yield "Dashboard: more than 500 widgets or 2,500 metrics"
    for w in widgets:
        if len(w["properties"]["metrics"]) > 500 or w["x"] + w["width"] > 24 or not 1 <= w["height"] <= 1000:
            yield f"Dashboard: {w['properties']['title']}"


# ------------------------------------------------------------------ IAM


def policy_size(document):
    """Characters without white space, with the ARNs that names stand for."""
    return len(re.sub(r"\s", "", re.sub(r"<[A-Za-z0-9.]+>", ARN, json.dumps(document))))


@check
def policies_fit_into_their_roles(stack):
    for name, p in stack.of_type("AWS::IAM::Role").items():
        inline = [policy["PolicyDocument"] for policy in p.get("Policies", [])]
        inline += [q["PolicyDocument"] for q in stack.of_type("AWS::IAM::Policy").values() if name in map(target, q["Roles"])]
        if (size := sum(map(policy_size, inline))) > 10_240:
            yield f"{name}: policies of {size} characters, at most 10,240"
        if policy_size(p["AssumeRolePolicyDocument"]) > 2048:
            yield f"{name}: more than 2,048 characters of who may assume it"
        if len(policies_of(stack, name)) > 10:
            yield f"{name}: more than ten managed policies"
    for name, p in stack.of_type("AWS::IAM::ManagedPolicy").items():
        if (size := policy_size(p["PolicyDocument"])) > 6144:
            yield f"{name}: {size} characters, at most 6,144"
    for name, document in documents(stack):
        if document.get("Version") != "2012-10-17":
            yield f"{name}: its version is {document.get('Version')}"


# ------------------------------------------------------------------ API Gateway


@check
def the_api_stays_within_the_limits_of_api_gateway(stack):
    longest_wait = stack.raw["Parameters"]["LongestWaitSeconds"]["MaxValue"]
    for name, p in stack.of_type("AWS::ApiGatewayV2::Integration").items():
        timeout = int(p["TimeoutInMillis"])
        if not 50 <= timeout <= 30_000:
            yield f"{name}: {timeout} ms"
        if timeout <= 1000 * (longest_wait + CALL_S):
            yield f"{name}: a long poll of {longest_wait} s, and a last look that gets no answer, are not answered in time"
        if p["PayloadFormatVersion"] != "2.0":
            yield f"{name}: payloads of version {p['PayloadFormatVersion']}"
    routes = stack.of_type("AWS::ApiGatewayV2::Route")
    if len(routes) > 300:
        yield f"{len(routes)} routes, at most 300"
    for name, p in routes.items():
        if len(p.get("AuthorizationScopes", [])) > 10:
            yield f"{name}: more than ten scopes"
        if p.get("AuthorizationScopes") and p["AuthorizationType"] != "JWT":
            yield f"{name}: scopes are for JWT authorizers"
    for name, p in stack.of_type("AWS::ApiGatewayV2::Authorizer").items():
        if not p["JwtConfiguration"]["Issuer"].startswith("https://") or not all(p["JwtConfiguration"]["Audience"]):
            yield f"{name}: {p['JwtConfiguration']}"
    for name, p in stack.of_type("AWS::ApiGatewayV2::Stage").items():
        text = p["AccessLogSettings"]["Format"]
        if "$context.requestId" not in text or "\n" in text.strip() or len(text) > 3072:
            yield f"{name}: the access log's format has no request id, or is no single line of 3 KB"
        group = stack.properties(target(p["AccessLogSettings"]["DestinationArn"]))["LogGroupName"]
        if not group.startswith("/aws/vendedlogs/"):
            yield f"{name}: each such group adds to the account's policy of log delivery, which takes 5,120 characters"
    for parameter, most in (("ApiRateLimit", 10_000), ("ApiBurstLimit", 5_000)):
        if stack.raw["Parameters"][parameter]["MaxValue"] > most:
            yield f"{parameter}: an account has {most}"


# ------------------------------------------------------------------ secrets, keys


@check
def secrets_and_keys_are_named_whole(stack):
    """A policy on a secret needs its whole ARN, with the six characters that Secrets Manager adds; an alias is no key."""
    for name in ("HttpSecretArn", "OtlpHeadersSecretArn"):
        pattern = stack.raw["Parameters"][name]["AllowedPattern"]
        arn = "arn:aws:secretsmanager:eu-west-1:111122223333:secret:shop-http"
        if not re.search(pattern, arn + "-AbCdEf") or re.search(pattern, arn) or not re.search(pattern, ""):
            yield f"{name}: takes other ARNs than whole ones"
    pattern = stack.raw["Parameters"]["KmsKeyArn"]["AllowedPattern"]
    if re.search(pattern, "arn:aws:kms:eu-west-1:111122223333:alias/shop"):
        yield "KmsKeyArn: takes an alias"
    for name, key in properties(stack, "AWS::SNS::Topic", "KmsMasterKeyId"):
        if key and "alias/aws/" in key:
            yield f"{name}: neither EventBridge nor CloudWatch can use AWS's own key"


# ------------------------------------------------------------------ counts in documents


@check
def counts_in_documents_are_those_of_the_template(stack):
    """Everything that grows with an agent."""
    if stack.parameters["PriorityClasses"] == "true" or stack.parameters["Active"] == "false":
        return
    if stack.parameters["Sample"] == "false":
        return
    agents = len(stack.properties("Operator")["Environment"]["Variables"]["AGENTS"].split(","))
    more, words = 2 * agents + 1, {9: "nine", 11: "eleven", 13: "thirteen"}
    default = {n: int(stack.raw["Parameters"][f"{n}Concurrency"]["Default"]) for n in ("Scheduler", "Replies", "Submissions", "Agent")}
    most = sum(default.values()) + (agents - 1) * default["Agent"]
    deploy, cost = source.document("docs/deploy.md"), source.document("docs/cost.md")
    for text in (
        f"{agents} x `AgentConcurrency`",
        f"{agents + 1} x `HighPriorityConcurrency` + {agents} x `LowPriorityConcurrency`",
        f"The defaults need about {most}",
        f"the {words.get(more)} additional queues",
        f"`AgentConcurrency=2` the queues have {2 * (agents + 3)}",
    ):
        if text not in deploy:
            yield f"docs/deploy.md: does not say `{text}`"
    alarms = {8: "eight"}.get(len(stack.of_type("AWS::CloudWatch::Alarm")) - agents)
    for text in (f"{alarms} alarms", "`PriorityClasses` adds one queue, and two for each agent"):
        if text not in cost:
            yield f"docs/cost.md: does not say `{text}`"


@check
def a_small_account_has_parameters_that_fit(stack):
    """Ten concurrent executions are what many new accounts have."""
    text = source.document("docs/deploy.md").split("\n### An account with 10 concurrent executions\n")
    found = dict(re.findall(r"\b([A-Z]\w+)=(\d+)", text[1].split("\n## ")[0].split("\n### ")[0])) if len(text) == 2 else {}
    if not found:
        yield "docs/deploy.md: no parameters for a small account"
    for name, value in found.items():
        p = stack.raw["Parameters"].get(name, {})
        ok = value in p.get("AllowedValues", []) or p.get("MinValue", 1) <= int(value) <= p.get("MaxValue", 0)
        if not ok:
            yield f"docs/deploy.md: {name}={value} is refused"
    wait = int(found.get("StatusRateLimit", 40)) * int(found.get("LongestWaitSeconds", 5))
    if wait > 2 or any(found.get(f"{n}Concurrency") != "2" for n in ("Scheduler", "Replies", "Submissions", "Agent")):
        yield f"docs/deploy.md: {found} does not fit into ten executions"


TABLE = [
    Row("CloudFormation", "the physical names of resources have the lengths and characters of their services", "each service's API reference", "names_fit_with_the_longest_stack_name"),
    Row("CloudFormation", "500 resources, 200 outputs, parameters and mappings, a template of 1 MB, descriptions of 1,024 bytes and 4,000 characters", "AWSCloudFormation/latest/UserGuide/cloudformation-limits.html", "the_stack_stays_within_cloudformations_quotas"),
    Row("CloudFormation", "Ref of a parameter is text, whatever the parameter's type; RouteSettings has the type Json", "AWSCloudFormation/latest/UserGuide/parameters-section-structure.html", "long_polls_leave_room_for_the_rest"),
    Row("CloudFormation", "with Retain what a failed creation made stays; with RetainExceptOnCreate it is deleted", "AWSCloudFormation/latest/UserGuide/aws-attribute-deletionpolicy.html", "tables_are_safe"),
    Row("CloudFormation", "an import takes resources with static names, no functions in them, and with the policy Retain or RetainExceptOnCreate", "AWSCloudFormation/latest/UserGuide/import-resources-automatically.html", "tables_that_stayed_can_be_adopted"),
    Row("DynamoDB", "a table with deletion protection is deleted by nobody", "amazondynamodb/latest/developerguide/WorkingWithTables.Basics.html", "a_protected_table_is_made_unprotected_first"),
    Row("DynamoDB", "573 words are reserved in expressions; an expression has 4 KB", "amazondynamodb/latest/developerguide/ReservedWords.html", "no_expression_names_a_reserved_word"),
    Row("DynamoDB", "AttributeDefinitions holds the keys and nothing else", "amazondynamodb/latest/APIReference/API_CreateTable.html", "every_attribute_defined_is_a_key"),
    Row("DynamoDB", "a global index has no consistent reads", "amazondynamodb/latest/developerguide/GSI.html", "an_index_is_read_as_it_is"),
    Row("DynamoDB", "no key is an empty string, and none of an index either", "amazondynamodb/latest/developerguide/HowItWorks.NamingRulesDataTypes.html", "infra/aws/src/item.rs::no_key_is_empty_and_none_is_too_long"),
    Row("DynamoDB", "a partition key has at most 2,048 bytes, a sort key 1,024, an item 400 KB with its names", "amazondynamodb/latest/developerguide/Constraints.html", "infra/aws/src/item.rs::no_key_is_empty_and_none_is_too_long"),
    Row("DynamoDB", "time to live is a number of seconds; one of more than five years ago deletes nothing", "amazondynamodb/latest/developerguide/time-to-live-ttl-before-you-start.html", "infra/aws/src/item.rs::time_to_live_is_in_seconds"),
    Row("DynamoDB", "BatchGetItem takes 100 keys and answers 16 MB; the rest is unprocessed", "amazondynamodb/latest/APIReference/API_BatchGetItem.html", "tests/contract.rs::a_batch_that_is_answered_in_part_is_asked_for_again"),
    Row("DynamoDB", "a transaction's token makes it idempotent for ten minutes; sent again later it meets its own condition", "amazondynamodb/latest/APIReference/API_TransactWriteItems.html", "tests/contract/src/store.rs::many_submissions"),
    Row("SQS", "VisibilityTimeout 12 h, retention 60 s to 14 days, waits 20 s, delays 15 min, one kind of encryption, ten sources of a byQueue, dead letters keep the time they were sent", "AWSSimpleQueueService/latest/SQSDeveloperGuide/quotas-queues.html", "queues_stay_within_the_limits_of_sqs"),
    Row("SQS", "a queue is made again 60 s after one of its name was deleted", "AWSSimpleQueueService/latest/APIReference/API_DeleteQueue.html", "a_name_is_free_again_after_a_minute"),
    Row("SQS", "ten messages and 1 MiB in a request, attributes included. Older pages say 256 KiB, which no order with a full input would fit; the quota was raised in August 2025", "AWSSimpleQueueService/latest/SQSDeveloperGuide/quotas-messages.html", "infra/aws/src/messenger.rs::batches_hold_one_queue_ten_entries_and_one_mebibyte"),
    Row("SQS", "DelaySeconds are whole, and 900 at most", "AWSSimpleQueueService/latest/APIReference/API_SendMessage.html", "infra/aws/src/messenger.rs::a_delay_is_rounded_up_to_whole_seconds"),
    Row("SQS", "a move of dead letters needs rights at both ends, and has at most 500 messages a second", "AWSSimpleQueueService/latest/APIReference/API_StartMessageMoveTask.html", "dead_letters_can_be_moved_back"),
    Row("SQS", "a body has none of U+0000 to U+001F but tab and line ends, no U+FFFE and no U+FFFF: some pages say that they are replaced by U+FFFD, others that the message is refused", "AWSSimpleQueueService/latest/APIReference/API_SendMessage.html", "tests/json.rs::every_character_travels_through_every_message"),
    Row("SQS", "a message group has 1 to 128 letters, digits and marks", "AWSSimpleQueueService/latest/APIReference/API_SendMessage.html", "infra/aws/src/messenger.rs::a_group_has_only_what_sqs_takes"),
    Row("SQS", "a receive waits up to 20 s, so its answer comes later than that of any other call", "AWSSimpleQueueService/latest/SQSDeveloperGuide/sqs-short-and-long-polling.html", "infra/aws/src/clients.rs::a_long_poll_outlives_the_longest_wait_of_sqs"),
    Row("SQS and Lambda", "the visibility timeout is 6 x the function's and the batch window; five receives at least before a dead letter", "lambda/latest/dg/services-sqs-configure.html", "visibility_is_six_times_the_timeout"),
    Row("SQS and Lambda", "a dead-letter queue belongs to the queue, and names it", "AWSSimpleQueueService/latest/SQSDeveloperGuide/sqs-dead-letter-queues.html", "every_consumed_queue_has_a_dead_letter_queue"),
    Row("Lambda", "timeouts of 900 s, 10,240 MB, 6 h and two repeats of an asynchronous call, no variable of its own", "lambda/latest/dg/gettingstarted-limits.html", "functions_stay_within_the_limits_of_lambda"),
    Row("Lambda", "variables of a function have 4 KB in all", "lambda/latest/dg/gettingstarted-limits.html", "variables_fit_into_four_kilobytes"),
    Row("Lambda", "a batch of more than 10 needs a window; windows of 300 s; MaximumConcurrency 2 to 1,000", "lambda/latest/api/API_CreateEventSourceMapping.html", "event_sources_stay_within_the_limits_of_lambda"),
    Row("Lambda", "with a window and few messages Lambda may wait 20 s, even with a shorter window", "lambda/latest/dg/with-sqs.html", "a_batch_window_is_explained"),
    Row("Lambda", "reserved concurrency throttles pollers, and throttled messages become dead letters; MaximumConcurrency does not", "lambda/latest/dg/services-sqs-scaling.html", "concurrency_is_bounded_at_the_source"),
    Row("Lambda", "a loop over SQS is stopped after about 16 hops, unless it is allowed", "lambda/latest/dg/invocation-recursion.html", "recursion_is_allowed_where_the_loop_is"),
    Row("Lambda", "lines of JSON below ApplicationLogLevel, INFO unless it is said, are dropped", "lambda/latest/dg/monitoring-cloudwatchlogs-advanced.html", "functions_are_built_once_and_log_as_json"),
    Row("Lambda", "between invocations a function is frozen, and its connections are closed meanwhile", "lambda/latest/dg/lambda-runtime-environment.html", "functions/agent/src/remote.rs::a_connection_that_rested_is_not_used_again"),
    Row("Lambda", "a function is killed at its timeout, whatever it waits for", "lambda/latest/dg/configuration-timeout.html", "functions_outlive_calls_to_silent_services"),
    Row("Lambda", "so all attempts of a call together have to end well before that", "lambda/latest/dg/configuration-timeout.html", "infra/aws/src/clients.rs::no_call_to_a_silent_service_takes_a_quarter_of_a_function"),
    Row("EventBridge", "retries of 60 s to 24 h and 185 times, five targets, a pattern of 2,048 characters, a detail-type of 128; no role for targets with policies, says one page, and that both do another", "eventbridge/latest/userguide/eb-quota.html", "targets_stay_within_the_limits_of_eventbridge"),
    Row("EventBridge", "ten events in a request, and less than 256 KB. The newest page of quotas has 1 MB", "eventbridge/latest/APIReference/API_PutEvents.html", "infra/aws/src/messenger.rs::events_go_ten_and_256_kilobytes_at_a_time"),
    Row("EventBridge", "targets and schedules without a dead-letter queue lose what they cannot deliver; the queue's policy names the rule", "eventbridge/latest/userguide/eb-rule-dlq.html", "every_target_has_a_dead_letter_queue_and_a_retry_policy"),
    Row("EventBridge", "a bus with a key of yours has a dead-letter queue for what the key cannot open", "eventbridge/latest/userguide/eb-encryption-event-bus-dlq.html", "a_bus_with_a_key_of_yours_has_dead_letters"),
    Row("EventBridge", "an input template is a string in quotation marks, with variables of 100 paths at most; 8,192 characters. No page says that a quotation mark in a value is escaped", "eventbridge/latest/userguide/eb-transform-target-input.html", "alerts_are_sentences_with_links"),
    Row("EventBridge", "rate(1 minute), rate(2 minutes)", "scheduler/latest/UserGuide/schedule-types.html", "a_silent_supervisor_raises_an_alarm"),
    Row("SNS", "no Condition can be used in a topic's policy for EventBridge; a newer page lists aws:SourceArn among its keys", "eventbridge/latest/userguide/eb-use-resource-based.html", "alerts_reach_the_topic"),
    Row("KMS", "aws:SourceAccount and aws:SourceArn are not supported for EventBridge to encrypted topics; EventBridge's own page on keys recommends them for its bus", "sns/latest/dg/sns-key-management.html", "the_key_policy_lets_everybody_in_who_needs_it"),
    Row("KMS", "neither an alias nor AWS's own key will do where another service publishes", "sns/latest/dg/sns-key-management.html", "secrets_and_keys_are_named_whole"),
    Row("Secrets Manager", "a policy names a secret with the six characters that were added to its name", "secretsmanager/latest/userguide/auth-and-access_examples.html", "secrets_and_keys_are_named_whole"),
    Row("CloudWatch", "periods of whole minutes, a day looked back, descriptions of 1,024 characters, five actions, names without :*$, retentions of a list", "AmazonCloudWatch/latest/APIReference/API_PutMetricAlarm.html", "alarms_stay_within_the_limits_of_cloudwatch"),
    Row("CloudWatch", "500 metrics in a widget, 2,500 on a dashboard, 24 columns", "AmazonCloudWatch/latest/APIReference/CloudWatch-Dashboard-Body-Structure.html", "the_dashboard_stays_within_its_limits"),
    Row("IAM", "10,240 characters of inline policies in a role, 2,048 of trust, ten managed policies of 6,144", "IAM/latest/UserGuide/reference_iam-quotas.html", "policies_fit_into_their_roles"),
    Row("IAM", "a transaction needs the rights of its items, BatchGetItem one of its own, an index is a resource of its own", "amazondynamodb/latest/developerguide/transaction-apis-iam.html", "each_function_may_do_what_it_does"),
    Row("EventBridge Scheduler", "a trust policy names a group of schedules, not one", "scheduler/latest/UserGuide/cross-service-confused-deputy-prevention.html", "the_schedules_role_trusts_a_group"),
    Row("API Gateway", "HTTP APIs: 30 s, 300 routes, ten scopes with a JWT authorizer, access logs of 3 KB with a request id, 10,000 requests a second and 5,000 at once in an account", "apigateway/latest/developerguide/http-api-quotas.html", "the_api_stays_within_the_limits_of_api_gateway"),
    Row("API Gateway", "a stage has settings only for routes that are there", "apigateway/latest/developerguide/http-api-throttling.html", "long_polls_leave_room_for_the_rest"),
    Row("Service Quotas", "a new account has less concurrency and memory than others, and AWS raises both with use. The page names no number; 10 is what people are given", "lambda/latest/dg/gettingstarted-limits.html", "a_small_account_has_parameters_that_fit"),
]
