// Images on their way to the server: a few at a time, in order, waiting while the server cannot be reached.

import { Problem, Unreachable } from "./api.js";

const AT_ONCE = 3;
const BREAKS = 3; // connections that may break off for one image while the server is well

export class Sender {
  /**
   * `predict(item, bytes, controls)` asks the server; `changed(item)` is called whenever an item's state changed;
   * `lost()` when the server cannot be reached, after which nothing is sent until `resume`; `idle()` when all is done.
   */
  constructor({ predict, healthy, check, changed, lost, idle }) {
    Object.assign(this, { predict, healthy, check, changed, lost, idle });
    this.waiting = [];
    this.sending = new Set();
    this.paused = false;
  }

  get busy() {
    return this.waiting.length + this.sending.size > 0;
  }

  add(items) {
    for (const item of items) {
      item.controller?.abort();
      Object.assign(item, { status: "waiting", answer: null, problem: null, note: null, breaks: 0 });
      if (!this.waiting.includes(item)) this.waiting.push(item);
      this.changed(item);
    }
    this.next();
  }

  remove(item) {
    this.waiting = this.waiting.filter((other) => other !== item);
    item.controller?.abort();
    this.sending.delete(item);
    this.next();
  }

  /** Give up what waits or is on its way. */
  stop() {
    for (const item of [...this.sending, ...this.waiting]) {
      item.controller?.abort();
      this.fail(item, new Problem(0, "Stopped", "You stopped before this image was answered", true));
    }
    this.waiting = [];
    this.sending.clear();
    this.idle();
  }

  resume() {
    this.paused = false;
    this.next();
  }

  next() {
    while (!this.paused && this.sending.size < AT_ONCE && this.waiting.length) this.send(this.waiting.shift());
    if (!this.busy) this.idle();
  }

  async send(item) {
    const controller = new AbortController();
    item.controller = controller;
    Object.assign(item, { status: "sending", note: null });
    this.sending.add(item);
    this.changed(item);
    const onWait = (problem, seconds) => {
      if (controller.signal.aborted) return;
      item.note = `${problem.status === 429 ? "The server is busy" : "That did not work"}; again in ${Math.max(1, Math.round(seconds))} s`;
      this.changed(item);
    };
    try {
      this.check(item);
      const answer = await this.predict(item, await bytesOf(item.file), { signal: controller.signal, onWait });
      if (!controller.signal.aborted) this.done(item, answer);
    } catch (error) {
      if (controller.signal.aborted) return; // it was removed, stopped or sent anew
      if (error instanceof Unreachable) await this.unreachable(item, controller);
      else this.fail(item, error instanceof Problem ? error : new Problem(0, "Error", error.message));
    } finally {
      if (item.controller === controller) {
        this.sending.delete(item);
        this.next();
      }
    }
  }

  done(item, answer) {
    Object.assign(item, { status: "done", answer, note: null });
    this.changed(item);
  }

  fail(item, problem) {
    Object.assign(item, { status: "problem", problem, note: null });
    this.changed(item);
  }

  /** The connection broke: of this image only, or is the server gone? */
  async unreachable(item, controller) {
    const well = await this.healthy();
    if (controller.signal.aborted) return;
    item.breaks += 1;
    if (well && item.breaks >= BREAKS) {
      this.fail(item, new Problem(0, "Not sent", "The connection broke off each time this image was sent", true));
      return;
    }
    Object.assign(item, { status: "waiting", note: null });
    this.waiting.unshift(item);
    this.changed(item);
    if (!well && !this.paused) {
      this.paused = true;
      this.lost();
    }
  }
}

async function bytesOf(file) {
  try {
    return await file.arrayBuffer();
  } catch {
    throw new Problem(0, "Unreadable file", "The file cannot be read any more: it was moved or changed. Add it again");
  }
}
