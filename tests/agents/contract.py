"""The contract in examples/new/agents, as a function on AWS and as replies that docs/schemas/reply.json admits. No service is called."""

import http.server
import json
import pathlib
import sys
import threading
import time
import unittest
from datetime import datetime, timedelta, timezone

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "examples/new/agents"))

import stepwarden_agent as contract  # noqa: E402
from stepwarden_agent import Accepted, Agent, Failed, NotYet, Unavailable  # noqa: E402

REPLY = json.loads((ROOT / "docs/schemas/reply.json").read_text())


def request(step="a", seconds=30.0, attempts=3, **more):
    end = datetime.now(timezone.utc) + timedelta(seconds=seconds)
    return {"task_id": "ord_1", "step": step, "attempt": 1, "direction": "do", "idempotency_key": "ord_1:a:do",
            "complete_by": end.isoformat(timespec="milliseconds").replace("+00:00", "Z"), "tenant": "a b",
            "calls": {"attempts": attempts, "base": "PT0.01S", "cap": "PT0.02S"}, "input": {}, **more}


class Contract(unittest.TestCase):
    def setUp(self):
        self.sent = []
        contract.sqs = lambda action, queue, **fields: self.sent.append((action, queue, fields)) or {}

    def replies(self, function, *requests, count="1"):
        """What Lambda gets back, and the replies."""
        agent = Agent("x", do={"a": function})
        records = [{"messageId": str(n), "body": json.dumps(one) if isinstance(one, dict) else one,
                    "attributes": {"ApproximateReceiveCount": count}} for n, one in enumerate(requests)]
        answer = agent({"Records": records}, None)
        replies = [json.loads(fields["MessageBody"]) for _, _, fields in self.sent]
        for reply in replies:
            self.assertLessEqual(reply.keys(), REPLY["properties"].keys())
            for rule in REPLY["allOf"]:
                if reply["outcome"] == rule["if"]["properties"]["outcome"]["const"]:
                    self.assertLessEqual(set(rule["then"]["required"]), reply.keys())
        return [failed["itemIdentifier"] for failed in answer["batchItemFailures"]], replies

    def one(self, function, *requests, **more):
        failures, (reply,) = self.replies(function, *(requests or [request()]), **more)
        self.assertEqual(failures, [])
        return reply

    def test_an_output_is_replied_with_the_tenant_as_group(self):
        reply = self.one(lambda request: {"key": request["idempotency_key"]}, request(traceparent="00-1"))
        self.assertEqual((reply["outcome"], reply["output"]), ("done", {"key": "ord_1:a:do"}))
        self.assertEqual((reply["task_id"], reply["attempt"], reply["traceparent"]), ("ord_1", 1, "00-1"))
        self.assertEqual((self.sent[0][1], self.sent[0][2]["MessageGroupId"]), ("stepwarden-replies", "a_b"))

    def test_what_is_not_done_when_the_program_ends_is_handed_back(self):
        begun, ends, deleted = threading.Event(), threading.Event(), []

        def work(request):
            begun.set()
            ends.wait(30)
            return {"n": 1}

        agent = Agent("x", do={"a": work})
        asked = json.dumps(request())
        thread = threading.Thread(target=agent.answer, args=(asked, 1, lambda: deleted.append(asked)))
        thread.start()
        begun.wait(30)
        agent.hand_back()
        ends.set()
        thread.join(30)
        (reply,) = [json.loads(fields["MessageBody"]) for _, _, fields in self.sent]
        self.assertEqual((reply["outcome"], reply["attempt"], reply["unsure"]), ("deferred", 1, True))
        self.assertEqual((reply["retry_after_ms"], deleted), (2000, [asked]))
        agent.hand_back()
        self.assertEqual(len(self.sent), 1)

    def beats(self, answers):
        """A server that answers heartbeats so, the last answer for ever, and what it was sent."""
        got = []

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self):
                got.append(json.loads(self.rfile.read(int(self.headers["content-length"]))))
                status, said = answers[min(len(got), len(answers)) - 1]
                body = json.dumps({"code": said} if isinstance(said, str) else {"complete_by": request(seconds=said)["complete_by"]}).encode()
                self.send_response(status)
                self.send_header("content-length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_):
                pass

        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        self.addCleanup(server.shutdown)
        return {"url": f"http://127.0.0.1:{server.server_port}/x", "every_ms": 100}, got

    def working(self, answers, seconds):
        def work(asked):
            end = time.monotonic() + seconds
            while time.monotonic() < end:
                contract.heartbeat(asked, 50.4, "half")
                time.sleep(0.01)
            return {"worked": True}

        heartbeat, got = self.beats(answers)
        failures, replies = self.replies(work, request(seconds=2.0, heartbeat=heartbeat))
        self.assertEqual(failures, [])
        return replies, got

    def test_the_work_goes_on_as_long_as_heartbeats_are_answered(self):
        (reply,), got = self.working([(200, 60)], 1.5)
        self.assertEqual(reply["outcome"], "done")
        self.assertIn({"percent": 50, "note": "half"}, got)
        self.assertLess(len(got), 60)

    def test_the_work_ends_when_a_heartbeat_says_so(self):
        self.assertEqual(self.working([(200, 60), (409, "attempt_over")], 600)[0], [])
        self.assertEqual(len(self.working([(404, "no_such_heartbeat")], 600)[1]), 1)

    def test_without_answers_the_work_ends_at_the_time_that_is_known(self):
        # A 404 of something else says nothing about the attempt.
        replies, got = self.working([(503, "unavailable"), (404, "")], 600)
        self.assertEqual(replies, [])
        self.assertGreater(len(got), 1)

    def test_failures_are_told_apart(self):
        def fail(error):
            def function(_):
                self.calls += 1
                raise error
            self.calls, self.sent = 0, []
            return function

        reply = self.one(fail(Failed("no", status=402, answer={"a": 1})))
        self.assertEqual((reply["outcome"], reply["status"], reply["answer"], self.calls), ("failed", 402, {"a": 1}, 1))
        self.assertNotIn("unsure", reply)
        self.assertNotIn("uncalled", reply)
        self.assertTrue(self.one(fail(Failed("no")), count="2")["unsure"])
        self.assertIs(self.one(fail(Failed("no amount", uncalled=True)))["uncalled"], True)
        reply = self.one(fail(Unavailable("down", retry_after_s=2)))
        self.assertEqual((reply["outcome"], reply["retry_after_ms"], self.calls), ("unavailable", 2000, 1))
        self.assertEqual((self.one(fail(KeyError("x")))["outcome"], self.calls), ("unavailable", 3))
        reply = self.one(lambda _: {"a": float("nan")}) if not self.sent.clear() else None
        self.assertEqual((reply["outcome"], reply["kind"]), ("failed", "mistake"))

    def test_work_that_ends_later_is_told_in_one_call(self):
        def function(request):
            self.calls += 1
            raise answer

        for answer, expected in (
            (NotYet("still printing"), {"outcome": "not_yet", "why": "still printing"}),
            (Accepted({"job": 7}), {"outcome": "accepted", "output": {"job": 7}}),
            (Accepted({"job": float("inf")}), {"outcome": "failed", "kind": "mistake"}),
        ):
            self.calls, self.sent = 0, []
            reply = self.one(function, request(callback="https://api.example/callbacks/1"))
            self.assertEqual({key: reply.get(key) for key in expected}, expected)
            self.assertEqual(self.calls, 1)

    def test_an_earlier_call_makes_a_refusal_unsure(self):
        answers = [Unavailable("lost"), Failed("no")]

        def function(_):
            raise answers.pop(0)
        self.assertTrue(self.one(function)["unsure"])

    def test_silence_after_complete_by(self):
        self.assertEqual(self.replies(lambda _: self.fail("called"), request(seconds=0.9)), ([], []))
        contract.SKEW_S, before = 0, contract.SKEW_S
        self.assertEqual(self.replies(lambda _: time.sleep(0.3), request(seconds=0.2)), ([], []))
        contract.SKEW_S = before

    def test_what_cannot_be_read_is_redelivered_and_the_rest_is_not(self):
        failures, replies = self.replies(lambda _: 1, request(), "no JSON", request())
        self.assertEqual((failures, len(replies)), (["1"], 2))

    def test_a_step_without_a_function_waits_for_one(self):
        reply = self.one(lambda _: 1, request(step="b", attempts=1))
        self.assertEqual(reply["outcome"], "unavailable")
        self.assertIn("no function to do b", reply["error"])


if __name__ == "__main__":
    unittest.main()
