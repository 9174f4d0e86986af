// Saying what is right: one image or many, a few seconds to take it back, then it is sent; or later, if the server is away.

import { Unreachable } from "./api.js";
import { truthOf } from "./decisions.js";
import { announce, plural, sentence } from "./dom.js";
import { isGiven } from "./feedback.js";

export const UNDO_SECONDS = 5;
const PASSING = new Set([0, 408, 429, 500, 503, 507, undefined]); // statuses after which the same feedback may be sent again
const KNOWN = 409; // the server has this feedback already: an answer to it was lost
const AT_ONCE = 4;

export class Labelling {
  /**
   * `send(item, options)` asks the server, `takeBack(id)` takes it back; `changed(item)` shows and keeps it,
   * `watched(watch)` takes the state of the promise, `lost()` is called when the server cannot be reached, `kept()` when it has kept an image.
   */
  constructor({ send, takeBack, changed, watched, lost, kept }) {
    Object.assign(this, { send, takeBack, changed, watched, lost, kept });
    this.pending = new Set();
    this.queue = new Set();
    this.sending = 0;
    this.away = false;
    this.last = []; // the images of which something was said, the latest last
    addEventListener("pagehide", () => this.flush(true));
  }

  right(item) {
    this.give([item], () => null);
  }

  /** The true class of an image; null if it is not known, but not the one that was answered. */
  label(item, name) {
    this.give([item], () => name, name === null);
  }

  /** The same of many; those without an answer are left out. Returns how many. */
  giveAll(items, name = null) {
    const able = items.filter((item) => item.answer && !item.sample && !isGiven(item.feedback));
    this.give(able, () => name);
    return able.length;
  }

  give(items, nameOf, unknown = false) {
    for (const item of items) {
      const name = nameOf(item);
      const answered = item.answer.class_name;
      const right = !unknown && (name === null || name === answered);
      item.feedback = { id: item.answer.id, answered, right, class_name: right ? null : name, state: "pending" };
      item.feedback.timer = setTimeout(() => this.post(item), 1000 * UNDO_SECONDS);
      this.pending.add(item);
      this.changed(item);
    }
    if (!items.length) return;
    this.last.push(items);
    const [first] = items;
    const what = first.feedback.right ? "right" : `wrong${truthOf(first) ? `, it is ${truthOf(first)}` : ""}`;
    const of = items.length === 1 ? "" : `${plural(items.length, "image")}: `;
    announce(`${of}your feedback: ${what}; ${UNDO_SECONDS} seconds to undo before it is sent`);
  }

  choose(item) {
    item.feedback = { state: "choosing" };
    this.changed(item);
  }

  /** Take it back, also from the server. */
  async undo(item) {
    const { feedback } = item;
    if (!feedback) return;
    clearTimeout(feedback.timer);
    this.pending.delete(item);
    this.queue.delete(item);
    if (feedback.state === "sent") {
      Object.assign(feedback, { state: "sending" });
      this.changed(item);
      try {
        this.watched(await this.takeBack(feedback.id));
      } catch (error) {
        if (error.status !== 404 && error.status !== 422) {
          Object.assign(feedback, { state: "sent", note: `It could not be undone: ${error.message}` });
          this.changed(item);
          if (error instanceof Unreachable) this.lost();
          return;
        }
      }
    }
    item.feedback = null;
    this.changed(item);
    if (isGiven(feedback)) announce("Feedback taken back");
  }

  /** What was said last, of one image or many; returns the images. */
  undoLast() {
    const items = (this.last.pop() ?? []).filter((item) => isGiven(item.feedback));
    for (const item of items) this.undo(item);
    return items;
  }

  /** Feedback of an earlier visit that was not confirmed. */
  restore(item) {
    if (["pending", "sending", "queued"].includes(item.feedback?.state)) {
      item.feedback.state = "queued";
      this.queue.add(item);
    }
  }

  flush(keepalive = false) {
    for (const item of [...this.pending]) this.post(item, keepalive);
  }

  /** The server is there: send what waits for it. */
  resume() {
    this.away = false;
    this.next();
  }

  post(item, keepalive = false) {
    clearTimeout(item.feedback?.timer);
    this.pending.delete(item);
    if (!isGiven(item.feedback)) return;
    if (keepalive) {
      this.deliver(item, true);
      return;
    }
    item.feedback.state = "queued";
    this.queue.add(item);
    this.next();
    if (this.queue.has(item)) this.changed(item);
  }

  next() {
    while (!this.away && this.sending < AT_ONCE && this.queue.size) {
      const [item] = this.queue;
      this.queue.delete(item);
      this.sending += 1;
      this.deliver(item).finally(() => {
        this.sending -= 1;
        this.next();
      });
    }
  }

  async deliver(item, keepalive = false) {
    const { feedback } = item;
    feedback.state = "sending";
    this.changed(item);
    try {
      const reply = await this.send(item, { keepalive });
      const kept = reply.kept ? "the image is kept" : "";
      const why = item.answer?.decision === "answer" && reply.reason ? sentence(reply.reason) : "";
      Object.assign(feedback, { state: "sent", note: [why, kept].filter(Boolean).join(" ") });
      this.watched(reply.watch);
      if (reply.kept) this.kept();
    } catch (error) {
      if (error instanceof Unreachable) {
        feedback.state = "queued";
        this.queue.add(item);
        this.away = true;
        this.lost();
      } else if (error.status === KNOWN) Object.assign(feedback, { state: "sent", note: "" });
      else Object.assign(feedback, { state: "failed", note: error.message, final: !PASSING.has(error.status) });
    }
    if (item.feedback === feedback) this.changed(item);
  }
}
