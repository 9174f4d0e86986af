// The list of classes, edited live: added ones are known by their names alone, so promises are withdrawn for them.

import { announce, byId, icon, make, plural } from "./dom.js";

export class ClassPanel {
  /** `changed(classes)` takes an edited list, null for the one it was fitted on; it throws a problem if it is refused. */
  constructor(changed) {
    this.changed = changed;
    this.input = byId("new-class");
    byId("add-class").addEventListener("submit", (event) => {
      event.preventDefault();
      const names = this.input.value
        .split(/[\r\n]+/)
        .map((name) => name.trim())
        .filter(Boolean);
      if (names.length) this.edit([...this.classes, ...names], `Added ${names.join(", ")}`);
      else this.complain("Write the name of a class first.");
    });
    this.input.addEventListener("input", () => this.complain(""));
    this.input.addEventListener("paste", (event) => {
      const lines = (event.clipboardData?.getData("text/plain") ?? "")
        .split(/[\r\n]+/)
        .map((name) => name.trim())
        .filter(Boolean);
      if (lines.length < 2) return; // a list, one name a line
      event.preventDefault();
      this.edit([...this.classes, ...lines], `Added ${plural(lines.length, "class", "classes")}`);
    });
    byId("reset-classes").addEventListener("click", () =>
      this.edit(this.fitted, "The classes are those it was fitted on"),
    );
  }

  load(model) {
    this.classes = model.classes;
    this.fitted = model.fitted_classes;
    const fitted = new Set(this.fitted);
    const listed = new Set(this.classes);
    const removed = this.fitted.filter((name) => !listed.has(name));
    const editable = model.classes_editable;
    const edited = removed.length > 0 || this.classes.length !== this.fitted.length;
    byId("class-count").textContent = plural(this.classes.length, "class", "classes");
    byId("add-class").hidden = !editable;
    byId("reset-classes").hidden = !editable;
    byId("reset-classes").disabled = !edited;
    byId("classes-reason").hidden = editable;
    byId("classes-reason").textContent = model.classes_reason ?? "";
    this.input.maxLength = model.limits.class_characters * 1;
    const limit = this.classes.length > 1;
    byId("classes").replaceChildren(
      ...this.classes.map((name) => this.chip(name, { added: !fitted.has(name), editable: editable && limit })),
    );
    byId("removed").hidden = removed.length === 0;
    byId("removed-classes").replaceChildren(...removed.map((name) => this.chip(name, { back: true })));
  }

  chip(name, { added = false, editable = true, back = false }) {
    const words = back ? `Put ${name} back` : `Remove ${name}`;
    const edit = () =>
      back
        ? this.edit(
            this.fitted
              .filter((each) => each === name || this.classes.includes(each))
              .concat(this.classes.filter((each) => !this.fitted.includes(each))),
            `${name} is back`,
          )
        : this.edit(
            this.classes.filter((each) => each !== name),
            `Removed ${name}`,
          );
    return make(
      `li.chip${added ? ".added" : ""}${back ? ".back" : ""}`,
      {},
      make("span", {}, name),
      added && make("span.tag", {}, "added: no promise"),
      editable &&
        make(
          "button",
          { type: "button", "aria-label": words, title: words, onclick: edit },
          icon(back ? "plus" : "close"),
        ),
    );
  }

  async edit(classes, words) {
    this.complain("");
    const panel = byId("class-panel");
    panel.setAttribute("aria-busy", "true");
    try {
      const same = classes.length === this.fitted.length && classes.every((name, place) => name === this.fitted[place]);
      const place = [...byId("classes").querySelectorAll("button")].indexOf(document.activeElement);
      await this.changed(same ? null : classes);
      this.input.value = "";
      const buttons = byId("classes").querySelectorAll("button");
      if (place >= 0)
        (buttons[Math.min(place, buttons.length - 1)] ?? this.input).focus(); // the one used is gone
      else if (document.activeElement === document.body) this.input.focus();
      announce(words);
    } catch (error) {
      this.complain(error.message);
    } finally {
      panel.removeAttribute("aria-busy");
    }
  }

  complain(text) {
    byId("class-problem").textContent = text;
    if (text) this.input.setAttribute("aria-invalid", "true");
    else this.input.removeAttribute("aria-invalid");
  }
}
