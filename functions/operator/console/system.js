// Queues, agents and who leads.

import { h, show } from "./dom.js";
import { get, post, Poll } from "./api.js";
import { charts } from "./charts.js";
import { ask } from "./dialog.js";
import { age, ago, many, prose, when } from "./words.js";

const ASIDE = "set-aside";
const MOST_MOVED = 1000;

/** What is wrong with the system itself, as far as the last answers say. */
export function troubles(app) {
  const all = app.overview.last;
  const queues = app.queues.last ?? [];
  const found = [];
  for (const [name, pause] of Object.entries(all?.paused_agents ?? {})) found.push({ looks: "pause", what: `${name} is paused`, why: `by ${pause.by}: ${pause.reason}` });
  for (const [name, strain] of Object.entries(all?.strained_agents ?? {})) found.push({ looks: "warn", what: `${name} is strained`, why: `it held up ${strain.held} of ${strain.looked_at} orders in a sweep; its back-off is ${strain.stretch} times as long` });
  const unreadable = all?.unreadable ?? [];
  if (unreadable.length) found.push({ looks: "bad", what: `${many(unreadable.length, "order")} cannot be read`, why: `${unreadable.length === 1 ? "it does" : "they do"} not continue. See stepwarden get ORDER_ID --raw: ${unreadable.map((one) => `${one.order_id} (${one.why})`).join("; ")}` });
  for (const [name, breaker] of Object.entries(all?.breakers ?? {})) found.push({ looks: "warn", what: `${name}: breaker open`, why: prose(`${breaker.error}. It holds ${many(breaker.count, "order")} back.`) });
  const dead = queues.filter((queue) => queue.dead_letters);
  for (const queue of dead) found.push({ looks: "bad", what: `${many(queue.dead_letters, "dead letter")} of ${queue.name}`, why: "received too often; find out why, then move them back" });
  const unknown = queues.filter((queue) => queue.why);
  if (unknown.length) found.push({ looks: "warn", what: `${unknown.length === 1 ? unknown[0].name : many(unknown.length, "queue")} cannot be counted`, why: unknown[0].why });
  const aside = queues.find((queue) => queue.name === ASIDE)?.waiting;
  if (aside) found.push({ looks: "bad", what: `${many(aside, "message")} set aside`, why: "they cannot be handled; “Move back” shows why before it moves any" });
  return found;
}

/** Shows why the first messages are where they are. */
async function peek(name, list) {
  try {
    const { left } = await post(`/queues/${encodeURIComponent(name)}/redrive`, { by: "the console", reason: "showing why", dry_run: true });
    show(list, left.map((one) => h("li", {}, prose(one.why))));
  } catch (error) {
    show(list, h("li", { class: "wrong" }, error.message));
  }
}

function redrive(queue, app) {
  const isAside = queue.name === ASIDE;
  const count = isAside ? queue.waiting : queue.dead_letters;
  const why = h("ul", { class: "left" });
  peek(queue.name, why);
  ask({
    title: isAside ? "Move messages set aside back?" : `Move dead letters back to ${queue.name}?`,
    lead: [h("p", {}, `About ${many(count, "message")}. Each returns to the queue it came from and is handled again; duplicates do no harm. Fix the cause first, or they will come back.`), why],
    fields: [{ name: "limit", label: "Maximum number", value: String(Math.min(MOST_MOVED, Math.max(count, 1))) }],
    verb: "Move back",
    done: app.refresh,
    async send({ limit, ...why }) {
      const told = await post(`/queues/${encodeURIComponent(queue.name)}/redrive`, { ...why, limit: Number(limit) });
      return `${many(told.moved, "message")} moved back${told.left.length ? `, ${told.left.length} stay: ${told.left[0].why}` : ""}.`;
    },
  });
}

function setAgent(agent, app) {
  const verb = agent.paused ? "resume" : "pause";
  ask({
    title: `${agent.paused ? "Resume" : "Pause"} ${agent.name}?`,
    lead: h("p", {}, agent.paused ? "This agent gets work again." : "This agent gets no new work. Requests that it already has may still finish. Orders wait, and waiting does not count as a failure."),
    verb: agent.paused ? "Resume" : "Pause",
    danger: !agent.paused,
    done: app.refresh,
    async send(why) {
      const told = await post(`/agents/${encodeURIComponent(agent.name)}/${verb}`, why);
      return `${agent.name} is ${told.paused ? "paused" : "resumed"}; in effect within ${told.within_s} s.`;
    },
  });
}

const number = (n, looks) => h("td", { class: `number ${n ? looks ?? "" : "zero"}` }, n === undefined ? "" : String(n));
const heads = (...names) => h("thead", {}, h("tr", {}, names.map((name) => h("th", { scope: "col", class: Array.isArray(name) ? "number" : null }, name))));

function queuesTable(queues, app) {
  const row = (queue) => {
    const aside = queue.name === ASIDE;
    const poison = aside ? queue.waiting : queue.dead_letters;
    return h("tr", { "data-key": queue.name },
      h("th", { scope: "row" }, queue.name, queue.why && h("p", { class: "wrong" }, queue.why)),
      number(queue.waiting, aside ? "bad" : ""), number(queue.in_flight), number(queue.delayed), number(queue.dead_letters, "bad"),
      h("td", { class: "do" }, poison ? h("button", { onclick: () => redrive(queue, app), "aria-label": `Move back, ${queue.name}` }, "Move back") : null));
  };
  const isIdle = (queue) => !queue.why && !queue.waiting && !queue.in_flight && !queue.delayed && !queue.dead_letters;
  const busy = queues.filter((queue) => !isIdle(queue));
  const idle = queues.filter(isIdle);
  const table = (rows) => h("table", {}, heads("Queue", ["Waiting"], ["In flight"], ["Delayed"], ["Dead letters"], h("span", { class: "hidden" }, "Action")), h("tbody", {}, rows.map(row)));
  return [busy.length ? h("div", { class: "scroll" }, table(busy)) : h("p", { class: "nothing" }, "All queues are empty."),
    idle.length > 0 && h("details", {}, h("summary", {}, `${idle.length} empty ${idle.length === 1 ? "queue" : "queues"}`), h("p", { class: "small names" }, idle.map((queue) => queue.name).join(", ")))];
}

function agentsTable(agents, app) {
  const breakers = app.overview.last?.breakers ?? {};
  const row = (agent) => {
    const state = agent.paused ? [h("strong", { class: "pause" }, "Paused"), ` by ${agent.paused.by}, ${age(new Date(agent.paused.since).toISOString())} ago: ${agent.paused.reason}`]
      : breakers[agent.name] ? [h("strong", { class: "warn" }, "Breaker open"), `: holds ${many(breakers[agent.name].count, "order")} back, such as `, h("a", { href: `#/orders/${breakers[agent.name].order_id}` }, "this one")]
      : agent.strained ? [h("strong", { class: "warn" }, "Strained"), `: back-off ${agent.strained.stretch} times as long`]
      : h("span", { class: "good" }, "Ready");
    const waits = (pool) => (pool.queues.some((queue) => queue.waiting === undefined) ? "unknown" : pool.queues.reduce((sum, queue) => sum + queue.waiting, 0));
    const pools = agent.pools.length > 1 && h("ul", { class: "pools" }, agent.pools.map((pool) => h("li", {}, h("span", {}, pool.name), ` ${waits(pool)} waiting${pool.dead ? `, ${pool.dead} dead` : ""}`)));
    return h("tr", { "data-key": agent.name }, h("th", { scope: "row" }, agent.name, pools, agent.why && h("p", { class: "wrong" }, agent.why)), h("td", {}, state), number(agent.waiting), number(agent.dead, "bad"),
      h("td", { class: "do" }, h("button", { onclick: () => setAgent(agent, app), "aria-label": `${agent.paused ? "Resume" : "Pause"} ${agent.name}` }, agent.paused ? "Resume" : "Pause")));
  };
  return h("div", { class: "scroll" }, h("table", {}, heads("Agent", "State", ["Waiting"], ["Dead letters"], h("span", { class: "hidden" }, "Action")), h("tbody", {}, agents.map(row))));
}

function leasesTable(leases) {
  const row = (lease) => {
    const state = lease.holder ? ["until ", when(lease.expires), ", unless renewed"] : ["free since ", when(lease.expires), ": normal between sweeps on AWS"];
    return h("tr", { "data-key": lease.name }, h("th", { scope: "row" }, lease.name), h("td", { class: "mono" }, lease.holder ?? "–"), h("td", {}, state), number(lease.token));
  };
  return leases.length ? h("div", { class: "scroll" }, h("table", {}, heads("Lease", "Held by", "Until", ["Token"]), h("tbody", {}, leases.map(row)))) : h("p", { class: "nothing" }, "No supervisor has led yet.");
}

/** The system. */
export function system(app) {
  const agents = new Poll(5000, async (signal) => (await get("/agents", signal)).agents, app.render);
  const leases = new Poll(5000, async (signal) => (await get("/leases", signal)).leases, app.render);
  const hour = new Poll(60_000, (signal) => get("/charts", signal), app.render);
  app.queues.soon();
  const block = (title, poll, kids) => h("section", { class: "block", "aria-label": title }, h("h2", {}, title), poll.error && h("p", { class: "wrong", role: "alert" }, poll.error.message), poll.last ? kids(poll.last) : !poll.error && h("p", { class: "nothing" }, "Loading…"));
  return {
    title: "System",
    polls: [agents, leases, hour],
    keys: {},
    render() {
      const wrong = troubles(app);
      const all = app.overview.last;
      show(
        app.main,
        h("h1", { class: "hidden" }, "System"),
        h("section", { class: "brief", "aria-label": "What needs attention" },
          wrong.length ? h("ul", { class: "reasons" }, wrong.map((one) => h("li", {}, h("span", { class: `why ${one.looks}` }, h("b", { class: "n" }, "!"), h("span", { class: "where" }, h("strong", {}, one.what)), h("span", { class: "error" }, one.why)))))
            : h("p", { class: `verdict ${all ? "good" : ""}` }, all && h("i", { "aria-hidden": "true" }, "✓"), all ? "No dead letters, no messages set aside, and every agent is ready." : "Loading…"),
          all && h("p", { class: "small" }, many(all.open.count, "open order", all.open.more), all.oldest ? [", the oldest accepted ", h("a", { href: `#/orders/${all.oldest.order_id}` }, ago(all.oldest.created_at)), " ago", all.oldest.is_exact ? "" : ", among those read"] : "")),
        block("Last hour", hour, (all) => charts(all, app.overview.last?.breakers)),
        block("Agents", agents, (list) => [agentsTable(list, app), h("p", { class: "small" }, "Circuit breakers are in the memory of each agent's process. While an open breaker holds an order back, the breaker is shown here and in the order, with the error that opened it.")]),
        block("Queues", app.queues, (list) => queuesTable(list, app)),
        block("Leader", leases, leasesTable),
      );
    },
  };
}
