// What can be relied on, in words: the promises, whether they stand as things are set, and what feedback says of them.

import { reliabilityDiagram, reliabilityTable } from "./charts.js";
import { byId, icon, make, percent, plural, sentence } from "./dom.js";

const STATUS = {
  made: ["check", "Promised"],
  refused: ["none", "Not promised"],
  withdrawn: ["alert", "Withdrawn"],
  moved: ["alert", "No promise at this threshold"],
  broken: ["alert", "Broken"],
  unlike: ["alert", "No promise for these images"],
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

/** The line above the answers. */
export function showStanding({ status, text, detail }) {
  const line = byId("standing");
  const [name, words] = STATUS[status];
  line.dataset.status = status;
  const stands = status === "made" ? [`${text}.`] : [make("span.struck", {}, text), text ? ". " : "", sentence(detail)];
  line.replaceChildren(icon(name), make("span", {}, make("strong", {}, `${words}: `), ...stands));
}

/** The list of promises as they stand now. */
export function showPromises(model, stand, watch) {
  const entries = model.promises.map((promise) => {
    const doubted = areUnlike(watch) && promise.status === "made";
    const missed = watch?.classes?.find((each) => each.promise === promise.text && each.status === "broken");
    const broken = missed && { status: "broken", detail: missed.sentence };
    const { status, detail } = isOnErrors(promise) ? stand : (broken ?? (doubted ? UNLIKE : promise));
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
        make("p.fine", {}, sentence(detail)),
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
  place.hidden = !watch;
  if (!watch) return;
  place.dataset.status = watch.status;
  const tried = watch.feedback > 0;
  const icons = { holds: tried ? "check" : "none", broken: "alert", unwatched: "none" };
  const which = edited ? "The promise on the fitted classes" : "The promise";
  const words = {
    holds: tried ? `${which} holds so far` : "No feedback yet",
    broken: `${which} is broken`,
    unwatched: "Not watched",
  };
  const untried = "Say whether answers are right or wrong, and the promise is checked with every one.";
  const alarm = `An alarm is false for at most ${percent(watch.false_alarm_rate)} of models that keep their promise.`;
  byId("watch-state").replaceChildren(
    icon(icons[watch.status] ?? "none"),
    make(
      "div",
      {},
      make("strong", {}, words[watch.status] ?? watch.status),
      make("p.fine", {}, tried || watch.status !== "holds" ? sentence(watch.sentence) : untried),
      tried && watch.status === "holds" && make("p.fine", {}, alarm),
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
  const known = { alike: images.seen ? "No sign of a change" : "Nothing seen yet", changed: "Other images than in the fit" };
  const icons = { alike: images.seen ? "check" : "none", changed: "alert" };
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
    `On average they are ${points(evidence.ece)} off (ECE); a perfectly calibrated model would be about ${points(evidence.chance_ece)} off on so many images, by chance alone.`;
  byId("reliability-here").textContent = highlighted
    ? `This image's confidence, ${percent(confidence)}, is in the bin picked out: ${plural(highlighted.images, "image")}, ${percent(highlighted.accuracy)} of them right.`
    : "";
  byId("reliability-chart").replaceChildren(reliabilityDiagram(evidence, confidence));
  byId("reliability-table").replaceChildren(reliabilityTable(evidence));
  byId("reliability").showModal();
}
