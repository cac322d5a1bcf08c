// What a person can do to an order: each act with what it does in words, and its dialog. Which ones fit, the API says.

import { h } from "./dom.js";
import { post } from "./api.js";
import { ask } from "./dialog.js";

export const ACTS = {
  resubmit: { name: "Resubmit", main: true, done: "Resubmitted", undo: "The undo that failed is tried again, with all its attempts, and the order goes on being undone. It does not go forward.", what: "The order goes on from what failed. Each failed step gets all its attempts again; what is done stays done." },
  "retry-now": { name: "Retry now", main: true, done: "Retrying", what: "The wait before the next attempt ends at once." },
  resume: { name: "Resume", main: true, done: "Resumed", what: "The order goes on where it was paused." },
  skip: { name: "Skip", done: "Skipped", undo: "The undo is left out: what the step did stays as it is, and the order goes on being undone.", what: "The step is left out, as if it were done. If it was tried, nobody knows what it did." },
  "mark-done": { name: "Mark done", done: "Marked done", undo: "You undid the step by hand; the order goes on being undone.", what: "You did the step by hand; its output is recorded as its agent's would be." },
  pause: { name: "Pause", done: "Paused", what: "Nothing new is started until the order is resumed. What is under way may still finish." },
  cancel: { name: "Cancel", danger: true, done: "Cancelled", what: "The order stops, and what was done is undone." },
  undo: { name: "Undo", danger: true, done: "Undoing", what: "What was done is undone, also if the order was processed." },
};

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
    const which = steps.length === 1 ? `for ${steps[0]} only` : "for the step chosen above only";
    fields.push({ name: "input", label: `Input, ${which}`, kind: "json", rows: 12, value: json(present ?? input), folded: "Edit the input", help: "Left as it is, nothing is replaced." });
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
      const takesStep = steps.length > 0 && (steps.length > 1 || name !== "retry-now");
      const body = { ...values, step: takesStep ? step : undefined, if_version: order.version };
      const told = await post(`/orders/${encodeURIComponent(order.order_id)}/actions/${name}`, body);
      return told.outcome === "repeated" ? "It was so already." : `${spec.done}. The order is at version ${told.version}.`;
    },
  });
}
