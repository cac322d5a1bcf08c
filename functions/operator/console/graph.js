// The steps of an order as a graph, from left to right, each where the steps before it end.

import { h, s } from "./dom.js";
import { look, sign, stateName } from "./words.js";

const W = 156;
const H = 48;
const GAP_X = 44;
const GAP_Y = 16;
const PAD = 4;

/** Column and row of each step: the column after the last of those before it, the row near them. */
export function places(steps) {
  const column = new Map();
  // A definition has no circles, and names a step only after those before it.
  for (const step of steps) column.set(step.name, Math.max(-1, ...step.after.map((name) => column.get(name) ?? -1)) + 1);
  const columns = [];
  for (const step of steps) (columns[column.get(step.name)] ??= []).push(step);
  const most = Math.max(...columns.map((one) => one.length));
  const at = new Map();
  columns.forEach((one, x) => {
    const near = (step) => step.after.reduce((sum, name) => sum + (at.get(name)?.y ?? 0), 0) / (step.after.length || 1);
    if (x > 0) one.sort((a, b) => near(a) - near(b));
    one.forEach((step, n) => at.set(step.name, { x, y: (most - one.length) / 2 + n }));
  });
  return { at, columns: columns.length, rows: most };
}

export function graph({ order }) {
  const { at, columns, rows } = places(order.steps);
  const left = (name) => PAD + at.get(name).x * (W + GAP_X);
  const top = (name) => PAD + at.get(name).y * (H + GAP_Y);
  const width = columns * (W + GAP_X) - GAP_X + 2 * PAD;
  const height = rows * (H + GAP_Y) - GAP_Y + 2 * PAD;
  const byName = new Map(order.steps.map((step) => [step.name, step]));
  const edge = (step) => step.after.map((before) => {
    const [x1, y1, x2, y2] = [left(before) + W, top(before) + H / 2, left(step.name), top(step.name) + H / 2];
    const done = ["Processed", "Skipped", "PassedOver", "Caught"].includes(byName.get(before).state);
    return s("path", { class: done ? "edge done" : "edge", d: `M${x1} ${y1} C${x1 + GAP_X / 2} ${y1} ${x2 - GAP_X / 2} ${y2} ${x2} ${y2}` });
  });
  const why = (step) => [step.when && `when ${step.when}`, step.passed_over, step.last_error].filter(Boolean).map((text) => `, ${text}`).join("");
  // A definition has no states: its steps say what they do.
  const word = (step) => step.label ?? stateName(step.state);
  const cut = (text, most) => (text.length > most ? `${text.slice(0, most - 1)}…` : text);
  const node = (step) => {
    const as = step.state === "Pending" && step.last_error ? "Retrying" : step.state;
    const tries = step.attempts > 1 ? ` · ×${step.attempts}` : "";
    return s(
      "g",
      { class: `node ${look(as)}`, transform: `translate(${left(step.name)} ${top(step.name)})` },
      s("title", {}, `${step.name}: ${word(step)}${why(step)}`),
      s("rect", { class: "box", width: W, height: H, rx: 7 }),
      s("circle", { class: "dot", cx: 20, cy: H / 2, r: 10 }),
      s("text", { class: "sign", x: 20, y: H / 2 + 4.5, "text-anchor": "middle" }, sign(as)),
      s("text", { class: "name", x: 38, y: 20 }, cut(step.name, 16)),
      s("text", { class: "sub", x: 38, y: 36 }, cut(`${word(step)}${tries}`, 19)),
    );
  };
  const told = order.steps.map((step) => `${step.name}${step.after.length ? ` after ${step.after.join(" and ")}` : ""}: ${word(step)}`).join("; ");
  return h("div", { class: "scroll", tabindex: 0, role: "group", "aria-label": "Graph, scrollable" },
    s("svg", { class: "graph", width, height, viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": told }, order.steps.map(edge), order.steps.map(node)));
}
