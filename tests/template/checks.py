"""What has to hold for template.yaml. Each check yields what is wrong, in words; test_defects.py shows that each can fail."""

import json
import re
from fnmatch import fnmatchcase

import source
from template import NESTED, ROOT, read, target

CHECKS = []
# Parameters of the pipeline's role.
DEPLOYER = set(read((ROOT / "infra/deployer.yaml").read_text())["Parameters"])
FUNCTIONS = ("Submit", "Scheduler", "Agent", "Supervisor", "Operator")
# Functions that serve agents: `http`, and with the example its agents.
AGENT_FUNCTIONS = ("Agent", "SampleAgents")
# Queues that may be in other stacks, by name. Such a right needs the tag of the system's stack.
BY_NAME = re.compile(r"arn:aws:sqs:eu-west-1:111122223333:shop-(agent|notices)-\*(-dead)?")
# Routes of the API, which are the only things that a caller's policy names.
ROUTE = re.compile(r"arn:aws:execute-api:eu-west-1:111122223333:<ApiGateway>/\$default/(GET|POST)/[a-z.]+(/\*(/[a-z]+/\*|/erasure)?)?")
# Layers with workflow files, which other stacks bring.
LAYERS = "arn:aws:lambda:eu-west-1:111122223333:layer:shop-workflows*"
TAG = {"StringEquals": {"aws:ResourceTag/stepwarden": "shop"}}
SUBMIT_ROUTES = {
    "POST /orders",
    "GET /orders/{id}",
    "GET /orders/{id}/history",
    "POST /orders/{id}/events/{event}",
    "GET /openapi.json",
    "GET /problems/{code}",
}
# Open where the deployment has a public address: the token in the path decides.
CALLBACK_ROUTES = {"POST /callbacks/{id}/{step}/{token}", "GET /links/{id}/{step}/{token}", "POST /links/{id}/{step}/{token}", "POST /heartbeats/{id}/{step}/{attempt}/{token}"}
OPERATOR_ROUTES = {
    "GET /orders",
    "GET /details/{id}",
    "GET /details/{id}/record",
    "GET /details/{id}/items/{step}",
    "GET /overview",
    "GET /queues",
    "POST /orders/{id}/actions/{action}",
    "POST /jobs",
    "POST /jobs/{id}/{verb}",
    "GET /jobs",
    "GET /jobs/{id}",
    "GET /jobs/{id}/results",
    "GET /agents",
    "POST /agents/{name}/{action}",
    "POST /queues/{name}/redrive",
    "GET /leases",
    "GET /charts",
    "GET /workflows",
    "GET /workflows/{name}",
    "GET /workflows/{name}/{hash}",
}
# A scope of their own; it also reads workflows.
WORKFLOW_ROUTES = {"POST /workflows", "POST /workflows/{name}/{action}"}
ERASE_ROUTES = {"POST /orders/{id}/erasure"}
# Files without data, which a browser asks for before it has a token.
CONSOLE_ROUTES = {"GET /console", "GET /console/{file}"}


def check(function):
    CHECKS.append(function)
    return function


def as_list(value):
    return value if isinstance(value, list) else [value]


def functions(stack):
    """The functions of the stack, with the example's where it is there."""
    return [f for f in (*FUNCTIONS, "SampleAgents") if f in stack.resources]


def crate(function):
    """The folder of `functions/` whose binary a function runs."""
    return "agent" if function in AGENT_FUNCTIONS else function.lower()


def served(stack, function):
    """The agents that a function serves, as its variables say."""
    return stack.properties(function)["Environment"]["Variables"]["AGENTS"].split(",") if function in AGENT_FUNCTIONS else []


def variables_of(stack, function):
    """Variables of the configuration, and those that the function's crate reads for what it does here."""
    own = source.read_by(crate(function)) | set(source.numbers_of(crate(function)))
    if crate(function) in ("submit", "operator"):
        own |= source.FILES
    elif "http" in served(stack, function):
        own.add("HTTP_HOSTS")
    if crate(function) == "scheduler":
        own.add(source.ADDRESS)
    foreign = {v for v, agent in source.AGENT_VARIABLES.items() if agent not in served(stack, function)}
    return source.REQUIRED | source.LISTS | set(source.NUMBERS) | set(source.FLAGS) | (own - foreign)


def log_group(stack, function):
    """The log group of a function: the one that it names, or the one of its name."""
    p = stack.properties(function)
    own = {f"/aws/lambda/<{function}>", f"/aws/lambda/{p['FunctionName']}"}
    named = target(p.get("LoggingConfig", {}).get("LogGroup"))
    groups = stack.of_type("AWS::Logs::LogGroup")
    return named if named in groups else next((i for i, g in groups.items() if not named and g["LogGroupName"] in own), None)


def is_active(stack):
    """Whether the stack works, or stands by for one in another Region."""
    return stack.parameters["Active"] == "true"


def queue_names(stack):
    """Logical id of each queue with its name after the stack's."""
    return {i: p["QueueName"].removeprefix("shop-") for i, p in stack.of_type("AWS::SQS::Queue").items()}


def sources(stack):
    """Event source mappings as (id, properties, function, queue)."""
    for name, p in stack.of_type("AWS::Lambda::EventSourceMapping").items():
        yield name, p, behind(stack, p["FunctionName"]), target(p["EventSourceArn"])


def behind(stack, reference):
    """The function that a reference names, or that the alias has that it names."""
    name = target(reference)
    alias = stack.of_type("AWS::Lambda::Alias").get(name)
    return target(alias["FunctionName"]) if alias else name


def classes(stack):
    """Ends of the names of the queues that are not the ordinary class's, where the classes are on."""
    return set(source.CLASS_ENDS.values()) if stack.parameters["PriorityClasses"] == "true" else set()


def base_of(name):
    """Name of the queue of the ordinary class, whose dead letters the other classes share."""
    for end in source.CLASS_ENDS.values():
        name = name.removesuffix(end)
    return name


def scheduler_queues(stack):
    return {i for i, n in queue_names(stack).items() if base_of(n) == source.QUEUE["SCHEDULER"]}


def consumed(stack):
    return [queue for *_, queue in sources(stack)]


def policies_of(stack, role):
    """Managed policies that are attached to a role, which agents' stacks bring."""
    return [i for i, p in stack.of_type("AWS::IAM::ManagedPolicy").items() if f"<{role}>" in p.get("Roles", [])]


def statements(stack, role):
    for policy in stack.properties(role).get("Policies", []):
        yield from policy["PolicyDocument"]["Statement"]
    for policy in policies_of(stack, role):
        yield from stack.properties(policy)["PolicyDocument"]["Statement"]


def named_by(stack, resource, condition):
    """What a policy means by an ARN: the queues whose names and tags match, the partitions of a table, or one resource."""
    if keys := condition.get("ForAllValues:StringLike", {}).get("dynamodb:LeadingKeys"):
        return [f"{resource}/{key}" for key in as_list(keys)]
    queues = stack.of_type("AWS::SQS::Queue")
    tag = condition.get("StringEquals", {}).get("aws:ResourceTag/stepwarden")
    if resource.startswith("arn:aws:sqs:"):
        arns = {i: f"arn:aws:sqs:eu-west-1:111122223333:{p['QueueName']}" for i, p in queues.items()}
        return [f"<{i}.Arn>" for i, arn in arns.items() if fnmatchcase(arn, resource) and tag in (None, tag_of(queues[i]))]
    buses = {f"arn:aws:events:eu-west-1:111122223333:event-bus/{p['Name']}": i for i, p in stack.of_type("AWS::Events::EventBus").items()}
    return [f"<{buses[resource]}.Arn>" if resource in buses else resource]


def tag_of(queue):
    return next((t["Value"] for t in queue.get("Tags", []) if t["Key"] == "stepwarden"), None)


def rights(stack, function):
    """What a function may do, as a set of (action, what): what is allowed, less what is denied."""
    by_effect = {"Allow": set(), "Deny": set()}
    for statement in statements(stack, target(stack.properties(function)["Role"])):
        by_effect[statement["Effect"]] |= {
            (action, what)
            for action in as_list(statement.get("Action", "*"))
            for resource in as_list(statement.get("Resource", "*"))
            for what in named_by(stack, resource, statement.get("Condition", {}))
        }
    return by_effect["Allow"] - by_effect["Deny"]


def documents(stack):
    """Every policy document with a name for it."""
    for name, r in stack.resources.items():
        p = r.get("Properties", {})
        if "PolicyDocument" in p:
            yield name, p["PolicyDocument"]
        if "AssumeRolePolicyDocument" in p:
            yield f"{name} (who may assume it)", p["AssumeRolePolicyDocument"]
        for policy in p.get("Policies", []):
            yield f"{name}/{policy['PolicyName']}", policy["PolicyDocument"]


# ------------------------------------------------------------------ queues and their consumers


@check
def visibility_is_six_times_the_timeout(stack):
    for name, p, function, queue in sources(stack):
        timeout, window = int(stack.properties(function)["Timeout"]), int(p.get("MaximumBatchingWindowInSeconds", 0))
        visibility = stack.properties(queue).get("VisibilityTimeout", 30)
        if visibility != 6 * timeout + window:
            yield f"{name}: {queue} has {visibility} s, {function} may run {timeout} s, and a batch fills for {window} s"


@check
def the_local_system_has_the_same_visibility(stack):
    if stack.parameters["BatchSeconds"] == "0" and stack.properties("SchedulerQueue").get("VisibilityTimeout") != source.LOCAL_VISIBILITY_S:
        yield f"SchedulerQueue: infra/local has {source.LOCAL_VISIBILITY_S} s"


@check
def batches_report_the_records_that_failed(stack):
    for name, p, *_ in sources(stack):
        if p.get("FunctionResponseTypes") != ["ReportBatchItemFailures"]:
            yield f"{name}: a poison record would fail its neighbours"
        if p.get("BatchSize") != 10:
            yield f"{name}: BatchSize is {p.get('BatchSize')}"
        if p.get("MaximumBatchingWindowInSeconds") != stack.parameters["BatchSeconds"]:
            yield f"{name}: does not wait for a batch as asked"
        if "FilterCriteria" in p:
            yield f"{name}: a filter deletes what does not match it"


@check
def concurrency_is_bounded_at_the_source(stack):
    for name, p, *_ in sources(stack):
        if not 2 <= int(p.get("ScalingConfig", {}).get("MaximumConcurrency", 0)) <= 1000:
            yield f"{name}: no MaximumConcurrency"
    for name, p in stack.of_type("AWS::Lambda::Function").items():
        if "ReservedConcurrentExecutions" in p:
            yield f"{name}: reserved concurrency sends good messages to the dead-letter queue"


@check
def every_consumed_queue_has_a_dead_letter_queue(stack):
    names = queue_names(stack)
    for queue in consumed(stack):
        redrive = stack.properties(queue).get("RedrivePolicy", {})
        dead = target(redrive.get("deadLetterTargetArn"))
        if dead not in names:
            yield f"{queue}: no dead-letter queue"
            continue
        base = base_of(names[queue])
        if names[dead] != base + source.DEAD_QUEUE:
            yield f"{queue}: its dead-letter queue is called {names[dead]}"
        if redrive.get("maxReceiveCount") != source.MAX_RECEIVES:
            yield f"{queue}: maxReceiveCount is {redrive.get('maxReceiveCount')}, not {source.MAX_RECEIVES}"
        served = {f"arn:aws:sqs:eu-west-1:111122223333:shop-{n}" for n in names.values() if base_of(n) == base}
        allowed = stack.properties(dead).get("RedriveAllowPolicy", {})
        if allowed.get("redrivePermission") != "byQueue" or set(allowed.get("sourceQueueArns", [])) != served:
            yield f"{dead}: does not name {queue} and its other classes as the only queues it serves"


@check
def queues_poll_long_keep_long_and_are_encrypted(stack):
    for name, p in stack.of_type("AWS::SQS::Queue").items():
        if p.get("ReceiveMessageWaitTimeSeconds") != 20:
            yield f"{name}: no long polling"
        if p.get("MessageRetentionPeriod") != source.RETENTION_S:
            yield f"{name}: keeps messages for {p.get('MessageRetentionPeriod')} s"
        key = stack.parameters["KmsKeyArn"]
        if (p.get("KmsMasterKeyId") != key) if key else p.get("SqsManagedSseEnabled") is not True:
            yield f"{name}: not encrypted as asked"


@check
def queue_names_are_those_of_the_code(stack):
    variables = stack.properties("Operator")["Environment"]["Variables"]
    wanted = set(source.QUEUE.values())
    pools = dict(part.split("=") for part in variables.get(source.POOLS, "").split(";") if part)
    for agent in variables["AGENTS"].split(","):
        for pool in pools.get(agent, agent).split(","):
            wanted |= {source.AGENT_QUEUE + pool + end for end in {""} | classes(stack)}
    wanted |= {source.QUEUE["SCHEDULER"] + source.CLASS_ENDS["High"]} if classes(stack) else set()
    # The others belong to the stacks of their readers.
    own = stack.parameters["ReplyQueues"]
    wanted |= {source.NOTICES_QUEUE + part.split("=")[0] for part in variables["REPLY_QUEUES"].removesuffix(own).split(";") if part}
    names = queue_names(stack)
    fed = {names[q] for q in consumed(stack)}
    passive = {source.QUEUE["SET_ASIDE"]} | {n for n in wanted if n.startswith(source.NOTICES_QUEUE)}
    wanted |= {base_of(name) + source.DEAD_QUEUE for name in wanted - passive}
    # For what is lost beside the queues of the code: alerts and sweeps.
    there = set(names.values()) - {"alerts-dead", "supervisor-dead"}
    if there != wanted:
        yield f"missing {sorted(wanted - there)}, unknown {sorted(there - wanted)}"
    if fed != {n for n in wanted - passive if not n.endswith(source.DEAD_QUEUE)}:
        yield f"functions consume {sorted(fed)}"


@check
def urgent_work_has_the_most_places_and_the_rest_a_floor(stack):
    places = {queue_names(stack)[q]: int(p["ScalingConfig"]["MaximumConcurrency"]) for _, p, _, q in sources(stack)}
    for name in (n for n in places if base_of(n) == n and classes(stack)):
        of_classes = [places.get(name + source.CLASS_ENDS["High"]), places[name], places.get(name + source.CLASS_ENDS["Low"])]
        given = [n for n in of_classes if n]
        if given != sorted(given, reverse=True) or given[-1] < 2:
            yield f"{name}: {given} places, the most urgent class first"


@check
def recursion_is_allowed_where_the_loop_is(stack):
    for function in functions(stack):
        allowed = stack.properties(function).get("RecursiveLoop") == "Allow"
        if allowed != (function in ("Scheduler", *AGENT_FUNCTIONS)):
            yield f"{function}: RecursiveLoop is {'' if allowed else 'not '}Allow"


# ------------------------------------------------------------------ functions


@check
def variables_agree_with_the_code(stack):
    for function in functions(stack):
        variables = set(stack.properties(function).get("Environment", {}).get("Variables", {}))
        needed = variables_of(stack, function)
        if missing := needed - variables:
            yield f"{function}: missing {sorted(missing)}"
        unknown = {v for v in variables - needed - {"RUST_LOG", source.POOLS} if not v.startswith("OTEL_")}
        if unknown and crate(function) in source.FUNCTIONS:
            yield f"{function}: unknown {sorted(unknown)}"
        if "RUST_LOG" not in variables:
            yield f"{function}: no log level"


@check
def traces_go_where_they_are_asked_to(stack):
    endpoint, secret = stack.parameters["OtlpEndpoint"], stack.parameters["OtlpHeadersSecretArn"]
    wanted = {"OTEL_EXPORTER_OTLP_ENDPOINT": endpoint} if endpoint else {}
    wanted |= {"OTEL_EXPORTER_OTLP_HEADERS": f"{{{{resolve:secretsmanager:{secret}}}}}"} if secret else {}
    for function in functions(stack):
        variables = stack.properties(function)["Environment"]["Variables"]
        there = {name: value for name, value in variables.items() if name.startswith("OTEL_")}
        if there != wanted:
            yield f"{function}: {there}, and {wanted} was asked for"


@check
def bounds_agree_with_the_code(stack):
    variables = stack.raw["Globals"]["Function"]["Environment"]["Variables"]
    for name, (default, least, most) in source.NUMBERS.items():
        parameter = stack.raw["Parameters"][variables[name]["Ref"]]
        there = tuple(parameter.get(k) for k in ("Default", "MinValue", "MaxValue"))
        if there != (default, least, most):
            yield f"{name}: default and bounds are {there} here and {(default, least, most)} in the code"
    for function in FUNCTIONS:
        own = stack.raw["Resources"][function]["Properties"].get("Environment", {}).get("Variables", {})
        for name, bounds in source.numbers_of(function.lower()).items():
            parameter = stack.raw["Parameters"].get(own.get(name, {}).get("Ref"), {})
            there = tuple(parameter.get(k) for k in ("Default", "MinValue", "MaxValue"))
            if there != bounds:
                yield f"{function}: default and bounds of {name} are {there} here and {bounds} in the code"
    for name, default in source.FLAGS.items():
        parameter = stack.raw["Parameters"][variables[name]["Ref"]]
        if (parameter.get("Default"), parameter.get("AllowedValues")) != (default, ["true", "false"]):
            yield f"{name}: is {parameter.get('Default')} of {parameter.get('AllowedValues')}, and {default} in the code"


@check
def queue_prefix_and_names_make_the_urls(stack):
    for function in functions(stack):
        prefix = stack.properties(function)["Environment"]["Variables"]["QUEUE_PREFIX"]
        if prefix != "https://sqs.eu-west-1.amazonaws.com/111122223333/shop-":
            yield f"{function}: QUEUE_PREFIX is {prefix}"
    for name, p in stack.of_type("AWS::SQS::Queue").items():
        if not p["QueueName"].startswith("shop-"):
            yield f"{name}: {p['QueueName']} does not begin with the stack's name"


@check
def agents_are_those_of_the_code_and_of_the_workflows(stack):
    agents = set(stack.properties("Operator")["Environment"]["Variables"]["AGENTS"].split(","))
    if unknown := agents - set(source.AGENTS):
        yield f"AGENTS: the code has no {sorted(unknown)}"
    missing = {s["agent"] for s in source.workflow_steps() if "agent" in s} - agents
    if missing and stack.parameters["Sample"] == "true":
        yield f"AGENTS: a workflow needs {sorted(missing)}"
    if agents != {agent for function in functions(stack) for agent in served(stack, function)}:
        yield f"AGENTS: {sorted(agents)} are there for the others, and the functions serve something else"


# An agent is a stack of its own, so the only one here is `http`, unless the example is there.
@check
def every_agent_has_a_stack_of_its_own(stack):
    stacks = {(s.parameters["Agent"], target(s.parameters["Function"])) for s in stack.nested.values() if "Agent" in s.parameters}
    wanted = {(agent, function) for function in functions(stack) for agent in served(stack, function)}
    if stacks != wanted:
        yield f"stacks of agents that no function serves, or the other way round: {sorted(stacks ^ wanted, key=str)}"
    if stack.parameters["Sample"] != "true" and {agent for agent, _ in wanted} != {"http"}:
        yield f"without the example there is more than `http`: {sorted(wanted)}"
    for name, nested in stack.nested.items():
        if nested.parameters.get("Role", f"<{target(nested.parameters.get('Function'))}Role>") != f"<{target(nested.parameters.get('Function'))}Role>":
            yield f"{name}: its policy is for {nested.parameters['Role']}"


@check
def queues_that_are_known_by_name_carry_the_tag(stack):
    for queue, name in queue_names(stack).items():
        if name.startswith((source.AGENT_QUEUE, source.NOTICES_QUEUE)) and tag_of(stack.properties(queue)) != "shop":
            yield f"{queue}: without the tag stepwarden=shop nobody may use it"


@check
def dead_letters_are_sent_to_by_nobody(stack):
    """A right by name covers dead-letter queues too, so they are denied."""
    dead = {i for i, n in queue_names(stack).items() if n.endswith(source.DEAD_QUEUE)}
    for function in functions(stack):
        if wrong := {r for a, r in _may(stack, function, "sqs:") if a == "sqs:SendMessage" and r in dead}:
            yield f"{function}: sends to {sorted(wrong)}"


@check
def no_resource_repeats_another_up_to_an_agents_name(stack):
    """What each agent has is in infra/agent.yaml; here stands only what nests it."""
    agents = re.compile("|".join(source.AGENTS), flags=re.IGNORECASE)
    seen = {}
    for name, resource in stack.raw["Resources"].items():
        if resource["Type"] == NESTED:
            continue
        text = agents.sub("agent", f"{name}: {json.dumps(resource, sort_keys=True)}")
        if text in seen:
            yield f"{name}: is {seen[text]} with another agent's name"
        seen[text] = name


@check
def what_a_company_prescribes_holds_everywhere(stack):
    """And nothing of it where nothing is prescribed."""
    given = {n: stack.parameters[n].split(",") if stack.parameters[n] else None for n in ("SubnetIds", "SecurityGroupIds", "Layers")}
    network = {n: given[n] for n in ("SubnetIds", "SecurityGroupIds")} if given["SubnetIds"] else None
    for name, p in stack.of_type("AWS::Lambda::Function").items():
        if p.get("VpcConfig") != network:
            yield f"{name}: runs in {p.get('VpcConfig')}"
        if p.get("Layers") != given["Layers"]:
            yield f"{name}: has layers {p.get('Layers')}"
    for name, p in stack.of_type("AWS::IAM::Role").items():
        if p.get("PermissionsBoundary", "") != stack.parameters["PermissionsBoundaryArn"]:
            yield f"{name}: is bounded by {p.get('PermissionsBoundary')}"
    for name, p in stack.of_type("AWS::Logs::LogGroup").items():
        wanted = stack.parameters["AccessLogClass"] if name == "ApiLogs" else "STANDARD"
        if p.get("LogGroupClass", "STANDARD") != wanted:
            yield f"{name}: its class is {p.get('LogGroupClass')}, and metrics come from logs of class STANDARD only"


@check
def nested_stacks_take_what_they_are_given(stack):
    """CloudFormation checks a child's parameters only when it creates the child, half-way through a deployment."""
    for name, nested in stack.nested.items():
        for parameter, value in stack.raw["Resources"][name]["Properties"]["Parameters"].items():
            own, given = nested.raw["Parameters"][parameter], stack.raw["Parameters"].get(value.get("Ref") if isinstance(value, dict) else None)
            if not given:
                continue
            if "AllowedValues" in own and not set(map(str, given.get("AllowedValues", [None]))) <= set(map(str, own["AllowedValues"])):
                yield f"{name}: {parameter} takes {own['AllowedValues']}, and is given {given.get('AllowedValues')}"
            for bound, is_within in (("MinValue", int.__ge__), ("MaxValue", int.__le__), ("MaxLength", int.__le__)):
                numbers = given.get("AllowedValues", []) if bound != "MaxLength" and given["Type"] == "Number" else []
                numbers = numbers or [given[bound]] if numbers or bound in given else []
                if bound in own and "AllowedValues" not in own and "AllowedPattern" not in given and not (numbers and all(is_within(n, own[bound]) for n in numbers)):
                    yield f"{name}: {parameter} has {bound} {own[bound]}, and is given {numbers}"
    for name, output in re.findall(r'"Fn::GetAtt": \["(\w+)", "Outputs\.(\w+)"\]', json.dumps(stack.raw)):
        if output not in stack.nested[name].raw["Outputs"]:
            yield f"{name}: has no output {output}"


@check
def parameters_have_defaults(stack):
    """Nobody has to know what the example needs in order to deploy the system."""
    if missing := {name for name, p in stack.raw["Parameters"].items() if "Default" not in p}:
        yield f"without a default: {sorted(missing)}"


@check
def a_version_is_reached_by_its_alias_alone(stack):
    """A canary that a part of the callers goes around would say nothing, and a rollback would leave that part behind."""
    named = {"Submit": ("SubmitVersion", "SubmitCanaryVersion"), "Operator": ("OperatorVersion", "OperatorCanaryVersion")}
    aliases = {target(p["FunctionName"]): (name, p) for name, p in stack.of_type("AWS::Lambda::Alias").items()}
    for function, (version, canary) in named.items():
        version, canary = stack.parameters[version], stack.parameters[canary]
        name, alias = aliases.pop(function, (None, {}))
        share = [{"FunctionVersion": canary, "FunctionWeight": stack.parameters["CanaryWeight"]}] if version and canary else None
        weights = alias.get("RoutingConfig", {}).get("AdditionalVersionWeights")
        if (alias.get("FunctionVersion", ""), weights) != (version, share):
            yield f"{function}: its alias has version {alias.get('FunctionVersion')} and {weights}"
        # Whatever calls the function, and the permission to do so.
        uses = [(i, p[key]) for kind, key in (("AWS::Lambda::EventSourceMapping", "FunctionName"), ("AWS::ApiGatewayV2::Integration", "IntegrationUri"), ("AWS::Lambda::Permission", "FunctionName")) for i, p in stack.of_type(kind).items()]
        for i, reference in uses:
            if behind(stack, reference) == function and target(reference) != (name or function):
                yield f"{i}: calls {reference}, not the alias"
    if aliases:
        yield f"aliases of {sorted(aliases)}"


def outlasting(steps, function, p):
    """Steps that may take longer than a function with these properties runs. A heartbeat gives its step up to 30 days, and its function
    nothing: Lambda ends it all the same, and the attempt is lost."""
    timeout, most = int(p["Timeout"]), 5400 if "CapacityProviderConfig" in p else 900
    if timeout > most:
        yield f"{function}: {timeout} s, and Lambda gives it {most} s at most"
    for step in steps:
        if "timeout" in step and source.seconds(step["timeout"]) > timeout:
            beats = f" with a heartbeat each {step['heartbeat']}" if "heartbeat" in step else ""
            yield f"{function}: {timeout} s, and `{step.get('name', 'an undo')}` may take {step['timeout']}{beats}"


@check
def an_agent_may_run_as_long_as_a_step(stack):
    for function in set(AGENT_FUNCTIONS) & set(functions(stack)):
        yield from outlasting(source.workflow_steps(), function, stack.properties(function))


@check
def a_sweep_ends_before_its_lease_and_before_the_next_sweep(stack):
    if source.SWEEPS_S >= min(source.LEASE_LIFE_S, 60 * int(stack.parameters["SupervisorRateMinutes"])):
        yield f"Supervisor: may sweep for {source.SWEEPS_S} s; its lease lives {source.LEASE_LIFE_S} s"
    # A job pauses between two runs, for at most 5 % of the time whatever the frequency.
    timeout = stack.properties("Supervisor")["Timeout"]
    if timeout < 900:
        yield f"Supervisor: works on jobs for {timeout} s a run, and the next one may begin {60 * int(stack.parameters['SupervisorRateMinutes'])} s after it"
    invoke = stack.properties("SupervisorEventInvokeConfig")
    if invoke.get("MaximumRetryAttempts") != 0:
        yield "Supervisor: Lambda repeats a failed sweep beside the next one"


@check
def no_repeat_of_a_deployment_outlives_it(stack):
    """CloudFormation gives a folder's deployment up after the resource's ServiceTimeout. A repeat of its request must have ended by
    then, or it would run after those of the next deployment."""
    invoke = stack.properties("OperatorEventInvokeConfig")
    longest = invoke.get("MaximumEventAgeInSeconds", 6 * 3600) + int(stack.properties("Operator")["Timeout"])
    if longest > source.ACTIVATION_S:
        yield f"Operator: a repeat may end after {longest} s, and CloudFormation waits {source.ACTIVATION_S} s"
    # Lambda waits a minute before the first repeat and two before the second.
    if invoke.get("MaximumRetryAttempts") != 2:
        yield "Operator: a request that failed is not repeated while CloudFormation waits"


@check
def functions_are_built_once_and_log_as_json(stack):
    for function in functions(stack):
        raw = stack.raw["Resources"][function]["Properties"]
        p = stack.properties(function)
        if raw["CodeUri"] != f"target/lambda/{crate(function)}/":
            yield f"{function}: CodeUri is {raw['CodeUri']}"
        if (p["Runtime"], p["Handler"]) != ("provided.al2023", "bootstrap"):
            yield f"{function}: runs {p['Handler']} on {p['Runtime']}"
        if p["Architectures"] != [stack.parameters["Architecture"]]:
            yield f"{function}: runs on {p['Architectures']}"
        logging = p.get("LoggingConfig", {})
        # Lambda drops lines of JSON below its own level, which is INFO unless it is said: RUST_LOG decides here.
        if logging.get("ApplicationLogLevel") != "DEBUG":
            yield f"{function}: Lambda would drop what LogLevel=debug asks for"
        if logging.get("LogFormat") != "JSON":
            yield f"{function}: logs are not JSON"
        if not log_group(stack, function):
            yield f"{function}: has no log group of its own"
    for name, p in stack.of_type("AWS::Logs::LogGroup").items():
        if not p.get("RetentionInDays"):
            yield f"{name}: is kept for ever"
    deployed = {function.lower() for function in FUNCTIONS}
    if missing := set(source.FUNCTIONS) - deployed:
        yield f"functions/ has {sorted(missing)}, and the template does not"


# ------------------------------------------------------------------ tables


@check
def tables_agree_with_the_code(stack):
    def key(schema):
        return [(k["AttributeName"], k["KeyType"].capitalize()) for k in schema]

    for name, wanted in (("Orders", source.ORDERS_KEY), ("State", source.STATE_KEY)):
        p = stack.properties(name)
        if p["TableName"] != f"shop-{name.lower()}":
            yield f"{name}: is called {p['TableName']}"
        if key(p["KeySchema"]) != wanted:
            yield f"{name}: its key is {key(p['KeySchema'])}, not {wanted}"
        for a in p["AttributeDefinitions"]:
            if source.ATTRIBUTE_TYPES.get(a["AttributeName"]) != a["AttributeType"]:
                yield f"{name}: {a['AttributeName']} is {a['AttributeType']}"
    state = stack.properties("State")
    indexes = {i["IndexName"]: tuple(n for n, _ in key(i["KeySchema"])) for i in state["GlobalSecondaryIndexes"]}
    if indexes != source.INDEXES:
        yield f"State: indexes are {indexes}, not {source.INDEXES}"
    for index in state["GlobalSecondaryIndexes"]:
        if index["Projection"] != {"ProjectionType": "KEYS_ONLY"}:
            yield f"State: index {index['IndexName']} holds more than keys"
    # A workflow may have a retention of its own, whatever RetentionDays is.
    if state.get("TimeToLiveSpecification") != {"AttributeName": source.TTL, "Enabled": True}:
        yield f"State: TTL is {state.get('TimeToLiveSpecification')}"
    if "TimeToLiveSpecification" in stack.properties("Orders"):
        yield "Orders: orders are kept for ever"


@check
def tables_are_safe(stack):
    for name, p in stack.of_type("AWS::DynamoDB::Table").items():
        resource = stack.resources[name]
        if (resource.get("DeletionPolicy"), resource.get("UpdateReplacePolicy")) != ("RetainExceptOnCreate", "Retain"):
            yield f"{name}: goes with the stack, or stays behind a deployment that failed"
        if p.get("PointInTimeRecoverySpecification", {}).get("PointInTimeRecoveryEnabled") is not True:
            yield f"{name}: no point-in-time recovery"
        if p.get("DeletionProtectionEnabled") is not (stack.parameters["DeletionProtection"] == "true"):
            yield f"{name}: deletion protection is {p.get('DeletionProtectionEnabled')}"
        if p.get("BillingMode") != "PAY_PER_REQUEST":
            yield f"{name}: billing mode is {p.get('BillingMode')}"
        key = stack.parameters["KmsKeyArn"]
        wanted = {"SSEEnabled": True, "SSEType": "KMS", "KMSMasterKeyId": key} if key else {"SSEEnabled": False}
        if p.get("SSESpecification") != wanted:
            yield f"{name}: not encrypted as asked"


@check
def your_key_is_used_everywhere(stack):
    key = stack.parameters["KmsKeyArn"]
    if not key:
        return
    wanted = {
        "AWS::Lambda::Function": "KmsKeyArn",
        "AWS::Logs::LogGroup": "KmsKeyId",
        "AWS::SNS::Topic": "KmsMasterKeyId",
        "AWS::Events::EventBus": "KmsKeyIdentifier",
        "AWS::Scheduler::Schedule": "KmsKeyArn",
    }
    for kind, field in wanted.items():
        for name, p in stack.of_type(kind).items():
            if p.get(field) != key:
                yield f"{name}: {field} is {p.get(field)}"
    roles = {target(r) for r in stack.properties("KeyPolicy")["Roles"]}
    roles |= {target(stack.properties(f)["Role"]) for f in functions(stack) if ("kms:Decrypt", key) in rights(stack, f)}
    if missing := set(stack.of_type("AWS::IAM::Role")) - roles:
        yield f"KeyPolicy: not for {sorted(missing)}"


# ------------------------------------------------------------------ rights


@check
def no_policy_has_a_star(stack):
    for name, document in documents(stack):
        for statement in document["Statement"]:
            if {"NotAction", "NotResource", "NotPrincipal"} & set(statement):
                yield f"{name}: says what is not meant"
            # IAM has no resource for a metric, so that reading them needs all.
            if (statement["Effect"], statement.get("Action"), statement.get("Resource")) == ("Allow", "cloudwatch:GetMetricData", "*"):
                continue
            named = as_list(statement.get("Action", "*")) + as_list(statement.get("Resource", []))
            principal = statement.get("Principal", {})
            named += [v for p in ([principal] if isinstance(principal, str) else principal.values()) for v in as_list(p)]
            for text in named:
                by_name = BY_NAME.fullmatch(str(text)) and (statement["Effect"] == "Deny" or statement.get("Condition") == TAG)
                if "*" in str(text) and not by_name and not ROUTE.fullmatch(str(text)) and text != LAYERS:
                    yield f"{name}: {text}"


@check
def each_function_has_a_role_of_its_own(stack):
    roles = {function: target(stack.properties(function)["Role"]) for function in functions(stack)}
    if len(set(roles.values())) != len(roles):
        yield f"shared: {roles}"
    # In a VPC a function needs network interfaces, for which AWS has a policy.
    vpc = ["arn:aws:iam::aws:policy/service-role/AWSLambdaENIManagementAccess"] if stack.parameters["SubnetIds"] else []
    # Steps that call AWS have the rights that the deployer names, and no others.
    steps = stack.parameters["HttpPolicyArns"].split(",") if stack.parameters["HttpPolicyArns"] else []
    for name, p in stack.of_type("AWS::IAM::Role").items():
        wanted = (vpc if name in roles.values() else []) + (steps if name == "AgentRole" else [])
        if p.get("ManagedPolicyArns", []) != wanted:
            yield f"{name}: has managed policies {p.get('ManagedPolicyArns')}"
    for function, role in roles.items():
        logs = f"<{log_group(stack, function)}.Arn>"
        wrong = {(a, r) for a, r in rights(stack, function) if a.startswith("logs:") and r != logs}
        if wrong:
            yield f"{role}: may write to logs of others: {sorted(wrong)}"
    if set(stack.of_type("AWS::IAM::Policy")) - {"KeyPolicy"}:
        yield "a policy beside the roles"


def _may(stack, function, prefix):
    return {(a, target(r) or r) for a, r in rights(stack, function) if a.startswith(prefix)}


def _agent_queues(stack):
    agents = {i for i, n in queue_names(stack).items() if n.startswith(source.AGENT_QUEUE)}
    return agents & set(consumed(stack))


@check
def submit_cannot_touch_agents(stack):
    names = queue_names(stack)
    if wrong := {r for _, r in _may(stack, "Submit", "sqs:") if names.get(r, source.AGENT_QUEUE).startswith(source.AGENT_QUEUE)}:
        yield f"Submit: has rights on {sorted(wrong)}"
    tables = {(f"dynamodb:{action}", t) for t in ("Orders", "State") for action in ("GetItem", "BatchGetItem", "PutItem")}
    # The save that an event makes.
    tables.add(("dynamodb:UpdateItem", "State"))
    if _may(stack, "Submit", "dynamodb:") != tables:
        yield f"Submit: {sorted(_may(stack, 'Submit', 'dynamodb:') ^ tables)}"


@check
def agents_cannot_touch_tables(stack):
    for function in set(AGENT_FUNCTIONS) & set(functions(stack)):
        if wrong := _may(stack, function, "dynamodb:"):
            yield f"{function}: {sorted(wrong)}"
        sends = {r for a, r in _may(stack, function, "sqs:SendMessage")}
        if sends != {"RepliesQueue", "SetAsideQueue"}:
            yield f"{function}: sends to {sorted(sends)}"


@check
def the_agent_alone_reads_secrets(stack):
    arn = stack.parameters["HttpSecretArn"]
    for function in functions(stack):
        wanted = {("secretsmanager:GetSecretValue", arn)} if arn and function == "Agent" else set()
        if (may := _may(stack, function, "secretsmanager:")) != wanted:
            yield f"{function}: may {sorted(may)}"
    if stack.properties("Agent")["Environment"]["Variables"].get("HTTP_SECRETS") != arn:
        yield "Agent: does not know where the secrets are"


def _unhandled(stack):
    """Queues whose messages nobody handles: those of the dead letters that a person moves back, and of messages set aside."""
    return {target(stack.properties(q)["RedrivePolicy"]["deadLetterTargetArn"]) for q in consumed(stack) if "RedrivePolicy" in stack.properties(q)} | {"SetAsideQueue"}


# B6
@check
def the_supervisor_only_requests_recovery(stack):
    queues = {("sqs:SendMessage", q) for q in scheduler_queues(stack) | {"NoticesDefaultQueue"}}
    queues |= {("sqs:GetQueueAttributes", q) for q in _unhandled(stack)}
    if _may(stack, "Supervisor", "sqs:") != queues:
        yield f"Supervisor: {sorted(_may(stack, 'Supervisor', 'sqs:') ^ queues)}"
    wanted = {(f"dynamodb:{a}", "State") for a in ("GetItem", "BatchGetItem", "PutItem", "UpdateItem")}
    # A job lists its orders.
    wanted |= {(f"dynamodb:{a}", "Orders") for a in ("GetItem", "BatchGetItem", "Query")}
    # What waits is counted from the other index.
    wanted |= {("dynamodb:Query", f"<State.Arn>/index/{index}") for index in ("due", "attention")}
    if _may(stack, "Supervisor", "dynamodb:") != wanted:
        yield f"Supervisor: {sorted(_may(stack, 'Supervisor', 'dynamodb:') ^ wanted)}"
    rest = {a for a, _ in rights(stack, "Supervisor")}
    rest -= {a for a in rest if a.startswith(("sqs:", "dynamodb:", "logs:"))}
    if rest != {"events:PutEvents"}:
        yield f"Supervisor: {sorted(rest)}"


@check
def the_scheduler_never_changes_an_order(stack):
    orders = {(a, r) for a, r in _may(stack, "Scheduler", "dynamodb:") if "Orders" in r}
    # It puts the orders that steps start, in partitions of their own.
    if orders != {("dynamodb:GetItem", "Orders"), ("dynamodb:BatchGetItem", "Orders"), ("dynamodb:PutItem", "<Orders.Arn>/children#*")}:
        yield f"Scheduler: {sorted(orders)}"


@check
def the_operator_alone_erases(stack):
    """An order's input in place, and what is beside it and its record, which no other function changes or deletes."""
    deletes = {("Operator", "dynamodb:DeleteItem", r) for r in ("<State.Arn>/output#*", "<Orders.Arn>/label#*")}
    wanted = {("Operator", "dynamodb:UpdateItem", "Orders"), *deletes}
    changes = {"dynamodb:DeleteItem", "dynamodb:BatchWriteItem"}
    found = {(f, a, r) for f in functions(stack) for a, r in _may(stack, f, "dynamodb:") if a in changes or (a, r) == ("dynamodb:UpdateItem", "Orders")}
    if found != wanted:
        yield f"erases: {sorted(found ^ wanted)}"


@check
def each_function_may_do_what_it_does(stack):
    """A right too few shows on AWS only: an emulator asks for less."""
    receive = ("sqs:ReceiveMessage", "sqs:DeleteMessage", "sqs:GetQueueAttributes")
    for _, _, function, queue in sources(stack):
        if missing := {(a, queue) for a in receive} - _may(stack, function, "sqs:"):
            yield f"{function}: cannot consume: {sorted(missing)}"
    sends = {
        "Submit": {"NoticesDefaultQueue", "SetAsideQueue"} | scheduler_queues(stack),
        "Scheduler": {"NoticesDefaultQueue", "SetAsideQueue"} | scheduler_queues(stack) | _agent_queues(stack),
        "Agent": {"RepliesQueue", "SetAsideQueue"},
        "SampleAgents": {"RepliesQueue", "SetAsideQueue"} if "SampleAgents" in functions(stack) else set(),
        "Supervisor": {"NoticesDefaultQueue"} | scheduler_queues(stack),
        # Messages set aside go back to where they came from.
        "Operator": set(consumed(stack)),
    }
    if missing := {("sqs:GetQueueAttributes", q) for q in consumed(stack)} - _may(stack, "Operator", "sqs:"):
        yield f"Operator: cannot count what waits: {sorted(missing)}"
    if ("lambda:GetLayerVersion", LAYERS) not in {(a, r) for a, r in rights(stack, "Operator")}:
        yield "Operator: cannot read the workflow files that another stack brings"
    for function, queues in sends.items():
        if queues and (missing := {("sqs:SendMessage", q) for q in queues} - _may(stack, function, "sqs:")):
            yield f"{function}: cannot send: {sorted(missing)}"
    for function in functions(stack):
        if ("events:PutEvents", "Bus") not in _may(stack, function, "events:"):
            yield f"{function}: cannot alert"
        logs = {a for a, _ in _may(stack, function, "logs:")}
        if logs != {"logs:CreateLogStream", "logs:PutLogEvents"}:
            yield f"{function}: cannot log, or more than that: {sorted(logs)}"
    # The input of an order decides conditions, times and what is sent. Of several orders it is read with one request.
    for function in ("Submit", "Scheduler", "Supervisor", "Operator"):
        if missing := {(f"dynamodb:{a}", "Orders") for a in ("GetItem", "BatchGetItem")} - _may(stack, function, "dynamodb:"):
            yield f"{function}: cannot read inputs: {sorted(missing)}"
    needs = {f"dynamodb:{a}" for a in ("GetItem", "BatchGetItem", "PutItem", "UpdateItem")}
    for function in ("Scheduler", "Supervisor", "Operator"):
        if missing := {(a, "State") for a in needs} - _may(stack, function, "dynamodb:"):
            yield f"{function}: cannot save: {sorted(missing)}"


# ------------------------------------------------------------------ API


@check
def nothing_is_open_but_what_a_parameter_opens(stack):
    is_jwt = bool(stack.parameters["JwtIssuer"])
    is_open = stack.parameters["OpenOrders"] == "true"
    routes = {p["RouteKey"]: p for p in stack.of_type("AWS::ApiGatewayV2::Route").values()}
    wanted = {key for key in SUBMIT_ROUTES | OPERATOR_ROUTES | WORKFLOW_ROUTES | ERASE_ROUTES | CONSOLE_ROUTES if is_active(stack) or key.startswith("GET ")}
    if stack.parameters["PublicUrl"] and is_active(stack):
        wanted |= CALLBACK_ROUTES
    if set(routes) != wanted:
        yield f"routes: {sorted(set(routes) ^ wanted)}"
    for key, p in routes.items():
        is_callback = key in CALLBACK_ROUTES
        is_order = key in SUBMIT_ROUTES or is_callback
        wanted = "NONE" if key in CONSOLE_ROUTES or is_callback or is_order and is_open else "JWT" if is_jwt else "AWS_IAM"
        if p.get("AuthorizationType", "NONE") != wanted:
            yield f"{key}: {p.get('AuthorizationType', 'NONE')} instead of {wanted}"
        names = ["OrderScope"] if is_order else ["EraseScope"] if key in ERASE_ROUTES else [] if key in WORKFLOW_ROUTES else ["OperatorScope"]
        names += ["WorkflowScope"] if " /workflows" in key else []
        if p.get("AuthorizationScopes", []) != ([stack.parameters[name] for name in names] if wanted == "JWT" else []):
            yield f"{key}: scopes are {p.get('AuthorizationScopes')}"
        if (target(p.get("AuthorizerId")) == "ApiAuthorizer") != (wanted == "JWT"):
            yield f"{key}: its authorizer is {p.get('AuthorizerId')}"
        integration = p["Target"].removeprefix("integrations/")
        function = behind(stack, stack.properties(target(integration))["IntegrationUri"])
        if function != ("Submit" if is_order else "Operator"):
            yield f"{key}: goes to {function}"
    for name, p in stack.of_type("AWS::Lambda::Permission").items():
        if "SourceArn" not in p:
            yield f"{name}: for any API of any account"
    if any(stack.of_type(f"AWS::{t}") for t in ("Lambda::Url", "Serverless::HttpApi", "Serverless::Api")):
        yield "another way in"


@check
def a_policy_for_each_kind_of_caller_that_signs(stack):
    """Each allows the routes of its kind, as IAM matches them: a star also stands for slashes."""
    if stack.parameters["JwtIssuer"]:
        if theirs := [i for i in stack.of_type("AWS::IAM::ManagedPolicy") if i.startswith("Api")]:
            yield f"nobody signs, and there is {theirs}"
        return
    routes = [p["RouteKey"] for p in stack.of_type("AWS::ApiGatewayV2::Route").values()]
    reading = {key for key in OPERATOR_ROUTES if " /workflows" in key}
    for name, wanted in (("Submitter", SUBMIT_ROUTES), ("Operator", OPERATOR_ROUTES), ("Publisher", WORKFLOW_ROUTES | reading), ("Eraser", ERASE_ROUTES)):
        (statement,) = stack.properties(f"Api{name}Policy")["PolicyDocument"]["Statement"]
        named = [arn.split("$default/")[1] for arn in statement["Resource"]]
        # The route of the workflow `put` has no name, and a name may be anything.
        allowed = {key for key in routes if any(fnmatchcase(key.replace(" ", "", 1), pattern) for pattern in named)}
        if (statement["Effect"], statement["Action"]) != ("Allow", "execute-api:Invoke") or allowed != wanted & set(routes):
            yield f"{name}: may call {sorted(allowed ^ (wanted & set(routes)))}, or may not"
        if f"{name}PolicyArn" not in stack.raw["Outputs"] or f"`{name}PolicyArn`" not in source.document("docs/deploy.md"):
            yield f"{name}: nothing says where its policy is"


@check
def the_api_logs_and_throttles(stack):
    for name, p in stack.of_type("AWS::ApiGatewayV2::Stage").items():
        if target(p.get("AccessLogSettings", {}).get("DestinationArn")) not in stack.of_type("AWS::Logs::LogGroup"):
            yield f"{name}: no access logs"
        # Whoever knows the address of a callback or a link may use it.
        if "path" in p.get("AccessLogSettings", {}).get("Format", ""):
            yield f"{name}: its access logs name paths, and with them tokens"
        settings = p.get("DefaultRouteSettings", {})
        if not settings.get("ThrottlingRateLimit") or not settings.get("ThrottlingBurstLimit"):
            yield f"{name}: takes any number of requests"


# A long poll occupies a concurrent execution while it waits, and 1,000 are what an account has for all its functions.
@check
def long_polls_leave_room_for_the_rest(stack):
    routes = {p["RouteKey"]: name for name, p in stack.of_type("AWS::ApiGatewayV2::Route").items()}
    for name, p in stack.of_type("AWS::ApiGatewayV2::Stage").items():
        settings = p.get("RouteSettings", {})
        if unknown := set(settings) - set(routes):
            yield f"{name}: settings for no route: {sorted(unknown)}"
        needs = stack.resources[name].get("DependsOn", [])
        if late := {key for key in settings if key in routes and routes[key] not in needs}:
            yield f"{name}: may be made before its routes {sorted(late)}"
        own = settings.get("GET /orders/{id}", {})
        rate, burst = own.get("ThrottlingRateLimit"), own.get("ThrottlingBurstLimit")
        if not rate or not burst:
            yield f"{name}: any number of requests may wait for an order"
            continue
        # The property is plain JSON to CloudFormation, which hands a parameter on as text.
        if (type(rate), type(burst)) != (int, int) or str(rate) != stack.parameters["StatusRateLimit"]:
            yield f"{name}: limits are {rate!r} and {burst!r}, and {stack.parameters['StatusRateLimit']} was asked for"
            continue
        wait = stack.properties("Submit")["Environment"]["Variables"]["LONGEST_WAIT_S"]
        occupied = rate * int(wait) + burst
        if occupied > 500 and stack.parameters["StatusRateLimit"] == stack.raw["Parameters"]["StatusRateLimit"]["Default"]:
            yield f"{name}: long polls may occupy {occupied} executions at once"


# ------------------------------------------------------------------ targets and alarms


# J4: of the stacks on replicas of one table a single one writes, since a condition is checked in the Region of the write.
@check
def a_standby_does_nothing(stack):
    for name, p, *_ in sources(stack):
        if p.get("Enabled", True) is not is_active(stack):
            yield f"{name}: Enabled is {p.get('Enabled')}"
    state = stack.properties("SupervisorSchedule").get("State", "ENABLED")
    if state != ("ENABLED" if is_active(stack) else "DISABLED"):
        yield f"SupervisorSchedule: is {state}"
    if (active := stack.properties("Operator")["Environment"]["Variables"].get("ACTIVE")) != stack.parameters["Active"]:
        yield f"Operator: would activate workflow files: ACTIVE is {active}"
    # Whatever else could start a function.
    starts = {i for i, r in stack.resources.items() if r["Type"] in ("AWS::Lambda::Url", "AWS::SNS::Subscription") and r["Properties"].get("Protocol") != "email"}
    starts |= {i for i, p in stack.of_type("AWS::Events::Rule").items() for t in p["Targets"] if target(t["Arn"]) in FUNCTIONS}
    if starts:
        yield f"functions are also started by {sorted(starts)}"


@check
def every_target_has_a_dead_letter_queue_and_a_retry_policy(stack):
    targets = [(n, t) for n, p in stack.of_type("AWS::Events::Rule").items() for t in p["Targets"]]
    targets += [(n, p["Target"]) for n, p in stack.of_type("AWS::Scheduler::Schedule").items()]
    for name, t in targets:
        if target(t.get("DeadLetterConfig", {}).get("Arn")) not in queue_names(stack):
            yield f"{name}: no dead-letter queue"
        if set(t.get("RetryPolicy", {})) != {"MaximumEventAgeInSeconds", "MaximumRetryAttempts"}:
            yield f"{name}: no explicit retry policy"
    for name, p in stack.of_type("AWS::Events::Rule").items():
        for dead in (target(t.get("DeadLetterConfig", {}).get("Arn")) for t in p["Targets"]):
            allowed = [
                s
                for policy in stack.of_type("AWS::SQS::QueuePolicy").values()
                for s in policy["PolicyDocument"]["Statement"]
                if target(s["Resource"]) == dead
            ]
            if not any(f"<{name}.Arn>" in as_list(s["Condition"]["ArnEquals"]["aws:SourceArn"]) for s in allowed):
                yield f"{name}: may not write to its dead-letter queue"
    schedule = target(stack.properties("SupervisorSchedule")["Target"]["RoleArn"])
    granted = {(a, target(r)) for s in statements(stack, schedule) for a in as_list(s["Action"]) for r in as_list(s["Resource"])}
    if granted != {("lambda:InvokeFunction", "Supervisor"), ("sqs:SendMessage", "SupervisorDead")}:
        yield f"{schedule}: may {sorted(granted)}"
    if not stack.properties("SupervisorSchedule").get("Name", "").startswith("shop-"):
        yield "SupervisorSchedule: a second stack could not be deployed"


def _takes(rule, kind):
    """Whether a rule takes events of a kind (`detail-type`)."""
    if "detail-type" not in rule["EventPattern"]:
        return True
    return any(kind not in w["anything-but"] if isinstance(w, dict) else kind == w for w in rule["EventPattern"]["detail-type"])


@check
def alerts_are_sentences_with_links(stack):
    """The text is a string of JSON before its variables are filled in, and has to be one afterwards."""
    for name, p in stack.of_type("AWS::Events::Rule").items():
        transformer = p["Targets"][0].get("InputTransformer", {"InputPathsMap": {}, "InputTemplate": '""'})
        text, paths = json.loads(transformer["InputTemplate"]), transformer["InputPathsMap"]
        if not text.endswith(f" {stack.parameters['DocsUrl']}<runbook>") or not re.match(r"[A-Z].*\. What to do: ", text):
            yield f"{name}: `{text}` is no sentence with a link to the runbook"
        if set(re.findall(r"<(\w+)>", text)) != set(paths):
            yield f"{name}: names {sorted(paths)}, and says {text}"
        kinds = [kind for kind in source.ALERTS if _takes(p, kind)]
        for field in {path.removeprefix("$.detail.") for path in paths.values() if path.startswith("$.detail.")}:
            if unknown := [kind for kind in kinds if field not in source.ALERTS[kind]]:
                yield f"{name}: {unknown} has no field {field}"
            if field in ("reason", "last_error"):
                yield f"{name}: {field} may hold a quotation mark"


@check
def alerts_reach_the_topic(stack):
    rules = [r for r in stack.of_type("AWS::Events::Rule").values() if target(r.get("EventBusName")) == "Bus"]
    for kind in (*source.ALERTS, "a new kind"):
        taken = [r for r in rules if r["EventPattern"]["source"] == [source.EVENT_SOURCE] and _takes(r, kind)]
        if [target(t["Arn"]) for r in taken for t in r["Targets"]] != ["Topic"]:
            yield f"{len(taken)} rules take `{kind}` from `{source.EVENT_SOURCE}` to the topic"
    document = stack.properties("TopicPolicy")["PolicyDocument"]
    publishers = {s["Principal"]["Service"]: s.get("Condition") for s in document["Statement"]}
    # AWS: no Condition can be used in a topic's policy for EventBridge. With one, no alert would be delivered.
    wanted = {"events.amazonaws.com": None, "cloudwatch.amazonaws.com": {"StringEquals": {"aws:SourceAccount": "111122223333"}}}
    if publishers != wanted:
        yield f"TopicPolicy: {publishers}"


def _by_name(stack, value):
    """A queue that a dimension refers to, by its name."""
    return stack.properties(target(value))["QueueName"] if value.endswith(".QueueName>") else value


def _alarms(stack):
    """Alarms as (id, properties, (namespace, metric, dimensions)). Metric math is not among them: emulators refuse it."""
    for name, p in stack.of_type("AWS::CloudWatch::Alarm").items():
        dimensions = tuple(sorted((d["Name"], _by_name(stack, d["Value"])) for d in p.get("Dimensions", [])))
        yield name, p, (p["Namespace"], p["MetricName"], dimensions)


def _filtered(stack):
    """Metrics made from log lines as (namespace, metric, log group, pattern)."""
    for p in stack.of_type("AWS::Logs::MetricFilter").values():
        groups = stack.of_type("AWS::Logs::LogGroup")
        named = next((i for i, g in groups.items() if g["LogGroupName"] == p["LogGroupName"]), target(p["LogGroupName"]))
        for t in p["MetricTransformations"]:
            yield t["MetricNamespace"], t["MetricName"], named, p["FilterPattern"]


@check
def every_alarm_says_what_to_do(stack):
    sections = source.runbook_sections()
    for name, p, _ in _alarms(stack):
        text = p.get("AlarmDescription", "")
        if f": {stack.parameters['DocsUrl']}docs/runbook.md#" not in text or text.rsplit("#", 1)[1] not in sections:
            yield f"{name}: `{text}` names no section of docs/runbook.md"
        # The alarms of agents' stacks know the topic by its name.
        topic = f"arn:aws:sns:eu-west-1:111122223333:{stack.properties('Topic')['TopicName']}"
        if p.get("AlarmActions") not in (["<Topic>"], [topic]):
            yield f"{name}: tells nobody"


# B8: the supervisor restarts nobody; the platform does, and alarms tell people.
@check
def everything_that_needs_an_alarm_has_one(stack):
    there = {metric for _, _, metric in _alarms(stack)}

    def queue(metric, q):
        return ("AWS/SQS", metric, (("QueueName", stack.properties(q)["QueueName"]),))

    def function(metric, f):
        return ("AWS/Lambda", metric, (("FunctionName", stack.properties(f)["FunctionName"]),))

    wanted = {function("Errors", "Supervisor"), ("AWS/ApiGateway", "5xx", (("ApiId", "<Api.Outputs.Id>"),))}
    wanted |= {queue("ApproximateNumberOfMessagesVisible", "AlertsDead"), queue("ApproximateAgeOfOldestMessage", "SubmissionsQueue")}
    wanted |= {function("Invocations", "Supervisor")} if is_active(stack) else set()
    # Orders that do not begin, whatever the cause.
    wanted |= {("Stepwarden", "oldest_pending_age", (("stack", "shop"),))}
    wanted |= {(namespace, metric, ()) for namespace, metric, *_ in _filtered(stack)}
    # One of each agent: nobody takes its requests.
    wanted |= {queue("ApproximateAgeOfOldestMessage", q) for q in _agent_queues(stack) if base_of(queue_names(stack)[q]) == queue_names(stack)[q]}
    for n, m, d in sorted(wanted - there):
        yield f"no alarm on {m} of {d}"
    for n, m, d in sorted(there - wanted):
        yield f"an alarm on {m} of {d}, beyond the eight of the system and one for each agent"


@check
def an_alarm_is_on_one_metric(stack):
    """CloudWatch bills each metric of an alarm, and for a query whatever it scans. Composite alarms are billed five times."""
    for name, p in stack.of_type("AWS::CloudWatch::Alarm").items():
        if "Metrics" in p or "MetricName" not in p:
            yield f"{name}: has an expression"
    if composite := stack.of_type("AWS::CloudWatch::CompositeAlarm"):
        yield f"composite: {sorted(composite)}"


@check
def alarms_are_on_metrics_that_exist(stack):
    ours = ("AWS/SQS", "AWS/Lambda", "AWS/ApiGateway", "AWS/DynamoDB", "AWS/Events")
    emitted = {(*metric[:2], ()) for metric in _filtered(stack)}
    emitted |= {("Stepwarden", m, (("stack", "shop"),)) for m, label in source.metrics().items() if label is None}
    for name, _, (namespace, metric, dimensions) in _alarms(stack):
        if namespace not in ours and (namespace, metric, dimensions) not in emitted:
            yield f"{name}: nobody emits {namespace} {metric}"


@check
def lines_that_are_alarms_are_counted(stack):
    """A log line with the field `alarm` is one for the operator: each is counted in the logs of its function."""
    lines = source.alarm_lines()
    counted = {(group, value) for _, _, group, pattern in _filtered(stack) for value in re.findall(r'\$\.alarm = "(\w+)"', pattern)}
    wanted = {(log_group(stack, function.capitalize()), value) for function, value in lines}
    if counted != wanted:
        yield f"not counted {sorted(wanted - counted)}, never logged {sorted(counted - wanted)}"


@check
def a_silent_supervisor_raises_an_alarm(stack):
    if not is_active(stack):
        if "AlarmsSupervisorSilent" in stack.resources:
            yield "AlarmsSupervisorSilent: would ring for as long as the stack stands by"
        return
    p = stack.properties("AlarmsSupervisorSilent")
    minutes = int(stack.parameters["SupervisorRateMinutes"])
    if (p["Period"], p["EvaluationPeriods"], p["TreatMissingData"]) != (60 * minutes, 3, "breaching"):
        yield f"AlarmsSupervisorSilent: looks at {p['EvaluationPeriods']} x {p['Period']} s"
    expression = stack.properties("SupervisorSchedule")["ScheduleExpression"]
    if expression != ("rate(1 minute)" if minutes == 1 else f"rate({minutes} minutes)"):
        yield f"SupervisorSchedule: {expression}"


@check
def the_dashboard_shows_every_queue_function_and_table(stack):
    body = json.loads(stack.properties("AlarmsDashboard")["DashboardBody"])
    metrics = [m for w in body["widgets"] for m in w["properties"]["metrics"] if isinstance(m[0], str)]
    shown = {tuple(part for part in m if isinstance(part, str)) for m in metrics}
    names = {i: p["QueueName"] for i, p in stack.of_type("AWS::SQS::Queue").items()}
    # Agents may be in other stacks, so a search finds their queues and functions, and the queues of urgent orders with them.
    searches = [m[0]["expression"] for w in body["widgets"] for m in w["properties"]["metrics"] if isinstance(m[0], dict)]
    for words in (
        '{AWS/SQS,QueueName} MetricName="ApproximateNumberOfMessagesVisible" shop agent dead',
        *(f'{{AWS/SQS,QueueName}} MetricName="{m}" shop (agent OR high) NOT dead' for m in ("ApproximateAgeOfOldestMessage", "ApproximateNumberOfMessagesVisible", "NumberOfMessagesReceived")),
        '{AWS/Lambda,FunctionName} (MetricName="Errors" OR MetricName="Throttles") shop NOT (submit OR scheduler OR supervisor OR operator)',
    ):
        if not any(f"SEARCH('{words}'" in search for search in searches):
            yield f"Dashboard: does not search for {words}"
    found = {n for n in names.values() if n.startswith(f"shop-{source.AGENT_QUEUE}") or n.endswith(source.CLASS_ENDS["High"])}
    fed = {names[q] for q in consumed(stack)} - found
    wanted = {("AWS/SQS", "ApproximateAgeOfOldestMessage", "QueueName", n) for n in fed}
    wanted |= {("AWS/SQS", "NumberOfMessagesReceived", "QueueName", n) for n in fed}
    # What is received by an application of its own is not ours to show.
    ours = {n for i, n in names.items() if i != "NoticesDefaultQueue"} - found
    wanted |= {("AWS/SQS", "ApproximateNumberOfMessagesVisible", "QueueName", n) for n in ours}
    wanted |= {("AWS/Lambda", m, "FunctionName", f"shop-{f.lower()}") for f in FUNCTIONS if f != "Agent" for m in ("Errors", "Throttles")}
    wanted |= {("AWS/DynamoDB", f"{k}ThrottleEvents", "TableName", f"shop-{t}") for t in ("orders", "state") for k in ("Read", "Write")}
    if missing := wanted - shown:
        yield f"Dashboard: does not show {sorted(missing)}"
    if unknown := {m[3] for m in shown if m[0] == "AWS/SQS"} - set(names.values()):
        yield f"Dashboard: no such queue: {sorted(unknown)}"


@check
def the_dashboard_shows_every_metric_of_ours(stack):
    body = json.loads(stack.properties("AlarmsDashboard")["DashboardBody"])
    metrics = [m for w in body["widgets"] for m in w["properties"]["metrics"]]
    shown = {(m[1], None) for m in metrics if m[0] == "Stepwarden" and m[2:4] == ["stack", "shop"]}
    for found in (m[0]["expression"] for m in metrics if isinstance(m[0], dict) and "{Stepwarden," in m[0]["expression"]):
        scope = re.match(r"SEARCH\('\{Stepwarden,stack,(\w+)\} stack=\"shop\" ", found)
        shown |= {(name, scope and scope[1]) for name in re.findall(r'MetricName="(\w+)"', found)}
    if shown != set(source.metrics().items()):
        yield f"Dashboard: {sorted(map(str, shown ^ set(source.metrics().items())))} are not shown, or not emitted"


@check
def alerts_name_sections_of_the_runbook(stack):
    if missing := source.alert_sections() - source.runbook_sections():
        yield f"docs/runbook.md has no section {sorted(missing)}"


@check
def every_section_of_the_runbook_is_complete(stack):
    for name, text in source.runbook_texts().items():
        for part in ("Means", "Look at", "Do", "Resolved when"):
            if f"\n**{part}.** " not in text:
                yield f"docs/runbook.md: `{name}` has no part `{part}`"
    # The runbook sends people to queues, tables, functions and parameters; they have to be there.
    text = source.document("docs/runbook.md") + source.document("docs/deploy.md")
    names = set(queue_names(stack).values())
    unknown = set(re.findall(r"\$\(queue(?:_arn)? ([a-z-]+)\)", text)) - names
    # Its examples are those of the sample.
    if unknown and stack.parameters["Sample"] == "true":
        yield f"docs: no such queue: {sorted(unknown)}"
    there = {p["FunctionName"] for p in stack.of_type("AWS::Lambda::Function").values()}
    if unknown := {f"shop-{n}" for n in re.findall(r"--function-name \$STACK-([a-z-]+)", text)} - there:
        yield f"docs: no such function: {sorted(unknown)}"
    there = {p["TableName"] for p in stack.of_type("AWS::DynamoDB::Table").values()}
    if unknown := {f"shop-{n}" for n in re.findall(r"--table-name \$STACK-([a-z]+)\b(?!-)", text)} - there:
        yield f"docs: no such table: {sorted(unknown)}"
    if unknown := set(re.findall(r"\b([A-Z][A-Za-z]+)=[^ ,\n]", overrides(text))) - set(stack.raw["Parameters"]) - DEPLOYER:
        yield f"docs: no such parameter: {sorted(unknown)}"


def overrides(text):
    """What follows `--parameter-overrides` in the commands of a document, continued lines joined."""
    return "\n".join(re.findall(r"--parameter-overrides (.*)", text.replace("\\\n", " ")))


@check
def every_parameter_is_in_the_deploy_document(stack):
    if missing := {p for p in stack.raw["Parameters"] if f"`{p}`" not in source.document("docs/deploy.md")}:
        yield f"docs/deploy.md: says nothing of {sorted(missing)}"


@check
def parameters_are_described_and_bounded(stack):
    for name, p in stack.raw["Parameters"].items():
        if not p.get("Description"):
            yield f"{name}: no description"
        bounds = {"AllowedValues", "AllowedPattern", "MaxLength"} if p["Type"] == "String" else {"AllowedValues", "MaxValue"}
        if not bounds & set(p):
            yield f"{name}: takes anything"
    groups = stack.raw["Metadata"]["AWS::CloudFormation::Interface"]["ParameterGroups"]
    listed = [name for group in groups for name in group["Parameters"]]
    if sorted(listed) != sorted(stack.raw["Parameters"]):
        yield f"the interface lists others: {set(listed) ^ set(stack.raw['Parameters'])}"


@check
def outputs_say_where_everything_is(stack):
    wanted = {"ApiUrl", "OrdersTable", "StateTable", "QueuePrefix", "EventBusName", "AlertTopic"}
    own = {q: n for q, n in queue_names(stack).items() if not n.startswith(source.AGENT_QUEUE)}
    wanted |= {f"{q}Url" for q, n in own.items() if not n.endswith("-dead")}
    if missing := wanted - set(stack.raw["Outputs"]):
        yield f"no output {sorted(missing)}"
