// What happened over time: a row for the order and one for each step; attempts are bars, deadlines marks.

import { h, s } from "./dom.js";
import { now } from "./api.js";
import { clock, event, span } from "./words.js";

const ROW = 26;
const BAR = 12;
const AXIS = 40;
// Least distance of two labels under the drawing, in pixels.
const APART = [60, 96];
const RIGHT = 14;
const LEAST_BAR = 4;
// A time without activity is cut short when it is longer than both: so many ms, and this part of all the rest.
const LONG_MS = 5000;
const LONG = 0.4;
// To this part of the rest.
const CUT = 0.08;
// What is left and right of the drawing on the page, in pixels: on a phone, and elsewhere.
const AROUND = [40, 60];

const ENDS = { step_completed: "good", step_failed: "bad", step_unavailable: "warn", step_deferred: "wait", step_expired: "warn", step_undone: "undone", undo_failed: "bad" };
const STARTS = { step_started: "run", undo_started: "undo" };

/** The attempts in a history, and everything else that happened, as marks. Times in milliseconds. */
export function attempts({ order, history, plan }, until) {
  const bars = [];
  const marks = [];
  const running = new Map();
  let pause = null;
  for (const entry of history) {
    const at = Date.parse(entry.at);
    const { step } = entry;
    if (STARTS[entry.event]) {
      const bounds = plan.find((one) => one.step === step);
      const timeout = entry.event === "undo_started" ? bounds?.undo_timeout_ms : bounds?.timeout_ms;
      const bar = { step, from: at, to: null, looks: STARTS[entry.event], undo: entry.event === "undo_started", attempt: entry.attempt, deadline: timeout && at + timeout };
      running.set(step, bar);
      bars.push(bar);
    } else if (ENDS[entry.event] && running.has(step)) {
      const bar = running.get(step);
      Object.assign(bar, { to: at, looks: ENDS[entry.event], end: entry.event, detail: entry.detail });
      running.delete(step);
    } else if (entry.event === "paused") {
      pause = { from: at, to: null, looks: "pause", end: "paused", detail: entry.detail };
      bars.push(pause);
    } else {
      if (entry.event === "resumed" && pause) pause.to = at;
      marks.push({ step: entry.step, at, ...event(entry.event), name: entry.event, detail: entry.detail });
    }
  }
  for (const bar of running.values()) {
    const by = order.steps.find((one) => one.name === bar.step)?.complete_by;
    if (by) bar.deadline = Date.parse(by);
  }
  for (const bar of bars) {
    bar.open = bar.to === null;
    bar.to ??= Math.max(until, bar.from);
  }
  return { bars, marks };
}

/** From times to pixels, in straight pieces: long times without activity are cut. */
export function scale(start, end, edges, bars, width) {
  const times = [...new Set([start, end, ...edges.filter((at) => at > start && at < end)])].sort((a, b) => a - b);
  const pieces = times.slice(1).map((to, n) => {
    const from = times[n];
    const idle = !bars.some((bar) => bar.looks !== "pause" && bar.from < to && bar.to > from);
    return { from, to, shown: to - from, idle, cut: false };
  });
  let total = pieces.reduce((sum, piece) => sum + piece.shown, 0);
  for (const piece of pieces.filter((one) => one.idle).sort((a, b) => b.shown - a.shown)) {
    const rest = total - piece.shown;
    if (rest <= 0 || piece.shown < LONG * rest || piece.shown < LONG_MS) break;
    total = rest * (1 + CUT);
    Object.assign(piece, { shown: rest * CUT, cut: true });
  }
  let x = 0;
  for (const piece of pieces) {
    piece.x = (x / (total || 1)) * width;
    x += piece.shown;
    piece.end = (x / (total || 1)) * width;
  }
  const at = (time) => {
    const piece = pieces.find((one) => time <= one.to) ?? pieces.at(-1);
    if (!piece) return 0;
    const part = (time - piece.from) / (piece.to - piece.from || 1);
    return piece.x + Math.min(1, Math.max(0, part)) * (piece.end - piece.x);
  };
  return { at, pieces };
}

const STEPS = [1, 2, 5, 10, 20, 50, 100, 200, 500, 1e3, 2e3, 5e3, 1e4, 15e3, 3e4, 6e4, 12e4, 3e5, 6e5, 9e5, 18e5, 36e5, 72e5, 216e5, 432e5, 864e5, 6048e5];

function ticks(start, { at, pieces }, width) {
  const shown = pieces.filter((piece) => !piece.cut).reduce((sum, piece) => sum + piece.to - piece.from, 0);
  const every = STEPS.find((one) => (one / (shown || 1)) * width >= 72) ?? STEPS.at(-1);
  const all = [{ x: 0, text: "0" }];
  const add = (x, time) => {
    if (x - all.at(-1).x >= APART[0] && x < width - 8) all.push({ x, text: `+${span(time)}` });
  };
  for (const piece of pieces) {
    if (piece.cut) {
      // Where the time goes on.
      add(piece.end, piece.to - start);
      continue;
    }
    for (let n = Math.max(1, Math.ceil((piece.from - start) / every)); n * every <= piece.to - start && all.length < 60; n += 1) add(at(start + n * every), n * every);
  }
  return all;
}

/** Times of day under the drawing: the first and the last, now, and where a part is cut out; as many as there is room for. */
function clocks(start, end, time, { at, pieces }, width) {
  const all = [];
  const add = (when, text, anchor = "middle") => {
    const x = at(when);
    if (all.every((one) => Math.abs(one.x - x) >= APART[1])) all.push({ x, text, anchor });
  };
  add(start, clock(start), "start");
  add(end, clock(end), "end");
  if (time > start && time < end) add(time, `now, ${clock(time)}`);
  for (const piece of pieces.filter((one) => one.cut)) add(piece.to, clock(piece.to));
  return all.filter((one) => one.anchor !== "middle" || (one.x > APART[1] / 2 && one.x < width - APART[1] / 2));
}

export function timeline(details, room) {
  const { order, history } = details;
  const time = now();
  const ended = ["Processed", "Undone", "Error"].includes(order.state);
  const start = Date.parse(order.created_at);
  const last = Date.parse(history.at(-1)?.at ?? order.updated_at);
  const next = order.steps.filter((step) => step.next_attempt_at && !ended).map((step) => ({ step: step.name, at: Date.parse(step.next_attempt_at) }));
  const { bars, marks } = attempts(details, ended ? last : time);
  const open = bars.filter((bar) => bar.open && bar.deadline).map((bar) => bar.deadline);
  const end = Math.max(last, start + 1, ended ? 0 : time, ...open, ...next.map((one) => one.at));
  const left = room < 560 ? 84 : 132;
  const width = Math.max(200, room - left - RIGHT - AROUND[room < 560 ? 0 : 1]);
  const edges = [...bars.flatMap((bar) => [bar.from, bar.to]), ...marks.map((mark) => mark.at), ...open, ...next.map((one) => one.at), time];
  const drawn = scale(start, end, edges, bars, width);
  const x = (at) => left + drawn.at(at);
  const names = ["order", ...order.steps.map((step) => step.name)];
  const y = (step) => (step ? names.indexOf(step, 1) : 0) * ROW;
  const height = names.length * ROW + AXIS;
  const title = (...lines) => s("title", {}, lines.filter(Boolean).join("\n"));
  const cut = (text) => (text.length > left / 7.4 ? `${text.slice(0, Math.floor(left / 7.4) - 1)}…` : text);

  const bar = (one) => {
    const what = one.end ? event(one.end).words : "in progress";
    const from = x(one.from);
    const wide = Math.max(LEAST_BAR, x(one.to) - from);
    const inRange = one.step && one.deadline && one.deadline <= end && (one.open || one.end === "step_expired");
    return s("g", {},
      inRange && s("line", { class: "wait-line", x1: from + wide, x2: x(one.deadline), y1: y(one.step) + ROW / 2, y2: y(one.step) + ROW / 2 }),
      s("rect", { class: `bar ${one.looks}${one.open ? " open" : ""}${one.undo ? " of-undo" : ""}`, x: from, y: y(one.step) + (ROW - BAR) / 2, width: wide, height: BAR, rx: 3 },
        title(one.step ? `${one.undo ? "undo of " : ""}${one.step}, attempt ${one.attempt}: ${what}` : what, `${clock(one.from, true)}, ${span(one.to - one.from)}`, one.detail)),
      inRange && s("path", { class: "deadline", d: `M${x(one.deadline)} ${y(one.step) + 4} v${ROW - 8}` }, title(`CompleteBy ${clock(one.deadline, true)}`)));
  };
  const mark = (one) => s("circle", { class: `mark ${one.looks}`, cx: x(one.at), cy: y(one.step) + ROW / 2, r: one.looks === "act" ? 5 : 4 }, title(one.words, clock(one.at, true), one.detail));
  const told = bars.filter((one) => one.step).map((one) => `${one.undo ? "undo of " : ""}${one.step} attempt ${one.attempt}: ${one.end ? event(one.end).words : "in progress"}, ${span(one.to - one.from)}`).join("; ");
  return h("div", { class: "time" },
    s("svg", { class: "timeline", width: left + width + RIGHT, height, role: "img", "aria-label": `${told || "no attempt yet"}. The history below says the same in words.` },
      names.map((name, n) => s("g", {}, n % 2 === 0 && s("rect", { class: "stripe", x: 0, y: n * ROW, width: left + width + RIGHT, height: ROW }), s("text", { class: n ? "row-name" : "row-name order", x: 8, y: n * ROW + ROW / 2 + 4 }, cut(name), title(name)))),
      [["elapsed", 24], ["time of day", 7]].map(([name, up]) => s("text", { class: "tick", x: 8, y: height - up }, name)),
      clocks(start, end, ended ? end : time, drawn, width).map((one) => s("text", { class: "tick clock", x: left + one.x, y: height - 7, "text-anchor": one.anchor }, one.text)),
      ticks(start, drawn, width).map((tick) => s("g", {}, s("line", { class: "grid", x1: left + tick.x, x2: left + tick.x, y1: 0, y2: names.length * ROW }), s("text", { class: "tick", x: left + tick.x, y: height - 24, "text-anchor": tick.x ? "middle" : "start" }, tick.text))),
      drawn.pieces.filter((piece) => piece.cut).map((piece) => s("g", { class: "cut" }, s("rect", { x: left + piece.x, y: 0, width: piece.end - piece.x, height: names.length * ROW }, title(`${span(piece.to - piece.from)} without activity`)), s("text", { class: "tick", x: left + (piece.x + piece.end) / 2, y: ROW / 2 + 4, "text-anchor": "middle" }, piece.end - piece.x > 40 ? span(piece.to - piece.from) : "⋯"))),
      !ended && s("line", { class: "now", x1: x(time), x2: x(time), y1: 0, y2: names.length * ROW }, title("now")),
      bars.map(bar),
      marks.map(mark),
      next.map((one) => s("path", { class: "next", d: `M${x(one.at)} ${y(one.step) + 6} l7 7 l-7 7 l-7 -7 z` }, title(`next attempt ${clock(one.at, true)}`)))),
    h("ul", { class: "legend", "aria-hidden": "true" }, [["run", "in progress"], ["good", "done"], ["warn", "will be retried"], ["bad", "failed permanently"], ["undone", "undone or deferred"], ["act", "a person"]].map(([looks, what]) => h("li", {}, h("i", { class: looks }), what)), h("li", {}, h("i", { class: "by" }), "CompleteBy"), h("li", {}, h("i", { class: "to-come" }), "next attempt")));
}
