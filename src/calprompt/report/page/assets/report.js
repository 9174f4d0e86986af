"use strict";
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const root = document.documentElement;
  const PAGE = 50; // rows that are shown at first
  const remember = (name, value) => { try { localStorage.setItem(name, value); } catch { /* not allowed here */ } };
  const recall = (name) => { try { return localStorage.getItem(name); } catch { return null; } };

  // Theme: as the system has it, light, dark.
  const themes = ["auto", "light", "dark"];
  const themeButton = document.getElementById("theme");
  const setTheme = (theme) => {
    if (theme === "auto") root.removeAttribute("data-theme"); else root.dataset.theme = theme;
    themeButton.textContent = `Theme: ${theme}`;
    themeButton.dataset.now = theme;
  };
  setTheme(themes.includes(recall("calprompt-theme")) ? recall("calprompt-theme") : "auto");
  themeButton.hidden = false;
  themeButton.addEventListener("click", () => {
    const next = themes[(themes.indexOf(themeButton.dataset.now) + 1) % themes.length];
    remember("calprompt-theme", next);
    setTheme(next);
  });

  // Tables: sort by a column, choose rows, show the first fifty.
  const collator = new Intl.Collator(undefined, { numeric: true, sensitivity: "base" });
  const valueOf = (cell) => (Array.isArray(cell) ? (cell.length && cell[0] !== null ? cell[0] : null) : cell);
  const isThere = (value) => value !== null && value !== "";
  const compare = (a, b) => (typeof a === "number" && typeof b === "number" ? a - b : collator.compare(a, b));

  const reveal = {}; // shows every row of a table
  for (const table of data.tables) {
    const section = document.getElementById(`table-${table.key}`);
    const body = section.querySelector("tbody");
    const rows = [...body.rows].map((element, place) => ({
      element, place, values: table.rows[place][0].map(valueOf), text: null,
    }));
    let order = rows, all = false;
    const count = section.querySelector(".count");
    const more = section.querySelector(".more button");
    const search = section.querySelector("input");
    const selects = [...section.querySelectorAll("select")];

    const show = () => {
      const words = (search?.value ?? "").trim().toLowerCase().split(/\s+/).filter(Boolean);
      const wanted = selects.filter((select) => select.value !== "").map((select) => [Number(select.dataset.column), select.value]);
      const fitting = order.filter((row) => {
        if (!wanted.every(([column, value]) => row.values[column] === value)) return false;
        if (!words.length) return true;
        row.text ??= row.values.filter((value) => typeof value === "string").join(" ").toLowerCase();
        return words.every((word) => row.text.includes(word));
      });
      const shown = all ? fitting : fitting.slice(0, PAGE);
      body.replaceChildren(...shown.map((row) => row.element)); // only what is shown has to be laid out
      count.textContent = shown.length === rows.length ? `${rows.length} rows`
        : `${shown.length} of ${fitting.length} rows that fit, ${rows.length} in all`;
      more.parentElement.hidden = shown.length === fitting.length;
      more.textContent = `Show all ${fitting.length} rows`;
    };

    section.querySelectorAll("thead th").forEach((heading, column) => {
      const button = heading.querySelector("button");
      if (!button) return;
      button.disabled = false;
      button.addEventListener("click", () => {
        const rising = heading.getAttribute("aria-sort") !== "ascending";
        section.querySelectorAll("thead th").forEach((other) => other.removeAttribute("aria-sort"));
        heading.setAttribute("aria-sort", rising ? "ascending" : "descending");
        const there = rows.filter((row) => isThere(row.values[column])); // what is missing comes last either way
        const sign = rising ? 1 : -1;
        there.sort((a, b) => sign * compare(a.values[column], b.values[column]) || a.place - b.place);
        order = [...there, ...rows.filter((row) => !isThere(row.values[column]))];
        show();
      });
    });
    for (const select of selects) {
      const column = Number(select.dataset.column);
      const values = [...new Set(rows.map((row) => row.values[column]))].filter(isThere);
      for (const value of values.sort(collator.compare)) select.add(new Option(value, value));
      select.closest("label").hidden = values.length < 2;
      select.addEventListener("change", show);
    }
    search?.addEventListener("input", show);
    more.addEventListener("click", () => { all = true; show(); });
    reveal[table.key] = () => {
      for (const field of [search, ...selects]) field.value = "";
      all = true;
      show();
    };
    section.querySelector(".tools").hidden = rows.length < 2;
    show();
  }
  document.addEventListener("click", (event) => { // a link to a run that is not among the rows shown
    const link = event.target.closest?.("a[href^='#run-']");
    if (link && !document.getElementById(link.hash.slice(1))) reveal.runs();
  });

  // Figures: the drawing moves into a dialog and back.
  const dialog = document.getElementById("enlarged");
  const place = dialog.querySelector(".paper");
  let home = null;
  document.querySelectorAll("figure").forEach((figure) => {
    const button = figure.querySelector("button");
    button.hidden = false;
    button.addEventListener("click", () => {
      home = figure.querySelector(".paper");
      place.replaceChildren(...home.childNodes);
      dialog.setAttribute("aria-label", figure.dataset.title);
      dialog.showModal();
    });
  });
  dialog.addEventListener("close", () => { home?.replaceChildren(...place.childNodes); home = null; });
  dialog.addEventListener("click", (event) => { if (event.target === dialog) dialog.close(); });
  dialog.querySelector("button").addEventListener("click", () => dialog.close());
  root.classList.add("js");
})();
