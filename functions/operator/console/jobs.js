// Jobs: acts on many orders that the system carries out, with their progress and results.

import { h, show } from "./dom.js";
import { get, path, Poll, post } from "./api.js";
import { ask } from "./dialog.js";
import { reasons } from "./bulk.js";
import { ago, many, prose, short, when } from "./words.js";

const LOOKS = { gathering: "wait", running: "wait", paused: "pause", aborting: "warn", aborted: "bad", done: "good" };
const VERBS = {
  pause: { name: "Pause", what: "Within about a second, the job stops starting new actions until it is resumed." },
  resume: { name: "Resume", what: "The job continues where it was." },
  abort: { name: "Abort", danger: true, what: "What was done stays done. The remaining orders are not changed." },
};

const EVERY_MS = 2500;
// Pages of results that are read each time.
const PAGES = 2;

const all = ({ good, failed, left_alone: left }) => good + failed + left;
const isOver = (job) => ["done", "aborted"].includes(job.state);

function progress(job) {
  const { good, failed, left_alone: left } = job.counts;
  const parts = [`${all(job.counts)} of ${job.found}`, `${good} ${job.dry_run ? "would be accepted" : "accepted"}`, failed && `${failed} failed`, left && `${left} left alone`];
  return parts.filter(Boolean).join(", ");
}

function bar(job) {
  return h("progress", { max: Math.max(1, job.found), value: all(job.counts), "aria-label": "Progress" }, progress(job));
}

/** The list of jobs. */
export function jobs(app, parameters) {
  const view = {
    title: "Jobs",
    polls: [],
    change(next) {
      parameters = next;
      view.polls.forEach((poll) => poll.end());
      view.polls = [new Poll(3000, (signal) => get(path("/jobs", parameters), signal), app.render)];
    },
    render() {
      const [poll] = view.polls;
      const row = (job) => h("li", { "data-key": job.job_id },
        h("a", { class: `why ${LOOKS[job.state]}`, href: `#/jobs/${job.job_id}` },
          h("b", { class: "n" }, job.state),
          h("span", { class: "where" }, h("strong", {}, job.action), job.dry_run ? " (dry run)" : "", ` ${job.orders}`),
          h("span", { class: "error" }, progress(job)),
          h("span", { class: "since" }, ago(job.created_at), " ago")));
      const list = poll.last?.jobs ?? [];
      show(app.main, h("section", { class: "brief", "aria-label": "Jobs" },
        h("h1", {}, "Jobs"),
        poll.error && h("p", { class: "wrong", role: "alert" }, poll.error.message),
        h("ul", { class: "reasons" }, list.map(row)),
        poll.last && !list.length && h("p", { class: "small" }, "No job in the last 120 days. “Act on all…” above the list of orders starts one."),
        poll.last?.unreadable?.map((id) => h("p", { class: "wrong" }, `The record of ${id} cannot be read.`)),
        poll.last?.next && h("p", {}, h("a", { href: path("#/jobs", { cursor: poll.last.next }) }, "Older jobs"))));
    },
  };
  view.change(parameters);
  return view;
}

/** One job. */
export function job(app, _, id) {
  const base = `/jobs/${encodeURIComponent(id)}`;
  const control = (verb) => ask({
    title: `${VERBS[verb].name} this job?`,
    lead: [h("p", {}, VERBS[verb].what), h("p", { class: "small mono" }, id)],
    verb: VERBS[verb].name,
    danger: VERBS[verb].danger,
    done: app.refresh,
    async send(why) {
      await post(`${base}/${verb}`, why);
      return `${VERBS[verb].name}: done.`;
    },
  });
  const bad = ({ counts }) => counts.failed + counts.left_alone;
  // What was not acted on, by page of results: a page has as many orders as one listing found, from one to some hundred. They are
  // read a few at a time, until there is a result for each that the job counts.
  const found = new Map();
  const damaged = new Set();
  const left = () => [...found.values()].flat();
  let [page, reads, rounds] = [0, 0, 0];
  const load = async (signal) => {
    const now = await get(base, signal);
    // The second round after its end has read all there is.
    for (let n = 0; n < PAGES && rounds < 2 && left().length < bad(now); n += 1) {
      const told = await get(`${base}/results?page=${page}&only=failed`, signal).catch((error) => {
        if (error.code !== "unreadable") throw error;
        damaged.add(page);
        return { results: [], next: page + 1 < now.pages ? page + 1 : undefined };
      });
      if (told.results.length) found.set(page, told.results);
      // After the last page, again from the last that had some: the job has gone on meanwhile.
      page = told.next ?? Math.max(0, ...found.keys());
      if (told.next === undefined && isOver(now)) rounds += 1;
      reads += 1;
    }
    return [now, reads];
  };
  const view = {
    title: "Job",
    polls: [new Poll(EVERY_MS, load, app.render)],
    render() {
      const [poll] = view.polls;
      const [now] = poll.last ?? [];
      if (!now) return void show(app.main, h("p", { class: poll.error ? "wrong" : "nothing" }, poll.error?.message ?? "Loading…"));
      const verbs = isOver(now) || now.state === "aborting" ? [] : now.state === "paused" ? ["resume", "abort"] : ["pause", "abort"];
      const rows = [
        ["Orders", now.orders], ["Progress", [bar(now), " ", progress(now)]],
        ["Started", [when(now.created_at), ` by ${now.by}: `, now.reason]],
        ["Rate", `${now.rate_per_s} a second; stops after ${many(now.abort_after_failures, "failure")}`],
        ["Ends about", now.done_by ? when(now.done_by) : null], ["Ended", now.ended_at ? when(now.ended_at) : null], ["Stopped because", now.why],
        ...(now.notes ?? []).map((note) => [note.what, [when(note.at), ` by ${note.by}: `, note.reason]]),
      ];
      show(app.main, h("section", { class: "brief", "aria-label": "Job" },
        h("h1", {}, `${now.action}${now.dry_run ? ", a dry run" : ""}: ${now.state}`),
        h("p", { class: "small mono", title: id }, short(id)),
        poll.error && h("p", { class: "wrong", role: "alert" }, poll.error.message),
        h("div", { class: "buttons" }, verbs.map((verb) => h("button", { class: VERBS[verb].danger ? "danger" : "", onclick: () => control(verb) }, VERBS[verb].name))),
        h("dl", { class: "facts" }, rows.filter(([, value]) => value).map(([name, value]) => [h("dt", {}, name), h("dd", {}, value)])),
        now.more && h("p", {}, "More orders match than the job's maximum number allows."),
        bad(now) > 0 && [h("h2", { class: "warn" }, "Not acted on"), reasons(left()), left().length < bad(now) && h("p", { class: "small" }, `${left().length} of ${bad(now)} read so far${now.pages ? `, up to page ${Math.min(page + 1, now.pages)} of ${now.pages}` : ""}…`)],
        [...damaged].map((n) => h("p", { class: "wrong" }, `Page ${n + 1} of the results cannot be read.`)),
        h("p", { class: "small" }, "All results: ", prose(`\`stepwarden jobs results ${id}\``))));
    },
  };
  return view;
}
