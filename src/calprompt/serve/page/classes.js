// The list of classes, edited live: added ones are known by their names alone, so promises are withdrawn for them.

import { announce, byId, icon, make, plural, sentence } from "./dom.js";

const lines = (text) =>
  text
    .split(/[\r\n]+/)
    .map((name) => name.trim())
    .filter(Boolean);

export class ClassPanel {
  /** `changed(classes)` takes an edited list, null for the one it was fitted on; it throws a problem if it is refused. */
  constructor(changed) {
    this.changed = changed;
    this.edits = Promise.resolve();
    this.input = byId("new-class");
    byId("add-class").addEventListener("submit", (event) => {
      event.preventDefault();
      const names = lines(this.input.value);
      if (names.length) this.add(names);
      else this.complain("Write the name of a class first.");
    });
    this.input.addEventListener("input", () => this.complain(""));
    this.input.addEventListener("paste", (event) => {
      const names = lines(event.clipboardData?.getData("text/plain") ?? "");
      if (names.length < 2) return; // a list, one name a line
      event.preventDefault();
      this.add(names);
    });
    byId("reset-classes").addEventListener("click", () => this.edit(() => this.fitted, "The fitted classes are back"));
  }

  load(model) {
    const fitted = new Set(model.fitted_classes);
    const listed = new Set(model.classes);
    const removed = model.fitted_classes.filter((name) => !listed.has(name));
    const editable = model.classes_editable;
    this.classes = model.classes;
    this.fitted = model.fitted_classes;
    this.input.maxLength = model.limits.class_characters;
    byId("class-count").textContent = plural(this.classes.length, "class", "classes");
    byId("add-class").hidden = !editable;
    byId("reset-classes").hidden = !editable;
    byId("reset-classes").disabled = isSame(this.classes, this.fitted);
    byId("classes-reason").hidden = editable;
    byId("classes-reason").textContent = model.classes_reason ? sentence(model.classes_reason) : "";
    byId("classes").replaceChildren(
      ...this.classes.map((name) => {
        const words = `Remove ${name}`;
        const remove = () => this.edit((classes) => classes.filter((each) => each !== name), `Removed ${name}`);
        const button = editable && listed.size > 1 && chipButton(words, "close", remove);
        return fitted.has(name)
          ? make("li.chip", {}, make("span", {}, name), button)
          : make("li.chip.added", {}, make("span", {}, name), make("span.tag", {}, "added: no promise"), button);
      }),
    );
    byId("removed").hidden = removed.length === 0;
    byId("removed-classes").replaceChildren(
      ...removed.map((name) => {
        const back = () => this.edit((classes) => this.withFitted(classes, name), `${name} is back`);
        return make("li.chip.back", {}, make("span", {}, name), chipButton(`Put ${name} back`, "plus", back));
      }),
    );
  }

  /** A list with a fitted class again, in its old place. */
  withFitted(classes, name) {
    const fitted = this.fitted.filter((each) => each === name || classes.includes(each));
    return [...fitted, ...classes.filter((each) => !this.fitted.includes(each))];
  }

  add(names) {
    const words = names.length === 1 ? names[0] : plural(names.length, "class", "classes");
    this.edit((classes) => [...classes, ...names], `Added ${words}`);
  }

  /** Change the list, after what was changed before. */
  edit(change, words) {
    this.edits = this.edits.then(() => this.apply(change(this.classes), words));
  }

  async apply(classes, words) {
    this.complain("");
    const panel = byId("class-panel");
    const place = [...byId("classes").querySelectorAll("button")].indexOf(document.activeElement);
    panel.setAttribute("aria-busy", "true");
    try {
      const own = isSame(classes, this.fitted);
      await this.changed(own ? null : classes);
      this.input.value = "";
      this.refocus(place);
      announce(own ? words : `${words}; promises are withdrawn for this list`);
    } catch (error) {
      this.complain(sentence(error.message));
    } finally {
      panel.removeAttribute("aria-busy");
    }
  }

  /** The button that was used is gone: the next one, or the field. */
  refocus(place) {
    const buttons = byId("classes").querySelectorAll("button");
    if (place >= 0) (buttons[Math.min(place, buttons.length - 1)] ?? this.input).focus();
    else if (document.activeElement === document.body) this.input.focus();
  }

  complain(text) {
    byId("class-problem").textContent = text;
    if (text) this.input.setAttribute("aria-invalid", "true");
    else this.input.removeAttribute("aria-invalid");
  }
}

const isSame = (some, others) => some.length === others.length && some.every((name, place) => name === others[place]);

function chipButton(words, name, onclick) {
  return make("button", { type: "button", "aria-label": words, title: words, onclick }, icon(name));
}
