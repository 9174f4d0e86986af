// What survives a reload: images, their answers and feedback, in this browser (IndexedDB), up to a limit, until removed.

const NAME = `calprompt ${location.pathname}`; // every model of a server has its own
const [FILES, FACTS] = ["files", "facts"]; // apart, so that feedback does not write the image again
export const MOST_IMAGES = 2000;
export const MOST_BYTES = 256e6;
const DELAY = 250; // milliseconds in which changes gather

export class Keeper {
  /** `changed()` is called when it is known whether something is kept, and how much. */
  constructor(changed) {
    Object.assign(this, { changed, base: null, bytes: 0, kept: new Set(), left: 0, dirty: new Map(), timer: null });
    document.addEventListener("visibilitychange", () => document.visibilityState === "hidden" && this.write());
    addEventListener("pagehide", () => this.write());
  }

  /** What was kept, in the order in which it was added; nothing if the browser forbids to keep. */
  async load() {
    try {
      this.base = await opened();
      const [files, facts] = await Promise.all([this.all(FILES), this.all(FACTS)]);
      const known = new Map(facts.map((each) => [each.id, each]));
      files.sort((a, b) => a.number - b.number);
      for (const { id, file } of files) {
        this.kept.add(id);
        this.bytes += file.size;
      }
      this.changed();
      return files.map((each) => ({ ...each, ...known.get(each.id) }));
    } catch {
      this.base = null;
      this.changed();
      return [];
    }
  }

  get works() {
    return this.base !== null;
  }

  /** Keep an image from now on, if there is room. */
  add({ id, number, name, file }) {
    if (!this.base) return;
    if (this.kept.size >= MOST_IMAGES || this.bytes + file.size > MOST_BYTES) {
      this.left += 1;
      return;
    }
    this.kept.add(id);
    this.bytes += file.size;
    this.put(FILES, { id, number, name, file });
  }

  /** Keep what is known of an image: answers and feedback. */
  note(item, fingerprint) {
    if (!this.base || !this.kept.has(item.id)) return;
    this.dirty.set(item, fingerprint);
    this.timer ??= setTimeout(() => this.write(), DELAY);
  }

  write() {
    clearTimeout(this.timer);
    this.timer = null;
    const dirty = [...this.dirty];
    this.dirty.clear();
    for (const [{ id, answers, given, problem, name }, fingerprint] of dirty) {
      if (!this.kept.has(id)) continue;
      const said = [...given].filter(([, each]) => each && each.state !== "choosing");
      const feedback = said.map(([key, { timer, ...each }]) => [key, each]);
      const failed = problem && { status: problem.status, title: problem.title, message: problem.message, canHelp: problem.canHelp };
      this.put(FACTS, { id, name, answers: [...answers], given: feedback, failed, fingerprint });
    }
  }

  remove({ id, file }) {
    if (!this.kept.delete(id)) return;
    this.bytes -= file.size;
    for (const store of [FILES, FACTS]) this.in(store, "readwrite", (place) => place.delete(id));
  }

  put(store, value) {
    this.in(store, "readwrite", (place) => place.put(value)).catch(() => {
      this.base = null; // the disk is full, or the browser took it away
      this.changed();
    });
  }

  all(store) {
    return this.in(store, "readonly", (place) => place.getAll());
  }

  in(store, mode, ask) {
    return new Promise((resolve, reject) => {
      if (!this.base) {
        reject(new Error("nothing is kept"));
        return;
      }
      const change = this.base.transaction(store, mode);
      const request = ask(change.objectStore(store));
      change.oncomplete = () => resolve(request.result);
      change.onerror = change.onabort = () => reject(change.error);
    });
  }
}

function opened() {
  return new Promise((resolve, reject) => {
    const request = indexedDB.open(NAME, 1);
    request.onupgradeneeded = () => {
      for (const store of [FILES, FACTS]) request.result.createObjectStore(store, { keyPath: "id" });
    };
    request.onsuccess = () => resolve(request.result);
    request.onerror = request.onblocked = () => reject(request.error);
  });
}

/** A key that no other tab takes; crypto.randomUUID is not there over plain http. */
export const freshId = () => [...crypto.getRandomValues(new Uint32Array(4))].join("-");
