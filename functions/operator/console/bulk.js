// One act on all orders that the filters show: first what it would do, then as a job of the system, whose page shows how far it is.

import { h } from "./dom.js";
import { get, post } from "./api.js";
import { ask } from "./dialog.js";
import { ACTS } from "./acts.js";
import { many, prose, short } from "./words.js";

const RATE = 10;
const MOST = 100_000;
const LISTED = 8;
const EVERY_MS = 700;

/** Starts a job and returns it once it has ended, or once `signal` is aborted. */
async function through(body, key, { tell, signal }) {
  let job = await post("/jobs", body, { "idempotency-key": key });
  while (!["done", "aborted", "paused"].includes(job.state) && !signal?.aborted) {
    await new Promise((done) => setTimeout(done, EVERY_MS));
    job = await get(`/jobs/${job.job_id}`, signal);
    const { good, failed, left_alone: left } = job.counts;
    tell?.(h("p", {}, job.state === "gathering" ? `${many(job.found, "order")} found so far…` : `${good + failed + left} of ${job.found} done…`));
  }
  return job;
}

/** Up to `pages` pages of the orders of a job that were not acted on. */
async function failures(job, pages = 10) {
  const all = [];
  for (let page = 0; page !== undefined && pages > 0; pages -= 1) {
    const told = await get(`/jobs/${job.job_id}/results?page=${page}&only=failed`);
    all.push(...told.results);
    page = told.next;
  }
  return all;
}

/** Why some were not done, each reason once with how many it is about. */
export function reasons(results) {
  const groups = Map.groupBy(results, (one) => one.why ?? one.outcome);
  const line = ([why, all]) => h("li", {}, h("b", {}, `${all.length}: `), prose(why), " ", h("a", { href: `#/orders/${all[0].order_id}`, class: "mono" }, short(all[0].order_id)));
  const rows = [...groups].sort((a, b) => b[1].length - a[1].length);
  return rows.length ? h("ul", { class: "left" }, rows.slice(0, LISTED).map(line), rows.length > LISTED && h("li", {}, `and ${many(rows.length - LISTED, "other reason")}`)) : null;
}

const words = { state: "in state", workflow: "of workflow", tenant: "of tenant", label: "with label", reference: "with a reference that begins with", step: "in which this step is failing or has failed:", error: "with the error", from: "accepted since" };

/** Asks for an act on the orders that `parameters` filter. */
export function bulk(parameters, done, first = "resubmit") {
  const filter = {};
  for (const name of Object.keys(words)) if (parameters[name]) filter[name] = name === "from" ? new Date(parameters.from).toISOString() : parameters[name];
  const named = Object.entries(filter).map(([name, value]) => [" ", words[name], " ", h("strong", {}, value)]);
  const whole = (text, most) => Math.max(1, Math.min(most, Math.trunc(Number(text)) || 1));
  const asked = ({ action, limit, rate, output, ...why }) => ({ ...why, action, filter, limit: whole(limit, MOST), rate_per_s: whole(rate, 100), output: action === "mark-done" ? (output ?? {}) : undefined });
  const name = ({ action }) => ACTS[action].name;
  const actions = Object.keys(ACTS);
  // Sent again after an unclear answer, it is still the same job.
  const key = crypto.randomUUID();
  ask({
    title: "Act on all these orders?",
    lead: [h("p", {}, "All orders", named, ", not only those on this page. You first see what would be done."), h("p", { class: "small" }, "The system does it, whether or not this page stays open. An order that no longer matches is left alone.")],
    fields: [
      { name: "action", label: "Act", kind: "select", options: actions, names: Object.fromEntries(actions.map((action) => [action, ACTS[action].name])), value: first },
      { name: "limit", label: "Maximum number", value: "100" },
      { name: "rate", label: "Orders per second", value: String(RATE) },
      { name: "output", label: "Output", kind: "json", rows: 3, value: "{}", folded: "Output that Mark done records", help: "JSON, as the agent would have returned it; the same for every order." },
    ],
    verb: "Preview",
    done,
    async look(values) {
      const job = await through({ ...asked(values), dry_run: true }, crypto.randomUUID(), {});
      const { good, failed, left_alone: left } = job.counts;
      const verb = good ? `${name(values)}: ${many(good, "order")}` : null;
      const bad = failed + left;
      return { verb, told: [h("p", { class: "small" }, ACTS[values.action].what), h("p", {}, `${name(values)} would apply to `, h("strong", {}, many(good, "order")), bad ? `, but not to ${bad}:` : "."), bad ? reasons(await failures(job)) : null, job.more && h("p", { class: "small" }, "More orders match than the maximum number.")] };
    },
    async send(values) {
      const job = await post("/jobs", asked(values), { "idempotency-key": key });
      location.hash = `#/jobs/${job.job_id}`;
      return "The job has started.";
    },
  });
}
