// Point and see: what the camera sees now is answered again and again, with the words that an image gets; nothing counts.

import { verdictParts } from "./cards.js";
import { decisionAt } from "./decisions.js";
import { byId, make } from "./dom.js";

const PAUSE = 400; // milliseconds between an answer and the next frame
const AFTER_PROBLEM = 3000;
const SIDE = 640; // pixels of a frame that is sent

export class Live {
  /** `answer(blob, signal)` asks the server; `context()` and `page` are what cards need. */
  constructor({ answer, page }) {
    Object.assign(this, { answer, page, stopping: null });
    this.video = byId("video");
    byId("live").addEventListener("click", () => (this.stopping ? this.stop() : this.start()));
    byId("camera").addEventListener("close", () => this.stop());
  }

  stop() {
    this.stopping?.abort();
    this.stopping = null;
    byId("live").setAttribute("aria-pressed", "false");
    byId("live-answer").hidden = true;
    byId("live-answer").replaceChildren();
  }

  async start() {
    const stopping = new AbortController();
    this.stopping = stopping;
    byId("live").setAttribute("aria-pressed", "true");
    byId("live-answer").hidden = false;
    while (!stopping.signal.aborted) {
      let pause = PAUSE;
      try {
        const found = await this.answer(await frame(this.video), stopping.signal);
        if (!stopping.signal.aborted) this.show(found);
      } catch (error) {
        if (stopping.signal.aborted) return;
        pause = AFTER_PROBLEM;
        byId("live-answer").replaceChildren(make("p.problem", {}, error.message));
      }
      await new Promise((resolve) => setTimeout(resolve, pause));
    }
  }

  show(answer) {
    const context = this.page.context();
    const state = decisionAt(answer, context.threshold);
    const said = `${state} ${answer.class_name}`;
    const place = byId("live-answer");
    place.dataset.state = state;
    place.setAttribute("aria-live", said === this.said ? "off" : "polite"); // the same again is not read out
    this.said = said;
    place.replaceChildren(
      ...verdictParts(state, { answer }, context, this.page),
      make("p.fine", {}, "Live answers are not counted and not kept, and the promise is about separate pictures: take one for that."),
    );
  }
}

/** What the video shows, as a small JPEG. */
export function frame(video, side = SIDE, quality = 0.9) {
  const scale = Math.min(1, side / Math.max(video.videoWidth, video.videoHeight));
  const canvas = document.createElement("canvas");
  canvas.width = Math.round(video.videoWidth * scale);
  canvas.height = Math.round(video.videoHeight * scale);
  canvas.getContext("2d").drawImage(video, 0, 0, canvas.width, canvas.height);
  return new Promise((resolve, reject) =>
    canvas.toBlob((blob) => (blob ? resolve(blob) : reject(new Error("The camera gives no picture"))), "image/jpeg", quality),
  );
}
