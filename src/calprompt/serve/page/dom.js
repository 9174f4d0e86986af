// Building elements and saying things: all text goes through text nodes, never through markup.

const SVG = "http://www.w3.org/2000/svg";

/** The element of the page with this id. */
export const byId = (id) => document.getElementById(id);

/**
 * An element: make("button.plain", { type: "button", onclick }, "Add"). Attributes that are null or false are left out.
 */
export function make(name, attributes = {}, ...children) {
  const [tag, ...classes] = name.split(".");
  return filled(document.createElement(tag), classes, attributes, children);
}

/** The same for elements of a drawing. */
export function draw(name, attributes = {}, ...children) {
  const [tag, ...classes] = name.split(".");
  return filled(document.createElementNS(SVG, tag), classes, attributes, children);
}

function filled(element, classes, attributes, children) {
  if (classes.length) element.classList.add(...classes);
  for (const [key, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (key.startsWith("on")) element.addEventListener(key.slice(2), value);
    else element.setAttribute(key, value === true ? "" : value);
  }
  element.append(...children.flat().filter((child) => child || child === 0));
  return element;
}

/** An icon of index.html's set, for the eye only. */
export function icon(name) {
  return draw("svg.icon", { "aria-hidden": "true", focusable: "false" }, draw("use", { href: `#icon-${name}` }));
}

/** A share as people write it; near 0 and 1 it never claims to be certain. */
export function percent(share) {
  if (share >= 1) return "100\u00a0%";
  if (share > 0.999) return "> 99.9\u00a0%";
  if (share <= 0) return "0\u00a0%";
  if (share < 0.001) return "< 0.1\u00a0%";
  return share < 0.01 || share > 0.99 ? `${(100 * share).toFixed(1)}\u00a0%` : `${Math.round(100 * share)}\u00a0%`;
}

/** "1 image", "3 images". */
export const plural = (count, noun, many = `${noun}s`) => `${count.toLocaleString("en")} ${count === 1 ? noun : many}`;

/** "190 held-out images": those that a model did not learn from, by where they come from. */
export const known = (count, evidence) =>
  plural(count, `${{ "held out": "held-out", "cross-fitted": "labelled" }[evidence?.source] ?? "test"} image`);

/** Bytes as people write them. */
export function fileSize(bytes) {
  return bytes < 1e6
    ? `${Math.max(1, Math.round(bytes / 1e3))}\u00a0kB`
    : `${(bytes / 1e6).toFixed(bytes < 1e7 ? 1 : 0)}\u00a0MB`;
}

/** Tell those who listen instead of look. */
export function announce(text) {
  const region = byId("spoken");
  region.textContent = region.textContent === text ? `${text}\u200b` : text; // the same sentence is read again
}

/** A sentence with a full stop at its end. */
export const sentence = (text) => (/[.!?]$/.test(text) ? text : `${text}.`).replace(/^\p{Ll}/u, (c) => c.toUpperCase());

/** What the browser remembers of a name; null if it does not, or may not. */
export function remembered(name, storage = "localStorage") {
  try {
    return window[storage].getItem(name);
  } catch {
    return null;
  }
}

/** Have the browser remember a text, for this visit only if it may not keep it. */
export function remember(name, text, storage = "localStorage") {
  try {
    window[storage].setItem(name, text);
  } catch {
    // private windows forbid it
  }
}

/** Have the browser save a blob as a file. */
export function download(blob, name) {
  const url = URL.createObjectURL(blob);
  make("a", { href: url, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(url), 1000);
  announce(`${name} is downloaded`);
}
