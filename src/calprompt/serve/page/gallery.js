// The images on the page: in which order, which of them, how many of each kind, and how far it is.

import { ANSWER, NONE, PROBLEM, UNSURE, csv, sorted, stateOf } from "./decisions.js";
import { announce, byId, make, plural } from "./dom.js";

const FILTERS = [
  [null, "All"],
  [ANSWER, "Answers"],
  [UNSURE, "Unsure"],
  [NONE, "None of these"],
  [PROBLEM, "Problems"],
];

export class Gallery {
  /** `changed()` is called when the user asks for another order or filter. */
  constructor(changed) {
    Object.assign(this, { items: [], filter: null, order: { by: "added", falling: false }, threshold: null });
    this.list = byId("gallery");
    for (const [name, words] of FILTERS) {
      const choose = () => {
        this.filter = name;
        changed();
      };
      const attributes = { type: "button", "data-filter": name ?? "", onclick: choose };
      byId("filters").append(make("button.filter", attributes, `${words} `, make("span.count")));
    }
    byId("sort").addEventListener("change", ({ target }) => this.arrange({ by: target.value }));
    byId("direction").addEventListener("click", ({ currentTarget }) => {
      this.arrange({ falling: !this.order.falling });
      currentTarget.setAttribute("aria-pressed", String(this.order.falling));
    });
  }

  /** One image alone is shown large, with all of its bars. */
  get alone() {
    return this.items.length === 1;
  }

  add(items) {
    this.items.push(...items);
    this.list.append(...items.map((item) => item.card.element));
    this.list.classList.toggle("alone", this.alone);
  }

  /** Take an image away; the focus goes to the next one. */
  remove(item) {
    const { element } = item.card;
    const next = element.nextElementSibling ?? element.previousElementSibling;
    this.items = this.items.filter((other) => other !== item);
    element.remove();
    item.card.forget();
    this.list.classList.toggle("alone", this.alone);
    (next?.querySelector(".icon-button") ?? byId("choose")).focus();
  }

  counts() {
    const counts = { [ANSWER]: 0, [UNSURE]: 0, [NONE]: 0, [PROBLEM]: 0 };
    for (const item of this.items) {
      const state = stateOf(item, this.threshold);
      if (state) counts[state] += 1;
    }
    return counts;
  }

  /** Counters, progress and filter; how many images there are, and how many are answered. */
  count(busy) {
    const counts = this.counts();
    const total = this.items.length;
    const done = Object.values(counts).reduce((sum, count) => sum + count, 0);
    byId("answers").hidden = total === 0;
    byId("answers").classList.toggle("still", !busy);
    byId("progress-bar").max = Math.max(1, total);
    byId("progress-bar").value = done;
    byId("progress-words").textContent = busy ? `${done} of ${plural(total, "image")}` : plural(total, "image");
    byId("download").disabled = done === 0;
    if (this.filter && !counts[this.filter]) this.filter = null;
    for (const button of byId("filters").children) {
      const name = button.dataset.filter || null;
      const count = name ? counts[name] : total;
      button.querySelector(".count").textContent = String(count);
      button.hidden = name !== null && count === 0;
      button.setAttribute("aria-pressed", String(this.filter === name));
    }
    for (const item of this.items) {
      item.card.element.hidden = this.filter !== null && stateOf(item, this.threshold) !== this.filter;
    }
    return { total, answered: done ? counts[ANSWER] : null };
  }

  /** Put the cards into their order, which may be another now. */
  arrange(order = {}) {
    this.order = { ...this.order, ...order };
    const focused = document.activeElement;
    this.list.append(...this.inOrder().map((item) => item.card.element));
    if (this.list.contains(focused)) focused.focus();
  }

  inOrder() {
    return sorted(this.items, this.order, this.threshold);
  }

  /** All has been answered: say so, and sort what came in meanwhile. */
  finish() {
    if (!this.items.length) return;
    if (this.order.by !== "added") this.arrange();
    const { [ANSWER]: answers, [UNSURE]: unsure, [NONE]: none, [PROBLEM]: problems } = this.counts();
    const words = [plural(answers, "answer"), `${unsure} unsure`, `${none} none of these`, plural(problems, "problem")];
    announce(`Done: ${words.join(", ")}`);
  }

  /** The answers as a file. */
  download(model, promised) {
    const text = csv(this.inOrder(), { threshold: this.threshold, model, promised });
    const url = URL.createObjectURL(new Blob([text], { type: "text/csv;charset=utf-8" }));
    make("a", { href: url, download: "answers.csv" }).click();
    setTimeout(() => URL.revokeObjectURL(url), 1000);
    announce("answers.csv is downloaded");
  }
}
