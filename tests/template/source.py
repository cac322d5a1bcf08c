"""What the Rust sources say that the template has to agree with, read from their text."""

import json
import re
import tomllib

from template import ROOT


def _read(path):
    return (ROOT / path).read_text()


def _one(pattern, text, what):
    found = re.search(pattern, text)
    assert found, f"{what} is no longer where this test looks for it: {pattern}"
    return found[1]


_config = _read("infra/aws/src/config.rs")
_queues = _read("shared/src/queues.rs")
_schema = _read("infra/aws/src/schema.rs")
_store = _read("infra/aws/src/state_store.rs")
# What the routes ask of a caller: field or method -> variables.
_auth = _read("functions/edge/src/auth.rs")
SCOPES = {field: {name} for name, field in re.findall(r'given\("([A-Z_]+)", default\.(\w+)\)', _auth)}
SCOPES["role_tenants"] = {_one(r'let roles = lookup\("([A-Z_]+)"\)', _auth, "the variable that names roles")}
for _method, _body in re.findall(r"\n    pub fn (\w+)<'a>\(&'a self.*?\{\n(.*?)\n    \}\n", _auth, re.S):
    SCOPES[_method] = set().union(*(SCOPES[field] for field in re.findall(r"self\.(\w+)", _body)))
_agents = _read("functions/agent/src/agents/mod.rs")
# How long CloudFormation waits for the activation of a folder's workflows.
ACTIVATION_S = min(int(_one(r"ServiceTimeout: (\d+)", path.read_text(), path.name)) for path in (ROOT / "examples").glob("new*/template.yaml"))

# Environment: required, lists, and numbers as name -> (default, least, most).
REQUIRED = set(re.findall(r'\btext\("([A-Z_]+)"\)', _config))
LISTS = set(re.findall(r'\blist\("([A-Z_]+)"\)', _config))
LISTS.add(_one(r'let reply_queues = lookup\("([A-Z_]+)"\)', _config, "the variable that names reply queues"))
NUMBERS = {
    name: tuple(int(n.replace("_", "")) for n in numbers)
    for name, *numbers in re.findall(r'number\(&lookup, "([A-Z_]+)", ([\d_]+), ([\d_]+), ([\d_]+)\)', _config)
}
FLAGS = {name: default for name, default in re.findall(r'flag\(&lookup, "([A-Z_]+)", (true|false)\)', _config)}
# May be left out: nothing has several pools then.
# What workflow files are read with.
FILES = set(re.findall(r'given\("([A-Z_]+)"\)', _config))
# Only the scheduler hands out addresses.
ADDRESS = _one(r'public_url\(lookup\("([A-Z_]+)"\)', _config, "the variable with the public address")
POOLS = _one(r'pools\(&lookup\("([A-Z_]+)"\)', _config, "the variable that names pools")


def read_by(function):
    """Names of the variables that a function reads beside those of the configuration. `{}_URL` stands for each agent's."""
    names = set()
    for path in sorted((ROOT / "functions" / function / "src").rglob("*.rs")):
        text = path.read_text()
        names |= set(re.findall(r'env::var(?:_os)?\("([A-Z_]+)"\)', text))
        names |= set().union(*(SCOPES.get(field, set()) for field in re.findall(r"\bscopes\.(\w+)", text)))
        for suffix in re.findall(r'env::var\(format!\("\{\}(_[A-Z]+)"', text):
            names |= {agent.upper() + suffix for agent in AGENTS if agent in REMOTE_AGENTS}
    return names


def _number(text):
    """A number as it is written out, or that of a constant of the core, such as `shared::strain::LEAST`."""
    if named := re.fullmatch(r"shared::(\w+)::([A-Z_]+)", text):
        text = _one(rf"pub const {named[2]}: \w+ = ([\d_]+);", _read(f"shared/src/{named[1]}.rs"), text)
    return int(text.replace("_", ""))


def numbers_of(function):
    """Numbers that a function reads beside those of the configuration, as name -> (default, least, most)."""
    texts = (path.read_text() for path in sorted((ROOT / "functions" / function / "src").rglob("*.rs")))
    found = (re.findall(r'number\([^"]*"([A-Z_]+)", ([\w:]+), ([\w:]+), ([\w:]+)\)', text) for text in texts)
    return {name: tuple(map(_number, numbers)) for one in found for name, *numbers in one}


# Names of agents, and of those that call a remote service.
AGENTS = re.findall(r'"([a-z-]+)"', _one(r"pub const NAMES: \[&str; \d+\] = \[([^\]]*)\]", _agents, "the list of agents"))
REMOTE_AGENTS = set(re.findall(r'(?:remote|plain)\("([a-z-]+)"\)', _agents))
# The variables of the function that serves them.
AGENT_VARIABLES = {f"{name.upper()}_URL": name for name in REMOTE_AGENTS} | {"HTTP_SECRETS": "http"}

# Queues.
QUEUE = {n: v for n, v in re.findall(r'pub const ([A-Z_]+): &str = "([a-z-]+)";', _queues)}
AGENT_QUEUE = _one(r'format!\("(agent-)\{name\}"\)', _queues, "an agent's queue")
NOTICES_QUEUE = _one(r'format!\("(notices-)\{name\}"\)', _queues, "a reply queue")
CLASS_ENDS = dict(re.findall(r'Priority::(\w+) => format!\("\{queue\}(-[a-z]+)"\)', _queues))
DEAD_QUEUE = _one(r'format!\("\{queue\}(-dead)"\)', _queues, "a dead-letter queue")
MAX_RECEIVES = int(_one(r"MAX_RECEIVES: u32 = (\d+);", _schema, "the number of receives"))
RETENTION_S = int(_one(r'RETENTION_S: &str = "(\d+)";', _schema, "the retention of queues"))

# Tables.
_types = dict(re.findall(r'attribute\("(\w+)", &(\w+)\)', _schema))
ATTRIBUTE_TYPES = {name: kind[0].upper() for name, kind in _types.items()}
_keys = re.findall(r'key\("(\w+)", KeyType::(Hash|Range)\)', _schema)
ORDERS_KEY = [k for k in _keys if k[0] in ("bucket", "sort")]
STATE_KEY = [k for k in _keys if k[0] == "pk"]
_index_names = {
    c: _one(rf'pub const {c}: &str = "(\w+)";', _store, c) for c in re.findall(r"index\((\w+_INDEX),", _schema)
}
INDEXES = {
    _index_names[c]: (h, r) for c, h, r in re.findall(r'index\((\w+_INDEX), "(\w+)", "(\w+)"\)', _schema)
}
TTL = _one(r'TimeToLiveSpecification::builder\(\)\.attribute_name\("(\w+)"\)', _schema, "the TTL attribute")

# Events, the supervisor's lease, the local system.
# Kinds of alerts, with the fields of their details.
ALERTS = {s["title"].removeprefix("Alert: "): set(s["properties"]) for s in (json.loads(p.read_text()) for p in sorted((ROOT / "docs/schemas").glob("alert-*.json")))}
EVENT_SOURCE = _one(r'EVENT_SOURCE: &str = "(\w+)";', _read("infra/aws/src/messenger.rs"), "the source of events")
_supervisor = "\n".join(p.read_text() for p in sorted((ROOT / "functions/supervisor/src").glob("*.rs")))
LEASE_LIFE_S = int(
    _one(r"LEASE_LIFE: \w+ = \w+::from_secs\((\d+)\)", _supervisor, "the life of the lease")
)
SWEEPS_S = int(_one(r"SWEEPS: \w+ = \w+::from_secs\((\d+)\)", _supervisor, "the time for sweeps"))
LOCAL_VISIBILITY_S = int(
    _one(r"VISIBILITY_TIMEOUT_S: u32 = (\d+);", _read("infra/local/src/system.rs"), "the local visibility timeout")
)

FUNCTIONS = sorted(p.parent.parent.name for p in (ROOT / "functions").glob("*/src/main.rs"))


def seconds(text):
    number, unit = re.fullmatch(r"(\d+)(ms|s|m|h|d)", text).groups()
    return int(number) * {"ms": 0.001, "s": 1, "m": 60, "h": 3600, "d": 86400}[unit]


def workflow_steps(folder="workflows"):
    """Every step, and every undo as a step."""
    for path in sorted((ROOT / folder).glob("*.toml")):
        for step in tomllib.loads(path.read_text())["step"]:
            yield step
            if "undo" in step:
                yield step["undo"]


def alert_sections():
    """Sections of the runbook that alerts name: written out in a source, or chosen beside `docs/runbook.md#{runbook}`."""
    sections = set()
    for path in ROOT.glob("*/**/src/**/*.rs"):
        if "target" in path.parts:
            continue
        text = path.read_text()
        sections |= set(re.findall(r"docs/runbook\.md#([a-z][a-z-]*)", text))
        if "docs/runbook.md#{runbook}" in text:
            chosen = _one(r"(?s)let \(runbook, resubmit\) = match (.*?)\};", text, "the section an alert names")
            sections |= set(re.findall(r'=> \("([a-z-]+)"', chosen))
    return sections


def document(path):
    return _read(path)


def runbook_texts():
    """The runbook's sections as heading -> text."""
    parts = re.split(r"^## (.+)$", document("docs/runbook.md"), flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def runbook_sections():
    """Anchors of the headings of docs/runbook.md, as GitHub makes them."""
    headings = [*runbook_texts(), *re.findall(r"(?m)^### (.+)$", document("docs/runbook.md"))]
    return {re.sub(r"[^a-z0-9 -]", "", h.lower()).replace(" ", "-") for h in headings}


def metrics():
    """Metrics that functions emit, as name -> label; `None` for those with the stack as their only dimension."""
    text = document("infra/aws/src/metrics/mod.rs")
    found = re.findall(r'^    [A-Z_]+ "(\w+)" \w+ (?:None|Some\("(\w+)"\)), ', text, flags=re.MULTILINE)
    return {name: label or None for name, label in found}


def alarm_lines():
    """Values of the field `alarm` of log lines, as (function, value)."""
    for path in ROOT.glob("functions/*/src/**/*.rs"):
        function = path.relative_to(ROOT / "functions").parts[0]
        for value in re.findall(r'\balarm = "(\w+)"', path.read_text()):
            yield function, value
