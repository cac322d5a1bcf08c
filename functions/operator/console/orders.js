// The first view: what waits for a person, what is stuck and why; then the list of orders.

import { h, show } from "./dom.js";
import { get, path, Poll } from "./api.js";
import { ago, age, label, look, many, prose, short, when } from "./words.js";
import { troubles } from "./system.js";
import { bulk } from "./bulk.js";

const STATES = ["Pending", "Processing", "Waiting", "Error", "Undoing", "Undone", "Processed", "Paused"];
const FILTERS = ["state", "workflow", "tenant", "label", "reference", "step", "error", "from"];
const PAGE = 50;
// A page looks at 500 orders at most; so many pages are looked at before a person is asked whether to go on.
const PAGES = 4;
const MOST_REASONS = 6;
const ID = /^ord_[0-9a-z]{26}$/i;

const link = (parameters) => path("#/orders", parameters);

async function load(parameters, signal) {
  const { cursor, ...filters } = parameters;
  const from = filters.from && new Date(filters.from).toISOString();
  const answers = [];
  let next = cursor;
  for (let n = 0; n < PAGES; n += 1) {
    const page = await get(path("/orders", { ...filters, from, cursor: next, limit: PAGE }), signal);
    answers.push(page);
    next = page.next;
    if (!next || answers.reduce((sum, one) => sum + one.orders.length, 0) >= PAGE) break;
  }
  return answers;
}

/** Why some orders are where they are, a line each. */
function reasons(app, group, looks, state) {
  const line = (why, n) => {
    const filter = { state, workflow: why.workflow, step: why.step, error: why.error };
    const to = why.count === 1 ? `#/orders/${why.order_id}` : link(filter);
    return h(
      "li",
      { "data-key": `${looks}-${why.workflow}-${why.step}-${why.undo}-${n}` },
      h("a", { href: to, class: `why ${looks}` },
        h("b", { class: "n" }, `${why.count}${group.more ? "+" : ""}`),
        h("span", { class: "where" }, why.step ? [why.undo ? "undo of " : "", h("strong", {}, why.step), why.agent && why.agent !== why.step ? ` (${why.agent})` : ""] : why.workflow),
        h("span", { class: "error" }, prose(why.error ?? "no reason recorded")),
        h("span", { class: "since" }, "since ", age(why.since))),
      h("button", { type: "button", class: "quiet", title: "Start a job for all orders with this cause", onclick: () => bulk({ ...filter, error: why.error ?? "" }, app.refresh, state ? "resubmit" : "retry-now") }, "Act on all…"),
    );
  };
  const rest = group.why.length - MOST_REASONS;
  return h("ul", { class: "reasons" }, group.why.slice(0, MOST_REASONS).map(line), rest > 0 && h("li", { class: "small" }, `and ${many(rest, "other cause")}`));
}

/** Where orders wait, a line for each step, the longest wait first. */
function waits(app, steps) {
  const line = (at) => {
    const filter = { state: "Waiting", workflow: at.workflow, step: at.step };
    const to = at.count === 1 ? `#/orders/${at.order_id}` : link(filter);
    return h(
      "li",
      { "data-key": `waits-${at.workflow}-${at.step}-${at.wait}` },
      h("a", { href: to, class: "why wait" },
        h("b", { class: "n" }, String(at.count)),
        h("span", { class: "where" }, h("strong", {}, at.step), ` of ${at.workflow}`),
        h("span", { class: "error" }, prose(at.wait), ", next wait to end: ", when(at.until)),
        h("span", { class: "since" }, "since ", age(at.since))),
      h("button", { type: "button", class: "quiet", title: "Start a job for all orders that wait here", onclick: () => bulk(filter, app.refresh, "skip") }, "Act on all…"),
    );
  };
  const rest = steps.length - MOST_REASONS;
  return h("ul", { class: "reasons" }, steps.slice(0, MOST_REASONS).map(line), rest > 0 && h("li", { class: "small" }, `and ${many(rest, "other step")}`));
}

function brief(app) {
  const all = app.overview.last;
  if (!all) return h("section", { class: "brief", "aria-label": "What needs attention" }, h("p", { class: "verdict" }, app.overview.error ? app.overview.error.message : "Loading…"));
  const wrong = troubles(app);
  const parts = [];
  if (all.waiting.count) {
    const verb = all.waiting.count === 1 && !all.waiting.more ? "waits" : "wait";
    parts.push(h("h2", { class: "bad" }, h("a", { href: link({ state: "Error" }) }, `${many(all.waiting.count, "order", all.waiting.more)} ${verb} for a person`)));
    parts.push(reasons(app, all.waiting, "bad", "Error"));
  }
  if (all.retrying.count) {
    const verb = all.retrying.count === 1 ? "is" : "are";
    parts.push(h("h2", { class: "warn" }, `${many(all.retrying.count, "order", all.retrying.more)} ${verb} being retried`));
    parts.push(reasons(app, all.retrying, "warn"));
  }
  if (all.paused.count) parts.push(h("h2", { class: "pause" }, h("a", { href: link({ state: "Paused" }) }, `${many(all.paused.count, "order", all.paused.more)} paused`)));
  const waiting = all.waits?.count ? [
    h("h2", {}, h("a", { href: link({ state: "Waiting" }) }, `${many(all.waits.count, "order", all.waits.more)} ${all.waits.count === 1 && !all.waits.more ? "waits" : "wait"} in a step`)),
    waits(app, all.waits.steps),
  ] : [];
  if (wrong.length) parts.push(h("h2", {}, h("a", { href: "#/system" }, "The system")), h("ul", { class: "reasons" }, wrong.map((one) => h("li", {}, h("a", { href: "#/system", class: `why ${one.looks}` }, h("b", { class: "n" }, "!"), h("span", { class: "where" }, h("strong", {}, one.what)), h("span", { class: "error" }, one.why))))));
  if (!parts.length) parts.push(h("p", { class: "verdict good" }, h("i", { "aria-hidden": "true" }, "✓"), "Nothing waits for a person, and nothing is stuck."));
  // Below the verdict: a wait is work, not trouble.
  parts.push(...waiting);
  const open = all.open;
  const oldest = all.oldest && [" · oldest ", h("a", { href: `#/orders/${all.oldest.order_id}` }, age(all.oldest.created_at)), all.oldest.is_exact ? "" : ", among those read"];
  parts.push(h("p", { class: "small" }, many(open.count, "open order", open.more), oldest));
  return h("section", { class: "brief", "aria-label": "What needs attention" }, parts);
}

/** The list of orders. */
export function orders(app, parameters) {
  const before = [];
  let isWide = false;
  let shown;
  const seen = { workflows: new Set(["order"]), tenants: new Set(), labels: new Set() };
  const view = {
    title: "Orders",
    polls: [],
    change(next) {
      parameters = next;
      view.polls.forEach((poll) => poll.end());
      view.polls = [new Poll(3000, (signal) => load(parameters, signal), app.render)];
    },
    render() {
      const search = document.activeElement?.id === "search";
      show(app.main, h("h1", { class: "hidden" }, "Orders"), brief(app), filters(), list());
      if (!search) fill();
    },
    keys: {
      j: () => step(1), ArrowDown: () => step(1), k: () => step(-1), ArrowUp: () => step(-1),
      n: () => document.getElementById("older")?.click(),
      p: () => document.getElementById("newer")?.click(),
      f: () => document.getElementById("f-state").focus(),
      b: () => document.getElementById("bulk")?.click(),
    },
  };

  const go = (changes) => {
    before.length = 0;
    app.go(link({ ...parameters, cursor: undefined, ...changes }), true);
  };

  function step(by) {
    const rows = [...document.querySelectorAll("#list a.row")];
    const at = rows.indexOf(document.activeElement);
    const next = rows[at < 0 ? (by > 0 ? 0 : rows.length - 1) : Math.min(rows.length - 1, Math.max(0, at + by))];
    next?.focus();
    next?.scrollIntoView({ block: "nearest" });
  }

  function find(text) {
    const wanted = text.trim();
    if (ID.test(wanted)) app.go(`#/orders/${encodeURIComponent(wanted)}`);
    else if (wanted !== (parameters.reference ?? "")) go({ reference: wanted });
  }

  let typed;
  // What a person types is theirs while they type; otherwise the address says what is in the fields.
  function fill() {
    for (const name of FILTERS) {
      const input = document.getElementById(name === "reference" ? "search" : `f-${name}`);
      if (input && input !== document.activeElement) input.value = parameters[name] ?? "";
    }
  }

  function filters() {
    const text = (name, words, options) =>
      h("label", { class: "filter" }, h("span", {}, words),
        h("input", { id: `f-${name}`, list: options && `${name}s`, placeholder: "any", autocomplete: "off", onchange: (event) => go({ [name]: event.target.value.trim() }) }),
        options && h("datalist", { id: `${name}s` }, [...options].map((one) => h("option", { value: one }))));
    const any = FILTERS.some((name) => parameters[name]);
    return h(
      "form",
      { class: isWide ? "filters wide" : "filters", role: "search", "aria-label": "Orders", onsubmit: (event) => { event.preventDefault(); clearTimeout(typed); find(document.getElementById("search").value); } },
      h("label", { class: "filter search" }, h("span", {}, "Id or reference"),
        h("input", {
          id: "search", type: "search", placeholder: "ord_… or the start of a reference", autocomplete: "off", spellcheck: "false",
          oninput: (event) => { clearTimeout(typed); const { value } = event.target; typed = setTimeout(() => find(value), 350); },
        })),
      h("label", { class: "filter" }, h("span", {}, "State"),
        h("select", { id: "f-state", onchange: (event) => go({ state: event.target.value }) },
          h("option", { value: "" }, "any"), STATES.map((state) => h("option", { value: state }, state)))),
      h("button", { type: "button", class: "only-phone", "aria-expanded": String(isWide), onclick: () => { isWide = !isWide; view.render(); } }, isWide ? "Fewer filters" : "More filters"),
      text("workflow", "Workflow", seen.workflows),
      text("tenant", "Tenant", seen.tenants),
      text("label", "Label", seen.labels),
      text("step", parameters.state === "Waiting" ? "Waiting step" : "Failing step"),
      h("label", { class: "filter" }, h("span", {}, "Accepted since"),
        h("input", { id: "f-from", type: "datetime-local", onchange: (event) => go({ from: event.target.value }) })),
      h("button", { type: "button", class: "quiet", disabled: !any, onclick: () => go(Object.fromEntries(FILTERS.map((name) => [name, undefined]))) }, "Clear"),
      any && h("button", { type: "button", id: "bulk", onclick: () => bulk({ ...parameters, error: parameters.error || undefined }, app.refresh) }, "Act on all…"),
    );
  }

  function row(one) {
    const first = one.trouble[0];
    const isOpen = ["Pending", "Processing", "Undoing"].includes(one.state);
    const isRetrying = isOpen && (first || one.failure_count > 0);
    const more = one.trouble.length > 1 ? ` (+${one.trouble.length - 1})` : "";
    const waiting = one.waits?.[0];
    const why = first ? [h("strong", {}, `${first.undo ? "undo of " : ""}${first.step}`), `${more}: `, prose(first.error ?? "failed")] : waiting ? [h("strong", {}, waiting.step), one.waits.length > 1 ? ` (+${one.waits.length - 1})` : "", ": ", prose(waiting.wait), ", since ", ago(waiting.since), ", until ", when(waiting.until)] : isOpen && one.failure_count ? "another attempt is in progress" : one.reason && prose(one.reason);
    return h(
      "li",
      { "data-key": one.order_id },
      h("a", { class: `row ${look(one.state)}`, href: `#/orders/${one.order_id}` },
        h("span", { class: "c-state" }, label(one.paused_at ? "Paused" : one.state, isRetrying)),
        h("span", { class: "c-id" }, h("span", { class: "mono", title: one.order_id }, short(one.order_id)), one.reference ? h("span", { class: "ref", title: one.reference }, one.reference) : null, one.labels?.length ? h("span", { class: "ref", title: one.labels.join(", ") }, one.labels.join(", ")) : null),
        h("span", { class: "c-flow" }, one.workflow, one.tenant === "default" ? null : h("span", { class: "tenant" }, one.tenant)),
        h("span", { class: `c-why ${isRetrying ? "warn" : look(one.state)}`, title: first?.error ?? one.reason ?? null }, why ?? ""),
        h("span", { class: "c-tries" }, one.failure_count || ""),
        h("span", { class: "c-at" }, h("span", { class: "only-phone" }, "accepted "), ago(one.created_at)),
        h("span", { class: "c-at" }, h("span", { class: "only-phone" }, "changed "), ago(one.updated_at))),
    );
  }

  function list() {
    const [poll] = view.polls;
    // Until the next page is there, this one stays, as what it is: old.
    const isOld = !poll.last;
    if (!isOld) shown = poll.last;
    const pages = shown;
    const rows = pages?.flatMap((page) => page.orders) ?? [];
    for (const one of rows) {
      seen.workflows.add(one.workflow);
      seen.tenants.add(one.tenant);
      for (const label of one.labels ?? []) seen.labels.add(label);
    }
    const next = pages?.at(-1).next;
    const any = FILTERS.some((name) => parameters[name]);
    const isOldestFirst = parameters.state === "Waiting";
    const nothing = !pages ? (poll.error ? null : "Loading…") : rows.length ? null
      : next ? `No match among the orders read so far. There are ${isOldestFirst ? "newer" : "older"} ones.`
      : any ? "No order matches." : "There are no orders yet. Submit one: stepwarden submit order.json";
    const older = () => { before.push(parameters.cursor); app.go(link({ ...parameters, cursor: next })); window.scrollTo(0, 0); };
    const newer = () => { app.go(link({ ...parameters, cursor: before.pop() })); window.scrollTo(0, 0); };
    return h(
      "section",
      { class: "list", "aria-label": "Orders", "aria-busy": isOld && !poll.error ? "true" : null },
      poll.error && h("p", { class: "wrong", role: "alert" }, poll.error.message),
      h("div", { class: "row heads", "aria-hidden": "true" }, ["State", "Order", "Workflow", "Problem or wait", "Failures", "Accepted", "Changed"].map((word) => h("span", {}, word))),
      h("ul", { id: "list" }, rows.map(row)),
      nothing && h("p", { class: "nothing" }, nothing),
      pages?.flatMap((page) => page.unreadable ?? []).map((one) => h("p", { class: "wrong", "data-key": `unreadable-${one.order_id}` }, h("span", { class: "mono" }, one.order_id), " is not listed because its record cannot be read: ", prose(one.why))),
      h("div", { class: "pages" },
        h("button", { id: "newer", disabled: isOld || !parameters.cursor, onclick: newer }, isOldestFirst ? (before.length || !parameters.cursor ? "Back" : "First") : before.length || !parameters.cursor ? "Newer" : "Newest"),
        h("span", { class: "small" }, rows.length ? `${many(rows.length, "order")}${parameters.cursor ? " on this page" : next ? (isOldestFirst ? ", those unchanged for the longest time" : ", the newest") : ""}` : ""),
        h("button", { id: "older", disabled: isOld || !next, onclick: older }, isOldestFirst ? "More" : rows.length || !next ? "Older" : "Search older orders")),
    );
  }

  view.change(parameters);
  return view;
}
