// What is decided at a threshold, in which order answers are shown, and how they are written to a file.
// Plain functions of answers: nothing here touches the page.

export const ANSWER = "answer";
export const UNSURE = "unsure";
export const NONE = "none of these";
export const PROBLEM = "problem";

/** The decision on an answer of the server at a threshold; `null` is the model's own, which the server applied. */
export function decisionAt(answer, threshold) {
  if (threshold === null || answer.decision === NONE) return answer.decision;
  if (answer.guarded && answer.guarded !== answer.class_name) return UNSURE; // it may be a class that must not be missed
  return answer.probability >= threshold ? ANSWER : UNSURE;
}

/** What an item is counted as: a decision, "problem", or null while there is none. */
export function stateOf(item, threshold) {
  if (item.problem) return PROBLEM;
  return item.answer ? decisionAt(item.answer, threshold) : null;
}

/** The class that a person said an image has; null if nothing was said, or only that the answer is wrong. */
export function truthOf({ feedback }) {
  if (!feedback || feedback.state === "choosing") return null;
  return feedback.right ? feedback.answered : feedback.class_name;
}

/**
 * How a threshold did on held-out images, read off the risk-coverage curve: the share it answered, and of these the
 * share that was wrong, with the upper end of its interval. Nothing answered: coverage 0 and no risk.
 */
export function riskAt(curve, threshold) {
  let place = -1;
  while (place + 1 < curve.threshold.length && curve.threshold[place + 1] >= threshold) place += 1;
  if (place < 0) return { coverage: 0, risk: null, high: null };
  return { coverage: curve.coverage[place], risk: curve.risk[place], high: curve.risk_high[place] };
}

const words = new Intl.Collator("en", { numeric: true, sensitivity: "base" });
const RANK = [PROBLEM, UNSURE, NONE, ANSWER]; // what needs a person first

/** Items in the order asked for; those without an answer come last, ties stay in the order they were added. */
export function sorted(items, { by, falling }, threshold) {
  const keys = {
    added: (item) => item.number,
    name: (item) => item.name,
    suggested: (item) => item.suggested ?? null,
    confidence: (item) => item.answer?.probability ?? null,
    decision: (item) => (stateOf(item, threshold) === null ? null : RANK.indexOf(stateOf(item, threshold))),
    class: (item) => (stateOf(item, threshold) === ANSWER ? item.answer.class_name : null),
  };
  const compared = (a, b) => (typeof a === "string" ? words.compare(a, b) : a - b);
  return items
    .map((item) => [keys[by](item), item])
    .sort(([a, first], [b, second]) => {
      if (a === null || b === null) return Number(a === null) - Number(b === null) || first.number - second.number;
      return (falling ? compared(b, a) : compared(a, b)) || first.number - second.number;
    })
    .map(([, item]) => item);
}

const COLUMNS = [
  ...["name", "decision", "answer", "class_name", "probability", "right_of_100", "prediction_set", "coverage"],
  ...["promised", "min_confidence", "feedback", "true_class", "problem", "model", "fingerprint"],
];

/** Answers as a table in the manner of RFC 4180, with a byte-order mark so that spreadsheets read it as UTF-8. */
export function csv(items, { threshold, model, promised }) {
  const rows = items.map((item) => {
    const { answer, problem, feedback } = item;
    const decision = stateOf(item, threshold);
    const sent = feedback && feedback.state !== "choosing" ? feedback : null;
    return {
      name: item.name,
      decision: decision ?? "",
      answer: decision === ANSWER ? answer.class_name : "",
      class_name: answer?.class_name,
      probability: answer?.probability,
      right_of_100: answer?.meaning?.right,
      prediction_set: answer?.prediction_set?.join("|"),
      coverage: answer?.coverage,
      promised: answer ? Boolean(answer.promised && promised) : "",
      min_confidence: threshold ?? model.min_confidence,
      feedback: sent ? (sent.right ? "right" : "wrong") : "",
      true_class: truthOf(item),
      problem: problem?.message,
      model: model.name,
      fingerprint: model.fingerprint,
    };
  });
  const lines = [COLUMNS, ...rows.map((row) => COLUMNS.map((column) => row[column]))];
  return `\ufeff${lines.map((line) => `${line.map(cell).join(",")}\r\n`).join("")}`;
}

/** A field; text that a spreadsheet would take for a formula is made text by an apostrophe. */
function cell(value) {
  if (value === null || value === undefined) return "";
  let text = String(value);
  if (typeof value === "string" && /^\s*[=+\-@＝＋－＠]|^[\t\r\n]/.test(text)) text = `'${text}`;
  return /[",\r\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
}
