// The last hour as charts: how orders ended, what failed, and how old the oldest are.

import { h, s } from "./dom.js";
import { many, prose, span } from "./words.js";

const W = 400;
const H = 88;
const NAMES = {
  orders_processed: ["Processed", "good"],
  orders_undone: ["Undone", "undo"],
  orders_in_error: ["Error", "bad"],
  oldest_pending_age: ["Not begun", "wait"],
  oldest_processing_age: ["In progress", "run"],
  oldest_wait_age: ["Waiting", "undo"],
};
const OF_AGENTS = ["bad", "warn", "run", "undo", "good"];
const DASHES = [null, "6 3", "2 3"];

const sum = (points) => points.reduce((all, n) => all + (n ?? 0), 0);
const last = (points) => points[points.length - 1];
const seconds = (n) => (n === null || n === undefined ? "–" : span(n * 1000));

/** The points as the path of a line; minutes without a value are gaps. */
export function path(points, most) {
  const x = (n) => ((n / (points.length - 1)) * W).toFixed(1);
  const y = (value) => (H - (value / most) * (H - 2) - 1).toFixed(1);
  return points.map((value, n) => (value === null ? "" : `${n && points[n - 1] !== null ? "L" : "M"}${x(n)} ${y(value)}`)).join("");
}

function chart(title, lines, most, told) {
  const top = Math.max(...lines.flatMap((line) => line.points.map((n) => n ?? 0)));
  const drawn = (line) => s("path", { class: `line ${line.looks}`, d: path(line.points, top || 1), "stroke-dasharray": line.dashes });
  const words = lines.map((line) => `${line.name}: ${told(line.points)}`);
  return h("figure", { class: "chart", "data-key": title },
    h("figcaption", {}, h("strong", {}, title), h("span", { class: "small" }, top > 0 && `highest: ${most(top)}`)),
    s("svg", { viewBox: `0 0 ${W} ${H}`, preserveAspectRatio: "none", role: "img", "aria-label": `${title} in the last hour. ${words.join(", ")}` },
      s("path", { class: "base", d: `M0 ${H - 0.5}H${W}` }), lines.map(drawn)),
    h("p", { class: "small ends" }, h("span", {}, "60 min ago"), h("span", {}, "now")),
    h("ul", { class: "legend" }, lines.map((line) => h("li", {},
      s("svg", { viewBox: "0 0 18 8", class: "swatch", "aria-hidden": "true" }, s("path", { class: `line ${line.looks}`, d: "M0 4H18", "stroke-dasharray": line.dashes })),
      `${line.name} `, h("b", {}, told(line.points))))));
}

const named = (lines, names) => names.flatMap((name) => lines.filter((line) => line.metric === name).map((line) => ({ ...line, name: NAMES[name][0], looks: NAMES[name][1] })));
const ofAgents = (lines, metric) => lines.filter((line) => line.metric === metric && sum(line.points))
  .map((line, n) => ({ ...line, name: line.agent, looks: OF_AGENTS[n % OF_AGENTS.length], dashes: DASHES[Math.floor(n / OF_AGENTS.length) % DASHES.length] }));

/** The charts, and the breakers that opened in the hour with what opened those that still hold orders back. */
export function charts({ lines, left_out }, breakers = {}) {
  const failures = ofAgents(lines, "step_failures");
  const opened = ofAgents(lines, "breaker_opened");
  const names = [...new Set([...Object.keys(breakers), ...opened.map((line) => line.agent)])];
  const perMinute = (n) => `${n} a minute`;
  const breaker = (name) => {
    const times = sum(opened.find((line) => line.agent === name)?.points ?? []);
    const now = breakers[name];
    return h("li", { "data-key": name }, h("strong", {}, name), times ? ` opened ${times === 1 ? "once" : `${times} times`}` : "",
      now ? h("span", { class: "warn" }, ` open now: `, prose(now.error ?? "its cause is unknown")) : h("span", { class: "small" }, " holds no order back now"));
  };
  return h("div", { class: "charts" },
    chart("Ends", named(lines, ["orders_processed", "orders_undone", "orders_in_error"]), perMinute, (points) => String(sum(points))),
    failures.length ? chart("Failed attempts", failures, perMinute, (points) => String(sum(points))) : h("figure", { class: "chart" }, h("figcaption", {}, h("strong", {}, "Failed attempts")), h("p", { class: "nothing" }, "None.")),
    chart("Age of the oldest order", named(lines, ["oldest_pending_age", "oldest_processing_age", "oldest_wait_age"]), seconds, (points) => seconds(last(points))),
    h("figure", { class: "chart" }, h("figcaption", {}, h("strong", {}, "Circuit breakers")), names.length ? h("ul", { class: "opened" }, names.map(breaker)) : h("p", { class: "nothing" }, "None opened.")),
    left_out > 0 && h("p", { class: "small" }, `${many(left_out, "agent")} with lower counts left out.`));
}
