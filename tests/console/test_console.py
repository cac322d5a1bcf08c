"""Goal: an operator finds what is wrong and mends it, in a real browser, by keyboard, and nothing that an order says becomes
code. Method: a running system whose services are broken on purpose; every page fails its test if the browser logs an error,
a breach of the security policy among them."""

import json
import re

import pytest
from conftest import SHOTS, until
from playwright.sync_api import expect

HOSTILE = '"><script>alert(1)</script><img src=x onerror=alert(2)>${alert(3)}'
SCHEMES = [("light", 1280, 900), ("dark", 1280, 900), ("phone", 360, 760)]


def rows(page):
    return page.locator("#list a.row")


def is_settled(page):
    """The list is there, and the overview."""
    page.wait_for_selector("#list li, .list .nothing:not(:text('Loading'))")
    page.wait_for_selector(".brief .small")


def in_error(system, count=1, number=0, **more):
    """Orders that stopped because the payment service was down; it is up again."""
    system.faults("payment", outage=True)
    orders = [system.submit("parcel", f"broken-{n}", number=number + n, **more) for n in range(count)]
    for order in orders:
        system.until(order, "Error")
    system.faults("payment")
    return orders


def test_an_empty_system_says_that_all_is_well(window):
    page = window().page
    is_settled(page)
    expect(page.locator(".verdict")).to_have_text("✓Nothing waits for a person, and nothing is stuck.")
    expect(page.locator(".list .nothing")).to_contain_text("There are no orders yet")
    expect(page.locator("#top .pill")).to_have_text("Live")


# The console's own story: what is wrong is on the first screen, and one is back in order without a mouse.
def test_an_operator_finds_the_failed_order_and_resubmits_it_by_keyboard(system, window):
    [broken] = in_error(system)
    one = window()
    page = one.page
    is_settled(page)
    brief = page.locator(".brief")
    expect(brief).to_contain_text("1 order waits for a person")
    expect(brief.locator(".why.bad")).to_contain_text("charge (payment)")
    expect(brief.locator(".why.bad")).to_contain_text("out of order")
    assert page.title().startswith("(1) ")

    page.keyboard.press("f")
    page.keyboard.type("Error")
    page.keyboard.press("Escape")
    expect(page).to_have_url(re.compile("state=Error"))
    expect(rows(page)).to_have_count(1)
    page.keyboard.press("j")
    page.keyboard.press("Enter")
    expect(page.locator("h1")).to_have_text(broken)
    expect(page.locator(".sentence.bad")).to_contain_text("charge failed: 503")
    page.keyboard.press("r")
    dialog = page.get_by_role("dialog", name="Resubmit charge?")
    expect(dialog).to_be_visible()
    page.keyboard.press("Enter")
    expect(dialog).to_be_visible()  # without a reason nothing is sent
    page.keyboard.type("the bank is back")
    page.keyboard.press("Tab")  # the folded input
    page.keyboard.press("Tab")
    page.keyboard.type("ann")
    page.keyboard.press("Enter")
    expect(page.locator(".toast")).to_contain_text("Resubmitted. The order is at version")
    expect(page.locator(".title .state")).to_have_text("✓Processed")
    expect(page.locator(".log")).to_contain_text("ann: the bank is back")
    system.until(broken, "Processed")
    page.keyboard.press("Escape")
    expect(page.locator(".verdict")).to_contain_text("Nothing waits for a person")


def test_the_input_of_a_step_is_edited_and_acts_say_what_became_of_them(system, window):
    [broken] = in_error(system, number=7)
    page = window(f"#/orders/{broken}").page
    page.click("#act-resubmit")
    page.click("dialog summary")
    edited = json.loads(page.input_value("#f-input"))
    assert edited["order_ref"] == system.inputs[7]["order_ref"]
    page.fill("#f-reason", "other card")
    page.fill("#f-by", "ann")
    page.fill("#f-input", "{")
    page.click("dialog button[type=submit]")
    expect(page.locator("dialog [role=alert]")).to_contain_text("is not JSON")
    page.fill("#f-input", json.dumps({**edited, "order_ref": "ANOTHER"}))
    page.click("dialog button[type=submit]")
    expect(page.locator(".toast")).to_contain_text("Resubmitted")
    expect(page.locator(".log")).to_contain_text("with another input for charge")
    expect(page.locator(".step", has_text="charge")).to_contain_text("Input from an operator")


def test_an_order_is_moved_run_again_and_erased_after_it_was_shown_what_that_means(system, window):
    [broken] = in_error(system)
    one = window(f"#/orders/{broken}", expected=[400])
    page = one.page
    page.click("#act-migrate")
    dialog = page.get_by_role("dialog", name="Move this order to another definition?")
    page.fill("#f-reason", "looking")
    page.fill("#f-by", "ann")
    page.click("dialog button[type=submit]")
    expect(dialog.locator(".told")).to_contain_text("This is the definition that the order has")
    one.shot("migrate")
    page.fill("#f-to", "0" * 64)
    page.click("dialog button[type=submit]")
    expect(dialog.get_by_role("alert").locator("code").first).to_have_text("parcel")
    page.keyboard.press("Escape")
    expect(page.locator("#act-migrate")).to_be_focused()
    page.click("#act-resubmit")
    page.fill("#f-reason", "the bank is back")
    page.click("dialog button[type=submit]")
    expect(page.locator(".title .state")).to_have_text("✓Processed")
    page.click("#act-run-again")
    dialog = page.get_by_role("dialog", name="Run this order again?")
    page.select_option("#f-from", "charge")
    page.fill("#f-reason", "the wrong amount")
    page.click("dialog button[type=submit]")
    expect(dialog.locator(".told")).to_contain_text("Undone first")
    page.select_option("#f-without_undo", "yes")
    expect(dialog.locator(".told")).to_be_empty()  # what was shown is not what would be done now
    page.click("dialog button[type=submit]")
    expect(dialog.locator("button[type=submit]")).to_have_text("Run it again")
    one.shot("run-again")
    page.click("dialog button[type=submit]")
    expect(page.locator(".toast")).to_contain_text("Recorded. The order is at version")
    expect(page.locator(".log")).to_contain_text("put back to run again", timeout=60_000)
    expect(page.locator(".title .state")).to_have_text("✓Processed", timeout=60_000)
    page.click("#act-erase")
    page.fill("#f-reason", "request 17")
    page.fill("#f-confirm", "none")
    page.click("dialog button[type=submit]")
    expect(page.locator("dialog [role=alert]")).to_contain_text("Nothing was erased")
    expect(page.locator("dialog button[type=submit]")).to_be_focused()
    page.fill("#f-confirm", broken[-4:])
    one.shot("erase")
    page.click("dialog button[type=submit]")
    expect(page.locator(".toast")).to_contain_text("Erased: ann: request 17")
    expect(page.locator(".sentence.undone")).to_contain_text("The data of this order was erased")
    expect(page.locator("#act-erase")).to_have_count(0)


def test_what_cannot_run_again_is_said_and_an_undone_order_runs_again_as_a_whole(system, window):
    listed = system.submit("rows", "a list", rows=[1, 7])
    system.until(listed, "Error")
    page = window(f"#/orders/{listed}").page
    page.click("#act-run-again")
    dialog = page.get_by_role("dialog", name="Run this order again?")
    page.fill("#f-reason", "y" * 180)
    page.fill("#f-by", "ann")
    page.keyboard.press("Enter")
    expect(dialog.locator(".told .wrong")).to_contain_text("a list cannot be started again")
    expect(dialog.locator(".told .facts")).to_have_count(0)
    expect(dialog.locator("button[type=submit]")).to_have_text("Show the consequences")
    assert page.evaluate(CONTRAST) == []
    undone = system.submit("parcel", "sent back")
    system.until(undone, "Processed")
    assert system.call("POST", f"/orders/{undone}/actions/undo", {"by": "ann", "reason": "sent back"})[0] == 200
    system.until(undone, "Undone")
    page = window(f"#/orders/{undone}").page
    expect(page.locator(".others summary")).to_have_text("Why not the others")
    page.click("#act-run-again")
    dialog = page.get_by_role("dialog", name="Run this order again?")
    page.fill("#f-reason", "it was right")
    page.fill("#f-by", "ann")
    page.click("dialog button[type=submit]")
    expect(dialog.locator(".told .wrong")).to_contain_text("run again from it as well")
    page.select_option("#f-from", "all steps")
    page.click("dialog button[type=submit]")
    expect(dialog.locator(".told")).to_contain_text("reserve, check-fraud, charge, ship")
    page.click("dialog button:has-text('Run it again')")
    expect(page.locator(".title .state")).to_have_text("✓Processed", timeout=60_000)
    system.call("POST", f"/orders/{listed}/actions/cancel", {"by": "ann", "reason": "the test is over"})
    system.until(listed, "Undone")


def test_an_act_on_an_order_that_moved_on_is_refused_in_words(system, window):
    [broken] = in_error(system)
    one = window(f"#/orders/{broken}")
    one.expected = [409]
    page = one.page
    page.click("#act-skip")
    assert system.call("POST", f"/orders/{broken}/actions/resubmit", {"by": "bob", "reason": "faster"})[0] == 200
    page.fill("#f-reason", "too slow")
    page.fill("#f-by", "ann")
    page.click("dialog button[type=submit]")
    expect(page.locator("dialog [role=alert]")).to_contain_text("read it again")
    system.until(broken, "Processed")


def test_what_is_stuck_and_paused_is_shown_with_its_next_attempt(system, window):
    system.faults("payment", outage=True)
    stuck = system.submit("patient", "stuck")
    until(lambda: system.call("GET", f"/orders/{stuck}")[1]["failure_count"] >= 2, "it waits for five minutes")
    system.faults("payment")
    page = window().page
    expect(page.locator(".brief")).to_contain_text("1 order is being retried")
    page.click(".why.warn")
    expect(page.locator(".sentence.warn")).to_contain_text("Next attempt in")
    expect(page.locator(".timeline .next")).to_have_count(1)
    page.click("#act-pause")
    page.fill("#f-reason", "the customer called")
    page.fill("#f-by", "ann")
    page.click("dialog button[type=submit]")
    expect(page.locator(".sentence.pause")).to_contain_text("ann: the customer called")
    page.click("text=‹ Orders")
    expect(page.locator(".brief")).to_contain_text("1 order paused")
    page.go_back()
    page.click("#act-resume")
    page.fill("#f-reason", "all is said")
    page.click("dialog button[type=submit]")
    page.click("#act-retry-now")
    page.fill("#f-reason", "no need to wait")
    page.click("dialog button[type=submit]")
    expect(page.locator(".title .state")).to_have_text("✓Processed")


# Many at once, by keyboard alone: first what would be done, then it is done.
# An approval with a reason: who says yes is told apart, and who waits for what is on the first screen.
def test_two_people_approve_with_a_reason(system, window):
    order = system.submit("approval", "two people")
    until(lambda: any(step.get("waiting_until") for step in system.call("GET", f"/orders/{order}")[1]["steps"]), "it waits")
    page = window("#/orders").page
    is_settled(page)
    line = page.locator(".brief", has_text="waits for the event")
    expect(line).to_contain_text("approval")
    page = window(f"#/orders/{order}").page
    expect(page.locator(".sentence", has_text="waits for the event")).to_contain_text("from 2 people, 2 missing since")
    page.screenshot(path=SHOTS / "wait.png")

    def send(by, reason, data):
        page.click("#event-approval")
        dialog = page.get_by_role("dialog", name="Send the event approved to approval?")
        expect(dialog).to_be_visible()
        page.fill("#f-reason", reason)
        page.fill("#f-data", data)
        page.fill("#f-by", by)
        page.click("dialog button[type=submit]")

    send("ann", "fits the budget", '{"answer": "yes"}')
    expect(page.locator(".toast")).to_contain_text("Sent. It counts for ann.")
    expect(page.locator(".sentence", has_text="waits for the event")).to_contain_text("1 missing")
    send("ann", "fits the budget", '{"answer": "yes"}')
    expect(page.locator(".sentence", has_text="waits for the event")).to_contain_text("1 missing")
    send("bob", "too much", "[1]")
    expect(page.locator("dialog .wrong", has_text="JSON object")).to_be_visible()
    page.keyboard.press("Escape")
    send("bob", "so do I", '{"answer": "yes"}')
    system.until(order, "Processed")
    expect(page.locator(".title .state")).to_have_text("✓Processed")
    output = system.call("GET", f"/orders/{order}")[1]["steps"][0]["output"]
    assert output == [
        {"by": "ann", "data": {"reason": "fits the budget", "answer": "yes"}},
        {"by": "bob", "data": {"reason": "so do I", "answer": "yes"}},
    ]


def test_the_items_of_a_list_are_a_grid_and_each_leads_to_its_order(system, window):
    order = system.submit("rows", "a list", rows=list(range(400)))
    system.until(order, "Error")
    page = window(f"#/orders/{order}").page
    list_ = page.get_by_role("region", name="Items of rows")
    grid = list_.get_by_role("img", name="Of 400 items: 4 failed, 396 done")
    expect(grid).to_be_visible()
    assert 4 < grid.locator("rect").count() < 40, "neighbours are one shape"
    expect(list_.locator("li")).to_have_count(4)
    expect(list_.locator("li").nth(1)).to_contain_text("Item 107")
    expect(list_.locator("li").nth(1)).to_contain_text("row 107 is bad")
    list_.scroll_into_view_if_needed()
    page.screenshot(path=SHOTS / "list.png")
    # The other states are paged.
    list_.get_by_role("button", name="396 done").click()
    expect(list_.locator("li")).to_have_count(20)
    list_.get_by_role("button", name="Next page").click()
    expect(list_.locator("li").first).to_contain_text("Item 21")
    list_.get_by_role("button", name="First page").click()
    expect(list_.locator("li").first).to_contain_text("Item 0")
    # The eighth square.
    grid.click(position={"x": 7 * 9 + 4, "y": 4})
    expect(page.locator(".facts", has_text="Part of")).to_contain_text(order)
    expect(page.locator(".sentence.bad")).to_contain_text("row 7 is bad")


def test_many_orders_are_acted_on_at_once(system, window):
    broken = in_error(system, 3)  # more would open the breaker
    page = window("#/orders?state=Error&workflow=parcel").page
    expect(rows(page)).to_have_count(3)
    page.keyboard.press("b")
    dialog = page.get_by_role("dialog", name="Act on all these orders?")
    expect(dialog).to_contain_text("All orders in state Error of workflow parcel")
    page.keyboard.type("the bank is back")
    for _ in range(5):  # the act, how many, how fast, the folded output
        page.keyboard.press("Tab")
    page.keyboard.type("ann")
    page.keyboard.press("Enter")
    act = dialog.get_by_role("button", name="Resubmit: 3 orders")
    expect(act).to_be_focused()
    expect(dialog).to_contain_text("Resubmit would apply to 3 orders.")
    assert {system.state(order) for order in broken} == {"Error"}, "nothing is done yet"

    # Another question is another look.
    page.select_option("#f-action", "skip")
    expect(act).to_have_count(0)
    page.select_option("#f-action", "retry-now")
    page.click("dialog button[type=submit]")
    expect(dialog).to_contain_text("Retry now would apply to 0 orders, but not to 3:")
    expect(dialog.locator(".left li")).to_contain_text("3: the order is in Error")
    expect(dialog.locator("button[type=submit]")).to_have_text("Preview")
    page.select_option("#f-action", "resubmit")
    page.fill("#f-limit", "2")
    page.click("dialog button[type=submit]")
    page.click("dialog button:has-text('Resubmit: 2 orders')")
    expect(page.locator(".toast")).to_have_text("The job has started.")
    # The page of the job, which the system carries out.
    expect(page.locator("h1")).to_have_text("resubmit: done")
    expect(page.locator(".facts")).to_contain_text("2 of 2, 2 accepted")
    page.click("nav a:has-text('Jobs')")
    expect(page.locator(".reasons li").first).to_contain_text("resubmit state Error, workflow parcel")
    page = window("#/orders?state=Error&workflow=parcel").page
    expect(rows(page)).to_have_count(1)
    [last] = on_page(page)
    for order in set(broken) - {last}:
        system.until(order, "Processed")

    # Each cause has a button of its own.
    page.locator(".reasons button").first.click()
    dialog = page.get_by_role("dialog", name="Act on all these orders?")
    expect(dialog).to_contain_text("with the error")
    page.keyboard.press("Escape")
    system.call("POST", f"/orders/{last}/actions/resubmit", {"by": "ann", "reason": "over"})
    system.until(last, "Processed")


def bulk_dialog(page, reason="the bank is back"):
    """“Act on all…”, with the reason and the name filled in."""
    expect(rows(page).first).to_be_visible()
    page.keyboard.press("b")
    dialog = page.get_by_role("dialog", name="Act on all these orders?")
    page.fill("#f-reason", reason)
    page.fill("#f-by", "ann")
    return dialog, dialog.locator("button[type=submit]")


def over(system, orders):
    for order in orders:
        system.call("POST", f"/orders/{order}/actions/resubmit", {"by": "ann", "reason": "the test is over"})
        system.until(order, "Processed")


def test_a_change_during_a_preview_is_previewed_anew(system, window):
    broken = in_error(system, 2)
    page = window("#/orders?state=Error&workflow=parcel", expected=[409]).page
    dialog, button = bulk_dialog(page)
    held, asked = [], []

    def hold(route):
        body = route.request.post_data_json if route.request.method == "POST" else {}
        asked.append((body, route.request.headers.get("idempotency-key")))
        held.append(route) if body.get("dry_run") and not held else route.fallback()

    page.route(re.compile(r"/jobs$"), hold)
    button.click()
    expect(button).to_be_disabled()
    until(lambda: page.wait_for_timeout(20) or held, "the preview is asked for")
    page.keyboard.press("Control+Enter")  # not twice
    page.select_option("#f-action", "skip")
    expect(button).to_have_text("Preview")
    expect(button).to_be_enabled()
    known = {job["job_id"] for job in system.call("GET", "/jobs")[1]["jobs"]}
    with page.expect_response(re.compile(r"/jobs/job_\w+/abort$")):
        held[0].fallback()
    [late] = [job for job in system.call("GET", "/jobs")[1]["jobs"] if job["job_id"] not in known]
    assert late["dry_run"] and late["action"] == "resubmit"
    expect(button).to_have_text("Preview")
    expect(dialog.locator(".told")).to_be_empty()
    button.click()
    expect(button).to_have_text("Skip: 2 orders")
    page.select_option("#f-action", "resubmit")
    button.click()
    expect(button).to_have_text("Resubmit: 2 orders")
    button.click()
    expect(page.locator("h1")).to_have_text("resubmit: done")
    assert [(body["action"], body.get("dry_run", False)) for body, _ in asked if body] == [("resubmit", True), ("skip", True), ("resubmit", True), ("resubmit", False)]
    for order in broken:
        system.until(order, "Processed")


# Under one key an API finds the first job, whatever the form says by then.
def test_every_preview_has_a_key_of_its_own(system, window):
    broken = in_error(system, 2)
    page = window("#/orders?state=Error&workflow=parcel", expected=[422, "net"]).page
    dialog, button = bulk_dialog(page)
    sent = []
    reused = {"type": "/problems/idempotency_key_reused", "title": "Key reused", "status": 422, "code": "idempotency_key_reused", "detail": "This key has started another job."}

    def answer(route):
        body = route.request.post_data_json if route.request.method == "POST" else None
        if not body or body.get("dry_run"):
            return route.fallback()
        sent.append((route.request.headers["idempotency-key"], body["limit"]))
        if len(sent) == 1:
            return route.abort()
        if len(sent) == 2:
            return route.fulfill(status=422, content_type="application/problem+json", body=json.dumps(reused))
        return route.fallback()

    page.route(re.compile(r"/jobs$"), answer)
    button.click()
    expect(button).to_have_text("Resubmit: 2 orders")
    button.click()
    expect(dialog.get_by_role("alert")).to_contain_text("The request may have taken effect")
    button.click()
    expect(dialog.get_by_role("alert")).to_have_text("This key has started another job.")
    page.fill("#f-limit", "1")
    button.click()
    expect(button).to_have_text("Resubmit: 1 order")
    button.click()
    expect(page.locator(".facts")).to_contain_text("1 of 1, 1 accepted")
    [first, again, other] = sent
    assert first == again and other[0] != first[0], "the same form is the same job, another form is another one"
    assert other[1] == 1
    over(system, [order for order in broken if system.state(order) == "Error"])


def test_a_preview_says_how_far_it_is_and_ends_with_its_dialog(system, window):
    broken = in_error(system)
    page = window("#/orders?state=Error&workflow=parcel").page
    dialog, button = bulk_dialog(page)
    looks, ends = [], []

    def slow(route):
        looks.append(route.request.url)
        told = route.fetch().json()
        route.fulfill(json={**told, "state": "gathering", "found": 6 + len(looks)})

    def end(route):
        ends.append((route.request.url, route.request.post_data_json))
        route.fulfill(json={})

    page.route(re.compile(r"/jobs/job_\w+$"), slow)
    page.route(re.compile(r"/jobs/job_\w+/abort$"), end)
    button.click()
    expect(dialog.get_by_role("status")).to_have_text("7 orders found so far…")
    expect(dialog.get_by_role("status")).to_have_text("8 orders found so far…")
    page.keyboard.press("Escape")
    until(lambda: page.wait_for_timeout(50) or ends, "the dry run is aborted")
    assert ends == [(f"{looks[0]}/abort", {"by": "ann", "reason": "The preview was closed or changed."})]
    count = len(looks)
    page.wait_for_timeout(1500)
    assert len(looks) == count, "no one asks for it any more"
    over(system, broken)


def test_all_results_of_a_job_are_read_page_by_page_with_few_requests(system, window):
    broken = in_error(system, 1)
    start = {"by": "ann", "reason": "a test", "action": "resubmit", "filter": {"state": "Error"}, "dry_run": True}
    status, job = system.call("POST", "/jobs", start, **{"idempotency-key": "sparse"})
    assert status in (200, 202), job
    name = job["job_id"]
    until(lambda: system.call("GET", f"/jobs/{name}")[1]["state"] == "done", "the dry run is over")
    one = window("#/jobs", expected=[500])
    page = one.page
    pages, busy = 5, {"state": "done"}

    def status_of(route):
        counts = {"good": 0, "failed": 2, "left_alone": 1 if busy["state"] == "done" else 2}
        route.fulfill(json={**job, **busy, "found": 5, "pages": pages, "counts": counts})

    def results(route):
        number = int(re.search(r"page=(\d+)", route.request.url)[1])
        if number == 1:
            problem = {"type": "/problems/unreadable", "title": "Unreadable", "status": 500, "code": "unreadable", "detail": "page 1 cannot be read"}
            return route.fulfill(status=500, content_type="application/problem+json", body=json.dumps(problem))
        rows = [{"order_id": broken[0], "outcome": "not_allowed", "why": f"reason {number}"}] if number % 2 == 0 else []
        route.fulfill(json={"results": rows, **({"next": number + 1} if number + 1 < pages else {})})

    page.route(re.compile(rf"/jobs/{name}$"), status_of)
    page.route(re.compile(rf"/jobs/{name}/results"), results)
    base = page.url.split("#")[0]
    page.goto(f"{base}#/jobs/{name}")
    expect(page.locator(".left li")).to_have_text([re.compile(f"^1: reason {n}") for n in (0, 2, 4)])
    expect(page.locator("main")).not_to_contain_text("read so far")
    expect(page.locator("main")).to_contain_text("Page 2 of the results cannot be read.")

    # A minute of a job that goes on, and of which not all can be found: the most that a page asks for.
    busy["state"] = "running"
    page.clock.install()
    page.reload()
    page.wait_for_selector(".left li")
    asked = []
    page.on("request", lambda request: asked.append(request.url) if "/console" not in request.url else None)
    for _ in range(120):
        page.clock.run_for(500)
        page.wait_for_timeout(30)
    expect(page.locator("main")).to_contain_text("3 of 4 read so far, up to page")
    assert 60 < len(asked) <= 100, len(asked)
    over(system, broken)


def test_a_cause_without_an_error_is_about_no_other_cause(system, window):
    broken = in_error(system)
    one = window("#/system")
    page = one.page

    def without(route):
        headers = {name: value for name, value in route.request.headers.items() if name != "if-none-match"}
        told = route.fetch(headers=headers).json()
        for cause in told["waiting"]["why"]:
            cause.pop("error", None)
        route.fulfill(json=told)

    page.route(re.compile(r"/overview$"), without)
    page.goto(page.url.split("#")[0] + "#/orders")
    page.keyboard.press("u")
    line = page.locator(".reasons li", has_text="charge").filter(has_text="no reason recorded")
    line.get_by_role("button", name="Act on all…").click()
    dialog = page.get_by_role("dialog", name="Act on all these orders?")
    expect(dialog).to_contain_text("without a recorded error")
    expect(dialog).to_contain_text("orders in which charge fails and orders in which its undo fails are both included")
    page.fill("#f-reason", "nobody knows")
    page.fill("#f-by", "ann")
    page.click("dialog button[type=submit]")
    expect(dialog).to_contain_text("Resubmit would apply to 0 orders.")
    page.keyboard.press("Escape")
    over(system, broken)


# What "resubmit" does to an order that is being undone is another thing, and said.
def test_a_failed_undo_is_tried_again_and_the_page_says_so(system, window):
    order = system.submit("parcel", "returned")
    system.until(order, "Processed")
    system.faults("payment", undo_fails=1.0)
    assert system.call("POST", f"/orders/{order}/actions/undo", {"by": "ann", "reason": "sent back"})[0] == 200
    system.until(order, "Error")
    system.faults("payment")
    page = window(f"#/orders/{order}").page
    page.click("#act-skip")
    expect(page.get_by_role("dialog", name="Skip the undo of charge?")).to_contain_text("what the step did stays as it is")
    page.keyboard.press("Escape")
    page.keyboard.press("r")
    dialog = page.get_by_role("dialog", name="Resubmit the undo of charge?")
    expect(dialog).to_contain_text("It does not go forward.")
    expect(dialog.locator("#f-input")).to_have_count(0)
    page.keyboard.type("the bank is back")
    page.fill("#f-by", "ann")
    page.keyboard.press("Enter")
    system.until(order, "Undone")


def test_the_axis_of_a_timeline_has_elapsed_time_and_times_of_day(system, window):
    order = system.submit("order", "timed")
    system.until(order, "Processed")
    page = window(f"#/orders/{order}").page
    axis = page.locator(".timeline .tick")
    expect(axis.filter(has_text=re.compile("^elapsed$"))).to_have_count(1)
    expect(axis.filter(has_text=re.compile(r"^\+[\d.]+ m?s$")).first).to_be_visible()
    clocks = page.locator(".timeline .clock")
    accepted = page.locator(".log time").last.text_content().split(".")[0]
    expect(clocks.first).to_have_text(accepted)
    boxes = [clocks.nth(n).bounding_box() for n in range(clocks.count())]
    drawn = page.locator(".timeline").bounding_box()
    assert len(boxes) >= 2 and all(box["x"] >= drawn["x"] and box["x"] + box["width"] <= drawn["x"] + drawn["width"] + 1 for box in boxes), boxes


def test_text_of_an_order_never_becomes_code(system, window):
    customer = {"id": HOSTILE, "company": HOSTILE, "contact": HOSTILE, "phone": HOSTILE}
    ship_to = {name: HOSTILE for name in ("name", "address", "city", "region", "postal_code", "country")}
    lines = [{**line, "product": HOSTILE} for line in system.inputs[0]["lines"]]
    [order] = in_error(system, order_ref=HOSTILE, customer=customer, ship_to=ship_to, lines=lines)
    named = system.submit("parcel", HOSTILE, order_ref=HOSTILE, customer=customer, ship_to=ship_to, lines=lines)
    for one in (order, named):
        status, told = system.call("POST", f"/orders/{one}/actions/undo", {"by": HOSTILE[:90], "reason": HOSTILE})
        assert status == 200 or told["code"] == "not_allowed", told
    system.call("POST", "/agents/noop/pause", {"by": HOSTILE[:90], "reason": HOSTILE})
    page = window().page
    is_settled(page)
    expect(page.locator(".ref", has_text="<script>")).to_have_count(1)
    for one in (order, named):
        page.goto(page.url.split("#")[0] + f"#/orders/{one}")
        expect(page.locator(".log")).to_contain_text("<script>alert(1)</script>")
        page.click("summary:has-text('Input')")
        expect(page.locator("pre").last).to_contain_text("<img src=x")
    page.goto(page.url.split("#")[0] + "#/system")
    expect(page.locator("table").first).to_contain_text("<script>alert(1)</script>")
    page.goto(page.url.split("#")[0] + f"#/orders?workflow={'%3Cscript%3E'}&reference=%22%3E%3Cimg%20src=x%20onerror=alert(4)%3E")
    expect(page.locator(".list .nothing")).to_contain_text("matches")
    assert page.locator("main script, main img").count() == 0
    system.call("POST", "/agents/noop/resume", {"by": "ann", "reason": "over"})


def test_what_is_hidden_in_text_is_shown_as_escapes(system, window):
    hidden = "a\u202egpj\u2066b\u200fc\u061cd\u2028e\ufefff\u009bg\u001b[2Jh"
    shown = re.sub(r"[^ -~]", lambda found: f"\\u{ord(found[0]):04x}", hidden)
    [order] = in_error(system, order_ref=hidden, customer={**system.inputs[0]["customer"], "company": hidden})
    named = system.submit("parcel", hidden, number=1, order_ref=hidden)
    system.call("POST", f"/orders/{order}/actions/undo", {"by": hidden[:40], "reason": hidden})
    system.call("POST", "/agents/noop/pause", {"by": hidden[:40], "reason": hidden})
    page = window().page
    is_settled(page)
    expect(page.locator(".ref", has_text=shown)).to_have_count(1)
    for one in (order, named):
        page.goto(page.url.split("#")[0] + f"#/orders/{one}")
        page.wait_for_selector(".log")
        page.click("summary:has-text('Input')")
        expect(page.locator("pre").last).to_contain_text("company")
        expect(page.locator("pre").last).to_contain_text("\\u202e")
        assert not acts_on_text(page)
    expect(page.locator("main")).to_contain_text(shown)
    page.goto(page.url.split("#")[0] + "#/system")
    expect(page.locator("table").first).to_contain_text(shown)
    assert not acts_on_text(page)
    system.call("POST", "/agents/noop/resume", {"by": "ann", "reason": "over"})


def acts_on_text(page):
    """Characters anywhere in the page, its title and its tooltips included, that act on the text around them."""
    text = page.evaluate("""() => document.title + document.body.innerText
        + [...document.querySelectorAll("[title], [aria-label]")].map((one) => one.title + one.ariaLabel).join("")""")
    return re.findall("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff]", text)


def test_an_order_that_does_not_exist_is_said_to_be_none(window):
    one = window("#/orders/ord_zzzzzzzzzzzzzzzzzzzzzzzzzz", expected=[404])
    expect(one.page.locator("[role=alert]")).to_contain_text("There is no order with this id")
    one.page.keyboard.press("Escape")
    is_settled(one.page)


def test_two_thousand_orders_are_paged_searched_and_filtered(system, window):
    ids = system.submit_many(2000)
    page = window("#/orders?workflow=noop").page
    is_settled(page)
    seen = []
    for n in range(3):
        expect(rows(page)).to_have_count(50)
        until(lambda: not set(on_page(page)) & set(seen), f"page {n} is another one")
        seen += on_page(page)
        page.keyboard.press("n")
    assert len(set(seen)) == 150
    until(lambda: not set(on_page(page)) & set(seen), "the fourth page")
    page.keyboard.press("p")
    until(lambda: on_page(page) == seen[100:150], "the third page again")
    # By keys: the seventh row.
    page.keyboard.press("Escape")
    for _ in range(7):
        page.keyboard.press("j")
    expect(rows(page).nth(6)).to_be_focused()
    page.keyboard.press("k")
    expect(rows(page).nth(5)).to_be_focused()

    page.keyboard.press("/")
    page.keyboard.type("many-1234")
    expect(rows(page)).to_have_count(1)
    expect(rows(page)).to_contain_text("many-1234")
    page.keyboard.press("Control+a")
    page.keyboard.type(ids[7])
    expect(page.locator("h1")).to_have_text(ids[7])
    page.go_back()
    page.goto(page.url.split("#")[0] + "#/orders?tenant=nobody")
    expect(page.locator(".list .nothing")).to_be_visible()
    page.fill("#f-tenant", "default")
    page.keyboard.press("Enter")
    expect(rows(page)).to_have_count(50)
    page.fill("#f-from", "2099-01-01T00:00")
    expect(page.locator(".list .nothing")).to_have_text("No order matches.")
    page.click("text=Clear")
    expect(rows(page)).to_have_count(50)
    until(lambda: not system.call("GET", "/overview")[1]["open"]["count"], "all orders ended")


def on_page(page):
    return [href.removeprefix("#/orders/") for href in rows(page).evaluate_all("all => all.map((a) => a.getAttribute('href'))")]


def test_the_list_is_live_and_keeps_the_focus(system, window):
    system.submit("order", "before")
    page = window().page
    is_settled(page)
    page.keyboard.press("j")
    focused = page.evaluate("document.activeElement.getAttribute('href')")
    new = system.submit("order", "after")
    expect(page.locator(f"#list a[href='#/orders/{new}']")).to_be_visible()
    assert page.evaluate("document.activeElement.getAttribute('href')") == focused


def test_nothing_that_did_not_change_is_sent_again(system, window):
    one = window()
    statuses = []
    one.page.on("response", lambda answer: statuses.append(answer.status) if "/orders?" in answer.url else None)
    is_settled(one.page)
    until(lambda: one.page.wait_for_timeout(200) or statuses[-2:] == [304, 304], "unchanged lists are answered by 304")


def test_it_says_when_it_is_cut_off_and_comes_back(window):
    one = window()
    is_settled(one.page)
    one.expected = ["net"]
    one.context.set_offline(True)
    one.page.keyboard.press("u")
    expect(one.page.locator("#top .pill")).to_contain_text("Disconnected")
    expect(one.page.locator(".list [role=alert]")).to_contain_text("cannot be reached")
    one.context.set_offline(False)
    one.page.keyboard.press("u")
    expect(one.page.locator("#top .pill")).to_have_text("Live")
    expect(one.page.locator(".list [role=alert]")).to_have_count(0)


def test_an_agent_is_paused_and_resumed(system, window):
    page = window("#/system").page
    page.click("[aria-label='Pause shipping']")
    page.fill("#f-reason", "its provider is upgraded")
    page.fill("#f-by", "ann")
    page.keyboard.press("Enter")
    expect(page.locator("tr", has_text="shipping").first).to_contain_text("Paused by ann")
    assert [a["paused"]["by"] for a in system.call("GET", "/agents")[1]["agents"] if a["name"] == "shipping"] == ["ann"]
    expect(page.locator("#top .badge").last).to_have_text("1")
    page.click("[aria-label='Resume shipping']")
    page.fill("#f-reason", "done")
    page.keyboard.press("Enter")
    expect(page.locator("[aria-label='Pause shipping']")).to_be_visible()


def test_the_last_hour_is_charted(system, window):
    [broken] = in_error(system, number=11)
    page = window("#/system").page
    hour = page.locator("section[aria-label='Last hour']")
    error = hour.locator(".legend li", has_text="Error")
    expect(error.locator("b")).not_to_have_text("0")
    expect(hour.locator("svg[role=img]").first).to_have_attribute("aria-label", re.compile("^Ends in the last hour. Processed: .*, Undone: .*, Error: [1-9]"))
    expect(hour.locator("figure", has_text="Failed attempts")).to_contain_text("payment")
    assert "NaN" not in hour.inner_html()
    system.call("POST", f"/orders/{broken}/actions/undo", {"by": "ann", "reason": "the test is over"})
    system.until(broken, "Undone")


def test_poison_is_shown_and_moved_back(system, window):
    system.send("agent-payment-dead", "no request")
    system.send("scheduler", "no message")
    page = window("#/system").page
    expect(page.locator(".brief")).to_contain_text("1 dead letter of agent-payment")
    expect(page.locator(".brief")).to_contain_text("1 message set aside")
    page.click("[aria-label='Move back, agent-payment']")
    page.fill("#f-reason", "mended")
    page.fill("#f-by", "ann")
    page.click("dialog button[type=submit]")
    expect(page.locator(".toast")).to_have_text("1 message moved back.")
    # It was no request, so the agent puts it with the other one.
    expect(page.locator(".brief")).not_to_contain_text("dead letter of")
    expect(page.locator(".brief")).to_contain_text("2 messages set aside")
    page.click("[aria-label='Move back, set-aside']")
    expect(page.locator("dialog .left li")).to_have_count(2)
    expect(page.locator("dialog .left")).to_contain_text("scheduler")
    page.fill("#f-reason", "once more")
    page.click("dialog button[type=submit]")
    expect(page.locator(".toast")).to_have_text("2 messages moved back.")


def guarded(system, one, wanted):
    """The API asks for the token `wanted`, in place of the system's own. What it was sent."""
    sent = []

    def check(route):
        got = route.request.headers.get("authorization")
        sent.append(got)
        if got == f"Bearer {wanted}":
            return route.fallback(headers={**route.request.headers, "authorization": f"Bearer {system.token}"})
        body = {"type": "/problems/unauthorized", "title": "A token is needed", "status": 401, "code": "unauthorized", "detail": "send a token"}
        return route.fulfill(status=401, headers={"www-authenticate": "Bearer"}, content_type="application/problem+json", body=json.dumps(body))

    one.context.route(re.compile(r":\d+/(orders|details|overview|queues|agents|leases|charts|workflows|jobs)"), check)
    return sent


def test_a_token_is_asked_for_and_kept_in_the_tab(system, window):
    page = window("#/system", signed_in=False, expected=[401]).page
    dialog = page.get_by_role("dialog", name="Sign in")
    expect(dialog).to_be_visible()
    page.fill("#token", "wrong")
    page.keyboard.press("Enter")
    expect(dialog).to_contain_text("does not accept this token")
    page.fill("#token", system.token)
    page.keyboard.press("Enter")
    expect(dialog).to_have_count(0)
    expect(page.locator("#top .pill")).to_have_text("Live")
    page.reload()
    expect(page.locator("#top .pill")).to_have_text("Live")
    page.click("text=Sign out")
    expect(dialog).to_contain_text("You signed out")


def test_a_token_in_the_address_is_taken_and_removed_at_once(system, window):
    one = window(signed_in=False, expected=[401])
    sent = guarded(system, one, "right & long")
    base = one.page.url.split("#")[0]
    one.page.goto("about:blank")
    sent.clear()
    one.page.goto(f"{base}#token=right%20%26%20long&/system")
    expect(one.page.locator("#top .pill")).to_have_text("Live")
    assert one.page.url == f"{base}#/system"
    assert set(sent) == {"Bearer right & long"}
    assert one.page.evaluate("[localStorage.length, sessionStorage.length, document.cookie]") == [0, 1, ""]


# A person with the sign-in page before them pastes the link that `up` printed: nothing is loaded anew.
def test_a_link_with_a_token_signs_in_within_an_open_tab(system, window):
    one = window(signed_in=False, expected=[401])
    page = one.page
    sent = guarded(system, one, "right")
    dialog = page.get_by_role("dialog", name="Sign in")
    expect(dialog).to_be_visible()
    page.evaluate("window.isThePage = true")
    base = page.url.split("#")[0]
    page.goto(f"{base}#token=wrong")
    until(lambda: page.wait_for_timeout(100) or "Bearer wrong" in sent, "the first token is tried")
    expect(dialog).to_contain_text("does not accept this token")
    # The one before was refused, so nothing is asked.
    page.goto(f"{base}#token=right&/system")
    expect(dialog).to_have_count(0)
    expect(page.locator("#top .pill")).to_have_text("Live")
    expect(page.locator("section[aria-label=Agents] th[scope=row]").first).to_be_visible()
    assert page.url == f"{base}#/system"
    assert page.evaluate("window.isThePage") is True


def test_keys_are_explained_and_everything_is_reached_by_tab(system, window):
    page = window().page
    is_settled(page)
    page.keyboard.press("?")
    expect(page.get_by_role("dialog", name="Keys")).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.get_by_role("dialog")).to_have_count(0)
    page.keyboard.press("g")
    page.keyboard.press("s")
    expect(page).to_have_url(re.compile("#/system$"))
    page.keyboard.press("g")
    page.keyboard.press("o")
    is_settled(page)
    wanted = set(page.evaluate("[...document.querySelectorAll('a[href], button:not(:disabled), input, select, summary')].filter((e) => e.checkVisibility()).map((e) => e.outerHTML)"))
    reached = set()
    for _ in range(300):
        page.keyboard.press("Tab")
        reached.add(page.evaluate("document.activeElement.outerHTML"))
        ring = page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
        assert ring != "none" or page.evaluate("document.activeElement === document.body"), page.evaluate("document.activeElement.outerHTML")
        if wanted <= reached:
            return
    # Ages are text of rows and change meanwhile.
    aged = r"<time.*?</time>|since [^<]*"
    missing = {re.sub(aged, "", one) for one in wanted} - {re.sub(aged, "", one) for one in reached}
    assert not missing, missing


CONTRAST = """() => {
  const rgb = (text) => (text.match(/[\\d.]+/g) ?? []).map(Number);
  const light = ([r, g, b]) => [r, g, b].map((c) => c / 255).map((c) => (c <= 0.03928 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4)).reduce((sum, c, n) => sum + c * [0.2126, 0.7152, 0.0722][n], 0);
  const behind = (e) => { for (let at = e; at; at = at.parentElement) { const c = rgb(getComputedStyle(at).backgroundColor); if (c.length === 3 || c[3] === 1) return c; } return rgb(getComputedStyle(document.body).backgroundColor); };
  const bad = [];
  for (const e of document.querySelectorAll("#top *, main *, dialog *")) {
    const own = [...e.childNodes].some((kid) => kid.nodeType === 3 && kid.data.trim());
    if (!own || !e.checkVisibility() || e.closest("button:disabled, svg, .hidden")) continue;
    const [a, b] = [light(rgb(getComputedStyle(e).color)), light(behind(e))];
    const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    if (ratio < 4.5) bad.push(`${ratio.toFixed(2)} ${e.outerHTML.slice(0, 120)}`);
  }
  return bad;
}"""


@pytest.mark.parametrize("name,width,height", SCHEMES)
def test_it_can_be_read_in_light_and_dark_and_on_a_phone(system, window, name, width, height):
    system.faults("payment", outage=True)
    orders = [system.submit("parcel", f"NW-{10300 + n}", number=50 + n) for n in range(3)]
    stuck = [system.submit("patient", f"NW-{10310 + n}", number=60 + n) for n in range(2)]
    for order in orders:
        system.until(order, "Error")
    system.faults("payment")
    [system.submit("order", f"NW-{10248 + n}", number=n) for n in range(8)]
    system.call("POST", f"/orders/{orders[0]}/actions/resubmit", {"by": "ann", "reason": "the bank is back"})
    system.until(orders[0], "Processed")
    one = window(color_scheme="dark" if name == "dark" else "light", reduced_motion="reduce")
    page = one.page
    page.set_viewport_size({"width": width, "height": height})
    is_settled(page)
    base = page.url.split("#")[0]
    views = [("orders", "#/orders", ".list:not([aria-busy]) #list li"), ("error", f"#/orders/{orders[1]}", ".graph"), ("done", f"#/orders/{orders[0]}", ".timeline .bar"), ("stuck", f"#/orders/{stuck[0]}", ".timeline .bar"), ("workflows", "#/workflows", "main tbody tr"), ("workflow", "#/workflows/parcel", ".graph"), ("system", "#/system", ".chart .legend")]
    for view, path, there in views:
        page.goto(base + path)
        page.wait_for_selector(there)
        one.shot(f"{name}-{view}", full_page=view != "orders")
        assert page.evaluate("document.documentElement.scrollWidth") <= width, f"{view} is wider than the screen"
        assert page.evaluate(CONTRAST) == [], view
    page.goto(base + f"#/orders/{orders[1]}")
    page.click("#act-resubmit")
    assert page.evaluate(CONTRAST) == []
    one.shot(f"{name}-dialog")
    page.keyboard.press("Escape")
    assert page.evaluate("document.getAnimations().length") == 0
    for order in [*orders[1:], *stuck]:
        system.call("POST", f"/orders/{order}/actions/undo", {"by": "ann", "reason": "the test is over"})
        system.until(order, "Undone")


def test_files_are_asked_for_again_and_answered_by_304(system, window):
    page = window().page
    is_settled(page)
    told = page.evaluate("""async () => {
      const first = await fetch('console/app.js', { cache: 'no-store' });
      const again = await fetch('console/app.js', { cache: 'no-store', headers: { 'if-none-match': first.headers.get('etag') } });
      return [first.status, first.headers.get('cache-control'), first.headers.get('x-content-type-options'), again.status];
    }""")
    assert told == [200, "no-cache", "nosniff", 304]
    page.goto(page.url.split("#")[0].rstrip("/") + "/")
    is_settled(page)
    assert page.url.split("#")[0].endswith("/console")


# Last, because it leaves a breaker open for a while: what opened it is said in the order, on the first view and under System.
def test_what_opened_a_breaker_is_said_wherever_it_holds_an_order_back(system, window):
    system.faults("payment", outage=True)
    orders = [system.submit("order", f"held-{n}", number=n) for n in range(4)]
    held = lambda: system.call("GET", "/overview")[1]["breakers"].get("payment")
    until(held, "the breaker is open")
    one = window()
    page = one.page
    expect(page.locator(".brief")).to_contain_text("payment: breaker open")
    expect(page.locator(".brief")).to_contain_text("calls in a row failed, the last one: 503")
    page.goto(page.url.split("#")[0] + "#/system")
    expect(page.locator(".brief")).to_contain_text("calls in a row failed, the last one: 503")
    expect(page.locator("section[aria-label=Agents] tr", has_text="payment").first).to_contain_text("Breaker open")
    one.shot("breaker-system", full_page=True)
    until(lambda: held() and page.goto(page.url.split("#")[0] + f"#/orders/{held()['order_id']}") is None and page.locator(".sentence", has_text="charge is held back").count(), "the order says so")
    expect(page.locator(".log")).to_contain_text("the circuit breaker of payment is open: 10 calls in a row failed, the last one: 503")
    one.shot("breaker-order", full_page=True)
    system.faults("payment")
    for order in orders:
        system.call("POST", f"/orders/{order}/actions/cancel", {"by": "ann", "reason": "the test is over"})
        until(lambda: system.state(order) in ("Processed", "Undone"), f"{order} has ended")


# What new orders get is shown with its graph and its changes, and is taken back with a reason.
def test_a_workflow_is_shown_and_rolled_back(system, window):
    change = {"by": "ann", "reason": f"two steps {HOSTILE}"}
    step = '[[step]]\nname = "%s"\nafter = [%s]\nagent = "noop"\ntimeout = "9s"\n'
    when = 'when = "input.a == \'<b>\'"\n'
    texts = ['name = "tale"\n' + step % ("one", ""), 'name = "tale"\n' + step % ("one", "") + step % ("two", '"one"') + when]
    hashes = []
    for version, toml in enumerate(texts):
        status, put = system.call("POST", "/workflows", {**change, "toml": toml})
        assert status == 200, put
        hashes.append(put["hash"])
        body = {**change, "hash": put["hash"], "if_version": version}
        assert system.call("POST", "/workflows/tale/activate", body)[0] == 200
    one = window()
    one.expected = [409]
    page = one.page
    is_settled(page)
    page.keyboard.press("g")
    page.keyboard.press("w")
    expect(page.locator("main tr", has_text="tale")).to_contain_text(hashes[1])
    expect(page.locator("main tr", has_text="parcel")).to_contain_text("the deployment")
    page.click("main a:has-text('tale')")
    expect(page.locator("svg.graph")).to_have_attribute("aria-label", "one: noop; two after one: noop")
    expect(page.locator("[aria-label=Steps]")).to_contain_text("input.a == '<b>'")
    expect(page.locator("[aria-label=Changes] tbody tr")).to_have_count(2)
    expect(page.locator("[aria-label=Changes]")).to_contain_text(HOSTILE)
    page.click("#act-rollback")
    page.fill("#f-reason", "it was too slow")
    page.fill("#f-by", "bob")
    page.click("dialog button[type=submit]")
    expect(page.locator(".toast")).to_contain_text(f"New orders of tale get {hashes[0]}.")
    expect(page.locator("[aria-label=Changes]")).to_contain_text("it was too slow")
    assert system.call("GET", "/workflows/tale")[1]["hash"] == hashes[0]
    # Somebody else was faster.
    page.locator("[aria-label=Changes] button").first.click()
    assert system.call("POST", "/workflows/tale/retire", {**change, "if_version": 3})[0] == 200
    page.fill("#f-reason", "again")
    page.click("dialog button[type=submit]")
    expect(page.locator("dialog [role=alert]")).to_contain_text("ann")
    page.keyboard.press("Escape")
    expect(page.locator("main")).to_contain_text("It takes no orders.")
