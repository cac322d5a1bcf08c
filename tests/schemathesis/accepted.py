"""Whether orders went in and can be read: a run in which every order is refused says nothing of what follows."""

import json
import sys
import urllib.request

url, token = sys.argv[1:]
LEAST = 5


def get(path):
    request = urllib.request.Request(url + path, headers={"Authorization": f"Bearer {token}"})
    with urllib.request.urlopen(request, timeout=60) as answer:
        return json.load(answer)


page = get("/orders?workflow=free&limit=100")
count = len(page["orders"])
if count < LEAST:
    sys.exit(f"{count} orders of the workflow `free` were accepted, {LEAST} or more are needed")
if "unreadable" in page:
    sys.exit(f"accepted, and not to be read again: {page['unreadable']}")
queues = {queue["name"]: queue for queue in get("/queues")["queues"]}
dead = [name for name, queue in queues.items() if queue.get("dead_letters")]
if dead or queues["set-aside"]["waiting"]:
    sys.exit(f"messages of accepted orders were given up: {dead or 'set aside'}")
print(f"{count} orders or more of the workflow `free` were accepted, and all can be read")
