"""Every check can fail: each row breaks the template once, and the check named must see it."""

import json

import documented
import pytest
import source
from checks import CHECKS
from template import Stack, read

PASS = object()
P = "Properties"
STAR = {"Effect": "Allow", "Action": "sqs:*", "Resource": "arn:aws:sqs:eu-west-1:111122223333:queue"}


def put(*path):
    """Sets a value; `PASS` as the value removes the key."""
    *parents, key, value = path

    def change(raw):
        node = raw
        for name in parents:
            node = node[name]
        if value is PASS:
            del node[key]
        elif isinstance(node, list) and key == "append":
            node.append(value)
        else:
            node[key] = value

    return change


def resource(*path):
    return put("Resources", *path)


def agent(*path):
    """The same in the template that every agent has."""
    change = put(*path)
    return lambda raw: change(raw.nested["infra/agent.yaml"])


def api(*path):
    """The same in the template of the API."""
    change = put(*path)
    return lambda raw: change(raw.nested["infra/api.yaml"])


def alarms(*path):
    """The same in the template of the alarms."""
    change = put(*path)
    return lambda raw: change(raw.nested["infra/alarms.yaml"])


def grant(function, action, name):
    statement = {"Effect": "Allow", "Action": action, "Resource": {"Fn::GetAtt": [name, "Arn"]}}
    return resource(f"{function}Role", P, "Policies", 0, "PolicyDocument", "Statement", "append", statement)


def statement(function, number, value):
    return resource(f"{function}Role", P, "Policies", 0, "PolicyDocument", "Statement", number, value)


KEY = {"KmsKeyArn": "arn:aws:kms:eu-west-1:111122223333:key/1234"}
JWT = {"JwtIssuer": "https://issuer.example", "JwtAudience": "shop"}
CANARY = {"SubmitVersion": "7", "SubmitCanaryVersion": "8", "OperatorVersion": "3", "OperatorCanaryVersion": "4"}
CLASSES = {"PriorityClasses": "true"}
STANDBY = {"Active": "false"}
SECRETS = {"HttpSecretArn": "arn:aws:secretsmanager:eu-west-1:111122223333:secret:shop-http-AbCdEf"}
TRACES = {"OtlpEndpoint": "https://collector.example", "OtlpHeadersSecretArn": "arn:aws:secretsmanager:eu-west-1:111122223333:secret:shop-otlp-AbCdEf"}
COMPANY = {
    "SubnetIds": "subnet-0123456789abcdef0",
    "SecurityGroupIds": "sg-0123456789abcdef0",
    "PermissionsBoundaryArn": "arn:aws:iam::111122223333:policy/boundary",
    "Layers": "arn:aws:lambda:eu-west-1:111122223333:layer:collector:3",
    "AccessLogClass": "INFREQUENT_ACCESS",
}
VARIABLES = ("Globals", "Function", "Environment", "Variables")
ALONE = {"Sample": "false", **{f"{name}Url": "" for name in ("Inventory", "Fraud", "Payment", "Shipping")}}


def defect_in_dashboard(raw, name):
    """Misspells what the dashboard shows under a name."""
    body = raw.nested["infra/alarms.yaml"]["Resources"]["Dashboard"][P]["DashboardBody"]
    assert name in body["Fn::Sub"]
    body["Fn::Sub"] = body["Fn::Sub"].replace(name, f"-x{name}")


def defect_in_width(raw):
    """Makes the first widget wider than the dashboard."""
    body = raw.nested["infra/alarms.yaml"]["Resources"]["Dashboard"][P]["DashboardBody"]
    body["Fn::Sub"] = body["Fn::Sub"].replace('"width": 8', '"width": 25', 1)


# The check, what breaks the template, and parameters under which it shows.
DEFECTS = [
    ("visibility_is_six_times_the_timeout", resource("SchedulerQueue", P, "VisibilityTimeout", 179), {}),
    ("visibility_is_six_times_the_timeout", resource("Submit", P, "Timeout", 31), {}),
    ("visibility_is_six_times_the_timeout", agent("Mappings", "Visibility", "900", "0", 900), {"AgentTimeoutSeconds": "900"}),
    ("the_local_system_has_the_same_visibility", resource("SchedulerQueue", P, "VisibilityTimeout", 60), {}),
    ("batches_report_the_records_that_failed", agent("Resources", "Source", P, "FunctionResponseTypes", PASS), {}),
    ("batches_report_the_records_that_failed", resource("SchedulerSource", P, "FilterCriteria", {"Filters": []}), {}),
    ("concurrency_is_bounded_at_the_source", resource("SubmissionsSource", P, "ScalingConfig", PASS), {}),
    ("concurrency_is_bounded_at_the_source", resource("Agent", P, "ReservedConcurrentExecutions", 5), {}),
    ("every_consumed_queue_has_a_dead_letter_queue", agent("Resources", "Queue", P, "RedrivePolicy", PASS), {}),
    ("every_consumed_queue_has_a_dead_letter_queue", resource("SchedulerQueue", P, "RedrivePolicy", "maxReceiveCount", 3), {}),
    ("every_consumed_queue_has_a_dead_letter_queue", resource("SchedulerDead", P, "RedriveAllowPolicy", PASS), {}),
    ("every_consumed_queue_has_a_dead_letter_queue", agent("Resources", "LowQueue", P, "RedrivePolicy", "deadLetterTargetArn", {"Fn::GetAtt": ["AgentFraudDead", "Arn"]}), CLASSES),
    ("every_consumed_queue_has_a_dead_letter_queue", agent("Resources", "Dead", P, "RedriveAllowPolicy", "sourceQueueArns", 2, PASS), CLASSES),
    ("queues_poll_long_keep_long_and_are_encrypted", resource("SetAsideQueue", P, "ReceiveMessageWaitTimeSeconds", 0), {}),
    ("queues_poll_long_keep_long_and_are_encrypted", resource("SetAsideQueue", P, "MessageRetentionPeriod", 345600), {}),
    ("queues_poll_long_keep_long_and_are_encrypted", resource("SchedulerDead", P, "SqsManagedSseEnabled", False), {}),
    ("queues_poll_long_keep_long_and_are_encrypted", resource("SchedulerDead", P, "KmsMasterKeyId", PASS), KEY),
    ("queue_names_are_those_of_the_code", resource("SetAsideQueue", P, "QueueName", {"Fn::Sub": "${AWS::StackName}-poison"}), {}),
    ("queue_names_are_those_of_the_code", agent("Resources", "Source", PASS), {}),
    ("queue_names_are_those_of_the_code", agent("Resources", "LowSource", PASS), CLASSES),
    ("queue_names_are_those_of_the_code", agent("Resources", "HighQueue", P, "QueueName", {"Fn::Sub": "${AWS::StackName}-agent-fraud-urgent"}), CLASSES),
    ("queue_names_are_those_of_the_code", put("Resources", "SchedulerHighQueue", "Condition", PASS), {}),
    ("queue_names_are_those_of_the_code", put(*VARIABLES, "AGENT_POOLS", "payment=payment,payment-b"), {}),
    ("urgent_work_has_the_most_places_and_the_rest_a_floor", put("Parameters", "HighPriorityConcurrency", "Default", 19), CLASSES),
    ("urgent_work_has_the_most_places_and_the_rest_a_floor", agent("Resources", "LowSource", P, "ScalingConfig", "MaximumConcurrency", {"Ref": "HighPriorityConcurrency"}), CLASSES),
    ("recursion_is_allowed_where_the_loop_is", resource("Scheduler", P, "RecursiveLoop", PASS), {}),
    ("recursion_is_allowed_where_the_loop_is", resource("Submit", P, "RecursiveLoop", "Allow"), {}),
    ("variables_agree_with_the_code", put(*VARIABLES, "STATE_TABLE", PASS), {}),
    ("variables_agree_with_the_code", put(*VARIABLES, "SHARD", "4"), {}),
    ("variables_agree_with_the_code", resource("SampleAgents", P, "Environment", "Variables", "FRAUD_URL", PASS), {}),
    ("variables_agree_with_the_code", put(*VARIABLES, "RUST_LOG", PASS), {}),
    ("bounds_agree_with_the_code", put("Parameters", "Shards", "MaxValue", 257), {}),
    ("bounds_agree_with_the_code", put("Parameters", "SweepForMs", "Default", 30000), {}),
    ("bounds_agree_with_the_code", put("Parameters", "StrainLeast", "Default", 11), {}),
    ("bounds_agree_with_the_code", put("Parameters", "OverloadAgeMs", "MinValue", 1), {}),
    ("bounds_agree_with_the_code", resource("Supervisor", P, "Environment", "Variables", "SUPERVISOR_GROUPS", {"Ref": "Shards"}), {}),
    ("variables_agree_with_the_code", resource("Operator", P, "Environment", "Variables", "SUPERVISOR_GROUPS", PASS), {}),
    ("bounds_agree_with_the_code", put("Parameters", "PriorityClasses", "Default", "true"), {}),
    ("queue_prefix_and_names_make_the_urls", put(*VARIABLES, "QUEUE_PREFIX", {"Ref": "SchedulerQueue"}), {}),
    ("queue_prefix_and_names_make_the_urls", resource("SetAsideQueue", P, "QueueName", "set-aside"), {}),
    ("agents_are_those_of_the_code_and_of_the_workflows", put(*VARIABLES, "AGENTS", "inventory,fraud,payment"), {}),
    ("agents_are_those_of_the_code_and_of_the_workflows", put(*VARIABLES, "AGENTS", "inventory,fraud,payment,shipping,x"), {}),
    ("an_agent_may_run_as_long_as_a_step", resource("Agent", P, "Timeout", 3), {}),
    ("a_sweep_ends_before_its_lease_and_before_the_next_sweep", resource("Supervisor", P, "Timeout", 899), {}),
    ("a_sweep_ends_before_its_lease_and_before_the_next_sweep", resource("Supervisor", P, "EventInvokeConfig", "MaximumRetryAttempts", 2), {}),
    ("no_repeat_of_a_deployment_outlives_it", resource("Operator", P, "EventInvokeConfig", "MaximumEventAgeInSeconds", PASS), {}),
    ("no_repeat_of_a_deployment_outlives_it", resource("Operator", P, "EventInvokeConfig", "MaximumEventAgeInSeconds", 280), {}),
    ("no_repeat_of_a_deployment_outlives_it", resource("Operator", P, "EventInvokeConfig", "MaximumRetryAttempts", 0), {}),
    ("functions_are_built_once_and_log_as_json", resource("Operator", P, "CodeUri", "functions/operator/"), {}),
    ("functions_are_built_once_and_log_as_json", resource("Operator", P, "LoggingConfig", "LogFormat", "Text"), {}),
    ("functions_are_built_once_and_log_as_json", resource("Operator", P, "LoggingConfig", "ApplicationLogLevel", "INFO"), {}),
    ("functions_are_built_once_and_log_as_json", resource("SubmitLogs", P, "RetentionInDays", PASS), {}),
    ("functions_are_built_once_and_log_as_json", put("Globals", "Function", "Architectures", ["arm64"]), {}),
    ("tables_agree_with_the_code", resource("State", P, "GlobalSecondaryIndexes", 0, "IndexName", "due-index"), {}),
    ("tables_agree_with_the_code", resource("State", P, "AttributeDefinitions", 2, "AttributeType", "S"), {}),
    ("tables_agree_with_the_code", resource("Orders", P, "KeySchema", 1, "AttributeName", "created_at"), {}),
    ("tables_agree_with_the_code", resource("State", P, "TimeToLiveSpecification", "AttributeName", "expires"), {}),
    ("tables_agree_with_the_code", resource("State", P, "TimeToLiveSpecification", "Enabled", True), {}),
    ("tables_agree_with_the_code", resource("State", P, "TimeToLiveSpecification", "Enabled", False), {"RetentionDays": "30"}),
    ("tables_agree_with_the_code", resource("State", P, "GlobalSecondaryIndexes", 1, "Projection", "ProjectionType", "ALL"), {}),
    ("tables_are_safe", resource("Orders", "DeletionPolicy", "Delete"), {}),
    ("tables_are_safe", resource("State", P, "PointInTimeRecoverySpecification", PASS), {}),
    ("tables_are_safe", resource("State", P, "DeletionProtectionEnabled", False), {}),
    ("tables_are_safe", resource("State", P, "SSESpecification", PASS), KEY),
    ("your_key_is_used_everywhere", resource("Topic", P, "KmsMasterKeyId", PASS), KEY),
    ("your_key_is_used_everywhere", resource("KeyPolicy", P, "Roles", [{"Ref": "AgentRole"}]), KEY),
    ("no_policy_has_a_star", resource("SampleAgentsRole", P, "Policies", 0, "PolicyDocument", "Statement", "append", STAR), {}),
    ("no_policy_has_a_star", resource("KeyPolicy", P, "PolicyDocument", "Statement", 0, "Resource", "*"), KEY),
    ("no_policy_has_a_star", resource("TopicPolicy", P, "PolicyDocument", "Statement", 0, "Principal", "*"), {}),
    ("no_policy_has_a_star", statement("SampleAgents", 0, {"Effect": "Allow", "NotAction": "iam:GetRole", "Resource": "x"}), {}),
    ("each_function_has_a_role_of_its_own", resource("Submit", P, "Role", {"Fn::GetAtt": ["SchedulerRole", "Arn"]}), {}),
    ("each_function_has_a_role_of_its_own", resource("SampleAgentsRole", P, "ManagedPolicyArns", ["arn:aws:iam::aws:policy/x"]), {}),
    ("each_function_has_a_role_of_its_own", grant("SampleAgents", "logs:PutLogEvents", "SubmitLogs"), {}),
    ("submit_cannot_touch_agents", grant("Submit", "sqs:SendMessage", "AgentPaymentQueue"), {}),
    ("submit_cannot_touch_agents", grant("Submit", "dynamodb:UpdateItem", "Orders"), {}),
    ("agents_cannot_touch_tables", grant("SampleAgents", "dynamodb:GetItem", "State"), {}),
    ("agents_cannot_touch_tables", grant("SampleAgents", "sqs:SendMessage", "AgentPaymentQueue"), {}),
    ("the_agent_alone_reads_secrets", grant("SampleAgents", "secretsmanager:GetSecretValue", "Orders"), {}),
    ("the_agent_alone_reads_secrets", resource("AgentRole", P, "Policies", PASS), SECRETS),
    ("the_agent_alone_reads_secrets", resource("Agent", P, "Environment", "Variables", "HTTP_SECRETS", "x"), {}),
    ("traces_go_where_they_are_asked_to", put(*VARIABLES, "OTEL_EXPORTER_OTLP_ENDPOINT", {"Ref": "OtlpEndpoint"}), {}),
    ("traces_go_where_they_are_asked_to", put(*VARIABLES, "OTEL_EXPORTER_OTLP_ENDPOINT", PASS), TRACES),
    ("traces_go_where_they_are_asked_to", put(*VARIABLES, "OTEL_EXPORTER_OTLP_HEADERS", {"Ref": "OtlpHeadersSecretArn"}), TRACES),
    ("the_supervisor_only_requests_recovery", grant("Supervisor", "sqs:SendMessage", "AgentPaymentQueue"), {}),
    ("the_supervisor_only_requests_recovery", grant("Supervisor", "dynamodb:PutItem", "Orders"), {}),
    ("the_supervisor_only_requests_recovery", grant("Supervisor", "lambda:InvokeFunction", "Agent"), {}),
    ("the_supervisor_only_requests_recovery", grant("Supervisor", "sqs:SendMessage", "AgentPaymentHighQueue"), CLASSES),
    ("the_scheduler_never_changes_an_order", grant("Scheduler", "dynamodb:PutItem", "Orders"), {}),
    ("each_function_may_do_what_it_does", put("Resources", "SchedulerRole", P, "Policies", 0, "PolicyDocument", "Statement", 4, PASS), {}),
    ("each_function_may_do_what_it_does", agent("Resources", "Policy", P, "PolicyDocument", "Statement", 1, PASS), {}),
    ("each_function_may_do_what_it_does", put("Resources", "SubmitRole", P, "Policies", 0, "PolicyDocument", "Statement", 0, PASS), {}),
    ("each_function_may_do_what_it_does", put("Resources", "SubmitRole", P, "Policies", 0, "PolicyDocument", "Statement", 4, "Resource", 1, PASS), CLASSES),
    ("each_function_may_do_what_it_does", put("Resources", "OperatorRole", P, "Policies", 0, "PolicyDocument", "Statement", 4, "Resource", 1, PASS), CLASSES),
    ("nothing_is_open_but_what_a_parameter_opens", api("Resources", "StartJob", P, "AuthorizationType", "NONE"), {}),
    ("nothing_is_open_but_what_a_parameter_opens", api("Resources", "StartJob", P, "AuthorizationScopes", PASS), JWT),
    ("nothing_is_open_but_what_a_parameter_opens", api("Resources", "StartJob", P, "AuthorizationScopes", [{"Ref": "OrderScope"}]), JWT),
    ("nothing_is_open_but_what_a_parameter_opens", api("Conditions", "TakesCallbacks", {"Fn::Equals": [{"Ref": "Active"}, "true"]}), {}),
    ("nothing_is_open_but_what_a_parameter_opens", api("Resources", "ListOrders", P, "AuthorizationType", {"Fn::If": ["OrdersAreOpen", "NONE", "AWS_IAM"]}), {"OpenOrders": "true"}),
    ("nothing_is_open_but_what_a_parameter_opens", api("Resources", "PostOrder", P, "AuthorizationType", PASS), {}),
    ("nothing_is_open_but_what_a_parameter_opens", api("Resources", "SubmitPermission", P, "SourceArn", PASS), {}),
    ("nothing_is_open_but_what_a_parameter_opens", api("Resources", "Redrive", PASS), {}),
    ("a_policy_for_each_kind_of_caller_that_signs", api("Resources", "SubmitterPolicy", P, "PolicyDocument", "Statement", 0, "Resource", 0, {"Fn::Sub": "x/$default/POST/orders*"}), {}),
    ("a_policy_for_each_kind_of_caller_that_signs", api("Resources", "OperatorPolicy", P, "PolicyDocument", "Statement", 0, "Resource", 3, PASS), {}),
    ("a_policy_for_each_kind_of_caller_that_signs", api("Resources", "PublisherPolicy", P, "PolicyDocument", "Statement", 0, "Resource", "append", {"Fn::Sub": "x/$default/POST/queues/*"}), {}),
    ("a_policy_for_each_kind_of_caller_that_signs", api("Resources", "EraserPolicy", P, "PolicyDocument", "Statement", 0, "Resource", 0, {"Fn::Sub": "x/$default/POST/orders/*/*"}), {}),
    ("the_operator_alone_erases", put("Resources", "OperatorRole", P, "Policies", 0, "PolicyDocument", "Statement", -1, "Condition", PASS), {}),
    ("nothing_is_open_but_what_a_parameter_opens", api("Resources", "EraseOrder", P, "AuthorizationScopes", {"Fn::If": ["UsesJwt", [{"Ref": "OperatorScope"}], {"Ref": "AWS::NoValue"}]}), JWT),
    ("a_policy_for_each_kind_of_caller_that_signs", api("Resources", "OperatorPolicy", "Condition", PASS), JWT),
    ("a_policy_for_each_kind_of_caller_that_signs", put("Outputs", "SubmitterPolicyArn", PASS), {}),
    ("the_api_logs_and_throttles", api("Resources", "Stage", P, "AccessLogSettings", PASS), {}),
    ("the_api_logs_and_throttles", api("Resources", "Stage", P, "AccessLogSettings", "Format", '{"id":"$context.requestId","at":"$context.path"}'), {}),
    ("the_api_logs_and_throttles", api("Resources", "Stage", P, "DefaultRouteSettings", PASS), {}),
    ("long_polls_leave_room_for_the_rest", api("Resources", "Stage", P, "RouteSettings", PASS), {}),
    ("long_polls_leave_room_for_the_rest", api("Resources", "Stage", P, "RouteSettings", "GET /orders/{id}", "ThrottlingRateLimit", {"Ref": "ApiRateLimit"}), {}),
    ("long_polls_leave_room_for_the_rest", api("Resources", "Stage", P, "RouteSettings", "GET /orders/{order_id}", {"ThrottlingRateLimit": 1, "ThrottlingBurstLimit": 1}), {}),
    ("long_polls_leave_room_for_the_rest", api("Resources", "Stage", "DependsOn", PASS), {}),
    ("variables_agree_with_the_code", resource("Submit", P, "Environment", "Variables", "TENANT_CLAIM", PASS), {}),
    ("bounds_agree_with_the_code", put("Parameters", "LongestWaitSeconds", "MaxValue", 29), {}),
    ("every_target_has_a_dead_letter_queue_and_a_retry_policy", alarms("Resources", "OrderAlert", P, "Targets", 0, "DeadLetterConfig", PASS), {}),
    ("every_target_has_a_dead_letter_queue_and_a_retry_policy", resource("SupervisorSchedule", P, "Target", "RetryPolicy", PASS), {}),
    ("every_target_has_a_dead_letter_queue_and_a_retry_policy", alarms("Resources", "AlertsDeadPolicy", PASS), {}),
    ("every_target_has_a_dead_letter_queue_and_a_retry_policy", resource("SupervisorSchedule", P, "Name", "supervisor"), {}),
    ("alerts_reach_the_topic", alarms("Resources", "OrderAlert", P, "EventPattern", "source", ["stepward"]), {}),
    ("alerts_reach_the_topic", alarms("Resources", "OrderAlert", P, "EventBusName", PASS), {}),
    ("alerts_reach_the_topic", alarms("Resources", "OtherAlert", PASS), {}),
    ("alerts_reach_the_topic", alarms("Resources", "OtherAlert", P, "EventPattern", "detail-type", PASS), {}),
    ("alerts_are_sentences_with_links", alarms("Resources", "OtherAlert", P, "Targets", 0, "InputTransformer", PASS), {}),
    ("alerts_are_sentences_with_links", alarms("Resources", "OrderAlert", P, "Targets", 0, "InputTransformer", "InputPathsMap", "order", "$.detail.order"), {}),
    ("alerts_are_sentences_with_links", alarms("Resources", "OrderAlert", P, "Targets", 0, "InputTransformer", "InputPathsMap", "order", "$.detail.reason"), {}),
    ("alerts_are_sentences_with_links", alarms("Resources", "AgentAlert", P, "Targets", 0, "InputTransformer", "InputPathsMap", "held", PASS), {}),
    ("alerts_are_sentences_with_links", alarms("Resources", "AgentAlert", P, "Targets", 0, "InputTransformer", "InputTemplate", '"Agent <agent> holds up <held> of <looked> orders: <runbook>"'), {}),
    ("every_alarm_says_what_to_do", alarms("Resources", "ApiErrors", P, "AlarmDescription", "The API fails: docs/runbook.md#api-errors"), {"DocsUrl": "https://git.example/"}),
    ("a_standby_does_nothing", agent("Resources", "Source", P, "Enabled", PASS), STANDBY),
    ("a_standby_does_nothing", agent("Resources", "LowSource", P, "Enabled", True), {**STANDBY, **CLASSES}),
    ("a_standby_does_nothing", resource("SupervisorSchedule", P, "State", PASS), STANDBY),
    ("a_standby_does_nothing", alarms("Resources", "OrderAlert", P, "Targets", 0, "Arn", "<Agent.Arn>"), {}),
    ("a_standby_does_nothing", resource("SupervisorSchedule", P, "State", "DISABLED"), {}),
    ("nothing_is_open_but_what_a_parameter_opens", api("Resources", "ActOnOrder", "Condition", PASS), STANDBY),
    ("a_silent_supervisor_raises_an_alarm", alarms("Resources", "SupervisorSilent", "Condition", PASS), STANDBY),
    ("the_dashboard_shows_every_queue_function_and_table", lambda raw: defect_in_dashboard(raw, " agent dead"), {}),
    ("the_dashboard_shows_every_queue_function_and_table", lambda raw: defect_in_dashboard(raw, "-replies-dead"), {}),
    ("the_dashboard_shows_every_queue_function_and_table", lambda raw: defect_in_dashboard(raw, " (agent OR high)"), {}),
    ("the_dashboard_shows_every_metric_of_ours", lambda raw: defect_in_dashboard(raw, "outbox_lag"), {}),
    ("the_dashboard_shows_every_metric_of_ours", lambda raw: defect_in_dashboard(raw, "breaker_opened"), {}),
    ("everything_that_needs_an_alarm_has_one", alarms("Resources", "ApiErrors", P, "MetricName", "5XXError"), {}),
    ("everything_that_needs_an_alarm_has_one", agent("Resources", "AgeAlarm", PASS), {}),
    ("everything_that_needs_an_alarm_has_one", agent("Resources", "AgeAlarm", P, "Dimensions", 0, "Value", {"Fn::GetAtt": ["HighQueue", "QueueName"]}), CLASSES),
    ("everything_that_needs_an_alarm_has_one", alarms("Resources", "Problems", PASS), {}),
    ("everything_that_needs_an_alarm_has_one", alarms("Resources", "Overdue", PASS), {}),
    ("everything_that_needs_an_alarm_has_one", lambda raw: (r := raw.nested["infra/alarms.yaml"]["Resources"]).update(Ninth={"Type": "AWS::CloudWatch::Alarm", P: {**r["SubmissionsAge"][P], "Dimensions": []}}), {}),
    ("an_alarm_is_on_one_metric", alarms("Resources", "ApiErrors", P, "Metrics", []), {}),
    ("alarms_are_on_metrics_that_exist", alarms("Resources", "Overdue", P, "MetricName", "oldest_age"), {}),
    ("alarms_are_on_metrics_that_exist", alarms("Resources", "Overdue", P, "Dimensions", []), {}),
    ("alarms_are_on_metrics_that_exist", alarms("Resources", "Problems", P, "MetricName", "problems"), {}),
    ("every_alarm_says_what_to_do", alarms("Resources", "ApiErrors", P, "AlarmDescription", "see docs/runbook.md#nowhere"), {}),
    ("every_alarm_says_what_to_do", agent("Resources", "AgeAlarm", P, "AlarmActions", PASS), {}),
    ("lines_that_are_alarms_are_counted", alarms("Resources", "ProblemsOfSubmit", PASS), {}),
    ("lines_that_are_alarms_are_counted", agent("Resources", "Problems", P, "FilterPattern", '{ $.alarm = "no_secrets" }'), {}),
    ("lines_that_are_alarms_are_counted", alarms("Resources", "DeadLetterLines", P, "LogGroupName", {"Ref": "SubmitLogs"}), {}),
    ("the_supervisor_only_requests_recovery", put("Resources", "SupervisorRole", P, "Policies", 0, "PolicyDocument", "Statement", 5, PASS), {}),
    ("alarms_are_on_metrics_that_exist", alarms("Resources", "ApiErrors", P, "Namespace", "Stepwarden"), {}),
    ("a_silent_supervisor_raises_an_alarm", alarms("Resources", "SupervisorSilent", P, "TreatMissingData", "missing"), {}),
    ("a_silent_supervisor_raises_an_alarm", put("Mappings", "SupervisorRate", "Expression", "1", "rate(1 minutes)"), {}),
    ("every_section_of_the_runbook_is_complete", resource("SetAsideQueue", P, "QueueName", "shop-poison"), {}),
    ("every_section_of_the_runbook_is_complete", resource("Supervisor", P, "FunctionName", "shop-sweep"), {}),
    ("every_section_of_the_runbook_is_complete", resource("State", P, "TableName", "shop-tasks"), {}),
    ("every_section_of_the_runbook_is_complete", put("Parameters", "SchedulerConcurrency", PASS), {}),
    ("every_parameter_is_in_the_deploy_document", put("Parameters", "New", {"Type": "String", "Default": "x"}), {}),
    ("parameters_are_described_and_bounded", put("Parameters", "Shards", "Description", PASS), {}),
    ("parameters_are_described_and_bounded", put("Parameters", "TaskCache", "MaxValue", PASS), {}),
    ("parameters_are_described_and_bounded", put("Parameters", "New", {"Type": "String", "Default": "x"}), {}),
    ("outputs_say_where_everything_is", put("Outputs", "SchedulerHighQueueUrl", PASS), CLASSES),
    ("outputs_say_where_everything_is", put("Outputs", "NoticesDefaultQueueUrl", PASS), {}),
    ("alerts_reach_the_topic", resource("TopicPolicy", P, "PolicyDocument", "Statement", 0, "Condition", {"ArnEquals": {"aws:SourceArn": {"Fn::GetAtt": ["Bus", "Arn"]}}}), {}),
    ("alerts_reach_the_topic", resource("TopicPolicy", P, "PolicyDocument", "Statement", 1, "Condition", PASS), {}),
    ("tables_are_safe", resource("Orders", "DeletionPolicy", "Retain"), {}),
    ("batches_report_the_records_that_failed", agent("Resources", "Source", P, "MaximumBatchingWindowInSeconds", PASS), {}),
    ("visibility_is_six_times_the_timeout", resource("RepliesQueue", P, "VisibilityTimeout", 180), {"BatchSeconds": "5"}),
    ("long_polls_leave_room_for_the_rest", api("Resources", "Stage", P, "RouteSettings", {"GET /orders/{id}": {"ThrottlingRateLimit": {"Ref": "StatusRateLimit"}, "ThrottlingBurstLimit": 80}}), {}),
    ("long_polls_leave_room_for_the_rest", api("Conditions", "StatusRateIs10", {"Fn::Equals": [{"Ref": "StatusRateLimit"}, "11"]}), {"StatusRateLimit": "10"}),
    ("names_fit_with_the_longest_stack_name", resource("Supervisor", P, "FunctionName", {"Fn::Sub": "${AWS::StackName}-supervisor-of-orders"}), {}),
    ("names_fit_with_the_longest_stack_name", resource("SubmitRole", P, "RoleName", "submit"), {}),
    ("names_fit_with_the_longest_stack_name", resource("SetAsideQueue", P, "QueueName", {"Fn::Sub": "${AWS::StackName}-set.aside"}), {}),
    ("the_stack_stays_within_cloudformations_quotas", put("Parameters", "Shards", "Description", "x" * 4001), {}),
    ("the_stack_stays_within_cloudformations_quotas", lambda raw: raw["Outputs"].update({f"X{n}": {"Value": "x"} for n in range(200)}), {}),
    ("queues_stay_within_the_limits_of_sqs", resource("SchedulerDead", P, "MessageRetentionPeriod", 1209599), {}),
    ("queues_stay_within_the_limits_of_sqs", resource("SchedulerQueue", P, "KmsMasterKeyId", "key"), {}),
    ("queues_stay_within_the_limits_of_sqs", agent("Mappings", "Visibility", "900", "0", 43201), {"AgentTimeoutSeconds": "900"}),
    ("functions_stay_within_the_limits_of_lambda", resource("Agent", P, "Timeout", 901), {}),
    ("functions_stay_within_the_limits_of_lambda", put(*VARIABLES, "AWS_REGION", "eu-west-1"), {}),
    ("functions_stay_within_the_limits_of_lambda", resource("Supervisor", P, "EventInvokeConfig", "MaximumEventAgeInSeconds", 59), {}),
    ("variables_fit_into_four_kilobytes", put("Parameters", "InventoryUrl", "MaxLength", PASS), {}),
    ("event_sources_stay_within_the_limits_of_lambda", agent("Resources", "Source", P, "BatchSize", 11), {}),
    ("event_sources_stay_within_the_limits_of_lambda", agent("Resources", "Source", P, "MaximumBatchingWindowInSeconds", 301), {}),
    ("event_sources_stay_within_the_limits_of_lambda", put("Parameters", "LowPriorityConcurrency", "MinValue", 1), {}),
    ("a_batch_window_is_explained", put("Parameters", "BatchSeconds", "Description", "How long."), {}),
    ("every_attribute_defined_is_a_key", resource("State", P, "AttributeDefinitions", "append", {"AttributeName": "tenant", "AttributeType": "S"}), {}),
    ("targets_stay_within_the_limits_of_eventbridge", alarms("Resources", "OrderAlert", P, "Targets", 0, "RetryPolicy", "MaximumRetryAttempts", 186), {}),
    ("targets_stay_within_the_limits_of_eventbridge", alarms("Resources", "OrderAlert", P, "Targets", 0, "RoleArn", "arn:aws:iam::111122223333:role/x"), {}),
    ("a_bus_with_a_key_of_yours_has_dead_letters", resource("Bus", P, "DeadLetterConfig", PASS), {}),
    ("a_bus_with_a_key_of_yours_has_dead_letters", alarms("Resources", "AlertsDeadPolicy", P, "PolicyDocument", "Statement", 0, "Condition", "ArnEquals", "aws:SourceArn", 4, PASS), {}),
    ("alarms_stay_within_the_limits_of_cloudwatch", alarms("Resources", "ApiErrors", P, "Period", 90), {}),
    ("alarms_stay_within_the_limits_of_cloudwatch", alarms("Resources", "ApiErrors", P, "DatapointsToAlarm", 9), {}),
    ("alarms_stay_within_the_limits_of_cloudwatch", put("Parameters", "LogRetentionDays", "AllowedValues", "append", 31), {}),
    ("the_dashboard_stays_within_its_limits", lambda raw: defect_in_width(raw), {}),
    ("policies_fit_into_their_roles", lambda raw: [grant("Scheduler", "sqs:SendMessage", "SchedulerQueue")(raw) for _ in range(60)], {}),
    ("policies_fit_into_their_roles", resource("SampleAgentsRole", P, "Policies", 0, "PolicyDocument", "Version", "2008-10-17"), {}),
    ("the_api_stays_within_the_limits_of_api_gateway", api("Resources", "SubmitIntegration", P, "TimeoutInMillis", 30001), {}),
    ("the_api_stays_within_the_limits_of_api_gateway", api("Resources", "SubmitIntegration", P, "TimeoutInMillis", 26000), {}),
    ("functions_outlive_calls_to_silent_services", resource("Scheduler", P, "Timeout", 21), {}),
    ("tables_that_stayed_can_be_adopted", resource("State", P, "TableName", {"Fn::Sub": "${AWS::StackName}-tasks"}), {}),
    ("the_api_stays_within_the_limits_of_api_gateway", api("Resources", "Logs", P, "LogGroupName", {"Fn::Sub": "/aws/api/${Stack}"}), {}),
    ("the_api_stays_within_the_limits_of_api_gateway", put("Parameters", "ApiBurstLimit", "MaxValue", 5001), {}),
    ("each_function_has_a_role_of_its_own", resource("AgentRole", P, "ManagedPolicyArns", PASS), {"HttpPolicyArns": "arn:aws:iam::111122223333:policy/a"}),
    ("each_function_has_a_role_of_its_own", resource("SubmitRole", P, "ManagedPolicyArns", ["arn:aws:iam::aws:policy/AdministratorAccess"]), {}),
    ("variables_agree_with_the_code", resource("Agent", P, "Environment", "Variables", "HTTP_HOSTS", PASS), {}),
    ("secrets_and_keys_are_named_whole", put("Parameters", "HttpSecretArn", "AllowedPattern", "^$|^arn:aws[a-z-]*:secretsmanager:.+$"), {}),
    ("secrets_and_keys_are_named_whole", resource("Topic", P, "KmsMasterKeyId", "alias/aws/sns"), {}),
    ("counts_in_documents_are_those_of_the_template", put(*VARIABLES, "AGENTS", "inventory,fraud,payment,shipping"), {}),
    ("every_agent_has_a_stack_of_its_own", put("Resources", "AgentFraud", PASS), {}),
    ("every_agent_has_a_stack_of_its_own", resource("AgentFraud", P, "Parameters", "Function", {"Ref": "Agent"}), {}),
    ("every_agent_has_a_stack_of_its_own", resource("AgentFraud", P, "Parameters", "Role", {"Ref": "AgentRole"}), {}),
    ("every_agent_has_a_stack_of_its_own", resource("AgentFraud", "Condition", PASS), ALONE),
    ("queues_that_are_known_by_name_carry_the_tag", agent("Resources", "HighQueue", P, "Tags", PASS), CLASSES),
    ("queues_that_are_known_by_name_carry_the_tag", resource("NoticesDefaultQueue", P, "Tags", 0, "Value", "shop-agent-x"), {}),
    ("dead_letters_are_sent_to_by_nobody", put("Resources", "SchedulerRole", P, "Policies", 0, "PolicyDocument", "Statement", 6, PASS), {}),
    ("dead_letters_are_sent_to_by_nobody", put("Resources", "OperatorRole", P, "Policies", 0, "PolicyDocument", "Statement", 6, PASS), {}),
    ("no_policy_has_a_star", put("Resources", "SchedulerRole", P, "Policies", 0, "PolicyDocument", "Statement", 5, "Condition", PASS), {}),
    ("no_policy_has_a_star", put("Resources", "SchedulerRole", P, "Policies", 0, "PolicyDocument", "Statement", 5, "Resource", 0, {"Fn::Sub": "arn:aws:sqs:eu-west-1:111122223333:${AWS::StackName}-*"}), {}),
    ("no_resource_repeats_another_up_to_an_agents_name", lambda raw: raw["Resources"].update(FraudDead={"Type": "AWS::SQS::Queue"}, ShippingDead={"Type": "AWS::SQS::Queue"}), {}),
    ("what_a_company_prescribes_holds_everywhere", put("Globals", "Function", "VpcConfig", PASS), COMPANY),
    ("what_a_company_prescribes_holds_everywhere", put("Globals", "Function", "Layers", PASS), COMPANY),
    ("what_a_company_prescribes_holds_everywhere", resource("ScheduleRole", P, "PermissionsBoundary", PASS), COMPANY),
    ("what_a_company_prescribes_holds_everywhere", resource("SubmitLogs", P, "LogGroupClass", {"Ref": "AccessLogClass"}), COMPANY),
    ("each_function_may_do_what_it_does", put("Resources", "OperatorRole", P, "Policies", 0, "PolicyDocument", "Statement", 10, PASS), {}),
    ("each_function_may_do_what_it_does", put("Resources", "SupervisorRole", P, "Policies", 0, "PolicyDocument", "Statement", 8, PASS), {}),
    ("each_function_may_do_what_it_does", put("Resources", "OperatorRole", P, "Policies", 0, "PolicyDocument", "Statement", 1, "Action", 1, PASS), {}),
    ("a_standby_does_nothing", resource("Operator", P, "Environment", "Variables", "ACTIVE", "true"), {"Active": "false"}),
    ("a_version_is_reached_by_its_alias_alone", resource("SubmissionsSource", P, "FunctionName", {"Ref": "Submit"}), CANARY),
    ("a_version_is_reached_by_its_alias_alone", resource("Api", P, "Parameters", "OperatorArn", {"Fn::GetAtt": ["Operator", "Arn"]}), CANARY),
    ("a_version_is_reached_by_its_alias_alone", resource("OperatorAlias", P, "RoutingConfig", PASS), CANARY),
    ("a_version_is_reached_by_its_alias_alone", resource("SubmitAlias", P, "FunctionVersion", {"Ref": "OperatorVersion"}), CANARY),
    ("a_version_is_reached_by_its_alias_alone", resource("SubmitAlias", "Condition", PASS), {}),
    ("each_function_has_a_role_of_its_own", resource("OperatorRole", P, "ManagedPolicyArns", PASS), COMPANY),
    ("nested_stacks_take_what_they_are_given", api("Parameters", "ApiRateLimit", "MaxValue", 5000), {}),
    ("nested_stacks_take_what_they_are_given", api("Parameters", "LogRetentionDays", "MaxValue", 3000), {}),
    ("nested_stacks_take_what_they_are_given", api("Parameters", "OrderScope", "MaxLength", 20), {}),
    ("nested_stacks_take_what_they_are_given", alarms("Parameters", "SupervisorRateMinutes", "AllowedValues", ["1", "2", "5", "10"]), {}),
    ("nested_stacks_take_what_they_are_given", api("Outputs", "Id", PASS), {}),
    ("parameters_have_defaults", put("Parameters", "PaymentUrl", "Default", PASS), {}),
    ("counts_in_documents_are_those_of_the_template", alarms("Resources", "ApiErrors", PASS), {}),
    ("dead_letters_can_be_moved_back", put("Resources", "OperatorRole", P, "Policies", 0, "PolicyDocument", "Statement", 8, "Action", 3, PASS), {}),
    ("the_schedules_role_trusts_a_group", put("Resources", "ScheduleRole", P, "AssumeRolePolicyDocument", "Statement", 0, "Condition", "StringEquals", "aws:SourceArn", {"Fn::GetAtt": ["SupervisorSchedule", "Arn"]}), {}),
    ("a_small_account_has_parameters_that_fit", put("Parameters", "StatusRateLimit", "AllowedValues", ["40"]), {}),
]
# These compare sources with a document, and the template has no part in it.
WITHOUT = {
    "alerts_name_sections_of_the_runbook",
    "a_name_is_free_again_after_a_minute",
    "a_protected_table_is_made_unprotected_first",
    "an_index_is_read_as_it_is",
    "no_expression_names_a_reserved_word",
    "the_key_policy_lets_everybody_in_who_needs_it",
}
BY_NAME = {check.__name__: check for check in CHECKS}


@pytest.mark.parametrize(("name", "change", "parameters"), DEFECTS, ids=[f"{n}-{d[0]}" for n, d in enumerate(DEFECTS)])
def test_check_sees_defect(name, change, parameters):
    raw = read()
    assert not list(BY_NAME[name](Stack(raw, **parameters))), "the check has to pass on the template as it is"
    change(raw)
    assert list(BY_NAME[name](Stack(raw, **parameters)))


def test_alerts_name_sections_of_the_runbook_sees_a_missing_section(monkeypatch):
    monkeypatch.setattr("source.runbook_sections", lambda: {"undo-failed"})
    assert list(BY_NAME["alerts_name_sections_of_the_runbook"](None))


@pytest.mark.parametrize(
    ("name", "page", "old", "new"),
    [
        ("a_name_is_free_again_after_a_minute", "docs/deploy.md", "60 seconds", "a minute"),
        ("a_protected_table_is_made_unprotected_first", "docs/deploy.md", " DeletionProtection=false", ""),
        ("a_protected_table_is_made_unprotected_first", "README.md", " DeletionProtection=false", ""),
        ("a_protected_table_is_made_unprotected_first", "README.md", "DeletionProtection=true", "DeletionProtection=false"),
        ("tables_that_stayed_can_be_adopted", "docs/deploy.md", "s/TableName: !Sub", "s/TableName: !Ref"),
        ("tables_that_stayed_can_be_adopted", "docs/deploy.md", "s/RetainExceptOnCreate/Retain/", ""),
        ("tables_that_stayed_can_be_adopted", "docs/deploy.md", "--template-file adopt.yaml", "--template-file template.yaml"),
        ("no_expression_names_a_reserved_word", "docs/runbook.md", "attention = :e", "status = :e"),
        ("the_key_policy_lets_everybody_in_who_needs_it", "docs/deploy.md", "s/ACCOUNT/", "s/X/"),
    ],
)
def test_a_check_sees_a_defect_in_a_document(monkeypatch, name, page, old, new):
    read_page = source.document
    monkeypatch.setattr("source.document", lambda path: read_page(path).replace(old, new if path == page else old))
    assert list(BY_NAME[name](Stack(read())))


def test_a_reserved_word_in_an_expression_is_seen(monkeypatch):
    assert documented.reserved_in("#token = :token AND holder = :holder AND attribute_not_exists(pk)") == set()
    assert documented.reserved_in("SET status = :new, version = :seen REMOVE ttl") == {"status", "ttl"}
    monkeypatch.setattr("documented.expressions", lambda: [("a.rs", "due = :now AND shard = :shard")] * 15)
    assert len(list(BY_NAME["no_expression_names_a_reserved_word"](None))) == 15


def test_a_consistent_read_of_an_index_is_seen(tmp_path, monkeypatch):
    folder = tmp_path / "infra/aws/src"
    folder.mkdir(parents=True)
    (folder / "a.rs").write_text('query().index_name(DUE_INDEX).consistent_read(true).send();')
    monkeypatch.setattr("documented.ROOT", tmp_path)
    assert list(BY_NAME["an_index_is_read_as_it_is"](None))


# With such a condition EventBridge delivers nothing to the topic.
@pytest.mark.parametrize("principal", ["events.amazonaws.com", "cloudwatch.amazonaws.com"])
def test_a_condition_in_the_key_policy_is_seen(tmp_path, monkeypatch, principal):
    policy = json.loads(documented.KEY_POLICY.read_text())
    (statement,) = (s for s in policy["Statement"] if s["Principal"].get("Service") == principal)
    statement["Condition"] = {"StringEquals": {"aws:SourceAccount": "ACCOUNT"}}
    path = tmp_path / "key-policy.json"
    path.write_text(json.dumps(policy))
    monkeypatch.setattr("documented.KEY_POLICY", path)
    assert list(BY_NAME["the_key_policy_lets_everybody_in_who_needs_it"](None))


def test_every_section_of_the_runbook_is_complete_sees_a_missing_part(monkeypatch):
    monkeypatch.setattr("source.runbook_texts", lambda: {"Queue age": "\n**Means.** x\n**Do.** x\n"})
    problems = list(BY_NAME["every_section_of_the_runbook_is_complete"](Stack(read())))
    assert len(problems) == 2, problems


def test_every_check_has_a_defect():
    assert set(BY_NAME) == {name for name, *_ in DEFECTS} | WITHOUT
