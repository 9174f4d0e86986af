// The images on the page: as cards or as rows, in which order, which of them, how many of each kind, and how far it is.

import { Card } from "./cards.js";
import { ANSWER, NONE, PROBLEM, UNSURE, csv, sorted, stateOf, truthOf } from "./decisions.js";
import { announce, byId, download, make, plural, remember, remembered } from "./dom.js";
import { isGiven } from "./feedback.js";
import { Row } from "./rows.js";

const [SAID, NEXT] = ["said", "next"];
const FILTERS = [
  [null, "All"],
  [ANSWER, "Answers"],
  [UNSURE, "Unsure"],
  [NONE, "None of these"],
  [PROBLEM, "Problems"],
  [SAID, "With feedback"],
  [NEXT, "Label next"],
];
const VIEWS = { cards: Card, rows: Row };
const MANY = 12; // images from which on the compact list is shown, until a view is chosen
const VIEW = "calprompt-view";
const AHEAD = "800px"; // entries so far from the screen are filled

export class Gallery {
  /** `page` makes entries work; `changed()` is called when the user asks for another order or filter. */
  constructor(page, changed) {
    Object.assign(this, { page, items: [], filter: null, order: { by: "added", falling: false }, threshold: null });
    this.list = byId("gallery");
    this.view = "cards";
    this.chosen = Object.keys(VIEWS).find((view) => view === remembered(VIEW)) ?? null;
    this.coming = new IntersectionObserver((seen) => this.fill(seen), { rootMargin: AHEAD });
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
    for (const button of document.querySelectorAll("[data-view]"))
      button.addEventListener("click", () => {
        this.chosen = button.dataset.view;
        remember(VIEW, this.chosen);
        this.choose();
      });
    this.choose();
  }

  /** One image alone is shown large, with all of its bars. */
  get alone() {
    return this.items.length === 1 && this.view === "cards";
  }

  /** The images that are shown now, in their order. */
  get shown() {
    return this.inOrder().filter((item) => !item.entry.element.hidden);
  }

  add(items) {
    this.items.push(...items);
    const view = this.wanted();
    if (view !== this.view) this.choose();
    else this.list.append(...items.map((item) => this.enter(item)));
    this.list.classList.toggle("alone", this.alone);
  }

  /** A new entry for an image; it is filled when it comes near. */
  enter(item) {
    item.entry?.forget();
    item.entry = new VIEWS[this.view](item, this.page);
    item.entry.element.item = item;
    item.entry.show(this.page.context());
    this.coming.observe(item.entry.element);
    return item.entry.element;
  }

  fill(seen) {
    const context = this.page.context();
    for (const { isIntersecting, target } of seen) {
      if (!isIntersecting) continue;
      this.coming.unobserve(target);
      target.item.entry.come(context);
    }
  }

  wanted() {
    return this.chosen ?? (this.items.length > MANY ? "rows" : "cards");
  }

  /** Cards or rows: what was chosen, or what suits so many. */
  choose() {
    this.view = this.wanted();
    const rows = this.view === "rows";
    this.list.classList.toggle("rows", rows);
    for (const [name, value] of Object.entries({ role: "listbox", "aria-multiselectable": "true" }))
      if (rows) this.list.setAttribute(name, value);
      else this.list.removeAttribute(name);
    for (const button of document.querySelectorAll("[data-view]"))
      button.setAttribute("aria-pressed", String(button.dataset.view === this.view));
    this.list.classList.toggle("alone", this.alone);
    if (this.items.length) this.list.replaceChildren(...this.inOrder().map((item) => this.enter(item)));
    this.count();
    this.reach();
  }

  /** Tab reaches one row; arrow keys go on from there. */
  reach(item = this.shown[0]) {
    if (this.view !== "rows") return;
    this.list.querySelector("[tabindex='0']")?.setAttribute("tabindex", "-1");
    item?.entry.element.setAttribute("tabindex", "0");
  }

  /** Take an image away; the focus goes to the next one. */
  remove(item) {
    const { element } = item.entry;
    const next = element.nextElementSibling ?? element.previousElementSibling;
    const focused = element.contains(document.activeElement);
    this.items = this.items.filter((other) => other !== item);
    this.coming.unobserve(element);
    element.remove();
    item.entry.forget();
    this.list.classList.toggle("alone", this.alone);
    if (this.view === "rows") this.reach(next?.item);
    if (focused || !next) ((this.view === "rows" ? next : next?.querySelector(".icon-button")) ?? byId("choose")).focus();
  }

  counts() {
    const counts = { [ANSWER]: 0, [UNSURE]: 0, [NONE]: 0, [PROBLEM]: 0, [SAID]: 0, [NEXT]: 0 };
    for (const item of this.items) {
      const state = stateOf(item, this.threshold);
      if (state) counts[state] += 1;
      counts[SAID] += isGiven(item.feedback);
      counts[NEXT] += isNext(item);
    }
    return counts;
  }

  /** Counters, progress and filter; how many images there are, and how many are answered. */
  count(busy = false) {
    const counts = this.counts();
    const total = this.items.length;
    const done = counts[ANSWER] + counts[UNSURE] + counts[NONE] + counts[PROBLEM];
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
      const hidden = !this.shows(item);
      if (item.entry.element.hidden !== hidden) item.entry.element.hidden = hidden;
    }
    if (!this.list.querySelector("[tabindex='0']:not([hidden])")) this.reach();
    return { total, answered: done ? counts[ANSWER] : null };
  }

  shows(item) {
    if (this.filter === null) return true;
    if (this.filter === SAID) return isGiven(item.feedback);
    if (this.filter === NEXT) return isNext(item);
    return stateOf(item, this.threshold) === this.filter;
  }

  /** Show the images that were suggested, the most useful first. */
  showNext() {
    this.filter = NEXT;
    this.arrange({ by: "suggested", falling: false });
    this.count();
  }

  /** Put the entries into their order, which may be another now. */
  arrange(order = {}) {
    this.order = { ...this.order, ...order };
    if (order.by === "suggested") byId("sort").value = "";
    const focused = document.activeElement;
    this.list.append(...this.inOrder().map((item) => item.entry.element));
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
    download(new Blob([text], { type: "text/csv;charset=utf-8" }), "answers.csv");
  }
}

const isNext = (item) => item.suggested !== undefined && truthOf(item) === null && !isGiven(item.feedback);
