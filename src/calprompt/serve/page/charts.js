// Two drawings from held-out images: the reliability diagram, and the risk-coverage curve with its threshold.

import { draw, make, percent, plural } from "./dom.js";

/** A plot area with linear axes; `x` and `y` map shares to places. */
function plot({ width, height, left = 44, right = 12, top = 12, bottom = 44, yMax = 1 }) {
  const inner = { width: width - left - right, height: height - top - bottom };
  return {
    width,
    height,
    bottom: top + inner.height,
    x: (share) => left + share * inner.width,
    y: (share) => top + (1 - Math.min(share, yMax) / yMax) * inner.height,
  };
}

const round = (number) => Number(number.toFixed(2));

function axes(area, xLabel, yLabel, yTicks) {
  const lines = [];
  for (const share of [0, 0.25, 0.5, 0.75, 1]) {
    lines.push(
      draw("line.grid", { x1: area.x(share), x2: area.x(share), y1: area.y(Infinity), y2: area.bottom }),
      draw("text.tick", { x: area.x(share), y: area.bottom + 16, "text-anchor": "middle" }, `${100 * share}`),
    );
  }
  for (const share of yTicks) {
    lines.push(
      draw("line.grid", { x1: area.x(0), x2: area.x(1), y1: area.y(share), y2: area.y(share) }),
      draw("text.tick", { x: area.x(0) - 6, y: area.y(share) + 4, "text-anchor": "end" }, `${round(100 * share)}`),
    );
  }
  const middle = (area.y(Infinity) + area.bottom) / 2;
  lines.push(
    draw("text.label", { x: area.x(0.5), y: area.bottom + 34, "text-anchor": "middle" }, xLabel),
    draw("text.label", { transform: `translate(12 ${middle}) rotate(-90)`, "text-anchor": "middle" }, yLabel),
  );
  return draw("g", { "aria-hidden": "true" }, ...lines);
}

function picture(area, name, title, ...parts) {
  return draw(
    `svg.${name}`,
    { viewBox: `0 0 ${area.width} ${area.height}`, role: "img", "aria-label": title, focusable: "false" },
    ...parts,
  );
}

/**
 * The reliability diagram: for each bin the share that was right over the mean confidence, with its 95 % interval, the
 * band in which a perfectly calibrated model would be by chance, and below how many images there were.
 */
export function reliabilityDiagram(evidence, confidence = null) {
  const area = plot({ width: 520, height: 440, bottom: 120, left: 52, right: 20 });
  const most = Math.max(...evidence.reliability.map((bin) => bin.images));
  const base = area.height - 34;
  const parts = [axes(area, "", "right (%)", [0, 0.25, 0.5, 0.75, 1])];
  for (const bin of evidence.reliability) {
    const [from, to] = [area.x(bin.low) + 1, area.x(bin.high) - 1];
    const here = confidence !== null && confidence > bin.low && confidence <= bin.high;
    const [low, high] = bin.chance;
    const height = Math.max(2, (34 * bin.images) / most);
    const middle = (from + to) / 2;
    parts.push(
      draw("rect.chance", { x: from, width: to - from, y: area.y(high), height: area.y(low) - area.y(high) }),
      draw(`rect.count${here ? ".here" : ""}`, { x: from, width: to - from, y: base - height, height }),
      draw("text.tick", { x: middle, y: base - height - 4, "text-anchor": "middle" }, String(bin.images)),
    );
  }
  parts.push(draw("line.diagonal", { x1: area.x(0), y1: area.y(0), x2: area.x(1), y2: area.y(1) }));
  for (const bin of evidence.reliability) {
    const here = confidence !== null && confidence > bin.low && confidence <= bin.high;
    const x = area.x(bin.confidence);
    const [low, high] = bin.interval;
    parts.push(
      draw("line.interval", { x1: x, x2: x, y1: area.y(low), y2: area.y(high) }),
      draw(`circle.point${here ? ".here" : ""}`, { cx: x, cy: area.y(bin.accuracy), r: here ? 7 : 5 }),
    );
  }
  parts.push(
    draw(
      "text.label",
      { x: area.x(0.5), y: base + 24, "text-anchor": "middle" },
      "confidence (%); bars: number of images",
    ),
  );
  const words = `Reliability diagram from ${plural(evidence.images, "image")}; its numbers are in the table below.`;
  return picture(area, "reliability", words, ...parts);
}

/** The numbers of the reliability diagram, for those who read rather than look. */
export function reliabilityTable(evidence) {
  const range = ([low, high]) => `${percent(low)} to ${percent(high)}`;
  const head = ["Confidence", "Images", "Mean confidence", "Right", "95 % interval", "Chance band"];
  return make(
    "table.numbers",
    {},
    make("caption", {}, "Reliability by confidence"),
    make("thead", {}, make("tr", {}, ...head.map((text) => make("th", { scope: "col" }, text)))),
    make(
      "tbody",
      {},
      ...evidence.reliability.map((bin) =>
        make(
          "tr",
          {},
          make("th", { scope: "row" }, range([bin.low, bin.high])),
          ...[
            String(bin.images),
            percent(bin.confidence),
            percent(bin.accuracy),
            range(bin.interval),
            range(bin.chance),
          ].map((text) => make("td", {}, text)),
        ),
      ),
    ),
  );
}

/** The risk-coverage curve; `move(point, own)` puts the marks of the threshold in use and of the model's own. */
export function riskCurve(curve, target) {
  const yMax = Math.min(1, Math.max(0.1, ...curve.risk, target ?? 0) * 1.25);
  const area = plot({ width: 340, height: 210, yMax });
  const step = [0.02, 0.05, 0.1, 0.25].find((each) => yMax / each <= 5) ?? 0.25;
  const ticks = Array.from({ length: Math.floor(yMax / step + 1e-9) + 1 }, (_, n) => n * step);
  const steps = (values) => values.map((value, n) => `${round(area.x(curve.coverage[n]))},${round(area.y(value))}`);
  const floor = `${round(area.x(curve.coverage.at(-1)))},${area.bottom} ${round(area.x(curve.coverage[0]))},${area.bottom}`;
  const here = draw("circle.here", { r: 6 });
  const guide = draw("line.guide", { y2: area.bottom });
  const own = draw("path.own", { d: "M0-7 7 0 0 7-7 0Z" });
  const parts = [
    axes(area, "answered (% of images)", "wrong (%)", ticks),
    draw("polygon.high", { points: `${steps(curve.risk_high).join(" ")} ${floor}` }),
    draw("polyline.risk", { points: steps(curve.risk).join(" ") }),
  ];
  if (target !== null) {
    const y = area.y(target);
    parts.push(
      draw("line.target", { x1: area.x(0), x2: area.x(1), y1: y, y2: y }),
      draw("text.tick", { x: area.x(0) + 4, y: y - 5 }, `promised: at most ${percent(target)}`),
    );
  }
  const svg = picture(
    area,
    "risk-curve",
    "Risk-coverage curve; the two numbers above say where the threshold is on it.",
    ...parts,
    guide,
    own,
    here,
  );
  const put = (element, point) => {
    const shown = point !== null && point.risk !== null;
    element.classList.toggle("gone", !shown);
    return shown ? [round(area.x(point.coverage)), round(area.y(point.risk))] : null;
  };
  const move = (point, ownPoint) => {
    const place = put(here, point);
    const ownPlace = put(own, ownPoint);
    guide.classList.toggle("gone", place === null);
    if (place) {
      here.setAttribute("transform", `translate(${place})`);
      for (const [key, value] of Object.entries({ x1: place[0], x2: place[0], y1: place[1] }))
        guide.setAttribute(key, value);
    }
    if (ownPlace) own.setAttribute("transform", `translate(${ownPlace})`);
  };
  return { svg, move };
}
