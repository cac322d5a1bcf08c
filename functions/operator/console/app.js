// The page: which view is open, what is at the top of every view, keys.

import { h, show } from "./dom.js";
import { get, on, Poll, token } from "./api.js";
import { open as openDialog } from "./dialog.js";
import { span } from "./words.js";
import { orders } from "./orders.js";
import { order } from "./order.js";
import { system, troubles } from "./system.js";
import { workflow, workflows } from "./workflows.js";
import { job, jobs } from "./jobs.js";

const TICK_MS = 1000;
const STALE_MS = 15_000;
const KEYS = [
  ["/", "search"], ["j  k", "next, previous row"], ["Enter", "open the row"], ["Esc", "back to the orders; close a dialog"],
  ["n  p", "older, newer page"], ["f", "filters"], ["b", "act on all orders that match the filters"], ["r", "resubmit the order"], ["g o", "orders"], ["g w", "workflows"], ["g j", "jobs"], ["g s", "system"],
  ["u", "update now"], ["?", "show these keys"],
];

token.fromAddress();

const app = {
  main: document.getElementById("main"),
  view: null,
  /** Everything that looks at the API now. */
  polls: () => [app.overview, app.queues, ...(app.view?.polls ?? [])].filter(Boolean),
  go(hash, replace = false) {
    if (replace) history.replaceState(null, "", hash);
    else if (location.hash !== hash) history.pushState(null, "", hash);
    route();
  },
  render,
  refresh: () => app.polls().forEach((poll) => poll.soon()),
};

/** What is percent-encoded in `text`, or `text` if it is not. */
function plain(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}

function route() {
  const [where, query = ""] = location.hash.replace(/^#\/?/, "").split("?");
  const [name, id] = where.split("/");
  const parameters = Object.fromEntries(new URLSearchParams(query));
  const view = name === "system" ? system : name === "workflows" ? (id ? workflow : workflows) : name === "jobs" ? (id ? job : jobs) : name === "orders" && id ? order : orders;
  // The same view with other parameters keeps its place on the screen, and the focus in it.
  if (app.view?.make === view && app.view.id === id) {
    if (app.view.query !== query) app.view.change?.(parameters);
    app.view.query = query;
  } else {
    app.view?.polls.forEach((poll) => poll.end());
    show(app.main);
    app.view = view(app, parameters, id && plain(id));
    Object.assign(app.view, { make: view, id, query });
    window.scrollTo(0, 0);
  }
  render();
}

function connection() {
  const polls = app.polls();
  const failing = polls.find((poll) => poll.error);
  const at = Math.min(...polls.map((poll) => poll.at));
  if (failing?.error.status === 401) return ["bad", "Signed out"];
  const wait = failing && `next attempt in ${span(Math.max(0, failing.next - Date.now()))}`;
  const old = at && Date.now() - at > STALE_MS ? `, data is ${span(Date.now() - at)} old` : "";
  if (failing) return ["bad", `${failing.error.status ? "Refused" : "Disconnected"}${old}; ${wait}`];
  if (!at) return ["wait", "Loading"];
  return old && document.hidden === false && Date.now() - at > 60_000 ? ["warn", `Stale${old}`] : ["good", "Live"];
}

function top() {
  const [looks, words] = connection();
  const people = app.overview.last?.waiting.count ?? 0;
  const wrong = troubles(app).length;
  const tab = (href, name, current, badge, what) =>
    h("a", { href, "aria-current": current ? "page" : null }, name, badge ? h("b", { class: "badge", "aria-label": `, ${badge} ${what}` }, badge) : null);
  const [isSystem, isWorkflow, isJob] = [app.view?.make === system, [workflow, workflows].includes(app.view?.make), [job, jobs].includes(app.view?.make)];
  document.title = `${people ? `(${people}) ` : ""}${app.view?.title ?? "Orders"} · Stepwarden`;
  show(
    document.getElementById("top"),
    h("a", { class: "brand", href: "#/orders" }, h("img", { src: "console/icon.svg", alt: "", width: 20, height: 20 }), "Stepwarden"),
    h("nav", { "aria-label": "Views" }, tab("#/orders", "Orders", !isSystem && !isWorkflow && !isJob, people, "wait for a person"), tab("#/jobs", "Jobs", isJob), tab("#/workflows", "Workflows", isWorkflow), tab("#/system", "System", isSystem, wrong, "need attention")),
    h("span", { class: `pill ${looks}`, role: "status", title: words }, h("i", { "aria-hidden": "true" }), h("span", {}, words)),
    token.get() && h("button", { class: "quiet", onclick: () => { token.drop(); signIn("You signed out."); app.refresh(); } }, "Sign out"),
    h("button", { class: "quiet key", onclick: help, "aria-label": "Keys", title: "Keys (?)" }, "?"),
  );
}

function render() {
  top();
  app.view?.render();
}

function help() {
  if (document.querySelector("dialog")) return;
  const row = ([keys, what]) => [h("dt", {}, keys.split("  ").map((key) => key.split(" ").map((k) => h("kbd", {}, k)))), h("dd", {}, what)];
  const dialog = openDialog("Keys", [h("dl", { class: "keys" }, KEYS.map(row)), h("div", { class: "buttons" }, h("button", { onclick: () => dialog.close() }, "Close"))]);
}

function signIn(why) {
  if (document.querySelector("dialog.sign-in")) return;
  document.querySelectorAll("dialog").forEach((dialog) => dialog.close());
  const input = h("input", { id: "token", type: "password", required: true, autocomplete: "off", spellcheck: "false" });
  const form = h(
    "form",
    {
      onsubmit(event) {
        event.preventDefault();
        token.set(input.value.trim());
        dialog.close();
        app.refresh();
      },
    },
    h("p", { class: "lead" }, why),
    h("div", { class: "field" }, h("label", { for: "token" }, "Token"), input, h("small", {}, "stepwarden up prints the token, with a link that signs you in. This tab keeps the token until you close the tab.")),
    h("div", { class: "buttons" }, h("button", { type: "submit", class: "primary" }, "Sign in")),
  );
  const dialog = openDialog("Sign in", form, { class: "sign-in" });
}

on.unauthorized = () => signIn(token.get() ? "The API does not accept this token, or no longer accepts it." : "The API requires a token.");
on.contact = () => render();

let leader = false;
document.addEventListener("keydown", (event) => {
  const typing = event.target.matches("input, select, textarea, [contenteditable]");
  if (event.ctrlKey || event.metaKey || event.altKey || document.querySelector("dialog[open]")) return;
  if (event.key === "Escape" && typing) return void event.target.blur();
  if (typing) return;
  const jump = leader ? { o: () => app.go("#/orders"), w: () => app.go("#/workflows"), j: () => app.go("#/jobs"), s: () => app.go("#/system") }[event.key] : null;
  leader = event.key === "g";
  const act = jump ?? app.view?.keys?.[event.key] ?? {
    "?": help,
    u: app.refresh,
    "/": () => (document.getElementById("search") ?? app.go("#/orders"), document.getElementById("search")?.focus()),
    Escape: () => app.view?.make !== orders && app.go("#/orders"),
  }[event.key];
  if (!act) return;
  event.preventDefault();
  act();
});

/** A link within the page is a way to another view; one that brings a token signs in, whether or not the page asks for one. */
function arrive() {
  if (location.hash === "#main") return;
  if (token.fromAddress()) {
    document.querySelector("dialog.sign-in")?.close();
    app.refresh();
  }
  route();
}

window.addEventListener("hashchange", arrive);
window.addEventListener("popstate", arrive);

app.overview = new Poll(4000, (signal) => get("/overview", signal), render);
app.queues = new Poll(15_000, async (signal) => (await get("/queues", signal)).queues, render);
route();
setInterval(() => document.hidden || render(), TICK_MS);
