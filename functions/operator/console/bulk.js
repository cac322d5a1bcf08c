// One act on all orders that the filters show: first what it would do, then a few at a time, until all are done or the person
// has seen enough.

import { h } from "./dom.js";
import { post } from "./api.js";
import { ask } from "./dialog.js";
import { ACTS } from "./acts.js";
import { many, prose, short } from "./words.js";

// Orders of one call that acts, at so many a second: it answers within two seconds.
const AT_ONCE = 20;
const RATE = 10;
// Orders of one call that only looks.
const LOOKED_AT = 1000;
const MOST_FAILED = 10;
const LISTED = 8;

/** Calls the API until `limit` orders are through, and adds up what became of them. */
async function run(body, limit, atOnce, onward) {
  const sum = { good: 0, failed: 0, results: [], aborted: false, next: undefined };
  while (sum.results.length < limit && onward(sum)) {
    const told = await post("/bulk", { ...body, limit: Math.min(atOnce, limit - sum.results.length), abort_after_failures: body.dry_run ? LOOKED_AT : MOST_FAILED - sum.failed, cursor: sum.next });
    const stands = told.next === sum.next && !told.results.length;
    sum.good += told.good;
    sum.failed += told.failed;
    sum.results.push(...told.results);
    Object.assign(sum, { next: told.next, aborted: told.aborted });
    if (!told.next || told.aborted || stands) break;
  }
  return sum;
}

/** Why some were not done, each reason once with how many it is about. */
function reasons(results) {
  const bad = results.filter((one) => !["applied", "repeated", "would_apply"].includes(one.outcome));
  const groups = Map.groupBy(bad, (one) => one.why ?? one.outcome);
  const line = ([why, all]) => h("li", {}, h("b", {}, `${all.length}: `), prose(why), " ", h("a", { href: `#/orders/${all[0].order_id}`, class: "mono" }, short(all[0].order_id)));
  const rows = [...groups].sort((a, b) => b[1].length - a[1].length);
  return rows.length ? h("ul", { class: "left" }, rows.slice(0, LISTED).map(line), rows.length > LISTED && h("li", {}, `and ${many(rows.length - LISTED, "other reason")}`)) : null;
}

const words = { state: "in state", workflow: "of workflow", tenant: "of tenant", reference: "with a reference that begins with", step: "in which this step is failing or has failed:", from: "accepted since" };

/** Asks for an act on the orders that `parameters` filter. */
export function bulk(parameters, done) {
  const filter = {};
  for (const name of Object.keys(words)) if (parameters[name]) filter[name] = name === "from" ? new Date(parameters.from).toISOString() : parameters[name];
  const named = Object.entries(filter).map(([name, value]) => [" ", words[name], " ", h("strong", {}, value)]);
  const asked = ({ action, limit, output, ...why }) => ({ ...why, action, filter, output: action === "mark-done" ? (output ?? {}) : undefined });
  const most = ({ limit }) => Math.max(1, Math.min(100_000, Math.trunc(Number(limit)) || 1));
  const name = ({ action }) => ACTS[action].name;
  const actions = Object.keys(ACTS);
  ask({
    title: "Act on all these orders?",
    lead: [h("p", {}, "All orders", named, ", not only those on this page. You first see what would be done."), h("p", { class: "small" }, "An order that changes in the meantime is left alone. Closing this dialog stops the run.")],
    fields: [
      { name: "action", label: "Act", kind: "select", options: actions, names: Object.fromEntries(actions.map((action) => [action, ACTS[action].name])), value: "resubmit" },
      { name: "limit", label: "Maximum number", value: "100" },
      { name: "output", label: "Output", kind: "json", rows: 3, value: "{}", folded: "Output that Mark done records", help: "JSON, as the agent would have returned it; the same for every order." },
    ],
    verb: "Preview",
    done,
    async look(values) {
      const told = await run({ ...asked(values), dry_run: true }, most(values), LOOKED_AT, () => true);
      const verb = told.good ? `${name(values)}: ${many(told.good, "order")}` : null;
      return { verb, told: [h("p", { class: "small" }, ACTS[values.action].what), h("p", {}, `${name(values)} would apply to `, h("strong", {}, many(told.good, "order")), told.failed ? `, but not to ${told.failed}:` : "."), reasons(told.results)] };
    },
    async send(values, { tell, signal }) {
      const onward = (sum) => {
        tell(h("p", {}, `${sum.good} accepted, ${sum.failed} failed…`));
        return !signal.aborted;
      };
      const told = await run({ ...asked(values), rate_per_s: RATE }, most(values), AT_ONCE, onward);
      const sum = `${name(values)}: accepted for ${many(told.good, "order")}`;
      if (!told.failed && !told.aborted) return `${sum}.`;
      return { stay: [h("p", {}, `${sum}, failed for ${told.failed}${told.aborted ? "; stopped after too many failures" : ""}:`), reasons(told.results)] };
    },
  });
}
