// Workflows: what new orders of each get, its graph and its changes; and another definition for new orders.

import { h, show } from "./dom.js";
import { get, post, Poll } from "./api.js";
import { ask } from "./dialog.js";
import { graph } from "./graph.js";
import { ago, prose, when } from "./words.js";

const STATES = { active: ["good", "Active"], retired: ["pause", "Retired"], unreadable: ["bad", "Unreadable"] };
const path = (name, rest = "") => `/workflows/${encodeURIComponent(name)}${rest}`;
const hash = (text) => h("span", { class: "mono" }, text);

const state = (row) => {
  const [looks, word] = STATES[row.state] ?? ["wait", row.state];
  return h("strong", { class: looks }, word);
};

const source = (row) => (row.source === "deployment" ? "the deployment" : row.last_change ? [row.last_change.by, ", ", ago(row.last_change.since), " ago"] : "");

/** All workflows. */
export function workflows(app) {
  const poll = new Poll(5000, async (signal) => (await get("/workflows", signal)).workflows, app.render);
  const row = (one) => h("tr", { "data-key": one.name }, h("th", { scope: "row" }, h("a", { href: `#/workflows/${one.name}` }, one.name)), h("td", {}, state(one)), h("td", {}, one.hash ? hash(one.hash) : "–"), h("td", {}, source(one)));
  const heads = h("thead", {}, h("tr", {}, ["Workflow", "State", "Definition of new orders", "From"].map((name) => h("th", { scope: "col" }, name))));
  return {
    title: "Workflows",
    polls: [poll],
    keys: {},
    render() {
      const all = poll.last;
      const list = all?.length ? h("div", { class: "scroll" }, h("table", {}, heads, h("tbody", {}, all.map(row)))) : h("p", { class: "nothing" }, all ? "There are no workflows yet. Register one with stepwarden workflows put." : "Loading…");
      show(app.main, h("section", { class: "block", "aria-label": "Workflows" }, h("h1", {}, "Workflows"), poll.error && h("p", { class: "wrong", role: "alert" }, poll.error.message), (all || !poll.error) && list));
    },
  };
}

/** What a step does, in a few words. */
function does(step) {
  if (step.http) return step.http.url;
  if (step.aws) return step.aws.action;
  return step.agent ?? (step.wait ? "waits" : step.fail ? "ends the order" : "computes");
}

/** The steps of a definition as the graph of an order has them: there a step names those before it, here their numbers. */
function steps(definition) {
  const name = (after) => definition.steps[parseInt(after, 10)].name;
  return definition.steps.map((step) => ({ name: step.name, after: step.after.map(name), state: "Pending", label: does(step), when: step.when, attempts: 0 }));
}

function change(verb, row, to, done) {
  const rollback = verb === "rollback";
  ask({
    title: `${rollback ? "Roll back" : "Activate a definition of"} ${row.name}?`,
    lead: [h("p", {}, "New orders get this definition within 5 s. Open orders keep theirs."), h("p", { class: "small" }, row.hash ? [hash(row.hash), " → "] : "", hash(to))],
    verb: rollback ? "Roll back" : "Activate",
    danger: true,
    done,
    async send(values) {
      const told = await post(path(row.name, `/${verb}`), { ...values, if_version: row.version, hash: rollback ? undefined : to });
      return `New orders of ${row.name} get ${told.hash}.`;
    },
  });
}

/** One workflow. */
export function workflow(app, _, name) {
  const poll = new Poll(5000, async (signal) => {
    const row = await get(path(name), signal);
    const found = row.hash && (await get(path(name, `/${row.hash}`), signal));
    return { row, definition: found?.definition };
  }, app.render);

  function history(row) {
    const done = () => app.refresh();
    const one = (entry) => h("tr", { "data-key": String(entry.version) },
      h("th", { scope: "row" }, String(entry.version)), h("td", {}, entry.hash ? hash(entry.hash) : "retired"), h("td", {}, entry.by), h("td", {}, when(entry.since)), h("td", {}, entry.reason ? prose(entry.reason) : ""),
      h("td", { class: "do" }, entry.hash && entry.hash !== row.hash ? h("button", { onclick: () => change("activate", row, entry.hash, done), "aria-label": `Activate ${entry.hash}, change ${entry.version}` }, "Activate") : null));
    const heads = ["Change", "Definition", "By", "Time", "Reason", h("span", { class: "hidden" }, "Action")];
    if (!row.history.length) return h("p", { class: "nothing" }, "There are no changes: new orders get the definition that was deployed.");
    return [h("div", { class: "scroll" }, h("table", {}, h("thead", {}, h("tr", {}, heads.map((head) => h("th", { scope: "col" }, head)))), h("tbody", {}, row.history.map(one)))),
      row.next && h("p", { class: "small" }, "Earlier changes: ", h("code", {}, `stepwarden workflows show ${row.name}`))];
  }

  function list(definition) {
    const one = (step) => h("tr", { "data-key": step.name }, h("th", { scope: "row" }, step.name), h("td", {}, does(step)), h("td", {}, step.when ? h("code", {}, step.when) : "always"), h("td", {}, step.undo ? "yes" : "no"));
    return h("div", { class: "scroll" }, h("table", {}, h("thead", {}, h("tr", {}, ["Step", "Does", "Runs when", "Undo"].map((head) => h("th", { scope: "col" }, head)))), h("tbody", {}, definition.steps.map(one))));
  }

  const block = (title, kids) => h("section", { class: "block", "aria-label": title }, h("h2", {}, title), kids);
  return {
    title: name,
    polls: [poll],
    keys: {},
    render() {
      const back = h("a", { href: "#/workflows", class: "back" }, "‹ Workflows");
      const wrong = poll.error && h("p", { class: "wrong", role: "alert" }, poll.error.message);
      if (!poll.last) return void show(app.main, back, h("h1", {}, name), wrong ?? h("p", { class: "nothing" }, "Loading…"));
      const { row, definition } = poll.last;
      show(
        app.main,
        back,
        h("div", { class: "title" }, state(row), h("h1", {}, name)),
        wrong,
        h("p", {}, row.hash ? ["New orders get ", hash(row.hash), ", from ", source(row), "."] : "It takes no orders."),
        row.previous && h("div", { class: "acts", role: "group", "aria-label": "Actions" }, h("button", { id: "act-rollback", class: "danger", onclick: () => change("rollback", row, row.previous, () => app.refresh()) }, "Roll back")),
        definition && block("Graph", graph({ order: { steps: steps(definition) } })),
        definition && block("Steps", list(definition)),
        block("Changes", history(row)),
      );
    },
  };
}
