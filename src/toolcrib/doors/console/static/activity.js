// What happens, as it happens: rows of calls that come, questions that are asked and answered, the verdict on
// the journal. Every page shows without it how things stood when it was loaded.

import { ask, element, say } from "./console.js";

const QUIET_MS = 1500; // how often a screen reader is told at most
const POLL_MS = 15000; // for what other programs with the same state folder do

/** Hear what happens, from now on. The browser connects again by itself, and goes on where it was. */
function listen(kinds, heard, missed) {
  const events = new EventSource("/v1/events");
  for (const kind of kinds) {
    events.addEventListener(kind, (event) => {
      try {
        heard(kind, JSON.parse(event.data));
      } catch {
        missed();
      }
    });
  }
  events.addEventListener("missed", missed);
  return events;
}

/** Another copy of this page, as it is now; null where the server does not answer. */
async function fetched(path) {
  try {
    const answer = await fetch(path, { credentials: "same-origin", headers: { accept: "text/html" } });
    if (!answer.ok) return null;
    return new DOMParser().parseFromString(await answer.text(), "text/html");
  } catch {
    return null;
  }
}

// -- live calls ----------------------------------------------------------------------------------------------

const table = document.getElementById("calls");
if (table) liveCalls(table);

function liveCalls(table) {
  const body = table.tBodies[0];
  const rowsMax = Number(table.parentElement.dataset.rowsMax);
  const filters = document.querySelector("[data-live-filters]");
  const pause = document.querySelector("[data-pause]");
  const state = document.querySelector("[data-live]");
  const nothing = document.querySelector("[data-nothing]");
  const held = []; // what came while it was paused
  let isPaused = false;
  let told = { ended: 0, failed: 0, at: 0 };

  filters.hidden = false;
  filters.addEventListener("input", show);
  filters.addEventListener("submit", (event) => event.preventDefault());
  pause.addEventListener("click", () => {
    isPaused = !isPaused;
    pause.setAttribute("aria-pressed", String(isPaused));
    pause.textContent = isPaused ? "Go on" : "Pause";
    if (!isPaused) {
      for (const [kind, data, when] of held.splice(0)) put(kind, data, when);
      show();
    }
    status();
  });

  const events = listen(["call.begun", "call.ended"], heard, () => {
    if (!isPaused) reload();
  });
  events.addEventListener("open", status);
  events.addEventListener("error", status);

  function status() {
    const isOpen = events.readyState === EventSource.OPEN;
    const text = !isOpen ? "Not connected; trying again." : isPaused ? `Paused; ${held.length} came since.` : "Later ones appear by themselves.";
    if (state.textContent !== text) state.textContent = text;
    table.dataset.live = isOpen ? "yes" : "no";
  }

  function heard(kind, data) {
    const when = new Date();
    if (isPaused) {
      held.push([kind, data, when]);
      if (held.length > rowsMax * 2) held.shift();
      status();
      return;
    }
    put(kind, data, when);
    show();
  }

  function put(kind, data, when) {
    let row = body.querySelector(`tr[data-call="${CSS.escape(data.call_id)}"]`);
    if (!row) {
      row = element("tr", { role: "row", class: "fresh", "data-call": data.call_id });
      setTimeout(() => row.classList.remove("fresh"), 1500);
      body.prepend(row);
      row.dataset.when = when.toISOString();
    }
    const began = row.dataset.when ?? row.querySelector("time")?.dateTime ?? when.toISOString();
    const isOver = kind === "call.ended";
    const outcome = !isOver ? "open" : data.ok ? "ok" : data.kind;
    row.dataset.outcome = outcome;
    row.dataset.ok = !isOver ? "" : data.ok ? "yes" : "no";
    const name = data.key || data.tool;
    const tone = !isOver ? "info" : data.ok ? "good" : outcome === "needs_approval" ? "warn" : "bad";
    const cell = (attributes, ...inside) => element("td", { role: "cell", ...attributes }, ...inside);
    row.replaceChildren(
      element("th", { scope: "row", role: "rowheader" },
        data.key ? element("a", { class: "tool-name", href: `/tools/${encodeURIComponent(data.key)}` }, name) : element("span", { class: "tool-name" }, name)),
      cell({ class: "began nowrap" },
        element("a", { href: `/audit/${encodeURIComponent(data.call_id)}` },
          element("time", { datetime: began }, `${began.slice(0, 10)} ${began.slice(11, 19)}`))),
      cell({ class: "aside" }, element("span", { class: `badge ${tone}` }, isOver ? outcome : "running")),
      cell({ class: "aside figure-cell nowrap" }, isOver ? took(data.duration_ms) : "–"),
      cell({ class: "aside", "data-label": "by" }, data.caller),
      cell({ class: "aside", "data-label": "through" }, data.door),
      cell({ class: "layers" }, isOver ? (data.isolation ?? []).join(", ") : ""),
    );
    if (isOver) {
      told.ended += 1;
      told.failed += data.ok ? 0 : 1;
    }
    while (body.rows.length > rowsMax) body.lastElementChild.remove();
  }

  function show() {
    const wanted = new FormData(filters);
    const text = String(wanted.get("text")).toLowerCase();
    const outcome = String(wanted.get("outcome"));
    let shown = 0;
    for (const row of body.rows) {
      const fits = (!text || row.textContent.toLowerCase().includes(text)) && (!outcome || row.dataset.outcome === outcome || (outcome === "failed" && row.dataset.ok === "no"));
      row.hidden = !fits;
      shown += fits ? 1 : 0;
    }
    nothing.hidden = shown > 0;
    nothing.textContent = body.rows.length ? "Nothing fits. Other filters show more." : "No call yet.";
    const now = Date.now();
    if (told.ended && now - told.at > QUIET_MS) {
      say(`${told.ended} ${told.ended === 1 ? "call" : "calls"} ended${told.failed ? `, ${told.failed} failed` : ""}`);
      told = { ended: 0, failed: 0, at: now };
    }
  }

  async function reload() {
    const fresh = (await fetched(location.href))?.getElementById("calls");
    if (fresh && !isPaused) {
      body.replaceChildren(...fresh.tBodies[0].rows);
      show();
    }
  }
}

/** As the pages write it: _charts.duration_text. */
function took(ms) {
  if (ms >= 60000) return `${(ms / 60000).toFixed(1)} min`;
  if (ms >= 1000) return `${(ms / 1000).toFixed(2)} s`;
  return ms >= 100 ? `${ms.toFixed(0)} ms` : `${ms.toFixed(1)} ms`;
}

// -- approvals -----------------------------------------------------------------------------------------------

const waiting = document.querySelector("[data-waiting]");
if (waiting) approvals(waiting);

function approvals(waiting) {
  let isLooking = false;
  let isStale = false;
  for (const form of waiting.querySelectorAll("[data-answer]")) ready(form);

  const events = listen(["approval.asked", "approval.answered", "call.ended"], (kind, data) => {
    if (kind !== "call.ended" || data.kind === "needs_approval") look();
  }, look);
  events.addEventListener("open", () => { document.documentElement.dataset.live = "yes"; });
  setInterval(() => { if (!document.hidden) look(); }, POLL_MS);

  /** Look again: questions that came are added, those that are over go; what is being written stays. */
  async function look() {
    if (isLooking) {
      isStale = true;
      return;
    }
    isLooking = true;
    do {
      isStale = false;
      const fresh = await fetched(location.href);
      if (fresh) take(fresh);
    } while (isStale);
    isLooking = false;
  }

  function take(fresh) {
    const now = new Map([...fresh.querySelectorAll("[data-approval]")].map((each) => [each.dataset.approval, each]));
    const here = new Map([...waiting.querySelectorAll("[data-approval]")].map((each) => [each.dataset.approval, each]));
    const came = [...now.keys()].filter((id) => !here.has(id));
    const went = [...here.keys()].filter((id) => !now.has(id));
    for (const id of went) {
      const hadFocus = here.get(id).contains(document.activeElement);
      here.get(id).remove();
      if (hadFocus) document.getElementById("main").focus();
    }
    if (came.length || !now.size) {
      for (const empty of waiting.querySelectorAll(":scope > p")) empty.remove();
    }
    for (const id of came) {
      const question = document.adoptNode(now.get(id));
      waiting.append(question);
      for (const form of question.querySelectorAll("[data-answer]")) ready(form);
    }
    if (!now.size) {
      const empty = fresh.querySelector("[data-waiting] > p");
      if (empty) waiting.append(document.adoptNode(empty));
    }
    for (const part of ["#waiting-heading", "[data-answered]"]) {
      const [old, latest] = [document.querySelector(part), fresh.querySelector(part)];
      if (old && latest && old.innerHTML !== latest.innerHTML && !old.contains(document.activeElement)) {
        old.replaceWith(document.adoptNode(latest));
      }
    }
    if (came.length) say(`${came.length} ${came.length === 1 ? "call waits" : "calls wait"} for an answer`);
  }

  function ready(form) {
    form.hidden = false;
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      answer(form, event.submitter?.value ?? "approve");
    });
  }

  async function answer(form, decision) {
    const question = form.closest("[data-approval]");
    const wrong = form.querySelector("[data-wrong]");
    const edited = form.elements.arguments;
    const values = new FormData(form);
    const answer = { decision };
    const complain = (text, field) => {
      wrong.textContent = text;
      wrong.hidden = false;
      field?.setAttribute("aria-invalid", "true");
      field?.focus();
    };
    wrong.hidden = true;
    edited.removeAttribute("aria-invalid");
    if (values.get("because")) answer.because = values.get("because");
    if (decision === "approve") {
      if (edited.value !== edited.dataset.asAsked) {
        try {
          answer.arguments = JSON.parse(edited.value);
        } catch (error) {
          return complain(`The arguments are not JSON: ${error.message}`, edited);
        }
        if (answer.arguments === null || typeof answer.arguments !== "object" || Array.isArray(answer.arguments)) {
          return complain("The arguments must be one JSON object.", edited);
        }
      }
      if (values.get("for_s")) {
        if (answer.arguments) return complain("An approval for a time is for any arguments, so it cannot have edited ones.", form.elements.for_s);
        answer.for_s = Number(values.get("for_s"));
      }
    }
    const buttons = form.querySelectorAll("button");
    for (const button of buttons) button.disabled = true;
    // The edited arguments go as they were written: numbers that JSON can write and JavaScript cannot hold stay.
    const text = answer.arguments === undefined ? JSON.stringify(answer) : `${JSON.stringify({ ...answer, arguments: undefined }).slice(0, -1)},"arguments":${edited.value}}`;
    const said = await ask("POST", `/v1/approvals/${encodeURIComponent(question.dataset.approval)}`, text);
    for (const button of buttons) button.disabled = false;
    if (!said.ok) {
      const { title, detail, hint } = said.document ?? {};
      return complain([title, detail, hint].filter(Boolean).join(": ") || `It was refused (${said.status}).`, null);
    }
    say(decision === "approve" ? "Approved" : "Denied");
    await look();
  }
}

// -- verification --------------------------------------------------------------------------------------------

const verify = document.querySelector("[data-verify]");
if (verify) {
  const place = document.querySelector("[data-verdict]");
  verify.addEventListener("submit", async (event) => {
    event.preventDefault();
    const button = verify.querySelector("button");
    button.disabled = true;
    place.replaceChildren(element("p", { class: "soft" }, "Verifying …"));
    const verdict = (await fetched("/audit/verify"))?.querySelector("[data-verdict]");
    place.replaceChildren(...(verdict ? document.adoptNode(verdict).childNodes : [element("p", { class: "note bad" }, "The journal could not be verified: the server did not answer.")]));
    button.disabled = false;
    button.focus();
  });
}
