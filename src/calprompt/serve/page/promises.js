// What can be relied on, in words: the promises, whether they stand as things are set, and what feedback says of them.

import { reliabilityDiagram, reliabilityTable } from "./charts.js";
import { riskAt, truthOf } from "./decisions.js";
import { byId, icon, make, percent, plural, sentence } from "./dom.js";
import { isGiven } from "./feedback.js";

const STATUS = {
  made: ["promise", "Promised"],
  refused: ["none", "Not promised"],
  withdrawn: ["alert", "Withdrawn"],
  moved: ["alert", "No promise at this threshold"],
  broken: ["alert", "Broken"],
  unlike: ["alert", "No promise for these images"],
};

const NEXT_STEP = {
  broken:
    "What to do: decide on every picture yourself until it is mended. Go on saying what is right: your labelled " +
    "pictures are what a better model learns from.",
  unlike: "What to do: see “What the images say”. Until then, decide yourself.",
};
const UNLIKE = { status: "unlike", detail: "they are not like those it was made from" };

/** Whether the images are not like those that promises were made from. */
export const areUnlike = (watch) => watch?.images.status === "changed";

/** Whether a promise is about errors, or about prediction sets; an exported model tells it by the words alone. */
export const isOnErrors = ({ kind, text }) => (kind ? kind === "error" : /answers are wrong/.test(text));
export const isOnSets = ({ kind, text }, perClass) =>
  kind
    ? kind === (perClass ? "sets per class" : "sets")
    : /set contains/.test(text) && /each class/.test(text) === perClass;

/** Of the promise on errors: does it stand with this list of classes, this threshold, this feedback and these images? */
export function standing(model, threshold, watch) {
  const promise = model.promises.find(isOnErrors);
  if (!promise) return { status: "refused", text: "", detail: "this model makes no promise about its errors" };
  const { text, status, detail } = promise;
  if (status !== "made") return { status, text, detail };
  if (watch?.status === "broken") return { status: "broken", text, detail: watch.sentence };
  if (areUnlike(watch)) return { ...UNLIKE, text };
  if (threshold === null) return { status: "made", text, detail };
  return { status: "moved", text, detail: `it was made for answers from ${percent(model.min_confidence)} up` };
}

/** Why cards no longer say how often such answers were right: that was measured before an alarm. */
export function doubt(watch) {
  if (watch?.status === "broken") return "How often such answers are right is not known since the promise broke.";
  if (areUnlike(watch)) return "How often such answers are right was measured on other images than these.";
  return null;
}

/** The line above the answers: the promise, what it means counted, what is weak; and after an alarm, what to do next. */
export function showStanding({ status, text, detail }, model, threshold) {
  const line = byId("standing");
  const doubted = NEXT_STEP[status];
  const rest = doubted ? [doubted] : [inPlainWords(model, threshold), weakWords(model)];
  const state = JSON.stringify([status, text, detail, rest]);
  if (line.dataset.shown === state) return; // what has not changed is not read out again
  line.dataset.shown = state;
  line.dataset.status = status;
  line.setAttribute("role", doubted ? "alert" : "note");
  const [name, words] = STATUS[status];
  const stands = status === "made" ? [`${text}.`] : [make("span.struck", {}, text), text ? ". " : "", sentence(detail)];
  line.replaceChildren(
    icon(name),
    make("span", {}, make("strong", {}, `${words}: `), ...stands, ...rest.map((each) => each && make("span.more", {}, each))),
  );
}

function weakWords({ weak }) {
  const names = weak.slice(0, 4).join(", ").replace(/, ([^,]*)$/, weak.length > 4 ? ", $1" : " and $1");
  const more = weak.length > 4 ? ` and ${weak.length - 4} more classes` : "";
  return weak.length ? `It is wrong on most images of ${names}${more}.` : "";
}

/** What a threshold means, counted: how many of 100 pictures are answered, how many of these wrongly, what is left. */
function inPlainWords({ evidence, min_confidence: own }, threshold) {
  if (!evidence?.risk_coverage.threshold.length) return "";
  const { coverage, risk } = riskAt(evidence.risk_coverage, threshold ?? own ?? 0);
  if (!coverage) return "It answers none of 100 pictures and passes all to you.";
  const [answered, wrong] = [Math.round(100 * coverage), Math.round(100 * coverage * risk)];
  const errors = wrong ? `about ${wrong} ${wrong === 1 ? "is" : "are"} wrong` : "hardly any is wrong";
  const rest = answered < 100 ? " The rest it passes to you." : "";
  return `It answers ${answered || "fewer than one"} of 100 pictures; of those ${errors}.${rest}`;
}

/** What was said so far, and what of it the server does not have yet. */
export function showFeedback(items, { queue, pending }) {
  const given = items.filter((item) => isGiven(item.feedback));
  const right = given.filter((item) => item.feedback.right).length;
  const labelled = given.filter((item) => truthOf(item) !== null).length;
  const waiting = queue.size + pending.size;
  const parts = [`${right} right`, `${given.length - right} not right`, `of ${labelled} the class is known`];
  byId("feedback-count").textContent = given.length ? String(given.length) : "";
  byId("feedback-words").textContent = given.length
    ? `On this page: ${parts.join(", ")}.${waiting ? ` Feedback on ${plural(waiting, "image")} is not sent yet.` : ""}`
    : "Say whether answers are right, or what a picture shows. The promise is checked with it, and a better model learns from it.";
  byId("export-marked").disabled = !labelled;
}

/** The list of promises as they stand now. */
export function showPromises(model, stand, watch) {
  const entries = model.promises.map((promise) => {
    const doubted = areUnlike(watch) && promise.status === "made";
    const missed = watch?.classes?.find((each) => each.promise === promise.text && each.status === "broken");
    const broken = missed && { status: "broken", detail: missed.sentence };
    const { status, detail } = isOnErrors(promise) ? { ...stand, ...(stand.status === "broken" && { detail: "" }) } : (broken ?? (doubted ? UNLIKE : promise));
    const [name, words] = STATUS[status];
    return make(
      "li",
      { "data-status": status },
      icon(name),
      make(
        "div",
        {},
        make("strong", {}, `${words}: `),
        make(status === "made" ? "span" : "span.struck", {}, promise.text),
        detail && make("p.fine", {}, sentence(detail)),
      ),
    );
  });
  byId("promises").replaceChildren(...entries);
  byId("no-promises").hidden = entries.length > 0;
}

/** How good it is on held-out images, or that this is not known. */
export function showEvidence(evidence) {
  byId("evidence").textContent = evidence
    ? `On ${evidence.description}, it is right on ${percent(evidence.accuracy)} (${percent(evidence.interval[0])} to ${percent(evidence.interval[1])}).`
    : "There are no held-out images for this list of classes, so how often it is right is not known.";
  byId("show-reliability").disabled = !evidence;
}

/** What the feedback says. */
export function showWatch(watch, edited) {
  const place = byId("watch");
  const state = JSON.stringify([watch, edited]);
  if (place.dataset.shown === state) return; // what has not changed is not read out again
  place.dataset.shown = state;
  place.hidden = !watch || (watch.status === "holds" && !watch.feedback) || watch.status === "broken";
  if (place.hidden) return;
  place.dataset.status = watch.status;
  const tried = watch.feedback > 0;
  const icons = { holds: tried ? "promise" : "none", unwatched: "none" };
  const which = edited ? "The promise on the fitted classes" : "The promise";
  const words = {
    holds: `${which} holds so far`,
    unwatched: "Not watched",
  };
  const alarm = watch.false_alarm_rate && `False alarms: at most 1 in ${Math.round(1 / watch.false_alarm_rate)} models that keep their promise.`;
  byId("watch-state").replaceChildren(
    icon(icons[watch.status] ?? "none"),
    make(
      "div",
      {},
      make("strong", {}, words[watch.status] ?? watch.status),
      make("p.fine", {}, sentence(watch.sentence)),
      watch.status === "holds" && make("p.fine", {}, alarm),
    ),
  );
}

/** Whether the images that the server was given are like those of the fit, and what to do if not. */
export function showImages(images) {
  const place = byId("images-watch");
  const state = JSON.stringify(images ?? null);
  if (place.dataset.shown === state) return;
  place.dataset.shown = state;
  place.hidden = !images;
  if (!images) return;
  place.dataset.status = images.seen || images.status !== "alike" ? images.status : "none";
  const known = { alike: images.seen ? "No sign of a change" : "Nothing seen yet", changed: "These images look different" };
  const icons = { alike: images.seen ? "promise" : "none", changed: "alert" };
  byId("images-state").replaceChildren(
    icon(icons[images.status] ?? "none"),
    make(
      "div",
      {},
      make("strong", {}, known[images.status] ?? "Not watched"),
      make("p.fine", {}, sentence(images.sentence)),
      images.advice && make("p.fine", {}, images.advice),
    ),
  );
}

/** The reliability diagram in its dialog, with the bin of a confidence picked out. */
export function openReliability(evidence, confidence) {
  const points = (share) => `${(100 * share).toFixed(1)} points`;
  const highlighted =
    confidence === null ? null : evidence.reliability.find((bin) => confidence > bin.low && confidence <= bin.high);
  byId("reliability-words").textContent =
    `${sentence(evidence.description)} If it says 80 %, about 80 of 100 should be right: the points should lie on the dashed line. ` +
    `On average they are ${points(evidence.ece)} off; a perfectly calibrated model would be about ${points(evidence.chance_ece)} off on so many images, by chance alone.`;
  byId("reliability-here").textContent = highlighted
    ? `This image's confidence, ${percent(confidence)}, is in the bin picked out: ${plural(highlighted.images, "image")}, ${percent(highlighted.accuracy)} of them right.`
    : "";
  byId("reliability-chart").replaceChildren(reliabilityDiagram(evidence, confidence));
  byId("reliability-table").replaceChildren(reliabilityTable(evidence));
  byId("reliability").showModal();
}
