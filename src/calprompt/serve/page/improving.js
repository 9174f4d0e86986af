// From feedback to a better model: which pictures to label next, and for admins a new version that learned from them.

import { announce, byId, make, plural, sentence } from "./dom.js";
import { isGiven } from "./feedback.js";
import { truthOf } from "./decisions.js";
import { confirmed, notify } from "./shell.js";

const NEXT = 20; // pictures that are suggested at a time
const MOST = 1000; // that are considered
const ASKED_EVERY = 2000; // milliseconds, while a fit runs
const LATER = 500; // milliseconds in which news gather

export class Improving {
  constructor(page) {
    Object.assign(this, { page, state: null, timer: null });
    byId("suggest").addEventListener("click", () => this.suggest());
  }

  /** What the server offers; nothing, if the model cannot be fitted again from here. */
  async start() {
    await this.read();
  }

  /** The server keeps one more labelled picture. */
  later() {
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.read(), LATER);
  }

  show() {
    byId("suggest").disabled = !this.candidates().length;
    const fit = byId("fit-again");
    if (fit) fit.disabled = !this.state.kept;
  }

  candidates() {
    return this.page.gallery.items.filter((item) => item.answer && !item.sample && !isGiven(item.feedback));
  }

  /** Ask which pictures would teach the model most, and show them first. */
  async suggest() {
    const { gallery, server } = this.page;
    const candidates = this.candidates().slice(-MOST);
    const labelled = gallery.items.filter((item) => item.answer && truthOf(item) !== null).slice(-MOST);
    const shares = (items) => items.map(({ answer }) => inOrder(answer, this.page.model.classes));
    const n = Math.min(NEXT, candidates.length);
    try {
      const asked = { candidates: shares(candidates), labelled: shares(labelled), n };
      const { order } = await server.post("v1/suggest", asked);
      for (const item of gallery.items) delete item.suggested;
      order.forEach((place, rank) => (candidates[place].suggested = rank));
    } catch (error) {
      notify(`No suggestion: ${sentence(error.message)}`);
      return;
    }
    gallery.showNext();
    announce(`${plural(n, "picture")} to label next`);
    this.page.picking.focus(gallery.shown[0]);
  }

  // A new version

  async read() {
    clearTimeout(this.timer);
    const ask = (path) => this.page.server.request(path, { tries: 1 }).catch(() => null);
    this.state = await ask("v1/improve");
    if (this.state?.possible) {
      this.versions = await ask("v1/versions");
      this.comparison = this.versions?.shadow ? await ask("v1/shadow") : null;
    }
    this.draw();
    if (this.state?.status === "fitting") this.timer = setTimeout(() => this.read(), ASKED_EVERY);
  }

  draw() {
    const { state, versions, comparison } = this;
    byId("improve").hidden = !state?.possible;
    this.page.describe();
    if (!state?.possible || !versions) return;
    const text = JSON.stringify([state, versions, comparison?.sentence]);
    if (this.drawn === text) return;
    this.drawn = text;
    const { active, previous, shadow } = versions;
    const fitting = state.status === "fitting";
    const newest = versions.versions[0].version;
    byId("improve-words").textContent =
      `Version ${active} answers. A new one learns from the old images and the ${plural(state.kept, "labelled picture")} ` +
      "that the server keeps, and answers nobody until you switch.";
    const sentences = [...state.sentences, shadow && `Version ${shadow} is tried beside it. ${comparison?.sentence ?? ""}`];
    byId("improve-state").replaceChildren(...sentences.filter(Boolean).map((words) => make("p", {}, words)));
    const button = (id, words, onclick) => make("button", { type: "button", id, onclick }, words);
    const change = (action, version) => () => this.change(action, version);
    byId("improve-buttons").replaceChildren(
      ...[
        !fitting && button("fit-again", "Fit a new version", () => this.act("fit")),
        fitting && button("stop-fit", "Stop", () => this.act("stop")),
        newest !== active && newest !== shadow && button("shadow", `Try version ${newest} beside it`, change("shadow", newest)),
        newest !== active && button("switch", `Switch to version ${newest}`, change("switch", newest)),
        previous && button("rollback", `Go back to version ${previous}`, change("rollback", null)),
      ].filter(Boolean),
    );
    this.show();
  }

  async act(action) {
    this.page.labelling.flush();
    await this.attempt(() => this.page.server.post("v1/improve", { action }));
  }

  /** Have a version tried, switch to one, or go back. */
  async change(action, version) {
    const question = `Let version ${version} answer from now on? You can go back.`;
    if (action === "switch" && !(await confirmed(question, "Switch"))) return;
    await this.attempt(() => this.page.server.post("v1/versions", { action, version }));
    if (action !== "shadow") await this.page.refresh();
  }

  async attempt(ask) {
    try {
      await ask();
    } catch (error) {
      notify(sentence(error.message));
    }
    await this.read();
  }
}

/** Probabilities in the order of the classes. */
function inOrder({ probabilities }, classes) {
  const found = new Map(probabilities.map(({ class_name: name, probability }) => [name, probability]));
  return classes.map((name) => Number((found.get(name) ?? 0).toPrecision(4)));
}

