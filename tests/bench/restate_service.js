// Orders of three steps that do nothing, as Restate services: `calls` calls three services one after another, `steps` runs
// three steps in its own handler. The port is the first argument.

import * as restate from "@restatedev/restate-sdk";
import { appendFileSync, existsSync } from "node:fs";
import { createServer } from "node:http2";
import { setTimeout as sleep } from "node:timers/promises";

const STEPS = ["first", "second", "third"];

// Nothing, or a call of the service that the order names. Where the order names a file, note the time beside it, and let the
// second step last until the file is there.
async function act(step, order) {
  if (order.service) await (await fetch(order.service, { method: "POST" })).arrayBuffer();
  if (!order.hold) return;
  appendFileSync(`${order.hold}.log`, `${step} ${process.hrtime.bigint()}\n`);
  for (let n = 0; n < 12_000 && step === "second" && !existsSync(order.hold); n++) await sleep(5);
}

const order = restate.service({
  name: "order",
  handlers: {
    calls: async (ctx, order) => {
      for (const name of STEPS) await ctx.serviceClient({ name }).run(order);
    },
    steps: async (ctx, order) => {
      for (const name of STEPS) await ctx.run(name, () => act(name, order));
    },
  },
});
const services = STEPS.map((name) => restate.service({ name, handlers: { run: (ctx, order) => act(name, order) } }));

const handler = restate.createEndpointHandler({ services: [order, ...services] });
createServer(handler).listen(Number(process.argv[2]), "127.0.0.1");
