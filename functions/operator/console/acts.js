// What a person can do to an order: each action with what it does in words, and its dialog. Which ones fit, the API says.

import { h } from "./dom.js";
import { post, Refused, Written } from "./api.js";
import { ask } from "./dialog.js";
import { prose, when } from "./words.js";

export const ACTS = {
  resubmit: { name: "Resubmit", main: true, done: "Resubmitted", undo: "The failed undo is retried with all its attempts, and the order continues to be undone. It does not go forward.", what: "The order continues from its failed steps. Each of them gets all its attempts again; finished steps stay finished." },
  "retry-now": { name: "Retry now", main: true, done: "Retrying", what: "The next attempt starts now." },
  resume: { name: "Resume", main: true, done: "Resumed", what: "The order continues where it was paused." },
  skip: { name: "Skip", done: "Skipped", undo: "The undo is skipped: what the step did stays as it is, and the order continues to be undone.", what: "The step is skipped, and counts as done. If it was attempted, its effect is unknown." },
  "mark-done": { name: "Mark done", done: "Marked done", undo: "You undid the step by hand; the order continues to be undone.", what: "You did the step by hand; the output below is recorded as if its agent had returned it." },
  pause: { name: "Pause", done: "Paused", what: "No new step starts until the order is resumed. Steps in progress may still finish." },
  cancel: { name: "Cancel", danger: true, done: "Cancelled", what: "The order stops, and its finished steps are undone." },
  undo: { name: "Undo", danger: true, done: "Undoing", what: "The finished steps are undone, even if the order was Processed." },
};

/** The dialog that sends an event to a step of the order in `details` that waits for it. */
export function sendEvent(step, details, done) {
  const { order_id: id } = details.order;
  // Sent again after an unclear answer, it is still the same event.
  const key = crypto.randomUUID();
  ask({
    title: `Send the event ${step.event} to ${step.name}?`,
    lead: [h("p", {}, prose(`${step.name} ${step.wait}${step.missing === undefined ? "" : `, ${step.missing} missing`}.`)), h("p", { class: "small mono" }, id)],
    fields: [{ name: "data", label: "Data", kind: "json", rows: 4, value: "{}", always: true, help: "A JSON object of at most 4096 bytes, for example {\"answer\": \"yes\"}. The reason is added to it as `reason`." }],
    verb: "Send",
    done,
    async send({ reason, by, data }) {
      const text = data.text.trim();
      if (!text.startsWith("{")) return { stay: h("p", { class: "wrong" }, "The data of an event is a JSON object.") };
      const more = text.slice(1, -1).trim();
      const all = new Written(`{"reason":${JSON.stringify(reason)}${more && `,${more}`}}`);
      // Only a laptop reads the name, and a header has plain letters.
      const name = encodeURIComponent(by);
      const told = await post(`/orders/${encodeURIComponent(id)}/events/${encodeURIComponent(step.event)}`, all, { "idempotency-key": key, "stepwarden-by": name });
      return told.by ? `Sent. It counts for ${told.by}.` : "Sent.";
    },
  });
}

const id = ({ order }) => h("p", { class: "small" }, h("span", { class: "mono" }, order.order_id), ` at version ${order.version}`);
const at = ({ order }, path) => `/orders/${encodeURIComponent(order.order_id)}/${path}`;
function named(lists) {
  const rows = lists.filter(([, steps]) => steps.length);
  return rows.length > 0 && h("dl", { class: "facts" }, rows.map(([name, steps]) => h("div", {}, h("dt", {}, name), h("dd", {}, steps.join(", ")))));
}

/** What a dry run found: why it is not allowed; or until when it waits, and lists of steps, and `verb` does it. */
function found(report, verb, lists, lines = []) {
  if (report.outcome === "not_allowed") return { told: h("p", { class: "wrong" }, prose(report.why)), verb: null };
  const waits = report.waits_until && h("p", {}, "An earlier request can still start until ", when(report.waits_until), ". The order waits until then.");
  return { told: [waits, lines.map((line) => h("p", {}, prose(line))), named(lists)], verb };
}

/** The dialog that moves the order in `details` to another definition, after it has shown what that means. */
function migrate(details, done) {
  const fields = [{ name: "to", label: "Definition", required: true, value: "latest", help: "Its hash, or latest for the definition that new orders get." }];
  const isError = details.order.state === "Error";
  if (isError) fields.push({ name: "resubmit", label: "Then", kind: "select", options: ["yes", "no"], names: { yes: "retry what failed", no: "leave it in Error" } });
  const body = ({ resubmit, ...values }) => ({ ...values, resubmit: resubmit === "yes", if_version: details.order.version });
  ask({
    title: "Move this order to another definition?",
    lead: [h("p", {}, "No step that is done runs again, and what was done can still be undone. Nothing changes until you have seen and confirmed the differences."), id(details)],
    fields,
    verb: "Show what changes",
    done,
    async look(values) {
      const report = await post(at(details, "actions/migrate"), { ...body(values), dry_run: true });
      const lists = [["Tried again", report.again], ["Added", report.added], ["Left out", report.left_out], ["Changed", report.changed], ["Undone differently", report.undone_differently]];
      const same = report.from === report.to ? ["This is the definition that the order has."] : lists.every(([, steps]) => !steps.length) ? ["No step changes."] : [];
      return found(report, "Move it", lists, [...same, ...report.doubts]);
    },
    async send(values) {
      const told = await post(at(details, "actions/migrate"), body(values));
      if (told.outcome === "waits") return "Recorded. The order moves once no step is with an agent and no request can start any more.";
      return told.outcome === "repeated" ? "Nothing to do: this was already recorded." : "Moved.";
    },
  });
}

/** The dialog that runs the order in `details` again from a step, after it has shown what that means. */
function runAgain(details, done) {
  const begun = details.order.steps.filter((step) => step.state !== "Pending" || step.attempts).map((step) => step.name);
  // Independent branches of an order that was undone can only run again together.
  const all = "all steps";
  const choice = (name, label, no, yes) => ({ name, label, kind: "select", options: ["no", "yes"], names: { no, yes } });
  const body = (values) => ({ by: values.by, reason: values.reason, from: values.from === all ? begun : [values.from], new_keys: values.new_keys === "yes", without_undo: values.without_undo === "yes", if_version: details.order.version });
  ask({
    title: "Run this order again?",
    lead: [h("p", {}, "The step that you choose and all that come after it are done again. What these steps did is undone first. Nothing changes until you have seen and confirmed the consequences."), id(details)],
    fields: [
      { name: "from", label: "From", kind: "select", options: begun.length > 1 ? [...begun, all] : begun },
      choice("without_undo", "Steps that have no undo", "do not run them again", "run them again; what they did stays"),
      choice("new_keys", "Idempotency keys of steps that were not undone", "keep them: the service answers as before", "new keys: the service does the work a second time"),
    ],
    verb: "Show the consequences",
    danger: true,
    done,
    async look(values) {
      const report = await post(at(details, "actions/run-again"), { ...body(values), dry_run: true });
      const lists = [["Undone first", report.undone_first], ["What it did stays", report.stays], ["Done again", report.again], ["With a new key", report.new_keys], ["With the old key", report.old_keys], ["With another order", report.new_orders]];
      return found(report, "Run it again", lists);
    },
    async send(values) {
      const told = await post(at(details, "actions/run-again"), body(values));
      return told.outcome === "repeated" ? "Nothing to do: this was already recorded." : `Recorded. The order is at version ${told.version}.`;
    },
  });
}

/** The dialog that erases what the order in `details` says about people. */
function erase(details, done) {
  const last = details.order.order_id.slice(-4);
  ask({
    title: "Erase the data of this order?",
    lead: [h("p", {}, "This erases the order's input, outputs, errors, events and reasons, and those of the orders that it started. Ids, states, attempts and times stay, with your name and reason. This cannot be reversed, and the order cannot be undone afterwards."), id(details)],
    fields: [{ name: "confirm", label: "To confirm, type the last four characters of the order's id", required: true, most: 4 }],
    verb: "Erase",
    danger: true,
    done,
    async send({ confirm, by, reason }) {
      if (confirm.toLowerCase() !== last.toLowerCase()) throw new Refused(400, { detail: `These are not the last four characters of ${details.order.order_id}. Nothing was erased.` });
      const told = await post(at(details, "erasure"), { by, reason });
      return `Erased: ${told.detail}.`;
    },
  });
}

/** Actions with routes of their own, beside those that the API lists: which fit the order in `details`, by name. */
export function more({ order }) {
  const has = { Pending: "open", Processing: "open", Undoing: "undoing", Error: "stopped", Processed: "ended", Undone: "ended" }[order.state];
  const isOwn = !order.parent && !order.erased_at;
  return [
    isOwn && has !== "ended" && { name: "migrate", label: "Move to another definition…", open: migrate },
    isOwn && has !== "undoing" && order.steps.some((step) => step.state !== "Pending" || step.attempts) && { name: "run-again", label: "Run again…", open: runAgain },
    isOwn && has === "ended" && { name: "erase", label: "Erase…", danger: true, open: erase },
  ].filter(Boolean);
}

const json = (value) => JSON.stringify(value ?? null, null, 2);

/** The dialog of an action on the order in `details`; `done` is called once the API has answered. */
export function act(name, details, done) {
  const spec = ACTS[name];
  const { order, input, plan } = details;
  const { steps } = details.acts.find((one) => one.act === name);
  const fields = [];
  // A failed undo is settled in its direction: the order never continues forward.
  const isUndo = order.state === "Undoing" || order.steps.some((step) => step.state === "UndoFailed");
  // Without a step, resubmit means all that failed, and retry-now all that wait.
  const all = name === "retry-now" ? "all that wait" : name === "resubmit" ? "all that failed" : null;
  if (steps.length > 1) fields.push({ name: "step", label: "Step", kind: "select", options: all ? [all, ...steps] : steps });
  if (name === "resubmit" && steps.length && !isUndo) {
    const present = steps.length === 1 ? plan.find((one) => one.step === steps[0]).input : undefined;
    const which = steps.length === 1 ? `for ${steps[0]} only` : "only for the step chosen above";
    fields.push({ name: "input", label: `Input, ${which}`, kind: "json", rows: 12, value: json(present ?? input), folded: "Edit the input", help: "If you do not change this input, it is not replaced." });
  }
  if (name === "mark-done" && !isUndo) fields.push({ name: "output", label: "Output", kind: "json", rows: 4, value: "{}", always: true, help: "JSON, as the agent would have returned it; at most 4096 bytes." });
  ask({
    title: `${spec.name} ${steps.length === 1 ? `${isUndo && spec.undo ? "the undo of " : ""}${steps[0]}` : "this order"}?`,
    lead: [h("p", {}, (isUndo && spec.undo) || spec.what), h("p", { class: "small" }, h("span", { class: "mono" }, order.order_id), ` at version ${order.version}`)],
    fields,
    verb: spec.name,
    danger: spec.danger,
    done,
    async send(values) {
      const step = values.step === all ? undefined : (values.step ?? steps[0]);
      const body = { ...values, step, if_version: order.version };
      const told = await post(`/orders/${encodeURIComponent(order.order_id)}/actions/${name}`, body);
      return told.outcome === "repeated" ? "Nothing to do: this was already recorded." : `${spec.done}. The order is at version ${told.version}.`;
    },
  });
}
