// What surrounds the work: the theme, the dialogs, the token, the notice of a lost connection.

import { announce, byId, icon, make, remember } from "./dom.js";

const THEME = "calprompt-theme";

/** The switch between light and dark; until it is used, the system decides. */
export function watchTheme() {
  const button = byId("theme");
  const system = matchMedia("(prefers-color-scheme: dark)");
  const dark = () => (document.documentElement.dataset.theme ?? (system.matches ? "dark" : "light")) === "dark";
  const show = () => button.setAttribute("aria-pressed", String(dark()));
  button.addEventListener("click", () => {
    const theme = dark() ? "light" : "dark";
    document.documentElement.dataset.theme = theme;
    remember(THEME, theme);
    show();
  });
  system.addEventListener("change", show);
  show();
}

/** Buttons that close their dialog, and a click beside it, which does too. */
export function watchDialogs() {
  for (const dialog of document.querySelectorAll("dialog")) {
    dialog.addEventListener("click", (event) => {
      if (event.target === dialog || event.target.closest("[data-close]")) dialog.close();
    });
  }
}

/** Ask for the token; null if the user does not have one. */
export function askToken(rejected) {
  const dialog = byId("token");
  const input = byId("token-value");
  byId("token-problem").textContent = rejected ? "The server does not accept this token." : "";
  input.value = "";
  dialog.showModal();
  return new Promise((resolve) => {
    const submit = (event) => {
      event.preventDefault();
      if (input.value.trim()) dialog.close(input.value.trim());
    };
    byId("token-form").addEventListener("submit", submit);
    dialog.addEventListener(
      "close",
      () => {
        byId("token-form").removeEventListener("submit", submit);
        const token = dialog.returnValue || null;
        dialog.returnValue = "";
        resolve(token);
      },
      { once: true },
    );
  });
}

/** Whether the user is sure. */
export function confirmed(question, button) {
  const dialog = byId("confirm");
  byId("confirm-question").textContent = question;
  byId("confirm-yes").textContent = button;
  dialog.returnValue = "";
  dialog.showModal();
  return new Promise((resolve) => {
    const yes = () => dialog.close("yes");
    byId("confirm-yes").addEventListener("click", yes);
    dialog.addEventListener(
      "close",
      () => {
        byId("confirm-yes").removeEventListener("click", yes);
        resolve(dialog.returnValue === "yes");
      },
      { once: true },
    );
  });
}

/** The server is gone: say so, try again ever more rarely and whenever asked, and go on once it is back. */
export class Connection {
  /** `healthy()` asks the server, `back()` goes on, `waiting()` says in words what waits for it. */
  constructor(healthy, back, waiting) {
    Object.assign(this, { healthy, back, waiting, lost: false, timer: null, attempt: 0 });
    addEventListener("online", () => this.lost && this.retry());
    addEventListener("offline", async () => (await healthy()) || this.lose()); // a server may be on this machine
  }

  lose() {
    if (this.lost) return;
    this.lost = true;
    this.attempt = 0;
    this.show();
    this.schedule();
  }

  schedule() {
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.retry(), 1000 * Math.min(30, 2 ** ++this.attempt));
  }

  async retry() {
    clearTimeout(this.timer);
    if (!(await this.healthy())) {
      this.schedule();
      return;
    }
    this.lost = false;
    byId("banner").replaceChildren();
    announce("The server is back");
    this.back();
  }

  show() {
    if (!this.lost) return;
    byId("banner").replaceChildren(
      make(
        "div.banner",
        {},
        icon("alert"),
        make("p", {}, make("strong", {}, "The server cannot be reached. "), this.waiting()),
        make("button", { type: "button", onclick: () => this.retry() }, "Try now"),
      ),
    );
  }
}

/** A notice that goes away by itself or when it is closed. */
export function notify(text) {
  const place = byId("notice");
  const notice = make(
    "div.notice",
    {},
    make("p", {}, text),
    make(
      "button.icon-button",
      { type: "button", "aria-label": "Close", onclick: () => notice.remove() },
      icon("close"),
    ),
  );
  place.replaceChildren(notice);
  setTimeout(() => notice.remove(), 12000);
}
