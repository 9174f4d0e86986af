// The page: what it knows, and who is told when something changes. How things look is in the modules it imports.

import { offerSets, showAbout, showLimits } from "./about.js";
import { Problem, Server, Unreachable } from "./api.js";
import { ClassPanel } from "./classes.js";
import { announce, byId, fileSize, make, plural, sentence } from "./dom.js";
import { exportLabelled } from "./exporting.js";
import { Gallery } from "./gallery.js";
import { Improving } from "./improving.js";
import { watchIntake } from "./intake.js";
import { Keeper, MOST_BYTES, MOST_IMAGES, freshId } from "./keeping.js";
import { Labelling } from "./labelling.js";
import { Live } from "./live.js";
import { Picking } from "./picking.js";
import {
  areUnlike,
  doubt,
  isOnSets,
  openReliability,
  showEvidence,
  showFeedback,
  showImages,
  showPromises,
  showStanding,
  showWatch,
  standing,
} from "./promises.js";
import { offerSamples } from "./samples.js";
import { Sender } from "./sending.js";
import { Connection, askToken, confirmed, notify, watchDialogs, watchTheme } from "./shell.js";
import { ThresholdPanel } from "./threshold.js";

const COUNTED_EVERY = 150; // milliseconds, while answers come in
const RESTARTED = /was restarted since/; // said of answers that a server does not know any more

class Page {
  constructor() {
    this.numbers = 0;
    this.threshold = null; // the model's own
    this.edited = null; // the list of classes, if it is not the fitted one
    this.sets = null; // which prediction sets
    this.server = new Server(askToken);
    const healthy = () => this.server.healthy();
    const lost = () => this.connection.lose();
    this.connection = new Connection(healthy, () => this.back(), () => this.waiting());
    this.gallery = new Gallery(this, () => this.count());
    this.keeper = new Keeper(() => this.showKept());
    this.sender = new Sender({
      predict: (item, bytes, controls) => this.predict(item, bytes, controls),
      ...{ healthy, lost },
      check: (item) => this.check(item),
      changed: (item) => this.itemChanged(item),
      idle: () => this.idle(),
    });
    this.labelling = new Labelling({
      send: (item, options) => this.sendFeedback(item, options),
      takeBack: (id) => this.server.undo(id),
      changed: (item) => this.feedbackChanged(item),
      watched: (watch) => this.watched(watch),
      kept: () => this.improving.later(),
      lost,
    });
    this.picking = new Picking(this);
    this.improving = new Improving(this);
    this.thresholdPanel = new ThresholdPanel((threshold) => this.setThreshold(threshold));
    this.classPanel = new ClassPanel((classes) => this.setClasses(classes));
    this.listen();
  }

  listen() {
    watchIntake((files) => this.accept(files), notify);
    new Live({ answer: (blob, signal) => this.glance(blob, signal), page: this });
    byId("download").addEventListener("click", () => this.gallery.download(this.model, this.promised));
    byId("export-marked").addEventListener("click", () => exportLabelled(this.gallery.items));
    byId("remove-all").addEventListener("click", () => this.removeAll());
    byId("stop").addEventListener("click", () => this.sender.stop());
    byId("about-button").addEventListener("click", () => byId("about").showModal());
    byId("show-reliability").addEventListener("click", () => this.explain(null));
    document.addEventListener("visibilitychange", () => {
      if (document.visibilityState === "visible" && this.started) this.refresh(); // others work with it too
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
    showLimits(this.model);
    this.modelChanged();
    await this.readWatch();
    await this.restore();
    offerSamples(this.server, (file) => this.accept([file], true));
    this.improving.start();
    document.body.classList.add("ready");
  }

  failed(error) {
    byId("model-line").textContent = "Not connected";
    notify(error.status === 401 ? "This page needs a token. Reload it to enter one." : sentence(error.message));
  }

  /** The server is there again. */
  async back() {
    if (!this.started) await this.start();
    this.labelling.resume();
    this.sender.resume();
    if (this.started) this.refresh();
  }

  /** What waits while the server is away, and whether it survives that the page is closed. */
  waiting() {
    const images = this.gallery.items.filter((item) => !item.answer && !item.problem).length;
    const feedback = this.labelling.queue.size + this.labelling.pending.size;
    const what = [
      images && plural(images, "image"),
      feedback && `feedback on ${plural(feedback, "image")}`,
    ].filter(Boolean);
    if (!what.length) return "Answers that are here stay; what you add now waits.";
    const safe = this.keeper.works && !this.keeper.left;
    const until = safe ? "You may close the page: it is kept in this browser." : "Leave the page open: it is not kept.";
    return `${what.join(" and ")} will be sent once it is back. ${until}`;
  }

  /** The model and the watch, which may have changed meanwhile. */
  async refresh() {
    await this.readWatch();
    try {
      const model = await this.server.model(this.edited);
      if (model.fingerprint !== this.model.fingerprint) this.takeModel(model);
    } catch {
      // it is asked again
    }
  }

  /** Another version answers: ask it about all images. */
  takeModel(model) {
    this.labelling.flush();
    this.model = model;
    for (const item of this.gallery.items) item.answers.clear();
    notify("Another version of the model answers now. Your images are being answered again.");
    this.modelChanged();
    this.sender.add(this.gallery.items);
  }

  // Images

  accept(files, sample = false) {
    if (!this.started) {
      notify("The model is not there yet; try again in a moment.");
      return;
    }
    const added = files.map((file) => this.item({ file, sample, name: file.shownName ?? file.name }));
    this.withBars(() => this.gallery.add(added));
    if (!sample) for (const item of added) this.keeper.add(item);
    announce(`${plural(added.length, "image")} added`);
    this.sender.add(added);
    this.showKept();
  }

  item({ file, name, id = freshId(), number = ++this.numbers, answers = [], given = [], sample = false }) {
    return { ...{ file, name, id, number, sample, status: "waiting" }, answers: new Map(answers), given: new Map(given) };
  }

  /** Images of an earlier visit; what is missing or of another model is asked for. */
  async restore() {
    const kept = await this.keeper.load();
    if (!kept.length) return;
    const items = kept.map((record) => {
      const number = Math.max(this.numbers + 1, record.number); // two tabs may have counted alike
      const item = this.item({ ...record, number, answers: record.fingerprint === this.own ? record.answers : [] });
      this.numbers = number;
      item.answer = item.answers.get(this.key()) ?? null;
      item.feedback = item.given.get(this.listKey()) ?? null;
      const { failed } = record;
      if (failed && !failed.canHelp) item.problem = new Problem(failed.status, failed.title, failed.message, false);
      if (item.answer || item.problem) item.status = "done";
      this.labelling.restore(item);
      return item;
    });
    this.withBars(() => this.gallery.add(items));
    this.sender.add(items.filter((item) => item.status === "waiting"));
    this.count();
    this.labelling.resume();
    this.showKept();
  }

  key() {
    return JSON.stringify([this.edited, this.sets]);
  }

  listKey() {
    return JSON.stringify(this.edited);
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
    const key = this.key();
    if (!item.answers.has(key)) {
      const options = { ...this.sets, classes: this.edited, name: item.name, type: item.file.type };
      if (item.sample) options.preview = true;
      item.answers.set(key, await this.server.predict(bytes, options, controls));
      this.unread = true; // the server has seen one more image
    }
    return item.answers.get(key);
  }

  /** An answer that is not counted anywhere, for what the camera sees. */
  async glance(blob, signal) {
    const options = { classes: this.edited, name: "camera", type: blob.type, preview: true };
    return this.server.predict(await blob.arrayBuffer(), options, { signal });
  }

  again(item) {
    this.sender.add([item]);
    item.entry.element.focus();
  }

  remove(item) {
    if (this.labelling.pending.has(item)) this.labelling.post(item);
    this.withBars(() => this.gallery.remove(item));
    this.sender.remove(item);
    this.picking.forget(item);
    this.keeper.remove(item);
    this.showKept();
    announce(`${item.name} removed`);
  }

  async removeAll() {
    const { length } = this.gallery.items;
    const waits = this.labelling.queue.size;
    const lost = waits ? ` Your feedback on ${plural(waits, "image")}, which the server does not have yet, would be lost.` : "";
    const question = `Remove all ${length} images and their answers from this page and this browser?${lost}`;
    if ((length > 1 || waits) && !(await confirmed(question, "Remove all"))) return;
    for (const item of [...this.gallery.items]) this.remove(item);
  }

  showKept() {
    const { keeper } = this;
    const limit = `${MOST_IMAGES.toLocaleString("en")} images or ${fileSize(MOST_BYTES)}`;
    const words = keeper.works
      ? keeper.left
        ? `${plural(keeper.left, "image")} more than this browser keeps here (${limit}): gone after a reload.`
        : "Kept in this browser until you remove them."
      : "This browser does not let the page keep anything: the images are gone after a reload.";
    byId("kept-words").textContent = words;
  }

  /** Do something after which the image that is left may be alone, or no longer. */
  withBars(change) {
    const { alone } = this.gallery;
    change();
    if (this.gallery.alone !== alone) for (const item of this.gallery.items) item.entry.show(this.context());
    this.count();
  }

  itemChanged(item) {
    item.feedback = item.given.get(this.listKey()) ?? null;
    this.picking.update(item, this.context());
    if (item.answer || item.problem) this.keeper.note(item, this.own);
    this.counting ??= setTimeout(() => this.count(), this.sender.busy ? COUNTED_EVERY : 0);
    byId("answers").classList.toggle("still", !this.sender.busy);
  }

  idle() {
    this.count();
    this.gallery.finish();
    if (this.unread) this.readWatch();
  }

  // Feedback

  /** Send feedback; if the server was restarted, it is asked about the image again first. */
  async sendFeedback(item, { keepalive }) {
    const { feedback } = item;
    const body = () => ({ id: feedback.id, right: feedback.right, class_name: feedback.class_name });
    const image = this.model.keeps_images && !keepalive ? item.file : null;
    const options = { keepalive, image, name: item.name };
    try {
      return await this.server.feedback(body(), options);
    } catch (error) {
      if (keepalive || !RESTARTED.test(error.message)) throw error;
      item.answers.delete(this.key());
      item.answer = await this.predict(item, await item.file.arrayBuffer(), {});
      const said = feedback.right ? feedback.answered : feedback.class_name;
      const { id, class_name: answered } = item.answer;
      if (said === null && answered !== feedback.answered)
        throw new Problem(0, "Changed", "the answer is another one now; look at it again", false);
      const right = said === answered;
      Object.assign(feedback, { id, answered, right, class_name: right ? null : said });
      return this.server.feedback(body(), options);
    }
  }

  feedbackChanged(item) {
    item.given.set(this.listKey(), item.feedback);
    this.picking.update(item, this.context());
    this.keeper.note(item, this.own);
    this.connection.show();
    this.counting ??= setTimeout(() => this.count(), 0);
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
    this.watch = watch;
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
    this.labelling.flush(); // feedback is on the answers that were seen
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
    if (this.edited === null) this.own = model.fingerprint;
    showAbout(model, this.server.token !== null);
    this.describe();
    byId("class-names").replaceChildren(...model.classes.map((name) => make("option", { value: name })));
    this.classPanel.load(model);
    this.thresholdPanel.load(model);
    showEvidence(model.evidence);
    this.decide();
  }

  /** The line below the name. */
  describe() {
    const { model } = this;
    const words = [
      this.improving.versions?.versions.length > 1 && `version ${model.model_version}`,
      plural(model.classes.length, "class", "classes"),
      model.calibrator ? "calibrated" : "not calibrated",
      this.edited && "edited",
    ];
    byId("model-line").textContent = words.filter(Boolean).join(" · ");
  }

  /** Everything that depends on the threshold, at once and without the server. */
  decide() {
    if (!this.started) return;
    const stand = standing(this.model, this.threshold, this.watch);
    this.promised = stand.status === "made";
    this.gallery.threshold = this.threshold;
    showStanding(stand, this.model, this.threshold);
    showPromises(this.model, stand, this.watch);
    showWatch(this.watch, this.edited !== null);
    showImages(this.watch?.images);
    const context = this.context();
    for (const id of ["gallery", "details-card"]) byId(id).style.setProperty("--threshold", context.limit);
    for (const item of this.gallery.items) item.entry.show(context);
    this.picking.open?.show(context);
    this.count();
  }

  /** What cards and rows need to know. */
  context() {
    const { model, threshold, promised, sets, watch } = this;
    return {
      ...{ model, threshold, promised },
      limit: threshold ?? model.min_confidence ?? 0,
      doubted: doubt(watch),
      picked: this.picking?.picked ?? new Set(),
      setsPromise:
        sets &&
        !areUnlike(watch) &&
        model.promises.find((each) => each.status === "made" && isOnSets(each, sets.per_class)),
      fitted: new Set(model.fitted_classes),
      alone: this.gallery.alone,
    };
  }

  count() {
    clearTimeout(this.counting);
    this.counting = null;
    if (!this.started) return;
    this.thresholdPanel.show(this.threshold, this.gallery.count(this.sender.busy));
    showFeedback(this.gallery.items, this.labelling);
    this.improving.show();
    this.connection.show();
  }

  explain(confidence) {
    openReliability(this.model.evidence, confidence);
  }
}

watchTheme();
watchDialogs();
new Page().start();
