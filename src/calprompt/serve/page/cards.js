// The card of an image: its picture, what was decided and what that means, the probabilities, the set, the feedback.

import { ANSWER, NONE, PROBLEM, UNSURE } from "./decisions.js";
import { icon, known, make, percent, plural, sentence } from "./dom.js";
import { Entry } from "./entries.js";
import { feedbackRow } from "./feedback.js";

const FEW = 5; // bars of a card among others
export const ICONS = { [ANSWER]: "answer", [UNSURE]: "question", [NONE]: "none", [PROBLEM]: "alert" }; // ticks are for people

export class Card extends Entry {
  /** `page` is told what the user does: remove(item), again(item), explain(item); `labelling` what is said of it. */
  constructor(item, page, near = false) {
    super(item, page, near);
    this.open = false;
    const title = `card-${item.number}${near ? "-details" : ""}`;
    this.remove = make(
      "button.icon-button",
      { type: "button", "aria-label": `Remove ${item.name}`, onclick: () => page.remove(item) },
      icon("close"),
    );
    this.body = make("div.card-body");
    this.bars = make("div.card-bars");
    this.set = make("div.card-set");
    this.feedback = make("div.card-feedback");
    this.element = make(
      "li.card",
      { "aria-labelledby": title, tabindex: "-1" },
      make("div.picture", {}, this.image),
      make("p.name", { id: title, title: item.name }, item.name),
      this.remove,
      this.body,
      this.bars,
      this.set,
      this.feedback,
    );
  }

  fill(state, context) {
    const { item } = this;
    this.element.classList.toggle("picked", context.picked.has(item));
    this.body.replaceChildren(...verdictParts(state ?? "waiting", item, context, this.page));
    this.showFeedback(context);
    const { answer, problem } = item;
    const shown = [answer, problem, context.alone, this.open, context.setsPromise]; // bars are the same at any threshold
    if (this.shown?.every((each, place) => each === shown[place])) return;
    this.shown = shown;
    this.showBars(context);
  }

  showFeedback(context) {
    this.feedback.replaceChildren(...feedbackRow(this.item, context, this.page));
  }

  showBars(context) {
    const { answer, problem } = this.item;
    const alone = this.element.closest(".alone") !== null || context.alone;
    this.set.replaceChildren();
    if (!answer) {
      const rows = problem ? 0 : Math.min(FEW, context.model.classes.length);
      this.bars.replaceChildren(
        make("div.bars.empty", { "aria-hidden": "true" }, ...Array.from({ length: rows }, () => make("div"))),
      );
      return;
    }
    const all = answer.probabilities;
    const parts = [barTable(this.open || alone ? all : all.slice(0, FEW), answer, context)];
    if (all.length > FEW && !alone) {
      const toggle = () => {
        this.open = !this.open;
        this.showBars(context);
        this.bars.querySelector("button").focus();
      };
      const attributes = { type: "button", "aria-expanded": String(this.open), onclick: toggle };
      parts.push(make("button.link", attributes, this.open ? "Fewer" : `${all.length - FEW} more`));
    }
    this.bars.replaceChildren(...parts);
    if (answer.prediction_set && answer.decision !== NONE) this.set.append(setLine(answer, context));
  }
}

const BODIES = {
  waiting: (item) => [
    verdict("waiting", item.status === "sending" ? "Looking…" : "Waiting…"),
    make("p.meaning", {}, item.note ?? ""),
  ],
  [PROBLEM]: (item, context, page) => [
    verdict(PROBLEM, item.problem.status === 0 ? item.problem.title : "Not answered"),
    make("p.meaning", {}, sentence(item.problem.message)),
    item.problem.canHelp && make("p", {}, make("button", { type: "button", onclick: () => page.again(item) }, "Try again")),
  ].filter(Boolean),
  [ANSWER]: ({ answer }, context, page) => [
    verdict(ANSWER, answer.class_name, percent(answer.probability)),
    meaning(answer, "answers", context, page),
    ...(context.model.promises.length && !(answer.promised && context.promised)
      ? [make("p.aside", {}, "No promise stands behind this answer.")]
      : []),
  ],
  [UNSURE]: ({ answer }, context, page) => [
    verdict(UNSURE, "Unsure"),
    make(
      "p.guess",
      {},
      `Not an answer: the likeliest class, ${answer.class_name}, has only ${percent(answer.probability)} (it answers from ${percent(context.limit)} up).`,
    ),
    meaning(answer, "guesses", context, page),
  ],
  [NONE]: (item, context) => [
    verdict(NONE, "None of these"),
    make("p.guess", {}, `It looks like none of the ${plural(context.model.classes.length, "class", "classes")}.`),
  ],
};

/** What is said of an image in a state: the verdict, and what it means. */
export const verdictParts = (state, item, context, page) => BODIES[state](item, context, page);

function verdict(state, words, number = null) {
  return make(
    "p.verdict",
    {},
    ICONS[state] ? icon(ICONS[state]) : make("span.spinner", { "aria-hidden": "true" }),
    make("strong", {}, words),
    number && make("span.probability", {}, number),
  );
}

/** What such a confidence was worth on images whose class is known, and the way to all of them. */
function meaning(answer, noun, context, page) {
  if (context.doubted) return make("p.meaning", {}, context.doubted);
  if (!answer.meaning)
    return make("p.meaning", {}, "What a confidence means was not measured for this list of classes.");
  const { right, of, interval, images, text } = answer.meaning;
  const words =
    right === null
      ? [`${text} `]
      : [
          `Of ${of} ${noun} this sure, about ${right} were right`,
          make(
            "span.fine",
            {},
            ` (${interval[0]} to ${interval[1]}, judged by ${known(images, context.model.evidence)})`,
          ),
          ". ",
        ];
  return make(
    "p.meaning",
    {},
    ...words,
    make("button.link", { type: "button", onclick: () => page.explain(answer.probability) }, "How do we know?"),
  );
}

function barTable(rows, answer, context) {
  const none = answer.decision === NONE;
  const caption = none ? "Probabilities, if it had to be one of the classes" : "Probability of each class";
  return make(
    "table.bars",
    {},
    make("caption", {}, make(none ? "span" : "span.hidden", {}, caption)),
    make(
      "tbody",
      {},
      ...rows.map(({ class_name: name, probability }) => {
        const fill = make("div.fill");
        fill.style.width = `${100 * probability}%`;
        const added = !context.fitted.has(name);
        return make(
          "tr",
          {},
          make("th", { scope: "row", title: name }, name, added && make("span.tag", {}, " added")),
          make("td.track", {}, make("div.rail", {}, fill)),
          make("td.number", {}, percent(probability)),
        );
      }),
    ),
  );
}

function setLine(answer, context) {
  const { prediction_set: set, coverage } = answer;
  const promise = context.setsPromise;
  const partly = promise && /other classes than/.test(promise.text) ? ", not for all classes" : "";
  const words = promise ? `${percent(coverage)}${partly}` : "no promise";
  return make(
    "p.set",
    {},
    make("span.set-label", {}, `Prediction set (${words}): `),
    ...(set.length ? set.map((name) => make("span.member", {}, name)) : [make("span", {}, "empty: no class fits")]),
  );
}
