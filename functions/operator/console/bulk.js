// One action on all orders that the filters show: first what it would do, then as a job of the system, whose page shows how far it is.

import { h } from "./dom.js";
import { get, post } from "./api.js";
import { ask } from "./dialog.js";
import { ACTS } from "./acts.js";
import { many, prose, short } from "./words.js";

const RATE = 10;
const MOST = 100_000;
const LISTED = 8;
// How soon a preview is asked for again: it takes a second on a laptop and up to a minute in a deployment.
const SOONEST_MS = 700;
const LATEST_MS = 5000;
const STILL_MS = 90_000;
const PAGES = 10;

/** Waits `ms`, or until `signal` is aborted. */
const pause = (ms, signal) => new Promise((done) => {
  setTimeout(done, ms);
  signal.addEventListener("abort", done, { once: true });
});

/** Starts a dry run and returns it once it has ended. Once `signal` is aborted, so is the dry run. */
async function preview(body, { tell, signal }) {
  let job = await post("/jobs", { ...body, dry_run: true }, { "idempotency-key": crypto.randomUUID() });
  const base = `/jobs/${job.job_id}`;
  let [every, seen, moved] = [SOONEST_MS, "", Date.now()];
  try {
    while (!["done", "aborted", "paused"].includes(job.state)) {
      const { good, failed, left_alone: left } = job.counts;
      const words = job.state === "gathering" ? `${many(job.found, "order")} found so far…` : `${good + failed + left} of ${job.found} checked…`;
      if (words !== seen) [seen, moved] = [words, Date.now()];
      const isStill = Date.now() - moved > STILL_MS;
      tell(h("p", {}, words), isStill && h("p", { class: "small" }, "Nothing has changed for 90 seconds. A supervisor carries out the preview: check under System whether one is running."));
      await pause(every, signal);
      signal.throwIfAborted();
      every = Math.min(LATEST_MS, every * 1.4);
      job = await get(base, signal);
    }
  } catch (error) {
    // Nothing waits for it any more. If this fails, it ends by itself and has changed nothing.
    if (signal.aborted) post(`${base}/abort`, { by: body.by, reason: "The preview was closed or changed." }).catch(() => {});
    throw error;
  }
  return job;
}

/** The results of the orders of a job that were not acted on, from its first pages. */
async function failures(job, signal) {
  const { failed, left_alone: left } = job.counts;
  const all = [];
  for (let page = 0, n = 0; page !== undefined && n < PAGES && all.length < failed + left; n += 1) {
    const told = await get(`/jobs/${job.job_id}/results?page=${page}&only=failed`, signal);
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

/** Asks for an action on the orders that `parameters` filter. */
export function bulk(parameters, done, first = "resubmit") {
  const filter = {};
  for (const name of Object.keys(words)) if (parameters[name]) filter[name] = name === "from" ? new Date(parameters.from).toISOString() : parameters[name];
  const named = Object.entries(filter).map(([name, value]) => [" ", words[name], " ", h("strong", {}, prose(value))]);
  // An empty error is that of orders for which none is recorded.
  if (parameters.error === "") {
    filter.error = "";
    named.push(" without a recorded error");
  }
  const isBoth = filter.step && filter.state !== "Waiting";
  const whole = (text, most) => Math.max(1, Math.min(most, Math.trunc(Number(text)) || 1));
  const asked = ({ action, limit, rate, output, ...why }) => ({ ...why, action, filter, limit: whole(limit, MOST), rate_per_s: whole(rate, 100), output: action === "mark-done" ? (output ?? {}) : undefined });
  const name = ({ action }) => ACTS[action].name;
  const actions = Object.keys(ACTS);
  // Of what was previewed: sent again after an unclear answer, it is still the same job.
  let key;
  ask({
    title: "Act on all these orders?",
    lead: [h("p", {}, "All orders", named, ", not only those on this page. You first see what would be done."), isBoth && h("p", {}, "The undo of a step counts as the step: orders in which ", h("strong", {}, filter.step), " fails and orders in which its undo fails are both included."), h("p", { class: "small" }, "The system carries this out even if you close this page. It leaves alone every order that no longer matches.")],
    fields: [
      { name: "action", label: "Act", kind: "select", options: actions, names: Object.fromEntries(actions.map((action) => [action, ACTS[action].name])), value: first },
      { name: "limit", label: "Maximum number", value: "100" },
      { name: "rate", label: "Orders per second", value: String(RATE) },
      { name: "output", label: "Output", kind: "json", rows: 3, value: "{}", folded: "Output that Mark done records", help: "JSON, as the agent would have returned it; the same for every order." },
    ],
    verb: "Preview",
    done,
    async look(values, { tell, signal }) {
      const job = await preview(asked(values), { tell, signal });
      if (job.state !== "done") return { verb: null, told: h("p", { class: "wrong" }, `The preview is ${job.state}${job.why ? `: ${job.why}` : ""}. Nothing was done; preview again.`) };
      const { good, failed, left_alone: left } = job.counts;
      const verb = good ? `${name(values)}: ${many(good, "order")}` : null;
      const bad = failed + left;
      const told = bad ? await failures(job, signal) : [];
      key = crypto.randomUUID();
      return { verb, told: [h("p", { class: "small" }, ACTS[values.action].what), h("p", {}, `${name(values)} would apply to `, h("strong", {}, many(good, "order")), bad ? `, but not to ${bad}:` : "."), reasons(told), told.length < bad && h("p", { class: "small" }, `These are the reasons for the first ${told.length} of ${bad}.`), job.more && h("p", { class: "small" }, "More orders match than the maximum number allows.")] };
    },
    async send(values) {
      const job = await post("/jobs", asked(values), { "idempotency-key": key });
      location.hash = `#/jobs/${job.job_id}`;
      return "The job has started.";
    },
  });
}
