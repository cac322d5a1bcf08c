"""An agent in Python: wraps gifts, and unwraps them when an order is undone. docs/agents.md has the rules for agents.

    pip install -r examples/agents/requirements.txt
    AWS_ENDPOINT_URL=http://localhost:8081 AWS_DEFAULT_REGION=local AWS_ACCESS_KEY_ID=x AWS_SECRET_ACCESS_KEY=x \
        python3 examples/agents/gift_wrap.py

On AWS it needs credentials, AWS_DEFAULT_REGION, and STACK, the name of the deployment.
"""

import json
import os
import re
import sqlite3
import time
from datetime import datetime, timezone

import boto3

STACK = os.environ.get("STACK", "stepwarden")
# Largest difference between two clocks: no work starts later than this before CompleteBy.
SKEW_S = float(os.environ.get("CLOCK_SKEW_S", "1"))
TAKES_S = float(os.environ.get("WRAPPING_TAKES_S", "0.1"))

# The service behind this agent. Work under a key is done once, and work that was undone is never done again.
shelf = sqlite3.connect(os.environ.get("SHELF", "gift-wrap.db"), isolation_level=None)
shelf.execute("CREATE TABLE IF NOT EXISTS gifts (key TEXT PRIMARY KEY, paper TEXT, undone INTEGER NOT NULL DEFAULT 0)")


def wrap(request):
    time.sleep(TAKES_S)
    paper = request["input"].get("paper", "plain")
    shelf.execute("INSERT OR IGNORE INTO gifts (key, paper) VALUES (?, ?)", (request["idempotency_key"], paper))
    paper, undone = shelf.execute("SELECT paper, undone FROM gifts WHERE key = ?", (request["idempotency_key"],)).fetchone()
    if undone:
        return {"outcome": "failed", "error": "this gift was unwrapped before"}
    return {"outcome": "done", "output": {"paper": paper}}


def unwrap(request):
    shelf.execute("INSERT INTO gifts (key, undone) VALUES (?, 1) ON CONFLICT DO UPDATE SET undone = 1", (request["undoes"],))
    return {"outcome": "done"}


def perform(request):
    """The outcome of one attempt, or None for silence: after CompleteBy only the supervisor acts."""

    def is_in_time(margin_s):
        complete_by = datetime.fromisoformat(request["complete_by"])
        return (complete_by - datetime.now(timezone.utc)).total_seconds() > margin_s

    if not is_in_time(SKEW_S):
        return None
    try:
        outcome = wrap(request) if request["direction"] == "do" else unwrap(request)
    except sqlite3.OperationalError as error:
        outcome = {"outcome": "unavailable", "error": str(error)}
    return outcome if is_in_time(0) else None


def main():
    sqs = boto3.client("sqs")
    queues = (f"{STACK}-agent-gift-wrap", f"{STACK}-replies")
    requests, replies = (sqs.get_queue_url(QueueName=name)["QueueUrl"] for name in queues)
    while True:
        # One at a time, so that other processes can receive what waits behind a slow request.
        received = sqs.receive_message(QueueUrl=requests, MaxNumberOfMessages=1, WaitTimeSeconds=20)
        for message in received.get("Messages", []):
            request = json.loads(message["Body"])
            if outcome := perform(request):
                echoed = {"task_id", "step", "attempt", "traceparent"} & request.keys()
                reply = {"type": "reply", **{name: request[name] for name in echoed}, **outcome}
                tenant = re.sub(r"[^A-Za-z0-9_-]", "_", request["tenant"])[:128] or "_"
                sqs.send_message(QueueUrl=replies, MessageBody=json.dumps(reply), MessageGroupId=tenant)
            # Only now: if this process had died before, the request would be redelivered.
            sqs.delete_message(QueueUrl=requests, ReceiptHandle=message["ReceiptHandle"])


if __name__ == "__main__":
    main()
