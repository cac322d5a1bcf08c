// The list of a step: a square for each item, and below them a page of those in one state, with their orders.

import { h, s } from "./dom.js";
import { get, path, Poll } from "./api.js";
import { prose } from "./words.js";

const STATES = {
  failed: { name: "failed", looks: "bad" },
  stuck: { name: "stuck", looks: "bad" },
  open: { name: "open", looks: "run" },
  to_do: { name: "to do", looks: "pause" },
  undone: { name: "undone", looks: "undone" },
  done: { name: "done", looks: "good" },
};
const BY_LETTER = Object.fromEntries(Object.keys(STATES).map((state) => [state[0], state]));
const ORDER = "#/orders/";
// From one square to the next, and of a square, in pixels.
const PITCH = 9;
const SIDE = 8;
const PAGE = 20;

/** How many items stand where, in words. */
export function counts(items) {
  const some = Object.keys(STATES).filter((state) => items[state] > 0);
  return some.map((state) => `${items[state]} ${STATES[state].name}`).join(", ") || "no items";
}

/** Neighbours in the same state and row of `columns` squares, as `{ state, column, row, count }`: thousands of squares are few such runs. */
export function runs(states, columns) {
  const all = [];
  for (let n = 0; n < states.length; n += 1) {
    const [column, row] = [n % columns, Math.floor(n / columns)];
    const last = all.at(-1);
    if (last && last.row === row && last.state === states[n]) last.count += 1;
    else all.push({ state: states[n], column, row, count: 1 });
  }
  return all;
}

/** The list of step `step` of order `id`; `changed` is called when there is something new to show. */
export class List {
  constructor(id, step, changed) {
    Object.assign(this, { id, step, state: "failed", from: 0 });
    const base = `/details/${encodeURIComponent(id)}/items/${encodeURIComponent(step)}`;
    this.base = base;
    this.poll = new Poll(3000, (signal) => get(path(base, { state: this.state, cursor: this.from || null, limit: PAGE }), signal), changed);
  }

  pick(state, from = 0) {
    Object.assign(this, { state, from });
    this.poll.soon();
  }

  /** Opens the order of the item whose square is under the pointer. */
  async open(event, columns) {
    const { left, top } = event.currentTarget.getBoundingClientRect();
    const [column, row] = [Math.floor((event.clientX - left) / PITCH), Math.floor((event.clientY - top) / PITCH)];
    const item = row * columns + column;
    if (column >= columns || item >= this.poll.last.states.length) return;
    const { items } = await get(path(this.base, { cursor: item, limit: 1 }));
    if (items[0]?.order_id) location.hash = ORDER + encodeURIComponent(items[0].order_id);
  }

  /** `items` are the counts in the order's status; `width` is in pixels. */
  show(items, width) {
    const { last, error } = this.poll;
    if (!last) return h("p", { class: error ? "wrong" : "nothing" }, error?.message ?? "Loading…");
    const columns = Math.max(10, Math.floor((width - 60) / PITCH));
    const rows = Math.ceil(last.states.length / columns);
    const square = ({ state, column, row, count }) =>
      s("rect", { class: `bar ${STATES[BY_LETTER[state]].looks}`, x: column * PITCH, y: row * PITCH, width: count * PITCH - (PITCH - SIDE), height: SIDE });
    const pick = (state) =>
      h("button", { "data-key": state, class: state === this.state ? "primary" : "quiet", "aria-pressed": String(state === this.state), onclick: () => this.pick(state) }, `${items[state]} ${STATES[state].name}`);
    const row = (item) =>
      h("li", { "data-key": String(item.index) }, h("strong", {}, `Item ${item.index}`), " ",
        item.order_id && h("a", { class: "mono", href: ORDER + encodeURIComponent(item.order_id) }, item.order_id), " ", item.error && h("span", { class: "wrong" }, prose(item.error)));
    return [
      s("svg", { class: "items", role: "img", "aria-label": `Of ${items.total} items: ${counts(items)}`, width: columns * PITCH, height: rows * PITCH, onclick: (event) => this.open(event, columns) }, runs(last.states, columns).map(square)),
      h("div", { class: "acts", role: "group", "aria-label": "Items by state" }, Object.keys(STATES).filter((state) => items[state] > 0 || state === this.state).map(pick)),
      last.items.length > 0 ? h("ul", { class: "items-page" }, last.items.map(row)) : h("p", { class: "nothing" }, `No item is ${STATES[this.state].name}.`),
      h("div", { class: "acts" },
        this.from > 0 && h("button", { class: "quiet", onclick: () => this.pick(this.state) }, "First page"),
        last.next !== undefined && h("button", { class: "quiet", onclick: () => this.pick(this.state, last.next) }, "Next page")),
    ];
  }
}
