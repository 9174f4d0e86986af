// The page: what it knows, and who is told when something changes. How things look is in the modules it imports.

import { Problem, Server, Unreachable } from "./api.js";
import { Card } from "./cards.js";
import { ClassPanel } from "./classes.js";
import { ANSWER, NONE, PROBLEM, UNSURE, csv, sorted, stateOf } from "./decisions.js";
import { announce, byId, fileSize, make, percent, plural, sentence } from "./dom.js";
import { watchIntake } from "./intake.js";
import { Marker } from "./marking.js";
import { isOnSets, openReliability, showEvidence, showPromises, showStanding, showWatch, standing } from "./promises.js";
import { Sender } from "./sending.js";
import { Connection, askToken, confirmed, notify, watchDialogs, watchTheme } from "./shell.js";
import { ThresholdPanel } from "./threshold.js";

const FILTERS = [
  [null, "All"],
  [ANSWER, "Answers"],
  [UNSURE, "Unsure"],
  [NONE, "None of these"],
  [PROBLEM, "Problems"],
];

class Page {
  constructor() {
    this.items = [];
    this.numbers = 0;
    this.threshold = null; // the model's own
    this.edited = null; // the list of classes, if it is not the fitted one
    this.sets = null; // which prediction sets
    this.filter = null;
    this.order = { by: "added", falling: false };
    this.server = new Server(askToken);
    this.connection = new Connection(() => this.server.healthy(), () => this.back());
    this.sender = new Sender({
      predict: (item, bytes, controls) => this.predict(item, bytes, controls),
      healthy: () => this.server.healthy(),
      check: (item) => this.check(item),
      changed: (item) => this.itemChanged(item),
      lost: () => this.connection.lose(),
      idle: () => this.idle(),
    });
    this.marker = new Marker({
      send: (mark, { item, keepalive }) =>
        this.server.mark(mark, { keepalive, image: this.model.keeps_images && !keepalive ? item.file : null, name: item.name }),
      changed: (item) => this.markChanged(item),
      watched: (watch) => this.watched(watch),
    });
    this.thresholdPanel = new ThresholdPanel((threshold) => this.setThreshold(threshold));
    this.classPanel = new ClassPanel((classes) => this.setClasses(classes));
  }

  /** Read the model; a page without one can do nothing but say why. */
  async start() {
    try {
      this.model = await this.server.model();
    } catch (error) {
      if (error instanceof Unreachable) this.connection.lose();
      else this.failed(error);
      return;
    }
    this.started = true;
    document.title = `${this.model.name} · calprompt`;
    byId("model-name").textContent = this.model.name;
    this.sets = this.model.coverages[0] ?? null;
    this.showSetChoice();
    this.showAbout();
    this.showLimits();
    this.modelChanged();
    document.body.classList.add("ready");
    await this.readWatch();
  }

  failed(error) {
    byId("model-line").textContent = "Not connected";
    notify(error.status === 401 ? "This page needs a token. Reload it to enter one." : sentence(error.message));
  }

  /** The server is there again. */
  async back() {
    if (!this.started) await this.start();
    this.sender.resume();
  }

  async readWatch() {
    if (!this.model.marks) return;
    try {
      this.watched(await this.server.watch());
    } catch {
      this.watched(null); // the page works without it
    }
  }

  watched(watch) {
    const before = this.watch?.status;
    this.watch = watch;
    if (watch?.status === "broken" && before && before !== "broken") notify(sentence(watch.sentence));
    this.decide();
  }

  // Images

  accept(files) {
    if (!this.started) {
      notify("The model is not there yet; try again in a moment.");
      return;
    }
    const added = files.map((file) => {
      const item = { file, name: file.shownName ?? file.name, number: ++this.numbers, answers: new Map(), marks: new Map() };
      item.card = new Card(item, this);
      return item;
    });
    this.items.push(...added);
    byId("gallery").append(...added.map((item) => item.card.element));
    this.aloneChanged();
    announce(`${plural(added.length, "image")} added`);
    this.sender.add(added);
  }

  /** What can be told without sending the image. */
  check(item) {
    const { body_bytes: most } = this.model.limits;
    if (item.file.size === 0) throw new Problem(0, "Empty file", "The file is empty");
    if (item.file.size > most) {
      throw new Problem(0, "Too large", `The file has ${fileSize(item.file.size)}; this server takes up to ${fileSize(most)}`);
    }
  }

  async predict(item, bytes, controls) {
    const key = this.key();
    const known = item.answers.get(key);
    if (known) return known;
    const options = { ...this.sets, classes: this.edited, name: item.name, type: item.file.type };
    const answer = await this.server.predict(bytes, options, controls);
    item.answers.set(key, answer);
    return answer;
  }

  /** Under which an answer is kept: another list of classes or other sets give another one. */
  key() {
    return JSON.stringify([this.edited, this.sets]);
  }

  again(item) {
    this.sender.add([item]);
    item.card.remove.focus();
  }

  remove(item) {
    const next = item.card.element.nextElementSibling ?? item.card.element.previousElementSibling;
    if (this.marker.pending.has(item)) this.marker.post(item);
    this.items = this.items.filter((other) => other !== item);
    item.card.element.remove();
    item.card.forget();
    this.sender.remove(item);
    this.aloneChanged();
    announce(`${item.name} removed`);
    (next?.querySelector(".icon-button") ?? byId("choose")).focus();
  }

  async removeAll() {
    if (this.items.length > 1 && !(await confirmed(`Remove all ${this.items.length} images and their answers from this page?`, "Remove all"))) return;
    this.marker.flush();
    for (const item of [...this.items]) this.remove(item);
  }

  itemChanged(item) {
    item.mark = item.marks.get(JSON.stringify(this.edited)) ?? null;
    item.card.show(this.context());
    this.counted();
  }

  idle() {
    this.counted();
    if (this.items.length && this.order.by !== "added") this.arrange();
    const { [ANSWER]: answers, [UNSURE]: unsure, [NONE]: none, [PROBLEM]: problems } = this.counts();
    if (this.items.length) announce(`Done: ${plural(answers, "answer")}, ${unsure} unsure, ${none} none of these, ${plural(problems, "problem")}`);
  }

  // Marks

  mark(item, mark) {
    this.marker.mark(item, mark);
    item.card.marks.querySelector("button")?.focus();
  }

  chooseTrueClass(item) {
    item.mark = { state: "choosing" };
    item.card.showMarks(this.context());
    item.card.marks.querySelector("select").focus();
  }

  undo(item) {
    this.marker.undo(item);
    item.card.marks.querySelector("button")?.focus();
  }

  sendMark(item) {
    this.marker.post(item);
  }

  markChanged(item) {
    item.marks.set(JSON.stringify(this.edited), item.mark);
    item.card.showMarks(this.context());
  }

  // What is set

  setThreshold(threshold) {
    this.threshold = threshold;
    cancelAnimationFrame(this.frame); // a slider moves faster than the screen
    this.frame = requestAnimationFrame(() => this.decide());
  }

  async setClasses(classes) {
    let model;
    try {
      model = await this.server.model(classes);
    } catch (error) {
      if (error instanceof Unreachable) this.connection.lose();
      throw error;
    }
    this.marker.flush();
    this.edited = classes;
    this.model = model;
    this.modelChanged();
    this.sender.add(this.items);
  }

  setSets(sets) {
    this.sets = sets;
    this.sender.add(this.items);
  }

  modelChanged() {
    const { model } = this;
    byId("model-line").textContent = [
      plural(model.classes.length, "class", "classes"),
      model.calibrator ? "calibrated" : "not calibrated",
      ...(this.edited ? ["edited"] : []),
    ].join(" · ");
    this.classPanel.load(model);
    this.thresholdPanel.load(model);
    showEvidence(model.evidence);
    this.decide();
  }

  /** Everything that depends on the threshold, at once and without the server. */
  decide() {
    if (!this.started) return;
    const stand = standing(this.model, this.threshold, this.watch);
    showStanding(stand);
    showPromises(this.model, stand);
    showWatch(this.watch, this.edited !== null);
    this.promised = stand.status === "made";
    const context = this.context();
    byId("gallery").style.setProperty("--threshold", context.limit);
    for (const item of this.items) item.card.decide(context);
    this.counted();
  }

  context() {
    return {
      model: this.model,
      threshold: this.threshold,
      limit: this.threshold ?? this.model.min_confidence ?? 0,
      promised: this.promised,
      setsPromised: this.sets !== null && this.model.promises.some((promise) => promise.status === "made" && isOnSets(promise, this.sets.per_class)),
      fitted: new Set(this.model.fitted_classes),
      alone: this.items.length === 1,
    };
  }

  // Above the answers

  counts() {
    const counts = { [ANSWER]: 0, [UNSURE]: 0, [NONE]: 0, [PROBLEM]: 0 };
    for (const item of this.items) {
      const state = stateOf(item, this.threshold);
      if (state) counts[state] += 1;
    }
    return counts;
  }

  counted() {
    const counts = this.counts();
    const total = this.items.length;
    const done = Object.values(counts).reduce((sum, count) => sum + count, 0);
    byId("answers").hidden = total === 0;
    byId("answers").classList.toggle("still", !this.sender.busy);
    byId("progress-bar").max = Math.max(1, total);
    byId("progress-bar").value = done;
    byId("progress-words").textContent = this.sender.busy ? `${done} of ${plural(total, "image")}` : plural(total, "image");
    byId("download").disabled = done === 0;
    if (this.filter && !counts[this.filter]) this.filter = null;
    for (const button of byId("filters").children) {
      const name = button.dataset.filter || null;
      const count = name ? counts[name] : total;
      button.querySelector(".count").textContent = String(count);
      button.hidden = name !== null && count === 0;
      button.setAttribute("aria-pressed", String(this.filter === name));
    }
    for (const item of this.items) item.card.element.hidden = this.filter !== null && stateOf(item, this.threshold) !== this.filter;
    this.thresholdPanel.show(this.threshold, { total, answered: done ? counts[ANSWER] : null });
  }

  /** One image alone is shown large, with all of its bars. */
  aloneChanged() {
    const alone = this.items.length === 1;
    const changed = byId("gallery").classList.toggle("alone", alone) !== this.wasAlone;
    this.wasAlone = alone;
    if (changed) for (const item of this.items) item.card.showBars(this.context());
    this.counted();
  }

  arrange() {
    const focused = document.activeElement;
    byId("gallery").append(...sorted(this.items, this.order, this.threshold).map((item) => item.card.element));
    if (byId("gallery").contains(focused)) focused.focus();
  }

  download() {
    const text = csv(sorted(this.items, this.order, this.threshold), this);
    const url = URL.createObjectURL(new Blob([text], { type: "text/csv;charset=utf-8" }));
    make("a", { href: url, download: "answers.csv" }).click();
    setTimeout(() => URL.revokeObjectURL(url), 1000);
    announce("answers.csv is downloaded");
  }

  explain(confidence) {
    openReliability(this.model.evidence, confidence);
  }

  // What is shown once

  showLimits() {
    const { formats, body_bytes: bytes } = this.model.limits;
    const kept = this.model.keeps_images ? "Images that you mark are kept on the server with the mark; others are not kept." : "Images go to this server only and are not kept.";
    byId("limits").textContent = `${formats.join(", ")}, up to ${fileSize(bytes)} each. ${kept}`;
  }

  showSetChoice() {
    const { coverages } = this.model;
    const select = byId("sets");
    byId("sets-choice").hidden = coverages.length === 0;
    const words = ({ coverage, per_class: each }) => `contain the truth for ${percent(coverage)} of images${each ? " of each class" : ""}`;
    select.replaceChildren(
      ...coverages.map((each, place) => make("option", { value: String(place) }, words(each))),
      make("option", { value: "" }, "not shown"),
    );
    select.addEventListener("change", () => this.setSets(select.value === "" ? null : coverages[Number(select.value)]));
  }

  showAbout() {
    const { name, kind, version, fingerprint, calibrator, about } = this.model;
    const facts = { Model: name, Kind: kind, Calibrator: calibrator ?? "none", Fingerprint: fingerprint, calprompt: version };
    byId("about-sentences").replaceChildren(...about.map((text) => make("p", {}, text)));
    byId("api-link").hidden = this.server.token !== null; // a link cannot carry the token
    byId("about-facts").replaceChildren(
      ...Object.entries(facts).flatMap(([key, value]) => [make("dt", {}, key), make("dd", {}, String(value))]),
    );
  }

  listen() {
    watchIntake((files) => this.accept(files), notify);
    for (const [name, words] of FILTERS) {
      const choose = () => {
        this.filter = name;
        this.counted();
      };
      byId("filters").append(make("button.filter", { type: "button", "data-filter": name ?? "", onclick: choose }, `${words} `, make("span.count")));
    }
    byId("sort").addEventListener("change", ({ target }) => {
      this.order = { by: target.value, falling: this.order.falling };
      this.arrange();
    });
    byId("direction").addEventListener("click", ({ currentTarget }) => {
      this.order.falling = !this.order.falling;
      currentTarget.setAttribute("aria-pressed", String(this.order.falling));
      this.arrange();
    });
    byId("download").addEventListener("click", () => this.download());
    byId("remove-all").addEventListener("click", () => this.removeAll());
    byId("stop").addEventListener("click", () => this.sender.stop());
    byId("about-button").addEventListener("click", () => byId("about").showModal());
    byId("show-reliability").addEventListener("click", () => this.explain(null));
    document.addEventListener("visibilitychange", () => document.visibilityState === "visible" && this.started && this.readWatch());
    const wide = matchMedia("(min-width: 60rem)");
    const fold = () => {
      for (const panel of document.querySelectorAll("details.panel")) panel.open = wide.matches;
    };
    wide.addEventListener("change", fold);
    fold();
  }
}

watchTheme();
watchDialogs();
const page = new Page();
page.listen();
page.start();
