// Labelled pictures as a dataset: a zip with a folder per class and a table, which `calprompt fit --add` takes.

import { truthOf } from "./decisions.js";
import { download, plural } from "./dom.js";

const TEXT = new TextEncoder();
const TABLE = Uint32Array.from({ length: 256 }, (_, n) => {
  let value = n;
  for (let bit = 0; bit < 8; bit += 1) value = value & 1 ? (value >>> 1) ^ 0xedb88320 : value >>> 1;
  return value;
});

/** Download the pictures of which a person said what they are; returns how many. */
export async function exportLabelled(items) {
  const entries = await labelled(items);
  if (entries.length) download(new Blob(zipped(entries), { type: "application/zip" }), "labelled.zip");
  return plural(entries.length, "picture");
}

/** Names and bytes: class/picture.png, each name once. */
export async function labelled(items) {
  const used = new Set();
  const entries = [];
  for (const item of items) {
    const truth = truthOf(item);
    if (truth === null) continue;
    const [, stem, ending] = /^(.*?)(\.\w+)?$/s.exec(safe(item.name.split("/").at(-1)));
    const place = (extra) => `${safe(truth)}/${stem || "picture"}${extra}${ending ?? ""}`;
    let name = place("");
    for (let n = 2; used.has(name.toLowerCase()); n += 1) name = place(`-${n}`);
    used.add(name.toLowerCase());
    entries.push([name, new Uint8Array(await item.file.arrayBuffer())]);
  }
  return entries;
}

/** A name that every file system takes, and that leaves no folder. */
const safe = (text) =>
  text
    .replace(/[\p{Cc}<>:"/\\|?*]/gu, "_")
    .replace(/^[. ]+|[. ]+$/g, "_")
    .slice(0, 120) || "_";

function crc(bytes) {
  let value = 0xffffffff;
  for (const byte of bytes) value = TABLE[(value ^ byte) & 255] ^ (value >>> 8);
  return (value ^ 0xffffffff) >>> 0;
}

/** The parts of a zip file without compression, which pictures have already; names in UTF-8. */
function zipped(entries) {
  const parts = [];
  const directory = [];
  let offset = 0;
  for (const [name, bytes] of entries) {
    const path = TEXT.encode(name);
    const shared = [20, 2, 0x800, 2, 0, 2, 0, 2, 0x21, 2, crc(bytes), 4, bytes.length, 4, bytes.length, 4, path.length, 2, 0, 2];
    const head = packed([0x04034b50, 4, 20, 2, ...shared.slice(2)]);
    directory.push(packed([0x02014b50, 4, 20, 2, ...shared, 0, 2, 0, 2, 0, 2, 0, 4, offset, 4]), path);
    parts.push(head, path, bytes);
    offset += head.length + path.length + bytes.length;
  }
  const size = directory.reduce((sum, each) => sum + each.length, 0);
  const end = packed([0x06054b50, 4, 0, 2, 0, 2, entries.length, 2, entries.length, 2, size, 4, offset, 4, 0, 2]);
  return [...parts, ...directory, end];
}

/** Numbers, each followed by how many bytes it takes, the least significant first. */
function packed(pairs) {
  const bytes = [];
  for (let place = 0; place < pairs.length; place += 2)
    for (let byte = 0; byte < pairs[place + 1]; byte += 1) bytes.push((pairs[place] >>> (8 * byte)) & 255);
  return Uint8Array.from(bytes);
}
