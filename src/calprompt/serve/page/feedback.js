// Feedback as a card shows it: the question, the form for the true class, and what became of what was said.

import { ANSWER, stateOf } from "./decisions.js";
import { icon, make } from "./dom.js";

/** Whether something was said, and not only begun. */
export const isGiven = (feedback) => Boolean(feedback) && feedback.state !== "choosing";

/** The row of a card that asks, offers to undo, or says what became of the feedback. */
export function feedbackRow(item, context, page) {
  const { feedback, answer } = item;
  if (!answer || item.sample) return [];
  if (feedback?.state === "choosing") return [trueClassForm(item, context, page)];
  if (feedback) return feedbackState(item, page);
  const { labelling } = page;
  const button = (words, name, onclick) =>
    make("button.quiet", { type: "button", "aria-label": `${words}: ${item.name}`, onclick }, name && icon(name), words);
  if (stateOf(item, context.threshold) !== ANSWER) return [button("Label it", null, () => labelling.choose(item))];
  return [
    make("span.question", {}, "Is this right?"),
    button("Right", "check", () => labelling.right(item)),
    button("Wrong", "close", () => labelling.choose(item)),
  ];
}

/** The true class: typed, chosen from the list, or by its number; it may be one that is not in the list. */
function trueClassForm(item, context, page) {
  const id = `true-class-${item.number}`;
  const input = make("input", { ...{ id, type: "text", list: "class-names", autocomplete: "off" }, autocapitalize: "off", maxlength: "200" });
  const note = make("p.fine.new-class");
  input.addEventListener("input", () => {
    const name = input.value.trim();
    note.textContent = name && !context.model.classes.includes(name) && !numbered(name, context.model.classes)
      ? "Not in the list of classes; it is noted as a new one."
      : "";
  });
  return make(
    "form.true-class",
    {
      onsubmit: (event) => {
        event.preventDefault();
        const name = input.value.trim();
        page.labelling.label(item, name ? (numbered(name, context.model.classes) ?? name) : null);
      },
      onkeydown: (event) => event.key === "Escape" && (event.preventDefault(), event.stopPropagation(), page.labelling.undo(item)),
    },
    make("label", { for: id }, "What is it?"),
    input,
    make("button", { type: "submit" }, "Send"),
    make("button.quiet", { type: "button", onclick: () => page.labelling.undo(item) }, "Cancel"),
    make("p.fine", {}, "Leave it empty if you do not know."),
    note,
  );
}

const numbered = (text, classes) => (/^\d+$/.test(text) && !classes.includes(text) ? classes[Number(text) - 1] : undefined);

function feedbackState(item, page) {
  const { feedback } = item;
  const truth = !feedback.right && feedback.class_name ? `: it is ${feedback.class_name}` : "";
  const words = `Your feedback: ${feedback.right ? "right" : "wrong"}${truth}`;
  const line = make("span.given", {}, icon(feedback.right ? "check" : "close"), words);
  const undo = make("button.quiet.undo", { type: "button", onclick: () => page.labelling.undo(item) }, "Undo");
  if (feedback.state === "sending") return [line, make("span.fine", {}, "sending…")];
  if (feedback.state === "queued") return [line, make("span.fine", {}, "is sent once the server is back"), undo];
  if (feedback.state === "failed") {
    const again = make("button.quiet", { type: "button", onclick: () => page.labelling.post(item) }, "Try again");
    return [make("span.given.failed", {}, icon("alert"), `Not sent: ${feedback.note}`), feedback.final ? undo : again];
  }
  return [line, make("span.fine", {}, feedback.note ?? ""), undo];
}
