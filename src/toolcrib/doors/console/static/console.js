// What every page of the console shares: the theme's switch, tabs, filtering while typing, and speaking to
// the API. Pages show everything without it.

const root = document.documentElement;
root.classList.add("js");

// -- what screen readers are told ------------------------------------------------------------------------

/** Say something to whoever listens instead of looking. */
export function say(text) {
  const place = document.getElementById("said");
  if (place) place.textContent = text;
}

// -- text from outside -------------------------------------------------------------------------------------

// The same characters as toolcrib.doors._visible: what hides or reorders text is written out.
const HIDDEN = new RegExp(
  "[\\u0000-\\u0008\\u000b-\\u001f\\u007f-\\u009f\\u00ad\\u034f\\u061c\\u115f\\u1160\\u17b4\\u17b5\\u180b-\\u180f" +
    "\\u200b-\\u200f\\u2028-\\u202e\\u2060-\\u206f\\u3164\\ufeff\\uffa0\\ufff9-\\ufffb\\u{1d173}-\\u{1d17a}" +
    "\\u{e0000}-\\u{e0fff}]|\\p{Surrogate}",
  "gu",
);

/** Text as people may look at it. */
export function visible(text) {
  return String(text).replace(HIDDEN, (each) => {
    const code = each.codePointAt(0);
    return code > 0xffff ? `\\U${code.toString(16).padStart(8, "0")}` : `\\u${code.toString(16).padStart(4, "0")}`;
  });
}

/** A value as JSON text in which nothing hides: it reads back as the same value. */
export function exact(value, indent) {
  return JSON.stringify(value, null, indent).replace(HIDDEN, (each) =>
    each === "\n" ? each : [...Array(each.length).keys()].map((at) => `\\u${each.charCodeAt(at).toString(16).padStart(4, "0")}`).join(""),
  );
}

/** An element with text or elements in it; text is never read as HTML. */
export function element(name, attributes = {}, ...inside) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (value === false || value === null || value === undefined) continue;
    made.setAttribute(key, value === true ? "" : String(value));
  }
  for (const each of inside.flat()) {
    if (each === null || each === undefined || each === "") continue;
    made.append(each instanceof Node ? each : visible(each));
  }
  return made;
}

// -- the API ---------------------------------------------------------------------------------------------

/** Ask the API. Answers {status, ok, document}; never throws. */
export async function ask(method, path, body) {
  try {
    const answer = await fetch(path, {
      method,
      credentials: "same-origin",
      headers: body === undefined ? { accept: "application/json" } : { accept: "application/json", "content-type": "application/json" },
      body: body === undefined ? undefined : typeof body === "string" ? body : JSON.stringify(body),
    });
    const text = await answer.text();
    let document = null;
    try {
      document = text ? JSON.parse(text) : null;
    } catch {
      document = { title: "The answer cannot be read", detail: text.slice(0, 500) };
    }
    return { status: answer.status, ok: answer.ok, document };
  } catch {
    return { status: 0, ok: false, document: { title: "The server cannot be reached", detail: "Is it still running?" } };
  }
}

// -- the theme ---------------------------------------------------------------------------------------------

const THEMES = { system: ["◐", "as the system"], light: ["○", "light"], dark: ["●", "dark"] };

function chosen() {
  try {
    return localStorage.getItem("theme") || "system";
  } catch {
    return "system";
  }
}

function wear(theme) {
  if (theme === "system") delete root.dataset.theme;
  else root.dataset.theme = theme;
  try {
    if (theme === "system") localStorage.removeItem("theme");
    else localStorage.setItem("theme", theme);
  } catch {
    // It holds for this page.
  }
  for (const button of document.querySelectorAll("[data-theme-switch]")) {
    const [mark, name] = THEMES[theme];
    button.hidden = false;
    button.textContent = mark;
    button.setAttribute("aria-label", `Theme: ${name}`);
    button.title = `Theme: ${name}`;
  }
}

for (const button of document.querySelectorAll("[data-theme-switch]")) {
  button.addEventListener("click", () => {
    const names = Object.keys(THEMES);
    const next = names[(names.indexOf(chosen()) + 1) % names.length];
    wear(next);
    say(`Theme: ${THEMES[next][1]}`);
  });
}
wear(chosen() in THEMES ? chosen() : "system");

// On a phone the pages do not all fit into the bar: the one that is open is shown. By hand, because after
// scrollIntoView the first Tab would go on from there, past the link that skips the bar.
const open = document.querySelector(".bar nav [aria-current]");
if (open) {
  const bar = open.closest("nav");
  bar.scrollLeft = open.offsetLeft - bar.offsetLeft - (bar.clientWidth - open.offsetWidth) / 2;
}

// -- leaving -----------------------------------------------------------------------------------------------

for (const button of document.querySelectorAll("[data-logout]")) {
  button.hidden = false;
  button.addEventListener("click", async () => {
    await ask("POST", "/logout", {});
    location.assign("/login");
  });
}

// -- tabs: <div data-tabs="label"> of <section data-tab="label"> becomes a tab list -------------------------

for (const [number, group] of document.querySelectorAll("[data-tabs]").entries()) {
  const panels = [...group.querySelectorAll(":scope > [data-tab]")];
  const list = element("div", { class: "tabs", role: "tablist", "aria-label": group.dataset.tabs });
  const tabs = panels.map((panel, place) => {
    panel.id ||= `tabs-${number}-${place}`;
    const tab = element("button", { type: "button", role: "tab", id: `${panel.id}-tab`, "aria-controls": panel.id }, panel.dataset.tab);
    panel.setAttribute("role", "tabpanel");
    panel.setAttribute("aria-labelledby", tab.id);
    panel.tabIndex = 0;
    list.append(tab);
    return tab;
  });
  const show = (place, focus) => {
    tabs.forEach((tab, at) => {
      tab.setAttribute("aria-selected", String(at === place));
      tab.tabIndex = at === place ? 0 : -1;
      panels[at].hidden = at !== place;
    });
    if (focus) tabs[place].focus();
  };
  tabs.forEach((tab, place) => {
    tab.addEventListener("click", () => show(place, false));
    tab.addEventListener("keydown", (event) => {
      const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
      if (step) show((place + step + tabs.length) % tabs.length, true);
      else if (event.key === "Home") show(0, true);
      else if (event.key === "End") show(tabs.length - 1, true);
      else return;
      event.preventDefault();
    });
  });
  group.prepend(list);
  show(0, false);
}

// -- filtering while typing: rows carry what they are in data attributes ------------------------------------

const form = document.querySelector("form[data-filters]");
if (form) {
  const rows = [...document.querySelectorAll("[data-filtered] [data-text]")];
  const isWhole = form.dataset.filters === "whole"; // every row is on the page
  const count = document.querySelector("[data-count]");
  const nothing = document.querySelector("[data-nothing]");
  let waiting = 0;
  const narrow = () => {
    const values = new FormData(form);
    const words = String(values.get("q") ?? "").toLowerCase().split(/\s+/).filter(Boolean);
    let shown = 0;
    for (const row of rows) {
      const fits =
        words.every((word) => row.dataset.text.includes(word)) &&
        [...values].every(([key, value]) => key === "q" || !value || row.dataset[key] === undefined || row.dataset[key].split(" ").includes(value));
      row.hidden = !fits;
      if (fits) shown += 1;
    }
    for (const group of document.querySelectorAll("[data-filtered-group]")) {
      group.hidden = ![...group.querySelectorAll("[data-text]")].some((row) => !row.hidden);
    }
    if (count) count.textContent = shown.toLocaleString("en");
    if (nothing) nothing.hidden = shown > 0;
    clearTimeout(waiting);
    waiting = setTimeout(() => {
      const query = new URLSearchParams([...values].filter(([, value]) => value));
      history.replaceState(null, "", query.size ? `?${query}` : location.pathname);
      say(`${shown} shown`);
    }, 400);
  };
  let isComing = false;
  const soon = () => {
    if (isComing) return; // several keys at once are one search
    isComing = true;
    requestAnimationFrame(() => {
      isComing = false;
      narrow();
    });
  };
  if (isWhole) {
    form.addEventListener("input", soon);
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      narrow();
    });
    for (const button of form.querySelectorAll("[type=submit]")) button.hidden = true;
  } else {
    form.addEventListener("change", (event) => {
      if (event.target instanceof HTMLSelectElement) form.requestSubmit();
    });
  }
}

// A slash goes to the search, as people know it from elsewhere.
document.addEventListener("keydown", (event) => {
  const search = document.querySelector("input[type=search]");
  const isWriting = event.target instanceof Element && event.target.closest("input, textarea, select, [contenteditable]");
  if (event.key === "/" && search && !isWriting && !event.ctrlKey && !event.metaKey && !event.altKey) {
    event.preventDefault();
    search.focus();
  }
});
