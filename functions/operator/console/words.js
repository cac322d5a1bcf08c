// Times, states and events in words.

import { h } from "./dom.js";
import { now } from "./api.js";

/** `ms` as a person says it: `340 ms`, `4.2 s`, `12 min`, `3 h 5 min`, `2 d 4 h`. */
export function span(ms) {
  const n = Math.max(0, ms);
  if (n < 1000) return `${Math.round(n)} ms`;
  if (n < 9950) return `${(n / 1000).toFixed(1).replace(".0", "")} s`;
  if (n < 119_500) return `${Math.round(n / 1000)} s`;
  const min = Math.round(n / 60_000);
  if (min < 60) return `${min} min`;
  if (min < 24 * 60) return min % 60 ? `${Math.floor(min / 60)} h ${min % 60} min` : `${min / 60} h`;
  const hours = Math.round(n / 3_600_000);
  return hours % 24 ? `${Math.floor(hours / 24)} d ${hours % 24} h` : `${hours / 24} d`;
}

/** How long ago, in whole seconds: it is read again and again, and should not flicker. */
export function age(at) {
  const ms = now() - Date.parse(at);
  return ms < 1000 ? "now" : span(ms < 9950 ? Math.floor(ms / 1000) * 1000 : ms);
}

const two = (n) => String(n).padStart(2, "0");
/** `14:03:21`, with the date if it is another day than today. In the person's zone. */
export function clock(at, ms = false) {
  const d = new Date(at);
  const time = `${two(d.getHours())}:${two(d.getMinutes())}:${two(d.getSeconds())}`;
  const exact = ms ? `${time}.${String(d.getMilliseconds()).padStart(3, "0")}` : time;
  return d.toDateString() === new Date(now()).toDateString() ? exact : `${d.getFullYear()}-${two(d.getMonth() + 1)}-${two(d.getDate())} ${exact}`;
}

/** How long ago, with the exact time behind it. */
export const ago = (at) => h("time", { datetime: at, title: `${clock(at, true)} (${at})` }, age(at));
/** The time of day, with the exact time behind it. */
export const when = (at, ms) => h("time", { datetime: at, title: at }, clock(at, ms));

/** `3 orders`, `1 order`, `100+ orders`. */
export const many = (n, one, more) => `${n}${more ? "+" : ""} ${n === 1 && !more ? one : `${one}s`}`;

/** `text` with what is between backticks as code. */
export const prose = (text) => String(text).split("`").map((part, n) => (n % 2 ? h("code", {}, part) : part));

/** Start and end of an id: enough to tell orders apart on a screen. */
export const short = (id) => (id.length > 16 ? `${id.slice(0, 10)}…${id.slice(-4)}` : id);

const LOOKS = {
  Pending: "wait", Waiting: "wait", Processing: "run", Processed: "good", Undoing: "undo", Undone: "undone", Error: "bad", Paused: "pause",
  Failed: "bad", Skipped: "undone", PassedOver: "undone", Caught: "warn", UndoPending: "undo", UndoProcessing: "undo", UndoFailed: "bad", Retrying: "warn",
};
const SIGNS = { wait: "○", run: "◐", good: "✓", undo: "↶", undone: "–", bad: "!", pause: "‖", warn: "↻" };
const NAMES = { PassedOver: "Passed over", Caught: "Failed, caught", UndoPending: "To be undone", UndoProcessing: "Undoing", UndoFailed: "Undo failed" };

/** How a state looks: a class of style.css. */
export const look = (state) => LOOKS[state] ?? "wait";
export const sign = (state) => SIGNS[look(state)];
export const stateName = (state) => NAMES[state] ?? state;
/** A state as a label: sign, colour and word, so that none of them alone has to tell. What waits after a failure looks so. */
export function label(state, isRetrying = false) {
  const as = isRetrying && ["Pending", "Processing"].includes(state) ? "Retrying" : state;
  return h("span", { class: `state ${look(as)}` }, h("i", { "aria-hidden": "true" }, sign(as)), stateName(state));
}

const EVENTS = {
  received: ["accepted", "good"],
  step_started: ["started", "run"],
  step_completed: ["done", "good"],
  step_failed: ["failed permanently", "bad"],
  step_unavailable: ["given back by its agent", "warn"],
  step_deferred: ["deferred: the agent's circuit breaker is open", "warn"],
  step_expired: ["no reply before its CompleteBy", "warn"],
  step_extended: ["given more time", "warn"],
  step_passed_over: ["passed over", "undone"],
  step_waiting: ["waits", "wait"],
  step_reminded: ["reminder sent", "wait"],
  event_counted: ["got the event from one more person", "wait"],
  failure_caught: ["failed; the order continues", "warn"],
  undo_started: ["undo started", "undo"],
  step_undone: ["undone", "undone"],
  undo_failed: ["undo failed permanently", "bad"],
  undoing: ["turned to undo", "undo"],
  processed: ["processed", "good"],
  undone: ["undone", "undone"],
  error: ["stopped in Error", "bad"],
  operator_alerted: ["operators alerted", "wait"],
  cancelled: ["cancelled", "act"],
  resubmitted: ["resubmitted", "act"],
  skipped: ["skipped", "act"],
  marked_done: ["marked done", "act"],
  retried_now: ["retried now", "act"],
  undo_asked: ["undo requested", "act"],
  paused: ["paused", "pause"],
  resumed: ["resumed", "act"],
  migration_asked: ["asked to move to another definition", "act"],
  migrated: ["moved to another definition", "wait"],
  not_migrated: ["did not move to another definition", "warn"],
  run_again_asked: ["asked to run again", "act"],
  run_again: ["put back to run again", "undo"],
  erasing: ["being erased", "act"],
  erased: ["data erased", "act"],
};
/** An event of the history: what happened, and how it looks. */
export const event = (name) => {
  const [words, looks] = EVENTS[name] ?? [name.replaceAll("_", " "), "wait"];
  return { words, looks };
};
