// Requests to the API beside this page, and asking again politely.

const TOKEN = "stepwarden.token";
const known = new Map();
const MOST_KNOWN = 50;
const PATIENCE_MS = 20_000;

/** Set by the page: called when the API asks for a token. */
export const on = { unauthorized() {}, contact() {} };

/** The token that the API refused last. */
let refused = null;

/** Milliseconds that the server's clock is ahead of this one, to within a second. */
let ahead = 0;
/** The server's time, in milliseconds since 1970. */
export const now = () => Date.now() + ahead;

/** What the API answered instead of what was asked, or why it did not answer: `status` 0. */
export class Refused extends Error {
  constructor(status, body) {
    super(body.detail ?? body.message ?? body.title ?? `The API answered ${status}.`);
    Object.assign(this, { status, code: body.code, field: body.field, retryAfter: body.retry_after_s });
  }
}

export const token = {
  get: () => sessionStorage.getItem(TOKEN),
  set: (text) => sessionStorage.setItem(TOKEN, text),
  drop: () => sessionStorage.removeItem(TOKEN),
  /**
   * Takes a token out of the address, so that it is in no bookmark and no history: whether there was one that is in use now. One
   * that the API takes stays, unless the person says so.
   */
  fromAddress() {
    const match = /^#token=([^&]*)&?(.*)$/.exec(location.hash);
    if (!match) return false;
    history.replaceState(null, "", location.pathname + location.search + (match[2] ? `#${match[2]}` : ""));
    let given;
    try {
      given = decodeURIComponent(match[1]).trim();
    } catch {
      // A cut or mistyped address brings none; the page asks for one if it has none.
      return false;
    }
    const used = token.get();
    if (!given) return false;
    if (used && used !== given && used !== refused && !confirm("This link contains a different token from the one you are signed in with. Use it? You will then act as the person it names.")) return false;
    token.set(given);
    return true;
  },
};

const url = (path) => new URL(path.replace(/^\//, ""), document.baseURI);

async function ask(path, options, signal) {
  const headers = { accept: "application/json", ...options.headers };
  if (token.get()) headers.authorization = `Bearer ${token.get()}`;
  const bounded = AbortSignal.any([AbortSignal.timeout(PATIENCE_MS), ...(signal ? [signal] : [])]);
  const sent = Date.now();
  let answer;
  try {
    // The browser's own cache would hide which answers are new.
    answer = await fetch(url(path), { ...options, headers, signal: bounded, cache: "no-store", credentials: "omit" });
  } catch (error) {
    if (signal?.aborted) throw error;
    const late = error.name === "TimeoutError";
    throw new Refused(0, { detail: late ? `No answer within ${PATIENCE_MS / 1000} s.` : "The API cannot be reached." });
  }
  const date = Date.parse(answer.headers.get("date"));
  // The header has whole seconds; half a second is its middle.
  if (date) ahead = Math.abs(date + 500 - (sent + Date.now()) / 2) > 1500 ? date + 500 - (sent + Date.now()) / 2 : 0;
  if (answer.status === 401) {
    refused = token.get();
    on.unauthorized();
  }
  return answer;
}

// A number keeps the digits it came with, where the browser can keep them: it may be edited and sent back.
const exact = (_, value, context) =>
  Number.isInteger(value) && !Number.isSafeInteger(value) && context?.source && JSON.rawJSON ? JSON.rawJSON(context.source) : value;

async function body(answer) {
  const text = await answer.text();
  try {
    return JSON.parse(text, exact);
  } catch {
    return { detail: text.slice(0, 300) || undefined };
  }
}

/** The JSON at `path`. The same object as before where nothing changed. */
export async function get(path, signal) {
  const had = known.get(path);
  const answer = await ask(path, { headers: had ? { "if-none-match": had.etag } : {} }, signal);
  if (answer.status === 304 && had) return had.value;
  const value = await body(answer);
  if (!answer.ok) throw new Refused(answer.status, value);
  const etag = answer.headers.get("etag");
  known.delete(path);
  if (etag) known.set(path, { etag, value });
  if (known.size > MOST_KNOWN) known.delete(known.keys().next().value);
  return value;
}

/** JSON as a person wrote it: sent so, because a parser here would lose a key that is there twice, and digits. */
export class Written {
  constructor(text) {
    this.text = text;
  }
}

function written(value) {
  const given = Object.entries(value).filter(([, one]) => one !== undefined);
  return `{${given.map(([name, one]) => `${JSON.stringify(name)}:${one instanceof Written ? one.text : JSON.stringify(one)}`).join(",")}}`;
}

/** Posts `value`, or what a person wrote, to `path`: what became of it. */
export async function post(path, value, headers = {}) {
  const text = value instanceof Written ? value.text : written(value);
  const options = { method: "POST", body: text, headers: { "content-type": "application/json", ...headers } };
  const answer = await ask(path, options);
  const told = await body(answer);
  if (!answer.ok) throw new Refused(answer.status, told);
  return told;
}

/** The path with those parameters that have a value. */
export function path(base, parameters) {
  const given = Object.entries(parameters).filter(([, value]) => value !== undefined && value !== null && value !== "");
  return given.length ? `${base}?${new URLSearchParams(given)}` : base;
}

// What several requests answered is the same if each of them answered the same.
const isSame = (a, b) => a === b || (Array.isArray(a) && Array.isArray(b) && a.length === b.length && a.every((one, n) => one === b[n]));

const SLOWEST = 4;
const LONGEST_PAUSE_MS = 60_000;

/**
 * Asks again and again: every `every` ms while things change, up to four times slower while they do not, not at all while
 * the page is hidden, and ever more rarely while the API fails.
 */
export class Poll {
  constructor(every, load, got) {
    Object.assign(this, { every, load, got, failures: 0, quiet: 0, last: undefined, error: null, at: 0, next: 0 });
    this.seen = () => document.hidden || this.soon();
    document.addEventListener("visibilitychange", this.seen);
    this.soon();
  }

  /** Asks at once. */
  soon() {
    clearTimeout(this.timer);
    this.quiet = 0;
    this.run();
  }

  async run() {
    this.aborter?.abort();
    const aborter = (this.aborter = new AbortController());
    try {
      const value = await this.load(aborter.signal);
      if (aborter.signal.aborted || this.ended) return;
      const changed = this.error !== null || !isSame(value, this.last);
      this.quiet = changed ? 0 : this.quiet + 1;
      Object.assign(this, { last: value, failures: 0, error: null, at: Date.now() });
      if (changed) this.got(value, null);
    } catch (error) {
      if (aborter.signal.aborted || this.ended) return;
      if (!(error instanceof Refused)) console.error(error);
      this.failures += 1;
      this.error = error;
      this.got(this.last, error);
    }
    const slower = Math.min(SLOWEST, 1 + this.quiet / 10);
    const failing = Math.min(LONGEST_PAUSE_MS, this.every * 2 ** this.failures) * (0.8 + 0.4 * Math.random());
    const wait = this.failures ? Math.max(failing, 1000 * (this.error.retryAfter ?? 0)) : this.every * slower;
    this.next = Date.now() + wait;
    if (this.error?.status !== 401 && !document.hidden) this.timer = setTimeout(() => this.run(), wait);
    on.contact();
  }

  end() {
    this.ended = true;
    clearTimeout(this.timer);
    this.aborter?.abort();
    document.removeEventListener("visibilitychange", this.seen);
  }
}
