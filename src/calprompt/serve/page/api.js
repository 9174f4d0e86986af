// The server's API: every request goes through `request`, which adds the token, repeats what may be repeated, and turns
// whatever goes wrong into a `Problem` (the server said so) or `Unreachable` (it said nothing).

import { remember, remembered } from "./dom.js";

const TOKEN = ["calprompt-token", "sessionStorage"]; // gone with the tab
const REPEATED = new Set([408, 429, 503]); // slow, busy, a worker that died
const TRIES = 6;
const LONGEST_WAIT = 60;
const PATIENCE = 10_000; // milliseconds that a server may take to say that it is well
const LONG_QUERY = 4000; // characters; longer lists of classes travel in the body

/** What is wrong with an image or a request. */
export class Problem extends Error {
  /** `canHelp`: whether trying again can. */
  constructor(status, title, detail, canHelp = REPEATED.has(status) || status >= 500) {
    super(detail || title);
    Object.assign(this, { status, title, canHelp });
  }
}

export class Unreachable extends Error {}

export class Server {
  /** `askToken(rejected)` resolves to a token, or to null if there is none to be had. */
  constructor(askToken) {
    this.askToken = askToken;
    this.asking = null;
    this.token = tokenOfAddress() ?? remembered(...TOKEN);
  }

  model(classes = null) {
    return this.request(`v1/model${query({ classes })}`);
  }

  watch() {
    return this.request("v1/watch", { tries: 1 });
  }

  /** Feedback is taken back; the state of the watch after it. */
  undo(id) {
    return this.post("v1/feedback/undo", { id });
  }

  post(path, value) {
    const headers = { "Content-Type": "application/json" };
    return this.request(path, { method: "POST", body: JSON.stringify(value), headers });
  }

  /** A sample picture, as a blob. */
  picture(path) {
    return this.request(path, { tries: 1, read: (response) => response.blob() });
  }

  async healthy() {
    try {
      return (await fetch("health", { cache: "no-store", signal: AbortSignal.timeout(PATIENCE) })).ok;
    } catch {
      return false;
    }
  }

  /** The answer for the bytes of an image, sent as they are. */
  predict(bytes, { name, type, ...options }, { signal, onWait }) {
    const kind = type.startsWith("image/") ? type : "application/octet-stream";
    const request = { method: "POST", signal, onWait };
    const asked = query(options);
    if (asked.length > LONG_QUERY) {
      const body = form({ ...options, image: [new Blob([bytes], { type: kind }), name] });
      return this.request("v1/predict", { ...request, body });
    }
    const headers = { "Content-Type": kind, "X-Image-Name": encodeURIComponent(name) };
    return this.request(`v1/predict${asked}`, { ...request, body: bytes, headers });
  }

  /** Feedback on an answer; `image` only if the server keeps them. `keepalive`: even if the page is being closed. */
  feedback(feedback, { image = null, name = "", keepalive = false } = {}) {
    if (image) return this.request("v1/feedback", { method: "POST", body: form({ ...feedback, image: [image, name] }) });
    const headers = { "Content-Type": "application/json" };
    return this.request("v1/feedback", { method: "POST", body: JSON.stringify(feedback), headers, keepalive });
  }

  async request(path, { method = "GET", body, headers = {}, signal, onWait, keepalive = false, tries = TRIES, read = (response) => response.json() } = {}) {
    for (let attempt = 1; ; attempt += 1) {
      const token = this.token;
      const authorization = token ? { Authorization: `Bearer ${token}` } : {};
      let response, problem;
      try {
        response = await fetch(path, {
          ...{ method, body, signal, keepalive, cache: "no-store" },
          headers: { ...headers, ...authorization },
        });
        if (response.ok) return await read(response);
        problem = await problemOf(response);
      } catch (error) {
        if (signal?.aborted) throw error;
        throw new Unreachable("The server cannot be reached");
      }
      if (response.status === 401) {
        if (!(await this.newToken(token))) throw problem;
        attempt = 0;
        continue;
      }
      if (!(REPEATED.has(response.status) || isLost(response, path)) || attempt >= tries) throw problem;
      const seconds = Math.min(retryAfter(response) ?? attempt, LONGEST_WAIT);
      onWait?.(problem, seconds);
      await wait(1000 * seconds + 300 * Math.random(), signal);
    }
  }

  /** Ask once however many requests were refused; whether there is another token now. */
  async newToken(refused) {
    if (this.token !== refused) return true;
    this.asking ??= this.askToken(refused !== null).finally(() => (this.asking = null));
    const token = await this.asking;
    if (token) {
      this.token = token;
      keepToken(token);
    }
    return Boolean(token);
  }
}

const keepToken = (token) => remember(TOKEN[0], token, TOKEN[1]);

/** "#token=…" of the address, which is taken out of it so that it is neither bookmarked nor shared. */
function tokenOfAddress() {
  const token = new URLSearchParams(location.hash.slice(1)).get("token");
  if (!token) return null;
  history.replaceState(null, "", location.pathname + location.search);
  keepToken(token);
  return token;
}

function* given(options) {
  for (const [key, value] of Object.entries(options)) {
    if (value === null || value === undefined) continue;
    for (const each of key === "classes" ? value : [value]) yield [key, each];
  }
}

function query(options) {
  const text = new URLSearchParams([...given(options)].map(([key, value]) => [key, String(value)])).toString();
  return text && `?${text}`;
}

function form(options) {
  const data = new FormData();
  for (const [key, value] of given(options)) {
    if (key === "image") data.append(key, ...value);
    else data.append(key, String(value));
  }
  return data;
}

/** A 500 that is not the server's own: a proxy lost the replica that held the image, as Ray's does. Safe to repeat. */
function isLost(response, path) {
  const type = response.headers.get("Content-Type") ?? "";
  return response.status === 500 && path.startsWith("v1/predict") && !type.includes("problem+json");
}

async function problemOf(response) {
  const text = await response.text();
  try {
    const { title, detail } = JSON.parse(text);
    return new Problem(response.status, String(title ?? response.statusText), typeof detail === "string" ? detail : "");
  } catch {
    return new Problem(
      response.status,
      response.statusText || "Error",
      `The server answered with status ${response.status}`,
    );
  }
}

/** Seconds to wait, from a number or a date; null if the server does not say. */
function retryAfter(response) {
  const value = response.headers.get("Retry-After");
  if (!value) return null;
  const seconds = /^\d+$/.test(value) ? Number(value) : (Date.parse(value) - Date.now()) / 1000;
  return Number.isFinite(seconds) ? Math.max(0, seconds) : null;
}

function wait(milliseconds, signal) {
  return new Promise((resolve, reject) => {
    const timer = setTimeout(resolve, milliseconds);
    signal?.addEventListener("abort", () => {
      clearTimeout(timer);
      reject(signal.reason);
    });
  });
}
