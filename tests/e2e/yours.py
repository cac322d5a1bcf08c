"""A process of one's own, from the folders that `stepwarden new` writes: a step by an agent in Python, one by an agent in Rust, an event
and a URL. It is deployed beside the system, changed and rolled back while its orders are open, and removed."""

import contextlib
import http.server
import json
import re
import ssl
import subprocess
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from pathlib import Path

import deploy
import emulator
from world import FINAL, Failed, check, until

AGENTS = "shop-agents"
OWN = ("stock", "parcel")
# Orders that are open while another version goes live, and the seconds that instances have to follow.
OPEN, FOLLOWED_S = 200, 5
# A function calls no address of loopback, so the service has one for documentation (RFC 5737), on this machine.
ADDRESS = "198.51.100.1"
# Where services reach the API from outside.
PUBLIC = "https://orders.example"
# After the steps of the folder, version 1 waits for an event, which keeps orders open, and each version calls a URL. The address says
# which version of the workflow calls.
HOLD = """
[[step]]
name = "approval"
after = ["pack"]
event = "approved"
timeout = "10m"
"""
TELL = """
[[step]]
name = "tell"
after = ["{after}"]
timeout = "10s"
http = "https://{address}:{port}/v{version}/{{order_id}}"
"""
# Services that report later, and that are asked.
LATER = """
name = "later"
[[step]]
name = "render"
http = "https://{address}:{port}/render"
timeout = "10s"
with = {{ webhook = "${{callback}}" }}
accept = {{ within = "10m" }}
output = {{ film = "${{first(event.film, 'none')}}" }}
[[step]]
name = "ready"
after = ["render"]
http = {{ url = "https://{address}:{port}/ready/{{order_id}}", method = "GET" }}
timeout = "10s"
poll = {{ every = "1s", for = "60s", done = "answer.state == 'DONE'" }}
"""
# A resource that cannot be made, after the workflows are active.
BROKEN = """
  Broken:
    Type: Custom::Workflows
    DependsOn: Activation
    Properties:
      ServiceToken: !Sub arn:${AWS::Partition}:lambda:${AWS::Region}:${AWS::AccountId}:function:${Stack}-operator
      ServiceTimeout: 60
      Layer: none

Outputs:
"""


class Service:
    """A service of one's own: it keeps which version of the workflow called it, by order and idempotency key."""

    def __init__(self, place):
        add = ["ip", "address", "add", f"{ADDRESS}/32", "dev", "lo"]
        if subprocess.run(add, capture_output=True).returncode:
            subprocess.run(["sudo", "-n", *add], check=True)
        (place / "names").write_text(f"subjectAltName=IP:{ADDRESS}\nbasicConstraints=CA:FALSE\n")
        new = "-newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes"
        for command in (
            f"req -x509 {new} -days 2 -subj /CN=authority -keyout authority.key -out authority.pem",
            f"req {new} -subj /CN=service -keyout service.key -out service.csr",
            "x509 -req -in service.csr -CA authority.pem -CAkey authority.key -CAcreateserial -days 2 -extfile names -out service.pem",
        ):
            subprocess.run(["openssl", *command.split()], cwd=place, check=True, capture_output=True)
        self.authority = place / "authority.pem"
        self.calls = calls = {}
        self.webhooks, self.asked = webhooks, asked = [], []

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self):  # noqa: N802
                body = json.loads(self.rfile.read(int(self.headers["content-length"])))
                if self.path == "/render":
                    webhooks.append(body["webhook"])
                    return self.answer(202)
                version, order = self.path.strip("/").split("/")
                calls.setdefault(order, set()).add((version, self.headers["idempotency-key"]))
                self.answer(200)

            def do_GET(self):  # noqa: N802
                asked.append(self.path)
                self.answer(200, b'{"state": "DONE"}' if len(asked) > 2 else b'{"state": "RUNNING"}')

            def answer(self, status, body=b"{}"):
                self.send_response(status)
                self.send_header("content-type", "application/json")
                self.send_header("content-length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_):
                pass

        self.server = http.server.ThreadingHTTPServer((ADDRESS, 0), Handler)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(place / "service.pem", place / "service.key")
        self.server.socket = context.wrap_socket(self.server.socket, server_side=True, do_handshake_on_connect=False)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def trusted_by(self, system, function):
        """Makes a function trust the service's authority, as a layer with a company's authorities does."""
        name = f"{system.stack}-{function}"
        variables = system.lambda_.get_function_configuration(FunctionName=name)["Environment"]["Variables"]
        variables["SSL_CERT_FILE"] = str(self.authority)
        system.lambda_.update_function_configuration(FunctionName=name, Environment={"Variables": variables})

    def versions(self, orders):
        return {version for order in orders for version, _ in self.calls.get(order, {("none", "")})}


def folder_of(name, place, options):
    """What `stepwarden new NAME` writes, with a second agent from the folder of `--lang rust`, which tests/e2e/run built for Lambda."""
    subprocess.run([Path(options.stepwarden).resolve(), "new", name], cwd=place, check=True, capture_output=True)
    folder, other = place / name, options.rust_agent
    # The two resources of the other folder, and what its build left.
    resources = re.search(r"(?ms)^  Stock:\n.*?(?=^  # The files in workflows/)", (other / "template.yaml").read_text())[0]
    resources = resources.replace("[arm64]", "[x86_64]").replace("Stock", "Parcel").replace("stock", "parcel")
    resources = re.sub(r"CodeUri: .*", "CodeUri: parcel/", resources)
    (folder / "parcel").symlink_to(other / ".aws-sam/lambda/stock")
    template = (folder / "template.yaml").read_text().replace("  # The files in workflows/", resources + "  # The files in workflows/")
    template = template.replace("DependsOn: StockAgent", "DependsOn: [StockAgent, ParcelAgent]")
    (folder / "template.yaml").write_text(template)
    own, count = re.subn(r'(name = "pack"\nafter = \["reserve"\]\nagent = )"stock"', r'\1"parcel"', (folder / f"workflows/{name}.toml").read_text())
    check(count == 1 and "ParcelAgent" in template, "the folders of `stepwarden new` are others than this test expects")
    return folder, own


def post(system, path, **body):
    code, answer = system.call("POST", path, {"by": "e2e", "reason": "own folder", **body})
    check(code in (200, 201), f"{path}: {code} {answer}")
    return answer


def brought(system, folder, toml, again):
    """Deploys the folder with a workflow file; what its stack says became of it."""
    (folder / "workflows/shop.toml").write_text(toml)
    return deploy.folder(AGENTS, folder, {"Stack": system.stack}, again)["Workflows"]


def submit(system, key, workflow="shop"):
    def accepted():
        body = {"workflow": workflow, "input": {"item": "lamp", "quantity": 2}}
        code, answer = system.call("POST", "/orders", body, idempotency_key=key)
        check(code in (202, 422, 429) or code >= 500, f"{key}: {code} {answer}")
        return answer["order_id"] if code == 202 else None

    return until(f"{key} is accepted", accepted, 60)


def approve(system, order):
    """Sends the event that version 1 waits for. Later versions have no step for it."""
    code, answer = system.call("POST", f"/orders/{order}/events/approved", {}, idempotency_key="approval")
    check(code == 202, f"event for {order}: {code} {answer}")


def all_end(system, orders, patience=150):
    deadline = time.monotonic() + patience
    for order in orders:
        system.ends(order, "Processed", patience=max(1, deadline - time.monotonic()))


def own_folder(system, sample, options):
    with tempfile.TemporaryDirectory() as place:
        return changed_and_removed(system, sample, Path(place), options)


def changed_and_removed(system, sample, place, options):
    service = Service(place)
    service.trusted_by(system, "agent")
    own, toml = folder_of("shop", place, options)
    port = service.server.server_port
    tell = lambda version, after: TELL.format(address=ADDRESS, port=port, version=version, after=after)  # noqa: E731
    first, second = toml + HOLD + tell(1, "approval"), toml + tell(2, "pack")
    (own / "workflows/later.toml").write_text(LATER.format(address=ADDRESS, port=port))
    bring = lambda text, again=True: brought(system, own, text, again)  # noqa: E731
    told = bring(first, again=False)
    system.settle()
    check(told.count("is active") == 2, f"the first deployment says: {told}")
    # Another version while 200 orders of the first one are open.
    with ThreadPoolExecutor(8) as pool:
        opened = list(pool.map(lambda n: submit(system, f"open-{n}"), range(OPEN)))
    with probing(system) as sent:
        told = bring(second)
        check(" replaces " in told and "later: unchanged" in told, f"the second deployment says: {told}")
        code, shown = system.call("GET", "/workflows/shop")
        live = datetime.fromisoformat(shown["last_change"]["since"]).timestamp()
        time.sleep(max(0, live + FOLLOWED_S + 1 - time.time()))
    probes = {order: at - live for order, at in sent.items()}
    check(not service.versions(opened) - {"none"}, "orders did not wait until version 2 was there")
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda order: approve(system, order), opened))
    all_end(system, opened)
    check(service.versions(opened) == {"v1"}, f"open orders changed their workflow: {service.versions(opened)}")
    # Whichever still waits is one of version 1.
    held = [order for order in probes if "approval" in [step["name"] for step in system.status(order)["steps"]]]
    for order in held:
        approve(system, order)
    all_end(system, probes)
    check(service.versions(held) <= {"v1"} and service.versions(set(probes) - set(held)) == {"v2"}, "a new order is of neither version")
    check(held and len(held) < len(probes), f"{len(held)} of {len(probes)} orders got version 1: none before it, or none after it")
    followed = max(probes[order] for order in held)
    check(followed < FOLLOWED_S, f"{followed:.1f} s after the activation an order got version 1")
    twice = {order: keys for order, keys in service.calls.items() if len(keys) != 1}
    check(not twice, f"called under two keys: {twice}")
    later(system, service)
    # What the supervisor alone continues: orders of a paused agent, once it is resumed. Their steps read the orders' inputs.
    post(system, "/agents/stock/pause")
    time.sleep(FOLLOWED_S)
    paused = [submit(system, f"paused-{n}") for n in range(3)]
    time.sleep(FOLLOWED_S)
    check({system.status(order)["state"] for order in paused} <= {"Pending", "Processing"}, "a paused agent works")
    post(system, "/agents/stock/resume")
    all_end(system, paused)
    # Back in one call.
    code, shown = system.call("GET", "/workflows/shop")
    check(code == 200, f"show: {code} {shown}")
    post(system, "/workflows/shop/rollback", if_version=shown["version"])
    time.sleep(FOLLOWED_S)
    runs_first(system, service, "back")
    # A deployment of the same definition leaves that as it is, and so does one that fails, at once or after it has activated a third.
    told = bring(second + "# A comment is no change.\n")
    check("unchanged, so" in told, f"a deployment after the rollback says: {told}")
    fails(r"shop\.toml:\d+: ", lambda: bring(second.replace("agent = ", "agents = ", 1)))
    code, shown = system.call("GET", "/workflows/shop")
    check(shown["version"] == 3 and "stack" not in shown["last_change"]["by"], f"after these deployments: {shown}")
    template = (own / "template.yaml").read_text()
    (own / "template.yaml").write_text(template.replace("\nOutputs:\n", BROKEN))
    fails("Broken", lambda: bring(second.replace("/v2/", "/v3/")))
    (own / "template.yaml").write_text(template)
    code, after = system.call("GET", "/workflows/shop")
    check((after["hash"], after["version"]) == (shown["hash"], 5), f"a deployment that failed leaves: {after}")
    time.sleep(FOLLOWED_S)
    runs_first(system, service, "restored")
    # The agents go; the system stays.
    deploy.remove(AGENTS)
    system.queues = {name: url for name, url in system.queues.items() if not name.startswith(tuple(f"agent-{agent}" for agent in OWN))}
    system.settle()
    warned = post(system, "/workflows", toml=re.sub("v1/", "v4/", first), file="shop.toml")
    check(all(agent in str(warned.get("warnings")) for agent in OWN), f"the agents have no queues, and `put` says {warned}")
    service.server.shutdown()
    order = system.submit("without-stock", next(sample), "own folder")
    system.ends(order, "Processed")
    return (
        f"a folder of one's own, by Python, Rust, event and URL: the last order of version 1 {followed:+.1f} s after version 2, none of {OPEN} open "
        "orders touched, rolled back, a failed deployment taken back, its agents removed"
    )


@contextlib.contextmanager
def probing(system):
    """Submits an order every now and then; when each was sent."""
    stop, sent = threading.Event(), {}

    def send():
        while not stop.wait(0.2):
            at = time.time()
            sent[submit(system, f"probe-{len(sent)}")] = at

    with ThreadPoolExecutor(1) as pool:
        sending = pool.submit(send)
        try:
            yield sent
        finally:
            stop.set()
        sending.result()


def later(system, service):
    """A service that reports the end of its work to the address it was given, and one that is asked until it is done."""
    order = submit(system, "later", "later")
    until("the service has the address", lambda: service.webhooks, 60)
    path = re.fullmatch(rf"{PUBLIC}(/callbacks/{order}/render/[0-9a-f]+)", service.webhooks[0])
    check(path, f"another address: {service.webhooks[0]}")
    code, answer = system.call("POST", path[1] + "0", {"film": "f"}, signed=False)
    check(code == 404, f"another token: {code} {answer}")
    check(system.status(order)["state"] not in FINAL, "it did not wait for the service")
    code, answer = system.call("POST", path[1], {"film": "f"}, signed=False)
    check(code == 202, f"callback: {code} {answer}")
    all_end(system, [order])
    check(len(service.asked) == 3, f"asked {len(service.asked)} times")


def runs_first(system, service, key):
    order = submit(system, key)
    approve(system, order)
    all_end(system, [order])
    check(service.versions([order]) == {"v1"}, f"{key}: {service.versions([order])}")


def fails(words, deployment):
    try:
        raise Failed(f"a wrong folder is deployed: {deployment()}")
    except RuntimeError as error:
        check(re.search(words, str(error)), f"a wrong folder fails with: {error}")
