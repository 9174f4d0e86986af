// The slider: from which confidence up an answer is given, what that did on held-out images, and what it does here.

import { riskCurve } from "./charts.js";
import { riskAt } from "./decisions.js";
import { byId, known, make, percent, plural } from "./dom.js";

/** `changed(threshold)` takes the new threshold, null for the model's own. */
export class ThresholdPanel {
  constructor(changed) {
    this.slider = byId("threshold");
    this.curve = null;
    this.slider.addEventListener("input", () => {
      const value = Number(this.slider.value);
      changed(Math.abs(value - this.own) <= Number(this.slider.step) / 2 ? null : value); // it snaps to the model's own
    });
    byId("own-threshold").addEventListener("click", () => changed(null));
  }

  /** A model with other evidence. */
  load(model) {
    this.own = model.min_confidence ?? 0;
    this.hasOwn = model.min_confidence !== null;
    this.evidence = model.evidence?.risk_coverage.threshold.length ? model.evidence : null; // nothing is ever answered: no curve
    this.curve = this.evidence ? riskCurve(this.evidence.risk_coverage, model.target_error) : null;
    byId("risk-chart").replaceChildren(
      this.curve
        ? this.curve.svg
        : make(
            "p.fine.no-chart",
            {},
            "There are no held-out images for this list of classes: how often it would be wrong is not known.",
          ),
    );
    byId("risk-key").hidden = !this.curve;
    this.slider.closest(".slider").style.setProperty("--own", this.own);
    byId("own-mark").textContent = this.hasOwn ? `model's own: ${percent(this.own)}` : "model's own: always answers";
  }

  /** The threshold in use, and how many of the images shown are answered at it. */
  show(threshold, counts) {
    const value = threshold ?? this.own;
    this.slider.value = String(value);
    byId("threshold-value").textContent = percent(value);
    byId("own-threshold").disabled = threshold === null;
    const risk = this.evidence && riskAt(this.evidence.risk_coverage, value);
    const images = this.evidence?.images ?? 0;
    const answered = risk ? Math.round(risk.coverage * images) : 0;
    byId("coverage").textContent = risk ? percent(risk.coverage) : "not known";
    byId("coverage-detail").textContent = risk ? `${answered} of ${known(images, this.evidence)}` : "";
    byId("risk").textContent = risk ? (risk.risk === null ? "none answered" : percent(risk.risk)) : "not known";
    byId("risk-detail").textContent =
      risk && risk.risk !== null
        ? `${Math.round(risk.risk * answered)} of ${answered}; at most ${percent(risk.high)} (95 %)`
        : "";
    const here =
      counts.answered === null
        ? ""
        : `Of your ${plural(counts.total, "image")}, ${counts.answered} ${counts.answered === 1 ? "gets" : "get"} an answer.`;
    byId("threshold-here").textContent = here;
    const outcome =
      risk && risk.risk !== null
        ? `, answers ${percent(risk.coverage)} of images, ${percent(risk.risk)} of them wrong`
        : "";
    this.slider.setAttribute(
      "aria-valuetext",
      `${percent(value)}${threshold === null ? ", the model's own" : ""}${outcome}`,
    );
    const ownRisk = this.evidence && this.hasOwn ? riskAt(this.evidence.risk_coverage, this.own) : null;
    this.curve?.move(risk, ownRisk);
  }
}
