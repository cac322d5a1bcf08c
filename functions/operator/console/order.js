// An order: where it stands and why, what a person can do, its graph, its timeline, its steps, what happened.

import { h, show } from "./dom.js";
import { get, now, Poll } from "./api.js";
import { ago, clock, event, label, many, prose, span, when } from "./words.js";
import { say } from "./dialog.js";
import { act, ACTS, more, sendEvent } from "./acts.js";
import { graph } from "./graph.js";
import { timeline } from "./timeline.js";
import { counts, List } from "./items.js";

const block = (title, ...kids) => h("section", { class: "block", "aria-label": title }, h("h2", {}, title), kids);
const json = (value) => h("pre", { class: "mono", tabindex: 0 }, JSON.stringify(value, null, 2));

/** Where the order stands, in a sentence or two. */
function words({ order, history, plan }) {
  const failed = order.steps.filter((step) => step.state === "Failed" || step.state === "UndoFailed");
  const waits = order.steps.filter((step) => step.next_attempt_at && Date.parse(step.next_attempt_at) > now());
  const late = order.steps.filter((step) => step.complete_by && Date.parse(step.complete_by) < now());
  const lines = [];
  if (order.paused_at) lines.push(["pause", "Paused", `since ${when(order.paused_at).textContent}${by(history, "paused")}. No new step starts until somebody resumes it.`]);
  if (order.deadline && !order.paused_at) lines.push(["", "The deadline of this order", `is ${when(order.deadline).textContent}.`]);
  if (order.state === "Error") {
    lines.push(["bad", "This order waits for a person", order.reason ?? failed.map((step) => `${step.name}: ${step.last_error}`).join("; ")]);
    if (order.alert_owed) lines.push(["warn", "The alert to the operators", "has not been sent yet."]);
  } else if (order.reason) lines.push([order.state === "Undoing" ? "undo" : "undone", order.state === "Undone" ? "Undone because" : "Undoing because", order.reason]);
  if (order.running_again?.length) lines.push(["undo", "This order runs again", `from ${order.running_again.join(", ")}. What these steps did is undone first.`]);
  if (order.migrating_to) lines.push(["", "This order moves", `to the definition ${order.migrating_to} once no step is with an agent and no request can start any more.`]);
  if (order.erased_at) lines.push(["undone", "The data of this order was erased", `at ${clock(order.erased_at)}.`]);
  if (order.undo_from) lines.push(["undo", "The undo begins", `at ${clock(order.undo_from)}. Until then, an earlier request may still take effect, and an undo before that would leave the effect in place.`]);
  for (const step of order.paused_at ? [] : order.steps.filter((one) => one.waiting_until)) {
    const missing = step.missing === undefined ? "" : `, ${step.missing} missing`;
    const reminders = step.reminders ? ` ${many(step.reminders, "reminder")} sent.` : "";
    const next = step.next_reminder_at ? ` The next reminder goes out at ${when(step.next_reminder_at).textContent}.` : "";
    lines.push(["", `${step.name} ${step.wait}${missing}`, `since ${when(step.waiting_since).textContent}. The wait ends at ${when(step.waiting_until).textContent}.${reminders}${next}`]);
  }
  for (const step of order.steps.filter((one) => one.progress?.at)) {
    const { at, percent, note } = step.progress;
    const far = percent === undefined ? "is being worked on" : `is at ${percent} %`;
    lines.push(["", `${step.name} ${far}`, `as its agent said ${ago(at)} ago${note ? `: ${note}` : ""}.`]);
  }
  for (const step of order.steps.filter((one) => one.pages && ["Pending", "Processing"].includes(one.state))) {
    lines.push(["", `${step.name} collects pages`, `and has ${collected(step.pages)} so far.`]);
  }
  if (order.state !== "Error") {
    for (const step of order.steps.filter((one) => one.last_error && !["Processed", "Undone", "Skipped", "Caught"].includes(one.state))) {
      const most = plan.find((one) => one.step === step.name)?.max_failures;
      const next = waits.includes(step) ? ` Next attempt in ${span(Date.parse(step.next_attempt_at) - now())}.` : step.complete_by ? " Another attempt is in progress." : "";
      if (step.held_back) {
        lines.push(["warn", `${step.name} is held back`, `${step.last_error}.${next} This does not count as a failure.`]);
        continue;
      }
      lines.push(["warn", `${step.name} failed ${step.undo_failures || step.failures}${step.undo_failures ? "" : ` of ${most}`} times`, `${step.last_error}.${next}`]);
    }
  }
  for (const step of order.paused_at ? [] : late) lines.push(["warn", `${step.name} is late`, "its CompleteBy has passed; the supervisor ends this attempt at its next sweep."]);
  return lines;
}

/** `300 items on 2 pages`. */
const collected = ({ items, taken }) => `${many(items, "item")} on ${many(taken, "page")}`;

function by(history, name) {
  const last = history.findLast((entry) => entry.event === name);
  return last?.detail ? ` (${last.detail})` : "";
}

function facts({ order }) {
  const rows = [
    ["Workflow", h("span", { title: `definition ${order.workflow_hash}` }, order.workflow)],
    ["Part of", order.parent ? h("a", { href: `#/orders/${encodeURIComponent(order.parent.order_id)}`, class: "mono" }, order.parent.order_id) : null],
    ["Tenant", order.tenant],
    ["Reference", order.reference],
    ["Labels", order.labels?.join(", ")],
    ["Priority", order.priority === "normal" ? null : order.priority],
    ["Accepted", [when(order.created_at), " · ", ago(order.created_at), " ago"]],
    ["Changed", [when(order.updated_at), " · ", ago(order.updated_at), " ago"]],
    ["Took", ["Processed", "Undone"].includes(order.state) ? span(Date.parse(order.updated_at) - Date.parse(order.created_at)) : null],
    ["Failures", order.failure_count || null],
    ["CompleteBy", order.complete_by ? when(order.complete_by, true) : null],
    ["LockedBy", order.locked_by ? h("span", { class: "mono" }, order.locked_by) : null],
    ["Output", order.output === undefined ? null : json(order.output)],
    ["Version", String(order.version)],
  ];
  return h("dl", { class: "facts" }, rows.filter(([, value]) => value).map(([name, value]) => h("div", {}, h("dt", {}, name), h("dd", {}, value))));
}

function buttons(details, done) {
  const fits = details.acts.filter((one) => one.fits);
  const others = details.acts.filter((one) => !one.fits);
  const button = (one) => h("button", { "data-key": one.act, id: `act-${one.act}`, class: ACTS[one.act].danger ? "danger" : ACTS[one.act].main ? "primary" : null, onclick: () => act(one.act, details, done) }, ACTS[one.act].name);
  const order = Object.keys(ACTS);
  const own = more(details);
  fits.sort((a, b) => order.indexOf(a.act) - order.indexOf(b.act));
  return h(
    "div",
    { class: "acts", role: "group", "aria-label": "Actions" },
    fits.map(button),
    details.order.steps.filter((step) => step.event && step.waiting_until).map((step) => h("button", { "data-key": `event-${step.name}`, id: `event-${step.name}`, onclick: () => sendEvent(step, details, done) }, `Send ${step.event}…`)),
    own.map((one) => h("button", { "data-key": one.name, id: `act-${one.name}`, class: one.danger ? "danger" : null, onclick: () => one.open(details, done) }, one.label)),
    others.length > 0 && h("details", { class: "others" }, h("summary", {}, fits.length + own.length ? "Why not the others" : "Why no action is possible"), h("ul", {}, others.map((one) => h("li", {}, h("strong", {}, ACTS[one.act].name), ` ${one.why ?? "not possible"}`)))),
  );
}

function child(step) {
  // Calls for items are orders whose definition has a name that no file can have.
  const isCall = step.workflow.includes(".");
  if (step.items) {
    return `${step.items.total} ${isCall ? "calls" : `orders of ${step.workflow}`}: ${counts(step.items)}`;
  }
  const name = isCall ? "a call for each item" : `an order of ${step.workflow}`;
  return step.child ? h("a", { href: `#/orders/${encodeURIComponent(step.child)}` }, name) : name;
}

function steps({ order, plan }) {
  const one = (step) => {
    const bounds = plan.find((p) => p.step === step.name);
    const next = step.next_attempt_at ? ["next attempt ", when(step.next_attempt_at)] : step.complete_by ? ["complete by ", when(step.complete_by, true)] : step.waiting_until ? ["waits until ", when(step.waiting_until)] : null;
    return h(
      "li",
      { "data-key": step.name, class: "step" },
      h("span", { class: "c-state" }, label(step.state, step.last_error !== null)),
      h("span", { class: "name" }, h("strong", {}, step.name), h("small", {}, !step.agent ? (step.workflow ? child(step) : prose(step.wait ?? "calls nothing")) : `${step.agent} · ${span(bounds.timeout_ms)} each${bounds.irreversible ? " · cannot be undone" : bounds.undo_timeout_ms === undefined ? " · nothing to undo" : ""}`)),
      h("span", { class: "tries" }, step.attempts ? many(step.attempts, "attempt") : step.agent && "not tried", step.failures || step.undo_failures ? h("small", {}, many(step.failures + step.undo_failures, "failure")) : null, step.effects_stay ? h("small", {}, "no undo, so any effect stays") : null),
      h("span", { class: "what" }, next && h("small", {}, next), step.pages && h("small", {}, collected(step.pages)), step.passed_over && h("small", {}, prose(step.passed_over)), step.last_error && h("span", { class: "wrong" }, prose(step.last_error)),
        step.output !== null && h("details", {}, h("summary", {}, "Output"), json(step.output)),
        step.output_bytes && h("small", {}, `An output of ${step.output_bytes} bytes. To see it: `, h("code", {}, `stepwarden get ${order.order_id} --output ${step.name}`)),
        bounds.input !== undefined && h("details", {}, h("summary", {}, "Input from an operator"), json(bounds.input))),
    );
  };
  return h("ol", { class: "steps" }, order.steps.map(one));
}

function log({ history }) {
  const start = Date.parse(history[0]?.at);
  const one = (entry, n) => {
    const { words: what, looks } = event(entry.event);
    return h(
      "li",
      { "data-key": `${n}-${entry.at}`, class: looks },
      h("time", { datetime: entry.at, title: entry.at, class: "mono" }, when(entry.at, true).textContent),
      h("span", { class: "mono since" }, `+${span(Date.parse(entry.at) - start)}`),
      h("span", {}, h("span", { class: `mark ${looks}`, "aria-hidden": "true" }), entry.step && h("strong", {}, entry.step, " "), what, entry.attempt > 1 && entry.event.endsWith("started") ? ` (attempt ${entry.attempt})` : "", entry.detail && h("span", { class: "detail" }, prose(entry.detail))),
    );
  };
  return h("ol", { class: "log" }, history.map(one).reverse());
}

/** One order. */
export function order(app, _, id) {
  const view = { title: id, polls: [], keys: { r: () => document.getElementById("act-resubmit")?.click() } };
  const poll = new Poll(2000, (signal) => get(`/details/${encodeURIComponent(id)}`, signal), app.render);
  view.polls = [poll];
  const lists = new Map();

  function items(step) {
    if (!lists.has(step.name)) {
      lists.set(step.name, new List(id, step.name, app.render));
      view.polls.push(lists.get(step.name).poll);
    }
    return block(`Items of ${step.name}`, lists.get(step.name).show(step.items, app.main.clientWidth));
  }

  async function copy() {
    await navigator.clipboard?.writeText(id);
    say("Id copied.");
  }

  view.render = () => {
    const details = poll.last;
    const back = h("a", { href: "#/orders", class: "back" }, "‹ Orders");
    const heading = h("h1", { class: "mono" }, id);
    if (!details) {
      const none = poll.error?.status === 404;
      const why = none ? "There is no order with this id. It may have been removed after the retention time. Check the id, or search by reference." : poll.error?.message;
      show(app.main, back, h("div", { class: "title" }, heading), h("p", { class: poll.error ? "wrong" : "nothing", role: poll.error ? "alert" : null }, why ?? "Loading…"));
      return;
    }
    const done = () => app.refresh();
    show(
      app.main,
      back,
      h("div", { class: "title" }, label(details.order.state, details.order.failure_count > 0), details.order.paused_at && label("Paused"), heading, h("button", { class: "quiet", onclick: copy }, "Copy id")),
      poll.error && h("p", { class: "wrong", role: "alert" }, poll.error.message),
      h("div", { class: "sentences" }, words(details).map(([looks, what, why]) => h("p", { class: `sentence ${looks}` }, h("strong", {}, prose(what)), " ", prose(why)))),
      buttons(details, done),
      facts(details),
      block("Graph", graph(details)),
      block("Timeline", timeline(details, app.main.clientWidth)),
      block("Steps", steps(details)),
      details.order.steps.filter((step) => step.items).map(items),
      h("section", { class: "block" }, h("details", {}, h("summary", {}, h("h2", {}, "Input")), json(details.input))),
      block("History", log(details)),
    );
  };
  return view;
}
