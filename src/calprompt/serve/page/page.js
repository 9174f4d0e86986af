// The page: what it knows, and who is told when something changes. How things look is in the modules it imports.

import { offerSets, showAbout, showLimits } from "./about.js";
import { Problem, Server, Unreachable } from "./api.js";
import { Card } from "./cards.js";
import { ClassPanel } from "./classes.js";
import { announce, byId, fileSize, plural, sentence } from "./dom.js";
import { Gallery } from "./gallery.js";
import { watchIntake } from "./intake.js";
import { FeedbackSender } from "./feedback.js";
import {
  areUnlike,
  isOnSets,
  openReliability,
  showEvidence,
  showImages,
  showPromises,
  showStanding,
  showWatch,
  standing,
} from "./promises.js";
import { Sender } from "./sending.js";
import { Connection, askToken, confirmed, notify, watchDialogs, watchTheme } from "./shell.js";
import { ThresholdPanel } from "./threshold.js";

class Page {
  constructor() {
    this.numbers = 0;
    this.threshold = null; // the model's own
    this.edited = null; // the list of classes, if it is not the fitted one
    this.sets = null; // which prediction sets
    this.server = new Server(askToken);
    const healthy = () => this.server.healthy();
    this.connection = new Connection(healthy, () => this.back());
    this.gallery = new Gallery(() => this.count());
    this.sender = new Sender({
      predict: (item, bytes, controls) => this.predict(item, bytes, controls),
      healthy,
      check: (item) => this.check(item),
      changed: (item) => this.itemChanged(item),
      lost: () => this.connection.lose(),
      idle: () => this.idle(),
    });
    this.feedback = new FeedbackSender({
      send: (feedback, options) => this.sendFeedback(feedback, options),
      changed: (item) => this.feedbackChanged(item),
      watched: (watch) => this.watched(watch),
    });
    this.thresholdPanel = new ThresholdPanel((threshold) => this.setThreshold(threshold));
    this.classPanel = new ClassPanel((classes) => this.setClasses(classes));
    this.listen();
  }

  listen() {
    watchIntake((files) => this.accept(files), notify);
    byId("download").addEventListener("click", () => this.gallery.download(this.model, this.promised));
    byId("remove-all").addEventListener("click", () => this.removeAll());
    byId("stop").addEventListener("click", () => this.sender.stop());
    byId("about-button").addEventListener("click", () => byId("about").showModal());
    byId("show-reliability").addEventListener("click", () => this.explain(null));
    document.addEventListener("visibilitychange", () => {
      if (document.visibilityState === "visible" && this.started) this.readWatch(); // others give feedback too
    });
    const wide = matchMedia("(min-width: 60rem)");
    const fold = () => {
      for (const panel of document.querySelectorAll("details.panel")) panel.open = wide.matches;
    };
    wide.addEventListener("change", fold);
    fold();
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
    this.sets = this.model.coverages[0] ?? null;
    offerSets(this.model, (sets) => this.setSets(sets));
    showAbout(this.model, this.server.token !== null);
    showLimits(this.model);
    this.modelChanged();
    await this.readWatch();
    document.body.classList.add("ready");
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

  // Images

  accept(files) {
    if (!this.started) {
      notify("The model is not there yet; try again in a moment.");
      return;
    }
    const added = files.map((file) => {
      const item = {
        file,
        name: file.shownName ?? file.name,
        number: ++this.numbers,
        answers: new Map(),
        given: new Map(),
      };
      item.card = new Card(item, this);
      return item;
    });
    this.withBars(() => this.gallery.add(added));
    announce(`${plural(added.length, "image")} added`);
    this.sender.add(added);
  }

  /** What can be told without sending the image. */
  check({ file }) {
    const { body_bytes: most } = this.model.limits;
    if (file.size === 0) throw new Problem(0, "Empty file", "The file is empty");
    if (file.size > most) {
      const words = `The file has ${fileSize(file.size)}; this server takes up to ${fileSize(most)}`;
      throw new Problem(0, "Too large", words);
    }
  }

  /** The answer of the server, or one that it gave before for these classes and sets. */
  async predict(item, bytes, controls) {
    const key = JSON.stringify([this.edited, this.sets]);
    if (!item.answers.has(key)) {
      const options = { ...this.sets, classes: this.edited, name: item.name, type: item.file.type };
      item.answers.set(key, await this.server.predict(bytes, options, controls));
      this.unread = true; // the server has seen one more image
    }
    return item.answers.get(key);
  }

  again(item) {
    this.sender.add([item]);
    item.card.remove.focus();
  }

  remove(item) {
    if (this.feedback.pending.has(item)) this.feedback.post(item);
    this.withBars(() => this.gallery.remove(item));
    this.sender.remove(item);
    announce(`${item.name} removed`);
  }

  async removeAll() {
    const { length } = this.gallery.items;
    const question = `Remove all ${length} images and their answers from this page?`;
    if (length > 1 && !(await confirmed(question, "Remove all"))) return;
    for (const item of [...this.gallery.items]) this.remove(item);
  }

  /** Do something after which the image that is left may be alone, or no longer. */
  withBars(change) {
    const { alone } = this.gallery;
    change();
    if (this.gallery.alone !== alone) for (const item of this.gallery.items) item.card.showBars(this.context());
    this.count();
  }

  itemChanged(item) {
    item.feedback = item.given.get(JSON.stringify(this.edited)) ?? null;
    item.card.show(this.context());
    this.count();
  }

  idle() {
    this.count();
    this.gallery.finish();
    if (this.unread) this.readWatch();
  }

  // Feedback

  giveFeedback(item, feedback) {
    this.feedback.give(item, feedback);
    item.card.feedback.querySelector("button")?.focus();
  }

  chooseTrueClass(item) {
    item.feedback = { state: "choosing" };
    item.card.showFeedback(this.context());
    item.card.feedback.querySelector("select").focus();
  }

  undo(item) {
    this.feedback.undo(item);
    item.card.feedback.querySelector("button")?.focus();
  }

  sendAgain(item) {
    this.feedback.post(item);
  }

  sendFeedback(feedback, { item, keepalive }) {
    const image = this.model.keeps_images && !keepalive ? item.file : null;
    return this.server.feedback(feedback, { keepalive, image, name: item.name });
  }

  feedbackChanged(item) {
    item.given.set(JSON.stringify(this.edited), item.feedback);
    item.card.showFeedback(this.context());
  }

  async readWatch() {
    this.unread = false;
    try {
      this.watched(await this.server.watch());
    } catch {
      this.watched(null); // the page works without it
    }
  }

  watched(watch) {
    const before = this.watch;
    this.watch = watch;
    if (watch?.status === "broken" && before && before.status !== "broken") notify(sentence(watch.sentence));
    const { images } = watch ?? {};
    if (images?.status === "changed" && before?.images.status === "alike")
      notify("These images are not like those the model was fitted on. “What the images say” has what to do.");
    this.decide();
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
    this.feedback.flush(); // feedback is on the answers that were seen
    this.edited = classes;
    this.model = model;
    this.modelChanged();
    this.sender.add(this.gallery.items);
  }

  setSets(sets) {
    this.sets = sets;
    this.sender.add(this.gallery.items);
  }

  modelChanged() {
    const { model } = this;
    const words = [
      plural(model.classes.length, "class", "classes"),
      model.calibrator ? "calibrated" : "not calibrated",
    ];
    byId("model-line").textContent = [...words, ...(this.edited ? ["edited"] : [])].join(" · ");
    this.classPanel.load(model);
    this.thresholdPanel.load(model);
    showEvidence(model.evidence);
    this.decide();
  }

  /** Everything that depends on the threshold, at once and without the server. */
  decide() {
    if (!this.started) return;
    const stand = standing(this.model, this.threshold, this.watch);
    this.promised = stand.status === "made";
    this.gallery.threshold = this.threshold;
    showStanding(stand);
    showPromises(this.model, stand, this.watch);
    showWatch(this.watch, this.edited !== null);
    showImages(this.watch?.images);
    const context = this.context();
    byId("gallery").style.setProperty("--threshold", context.limit);
    for (const item of this.gallery.items) item.card.decide(context);
    this.count();
  }

  /** What cards need to know. */
  context() {
    const { model, threshold, promised, sets } = this;
    return {
      model,
      threshold,
      promised,
      limit: threshold ?? model.min_confidence ?? 0,
      setsPromise:
        sets &&
        !areUnlike(this.watch) &&
        model.promises.find((each) => each.status === "made" && isOnSets(each, sets.per_class)),
      fitted: new Set(model.fitted_classes),
      alone: this.gallery.alone,
    };
  }

  count() {
    if (!this.started) return;
    this.thresholdPanel.show(this.threshold, this.gallery.count(this.sender.busy));
  }

  explain(confidence) {
    openReliability(this.model.evidence, confidence);
  }
}

watchTheme();
watchDialogs();
new Page().start();
