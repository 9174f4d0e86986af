// A row of the compact list: picture, answer, bar and feedback in columns that line up; its details are a click away.

import { ICONS } from "./cards.js";
import { ANSWER, NONE, PROBLEM, UNSURE, truthOf } from "./decisions.js";
import { icon, make, percent } from "./dom.js";
import { Entry } from "./entries.js";
import { isGiven } from "./feedback.js";

export class Row extends Entry {
  constructor(item, page) {
    super(item, page);
    this.pick = make("span.pick", { "data-action": "pick", title: "Select" });
    this.answer = make("span.row-answer");
    this.bar = make("span.fill");
    this.number = make("span.number");
    this.mark = make("span.mark");
    this.element = make(
      "li.item",
      { role: "option", tabindex: "-1", "aria-selected": "false" },
      this.pick,
      make("span.thumb", {}, this.image),
      make("span.name", { title: item.name }, item.name),
      this.answer,
      make("span.rail", {}, this.bar),
      this.number,
      this.mark,
    );
  }

  fill(state, context) {
    const { item } = this;
    const picked = context.picked.has(item);
    const words = wordsOf(state, item);
    const { answer } = item;
    this.element.setAttribute("aria-selected", String(picked));
    this.element.setAttribute("aria-label", [item.name, words, answer && percent(answer.probability), said(item)].filter(Boolean).join(", "));
    this.pick.replaceChildren(...(picked ? [icon("check")] : []));
    const guess = answer && state !== ANSWER && make("span.fine", {}, state === NONE ? "" : ` ${answer.class_name}?`);
    this.answer.replaceChildren(
      ICONS[state] ? icon(ICONS[state]) : make("span.spinner"),
      make("span", { title: item.problem?.message }, words, guess),
    );
    this.bar.style.width = `${100 * (answer?.probability ?? 0)}%`;
    this.number.textContent = answer ? percent(answer.probability) : "";
    this.mark.replaceChildren(...markOf(item, state));
  }

  showFeedback(context) {
    this.show(context);
  }
}

function wordsOf(state, { answer, problem, status, note }) {
  if (state === ANSWER) return answer.class_name;
  if (state === UNSURE) return "Unsure";
  if (state === NONE) return "None of these";
  if (state === PROBLEM) return problem.status === 0 ? problem.title : "Not answered";
  return note ?? (status === "sending" ? "Looking…" : "Waiting…");
}

const said = (item) => isGiven(item.feedback) && `your feedback: ${item.feedback.right ? "right" : `it is ${truthOf(item) ?? "wrong"}`}`;

/** What was said of it, or signs to say so with the mouse; keys and the details do the same. */
function markOf(item, state) {
  const { feedback } = item;
  if (isGiven(feedback)) {
    const words = feedback.right ? "right" : (truthOf(item) ?? "wrong");
    const late = { queued: " · waits", pending: "", sending: "", failed: " · not sent" }[feedback.state] ?? "";
    const undo = make("span.act", { "data-action": "undo", title: "Undo" }, icon("undo"));
    return [icon(feedback.right ? "check" : "close"), make("span.said", {}, words, late), undo];
  }
  if (!item.answer || item.sample) return [];
  const act = (name, title, sign) => make("span.act", { "data-action": name, title }, icon(sign));
  const label = make("span.act.words", { "data-action": "wrong" }, "Label it");
  return state === ANSWER ? [act("right", "Right", "check"), act("wrong", "Wrong", "close")] : [label];
}
