// What the page says of a model once: its name, what it takes, how it was made, and which prediction sets it has.

import { byId, fileSize, make, percent } from "./dom.js";

const KINDS = { model: "fitted", run: "run of an experiment", onnx: "exported" };

export function showAbout(model, tokenNeeded) {
  const { name, kind, model_version: own, classes, version, fingerprint, calibrator, about } = model;
  const show = (id, facts) =>
    byId(id).replaceChildren(
      ...Object.entries(facts).flatMap(([key, value]) => [make("dt", {}, key), make("dd", {}, String(value))]),
    );
  show("about-facts", { Model: name, Kind: KINDS[kind], Version: own, Classes: classes.length, calprompt: version });
  show("about-expert-facts", { Calibrator: calibrator ?? "none", Fingerprint: fingerprint });
  document.title = `${name} · calprompt`;
  byId("model-name").textContent = name;
  byId("about-sentences").replaceChildren(...about.map((text) => make("p", {}, text)));
  byId("api-link").hidden = tokenNeeded; // a link cannot carry the token
}

export function showLimits({ limits, keeps_images: keeps }) {
  const kept = keeps
    ? "Images that you give feedback on are kept on the server; others are not."
    : "Images go to this server only and are not kept.";
  byId("limits").textContent = `${limits.formats.join(", ")}, up to ${fileSize(limits.body_bytes)} each. ${kept}`;
}

/** `changed(sets)` takes the prediction sets that are wanted, null for none. */
export function offerSets({ coverages }, changed) {
  const select = byId("sets");
  const words = ({ coverage, per_class: each }) =>
    `contain the truth for ${percent(coverage)} of images${each ? " of each class" : ""}`;
  byId("sets-choice").hidden = coverages.length === 0;
  select.replaceChildren(
    ...coverages.map((each, place) => make("option", { value: String(place) }, words(each))),
    make("option", { value: "" }, "not shown"),
  );
  select.addEventListener("change", () => changed(select.value === "" ? null : coverages[Number(select.value)]));
}
