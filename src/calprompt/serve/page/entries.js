// What cards and rows share: a picture, and that they are filled when they come near the screen.

import { stateOf } from "./decisions.js";
import { make } from "./dom.js";

const SMALL = 160; // pixels; smaller pictures are enlarged with sharp edges

export class Entry {
  /** `page` is told what the user does; `near`: fill it at once, otherwise when `gallery.js` sees it coming. */
  constructor(item, page, near = false) {
    Object.assign(this, { item, page, near, url: null });
    this.image = make("img", { alt: "", decoding: "async" });
    this.image.addEventListener("load", () => {
      this.image.classList.toggle("small", Math.max(this.image.naturalWidth, this.image.naturalHeight) < SMALL);
      this.forget();
    });
    this.image.addEventListener("error", () => {
      this.image.replaceWith(make("span.no-preview", {}, "no preview"));
      this.forget();
    });
  }

  /** It comes near: show what it knows. */
  come(context) {
    this.near = true;
    this.show(context);
  }

  /** The picture's address is needed no more once it is loaded. */
  forget() {
    if (this.url) URL.revokeObjectURL(this.url);
    this.url = null;
  }

  /** What filters and styles read, always; the rest only if somebody may look at it. */
  show(context) {
    const { item } = this;
    const state = stateOf(item, context.threshold);
    this.element.dataset.state = state ?? item.status;
    this.element.setAttribute("aria-busy", String(state === null));
    if (!this.near) return;
    if (!this.image.hasAttribute("src")) {
      this.url = URL.createObjectURL(item.file);
      this.image.src = this.url;
    }
    this.fill(state, context);
  }
}
