// Working through many images: selecting them, feedback on all at once, keys, and the details of one in a dialog.

import { Card } from "./cards.js";
import { ANSWER, stateOf } from "./decisions.js";
import { announce, byId, make, plural } from "./dom.js";
import { isGiven } from "./feedback.js";

const KEYS = {
  "↓ ↑": "next image, previous image",
  R: "the answer is right",
  W: "the answer is wrong, or it has none: type what it is",
  "1 … 9": "it is this class, by its number in the list of classes",
  Z: "undo the last feedback",
  Space: "select the image; with Shift and an arrow, several",
  Enter: "details",
  Delete: "remove it from this page",
};

export class Picking {
  /** Works on what `page` has: its gallery, its labelling, its context. */
  constructor(page) {
    this.page = page;
    this.picked = new Set();
    this.open = null; // the card in the dialog
    const { gallery } = page;
    gallery.list.addEventListener("click", (event) => this.onClick(event));
    gallery.list.addEventListener("keydown", (event) => this.onKey(event));
    gallery.list.addEventListener("focusin", ({ target }) => {
      const item = target.closest("li")?.item;
      if (item && target === item.entry.element) gallery.reach(item);
    });
    const details = byId("details");
    details.addEventListener("keydown", (event) => this.onKey(event));
    details.addEventListener("close", () => this.close());
    byId("details-next").addEventListener("click", () => this.step(1));
    byId("details-previous").addEventListener("click", () => this.step(-1));
    byId("select-shown").addEventListener("click", () => this.pickAll());
    byId("bulk-none").addEventListener("click", () => this.clear());
    byId("bulk-right").addEventListener("click", () => this.give(null));
    byId("bulk-undo").addEventListener("click", () => this.undoPicked());
    byId("bulk-class").addEventListener("submit", (event) => {
      event.preventDefault();
      const name = byId("bulk-name").value.trim();
      if (name) this.give(name);
      byId("bulk-name").value = "";
    });
    byId("show-keys").addEventListener("click", () => byId("keys").showModal());
    byId("key-list").replaceChildren(
      ...Object.entries(KEYS).flatMap(([key, words]) => [make("dt", {}, make("kbd", {}, key)), make("dd", {}, words)]),
    );
  }

  // Selecting

  toggle(item) {
    if (!this.picked.delete(item)) this.picked.add(item);
    item.entry.show(this.page.context());
    this.show();
  }

  pickAll() {
    this.set(this.page.gallery.shown);
    announce(`${plural(this.picked.size, "image")} selected`);
  }

  clear() {
    this.set([]);
  }

  set(items) {
    const before = [...this.picked];
    this.picked = new Set(items);
    const context = this.page.context();
    for (const item of new Set([...before, ...items])) item.entry.show(context);
    this.show();
  }

  forget(item) {
    this.picked.delete(item);
    if (this.open?.item === item) byId("details").close();
    this.show();
  }

  show() {
    byId("bulk").hidden = !this.picked.size;
    byId("bulk-count").textContent = `${plural(this.picked.size, "image")} selected`;
  }

  /** Feedback on all that are selected: right, or a class. */
  give(name) {
    const many = this.picked.size;
    const able = [...this.picked].filter((item) => name !== null || this.isAnswer(item));
    const given = this.page.labelling.giveAll(able, name);
    if (given < many) announce(`${plural(given, "image")}: noted. The others have feedback already, or no answer`);
    this.clear();
  }

  undoPicked() {
    for (const item of this.picked) if (isGiven(item.feedback)) this.page.labelling.undo(item);
    this.clear();
  }

  // The mouse

  onClick(event) {
    const item = event.target.closest("li")?.item;
    if (!item || !item.entry.element.matches(".item")) return;
    const action = event.target.closest("[data-action]")?.dataset.action;
    const { labelling, gallery } = this.page;
    gallery.reach(item);
    if (action === "pick" || event.ctrlKey || event.metaKey) this.toggle(item);
    else if (event.shiftKey) this.range(item);
    else if (action === "right") labelling.right(item);
    else if (action === "wrong") this.ask(item);
    else if (action === "undo") labelling.undo(item);
    else this.details(item);
  }

  /** From the last selected one to this. */
  range(item) {
    const { shown } = this.page.gallery;
    const last = [...this.picked].at(-1) ?? item;
    const [from, to] = [shown.indexOf(last), shown.indexOf(item)].sort((a, b) => a - b);
    this.set([...this.picked, ...shown.slice(Math.max(0, from), to + 1)]);
  }

  // Keys

  onKey(event) {
    if (event.altKey || event.ctrlKey || event.metaKey || event.target.matches("input, select, textarea")) return;
    const inside = byId("details").open;
    const item = inside ? this.open?.item : event.target.closest("li")?.item;
    if (!item) return;
    const isEntry = event.target === item.entry.element;
    const act = this.actions(item, event, isEntry, inside)[event.key.length === 1 ? event.key.toLowerCase() : event.key];
    if (!act) return;
    event.preventDefault();
    act();
  }

  actions(item, { shiftKey }, isEntry, inside) {
    const { gallery, labelling, page } = { ...this.page, page: this.page };
    const { classes } = this.page.model;
    const go = (by) => (inside ? this.step(by) : this.move(item, by, shiftKey));
    const numbers = classes.slice(0, 9).map((name, place) => [String(place + 1), () => this.say(item, name)]);
    return {
      ...Object.fromEntries(numbers),
      ArrowDown: () => go(1),
      ArrowUp: () => go(-1),
      j: () => go(1),
      k: () => go(-1),
      r: () => this.say(item, null),
      w: () => this.ask(item),
      z: () => this.undoLast(),
      ...(isEntry && {
        Home: () => this.focus(gallery.shown[0]),
        End: () => this.focus(gallery.shown.at(-1)),
        " ": () => this.toggle(item),
        Enter: () => this.details(item),
        Delete: () => page.remove(item),
        a: () => this.pickAll(),
        Escape: () => this.clear(),
      }),
      "?": () => byId("keys").showModal(),
    };
  }

  /** Feedback by a key, on what is selected or on this image; then on to the next. */
  say(item, name) {
    if (this.picked.size) {
      this.give(name);
      return;
    }
    if (!item.answer || item.sample || isGiven(item.feedback)) return;
    if (name === null && !this.isAnswer(item)) {
      announce("It has no answer that could be right: press a number, or W");
      return;
    }
    if (name === null) this.page.labelling.right(item);
    else this.page.labelling.label(item, name);
    if (byId("details").open) this.step(1);
    else this.move(item, 1);
  }

  /** Whether there is an answer, which can be right; a guess of an unsure model cannot. */
  isAnswer(item) {
    return stateOf(item, this.page.threshold) === ANSWER;
  }

  /** Ask for the true class, in the card or in the details of a row. */
  ask(item) {
    if (!item.answer || item.sample || isGiven(item.feedback)) return;
    if (item.entry.element.matches(".item") && !byId("details").open) this.details(item);
    this.page.labelling.choose(item);
  }

  undoLast() {
    const [first] = this.page.labelling.undoLast();
    if (first && !byId("details").open) this.focus(first);
  }

  move(item, by, extend = false) {
    const { shown } = this.page.gallery;
    const next = shown[shown.indexOf(item) + by];
    if (!next) return;
    if (extend) this.set([...this.picked, item, next]);
    this.focus(next);
  }

  focus(item) {
    if (!item) return;
    this.page.gallery.reach(item);
    item.entry.element.focus();
    item.entry.element.scrollIntoView({ block: "nearest" });
  }

  // Details

  details(item) {
    const dialog = byId("details");
    this.open?.forget();
    this.open = new Card(item, this.page, true);
    byId("details-card").replaceChildren(this.open.element);
    this.open.show(this.page.context());
    const { shown } = this.page.gallery;
    byId("details-previous").disabled = shown[0] === item;
    byId("details-next").disabled = shown.at(-1) === item;
    if (!dialog.open) dialog.showModal();
    this.open.element.focus();
  }

  step(by) {
    const { shown } = this.page.gallery;
    const next = shown[shown.indexOf(this.open?.item) + by];
    if (next) this.details(next);
  }

  close() {
    const item = this.open?.item;
    this.open?.forget();
    this.open = null;
    byId("details-card").replaceChildren();
    if (item?.feedback?.state === "choosing") this.page.labelling.undo(item);
    if (item && this.page.gallery.items.includes(item)) this.focus(item);
  }

  /** An image changed; its form takes the focus when it appears. */
  update(item, context) {
    const cards = [item.entry, ...(this.open?.item === item ? [this.open] : [])];
    for (const card of cards) {
      const focused = card.element.contains(document.activeElement) && document.activeElement !== card.element;
      card.show(context);
      const input = card.element.querySelector(".true-class input");
      if (input && item.feedback?.state === "choosing") input.focus();
      else if (focused && !card.element.contains(document.activeElement))
        (card.element.querySelector(".card-feedback button") ?? card.element).focus();
    }
  }
}
