// What a person can do to an order: each act with what it does in words, and its dialog. Which ones fit, the API says.

import { h } from "./dom.js";
import { post, Written } from "./api.js";
import { ask } from "./dialog.js";
import { prose } from "./words.js";

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

const json = (value) => JSON.stringify(value ?? null, null, 2);

/** The dialog of an act on the order in `details`; `done` is called once the API has answered. */
export function act(name, details, done) {
  const spec = ACTS[name];
  const { order, input, plan } = details;
  const { steps } = details.acts.find((one) => one.act === name);
  const fields = [];
  // A failed undo is settled in its direction: nothing turns the order forward again.
  const isUndo = order.state === "Undoing" || order.steps.some((step) => step.state === "UndoFailed");
  // Without a step, resubmit means all that failed, and retry-now all that wait.
  const all = name === "retry-now" ? "all that wait" : name === "resubmit" ? "all that failed" : null;
  if (steps.length > 1) fields.push({ name: "step", label: "Step", kind: "select", options: all ? [all, ...steps] : steps });
  if (name === "resubmit" && steps.length && !isUndo) {
    const present = steps.length === 1 ? plan.find((one) => one.step === steps[0]).input : undefined;
    const which = steps.length === 1 ? `for ${steps[0]} only` : "only for the step chosen above";
    fields.push({ name: "input", label: `Input, ${which}`, kind: "json", rows: 12, value: json(present ?? input), folded: "Edit the input", help: "If you leave it as it is, nothing is replaced." });
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
