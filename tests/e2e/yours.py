"""A process of one's own, from the folder that `stepwarden new` writes: deployed beside the system, changed and rolled back while its
orders are open, and removed."""

import http.server
import re
import shutil
import ssl
import subprocess
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import deploy
import emulator
from world import Failed, check, until

AGENTS = "shop-agents"
# Orders that are open while another version goes live, the seconds that instances have to follow, and those that orders wait.
OPEN, FOLLOWED_S, HELD_S = 200, 5, 30
# A function calls no address of loopback, so the service has one for documentation (RFC 5737), on this machine.
ADDRESS = "198.51.100.1"
# A wait, which keeps orders open, and a URL step after those of the folder. The address says which version of the workflow calls.
STEP = """
[[step]]
name = "hold"
after = ["pack"]
wait = "{hold}s"
[[step]]
name = "tell"
after = ["hold"]
timeout = "10s"
http = "https://{address}:{port}/v{version}/{{order_id}}"
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

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self):  # noqa: N802
                self.rfile.read(int(self.headers["content-length"]))
                version, order = self.path.strip("/").split("/")
                calls.setdefault(order, set()).add((version, self.headers["idempotency-key"]))
                self.send_response(200)
                self.send_header("content-length", "2")
                self.end_headers()
                self.wfile.write(b"{}")

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


def folder_of(name, place):
    """What `stepwarden new NAME` writes."""
    shutil.copytree(deploy.ROOT / "examples/new", place)
    shutil.copy(deploy.ROOT / "infra/agent.yaml", place)
    check((place / f"workflows/{name}.toml").is_file(), f"examples/new has no workflow {name}")
    return (place / f"workflows/{name}.toml").read_text()


def post(system, path, **body):
    code, answer = system.call("POST", path, {"by": "e2e", "reason": "own folder", **body})
    check(code in (200, 201), f"{path}: {code} {answer}")
    return answer


def brought(system, folder, toml, again):
    """Deploys the folder with a workflow file; what its stack says became of it."""
    (folder / "workflows/shop.toml").write_text(toml)
    return deploy.folder(AGENTS, folder, {"Stack": system.stack}, again)["Workflows"]


def submit(system, key):
    def accepted():
        body = {"workflow": "shop", "input": {"item": "lamp", "quantity": 2}}
        code, answer = system.call("POST", "/orders", body, idempotency_key=key)
        check(code in (202, 422, 429) or code >= 500, f"{key}: {code} {answer}")
        return answer["order_id"] if code == 202 else None

    return until(f"{key} is accepted", accepted, 60)


def all_end(system, orders, patience=150):
    deadline = time.monotonic() + patience
    for order in orders:
        system.ends(order, "Processed", patience=max(1, deadline - time.monotonic()))


def own_folder(system, sample, _options):
    with tempfile.TemporaryDirectory() as place:
        return changed_and_removed(system, sample, Path(place))


def changed_and_removed(system, sample, place):
    service = Service(place)
    service.trusted_by(system, "agent")
    own = folder_of("shop", place / "shop")
    first, second = (own + STEP.format(address=ADDRESS, port=service.server.server_port, version=n, hold=hold) for n, hold in ((1, HELD_S), (2, 1)))
    bring = lambda text, again=True: brought(system, place / "shop", text, again)  # noqa: E731
    told = bring(first, again=False)
    system.settle()
    check(told.endswith("is active"), f"the first deployment says: {told}")
    # Another version while 200 orders of the first one are open.
    with ThreadPoolExecutor(8) as pool:
        opened = list(pool.map(lambda n: submit(system, f"open-{n}"), range(OPEN)))
    told = bring(second)
    check(" replaces " in told, f"the second deployment says: {told}")
    check(not service.versions(opened) - {"none"}, "orders did not wait until version 2 was there")
    time.sleep(FOLLOWED_S)
    later = [submit(system, f"later-{n}") for n in range(3)]
    all_end(system, opened + later)
    check(service.versions(opened) == {"v1"}, f"open orders changed their workflow: {service.versions(opened)}")
    check(service.versions(later) == {"v2"}, f"after {FOLLOWED_S} s new orders got {service.versions(later)}")
    twice = {order: keys for order, keys in service.calls.items() if len(keys) != 1}
    check(not twice, f"called under two keys: {twice}")
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
    back = submit(system, "back")
    all_end(system, [back])
    check(service.versions([back]) == {"v1"}, f"after the rollback: {service.versions([back])}")
    # A deployment of the same definition leaves that as it is, and so does one that fails.
    told = bring(second + "# A comment is no change.\n")
    check("unchanged, so" in told, f"a deployment after the rollback says: {told}")
    try:
        raise Failed(f"a wrong file is deployed: {bring(second.replace('agent = ', 'agents = ', 1))}")
    except RuntimeError as error:
        check(re.search(r"shop\.toml:\d+: ", str(error)), f"a wrong file fails with: {error}")
    code, shown = system.call("GET", "/workflows/shop")
    check(shown["version"] == 3 and "stack" not in shown["last_change"]["by"], f"after these deployments: {shown}")
    # The agent goes; the system stays.
    deploy.remove(AGENTS)
    system.queues = {name: url for name, url in system.queues.items() if not name.startswith("agent-stock")}
    system.settle()
    warned = post(system, "/workflows", toml=re.sub("v1/", "v3/", first), file="shop.toml")
    check("stock" in str(warned.get("warnings")), f"the agent has no queue, and `put` says {warned}")
    service.server.shutdown()
    order = system.submit("without-stock", next(sample), "own folder")
    system.ends(order, "Processed")
    seconds = f"{FOLLOWED_S} s"
    return f"a folder of one's own: version 2 live within {seconds}, none of {OPEN} open orders touched, rolled back, its agent removed"
