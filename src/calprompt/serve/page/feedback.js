// Feedback on an answer: right or wrong, a few seconds to take it back, then it is sent.

import { ANSWER, stateOf } from "./decisions.js";
import { announce, icon, make, sentence } from "./dom.js";

export const UNDO_SECONDS = 5;

/** The row of a card that asks, offers to undo, or says what became of the feedback. */
export function feedbackRow(item, context, page) {
  const { feedback, answer } = item;
  if (!answer) return [];
  if (feedback?.state === "choosing") return [trueClassForm(item, context, page)];
  if (feedback) return feedbackState(item, page);
  const labelled = (words) => ({ type: "button", "aria-label": `${words}: ${item.name}` });
  if (stateOf(item, context.threshold) !== ANSWER) {
    if (!context.model.keeps_images) return []; // only answers are watched
    return [
      make(
        "button.quiet",
        { ...labelled("Label it"), onclick: () => page.chooseTrueClass(item) },
        "Label it",
      ),
    ];
  }
  const button = (words, name, onclick) => make("button.quiet", { ...labelled(words), onclick }, icon(name), words);
  return [
    make("span.question", {}, "Is this right?"),
    button("Right", "check", () => page.giveFeedback(item, { right: true, class_name: null })),
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
    page.giveFeedback(item, { right: name === guess, class_name: name });
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
    make("button", { type: "submit" }, "Send"),
    make("button.quiet", { type: "button", onclick: () => page.undo(item) }, "Cancel"),
  );
}

function feedbackState(item, page) {
  const { feedback } = item;
  const truth = feedback.class_name ? `: it is ${feedback.class_name}` : "";
  const words = `Your feedback: ${feedback.right ? "right" : "wrong"}${truth}`;
  const line = make("span.given", {}, icon(feedback.right ? "check" : "close"), words);
  if (feedback.state === "pending")
    return [line, make("button.quiet.undo", { type: "button", onclick: () => page.undo(item) }, "Undo")];
  if (feedback.state === "sending") return [line, make("span.fine", {}, "sending…")];
  if (feedback.state === "failed") {
    return [
      make("span.given.failed", {}, icon("alert"), `Not sent: ${feedback.note}`),
      feedback.final ? null : make("button.quiet", { type: "button", onclick: () => page.sendAgain(item) }, "Try again"),
    ].filter(Boolean);
  }
  return [line, make("span.fine", {}, feedback.note ?? "")];
}

/** Keeps feedback back for a few seconds, then sends it. */
export class FeedbackSender {
  /** `send(feedback, options)` asks the server; `changed(item)` shows; `watched(watch)` takes the state of the promise. */
  constructor({ send, changed, watched }) {
    Object.assign(this, { send, changed, watched });
    this.pending = new Set();
    addEventListener("pagehide", () => this.flush(true));
  }

  give(item, { right, class_name }) {
    item.feedback = {
      id: item.answer.id,
      right,
      class_name,
      state: "pending",
      timer: setTimeout(() => this.post(item), 1000 * UNDO_SECONDS),
    };
    this.pending.add(item);
    this.changed(item);
    announce(`Your feedback: ${right ? "right" : "wrong"}; ${UNDO_SECONDS} seconds to undo`);
  }

  undo(item) {
    clearTimeout(item.feedback?.timer);
    this.pending.delete(item);
    item.feedback = null;
    this.changed(item);
  }

  flush(keepalive = false) {
    for (const item of [...this.pending]) this.post(item, keepalive);
  }

  async post(item, keepalive = false) {
    const { feedback } = item;
    clearTimeout(feedback.timer);
    this.pending.delete(item);
    feedback.state = "sending";
    this.changed(item);
    try {
      const { id, right, class_name } = feedback;
      const reply = await this.send({ id, right, class_name }, { item, keepalive });
      const kept = reply.kept ? "the image is kept" : "";
      Object.assign(feedback, { state: "sent", note: reply.counted ? kept : sentence(reply.reason ?? "Not counted") });
      this.watched(reply.watch);
    } catch (error) {
      Object.assign(feedback, { state: "failed", note: error.message, final: ![0, 408, 429, 503, 507, undefined].includes(error.status) });
    }
    this.changed(item);
  }
}
