// Marking an answer as right or wrong: a choice, a few seconds to take it back, then it is sent.

import { ANSWER, stateOf } from "./decisions.js";
import { announce, icon, make, sentence } from "./dom.js";

export const UNDO_SECONDS = 5;

/** The row of a card that asks, offers to undo, or says what became of a mark. */
export function markRow(item, context, page) {
  const { mark, answer } = item;
  if (!answer || !context.model.marks) return [];
  if (mark?.state === "choosing") return [trueClassForm(item, context, page)];
  if (mark) return markState(item, page);
  const labelled = (words) => ({ type: "button", "aria-label": `${words}: ${item.name}` });
  if (stateOf(item, context.threshold) !== ANSWER) {
    if (!context.model.keeps_images) return []; // only answers are watched
    return [
      make(
        "button.quiet",
        { ...labelled("Say what it is"), onclick: () => page.chooseTrueClass(item) },
        "Say what it is",
      ),
    ];
  }
  const button = (words, name, onclick) => make("button.quiet", { ...labelled(words), onclick }, icon(name), words);
  return [
    make("span.question", {}, "Is this right?"),
    button("Right", "check", () => page.mark(item, { right: true, class_name: null })),
    button("Wrong", "close", () => page.chooseTrueClass(item)),
  ];
}

function trueClassForm(item, context, page) {
  const id = `true-class-${item.number}`;
  const guess = item.answer.class_name;
  const answered = stateOf(item, context.threshold) === ANSWER;
  const names = context.model.classes.filter((name) => !answered || name !== guess);
  const select = make(
    "select",
    { id },
    make("option", { value: "" }, "I do not know, or another"),
    ...names.map((name, place) => make("option", { value: String(place) }, name)),
  );
  const send = () => {
    const name = select.value === "" ? null : names[Number(select.value)];
    page.mark(item, { right: name === guess, class_name: name });
  };
  return make(
    "form.true-class",
    {
      onsubmit: (event) => {
        event.preventDefault();
        send();
      },
    },
    make("label", { for: id }, "What is it?"),
    select,
    make("button", { type: "submit" }, answered ? "Mark as wrong" : "Send"),
    make("button.quiet", { type: "button", onclick: () => page.undo(item) }, "Cancel"),
  );
}

function markState(item, page) {
  const { mark } = item;
  const truth = mark.class_name ? `: it is ${mark.class_name}` : "";
  const words = `Marked ${mark.right ? "right" : "wrong"}${truth}`;
  const line = make("span.marked", {}, icon(mark.right ? "check" : "close"), words);
  if (mark.state === "pending")
    return [line, make("button.quiet.undo", { type: "button", onclick: () => page.undo(item) }, "Undo")];
  if (mark.state === "sending") return [line, make("span.fine", {}, "sending…")];
  if (mark.state === "failed") {
    return [
      make("span.marked.failed", {}, icon("alert"), `Not marked: ${mark.note}`),
      mark.final ? null : make("button.quiet", { type: "button", onclick: () => page.markAgain(item) }, "Try again"),
    ].filter(Boolean);
  }
  return [line, make("span.fine", {}, mark.note ?? "")];
}

/** Keeps marks back for a few seconds, then sends them. */
export class Marker {
  /** `send(mark, options)` asks the server; `changed(item)` shows; `watched(watch)` takes the state of the promise. */
  constructor({ send, changed, watched }) {
    Object.assign(this, { send, changed, watched });
    this.pending = new Set();
    addEventListener("pagehide", () => this.flush(true));
  }

  mark(item, { right, class_name }) {
    item.mark = {
      id: item.answer.id,
      right,
      class_name,
      state: "pending",
      timer: setTimeout(() => this.post(item), 1000 * UNDO_SECONDS),
    };
    this.pending.add(item);
    this.changed(item);
    announce(`Marked ${right ? "right" : "wrong"}; ${UNDO_SECONDS} seconds to undo`);
  }

  undo(item) {
    clearTimeout(item.mark?.timer);
    this.pending.delete(item);
    item.mark = null;
    this.changed(item);
  }

  flush(keepalive = false) {
    for (const item of [...this.pending]) this.post(item, keepalive);
  }

  async post(item, keepalive = false) {
    const { mark } = item;
    clearTimeout(mark.timer);
    this.pending.delete(item);
    mark.state = "sending";
    this.changed(item);
    try {
      const { id, right, class_name } = mark;
      const reply = await this.send({ id, right, class_name }, { item, keepalive });
      const kept = reply.kept ? "the image is kept" : "";
      Object.assign(mark, { state: "sent", note: reply.counted ? kept : sentence(reply.reason ?? "Not counted") });
      this.watched(reply.watch);
    } catch (error) {
      Object.assign(mark, { state: "failed", note: error.message, final: error.status === 409 });
    }
    this.changed(item);
  }
}
