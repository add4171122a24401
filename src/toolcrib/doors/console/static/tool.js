// A tool's page: the form that was made from its schema, the same as JSON, running it, and switching it.
//
// Arguments are put together as JSON text, so that a long number stays the number that was typed. Whatever a
// tool returns is shown as text; only pictures and sounds of known kinds become elements of their own.
import { ask, element, exact, say, visible } from "./console.js";

const NUMBER = /^-?(0|[1-9]\d*)(\.\d+)?([eE][+-]?\d+)?$/;
const BASE64 = /^[A-Za-z0-9+/]*={0,2}$/;
const IMAGES = ["image/png", "image/jpeg", "image/gif", "image/webp", "image/avif", "image/bmp"];
const SOUNDS = ["audio/mpeg", "audio/mp3", "audio/wav", "audio/x-wav", "audio/ogg", "audio/webm", "audio/flac", "audio/aac", "audio/mp4"];
const SHOWN_CHARS_MAX = 200_000;

// -- fields to JSON ------------------------------------------------------------------------------------------

const within = (place) => [...place.querySelectorAll("[data-field]")].filter((each) => each.parentElement.closest("[data-field]") === (place.matches("[data-field]") ? place : null));
const nameOf = (field) => JSON.parse(field.dataset.name);
const inputOf = (field) => field.querySelector("[data-value]");
const indented = (text) => text.replaceAll("\n", "\n  ");

/** The JSON text of a field; undefined where it is left out. */
function read(field) {
  const kind = field.dataset.field;
  const isRequired = "required" in field.dataset;
  if (kind === "group") {
    const isUntouched = [...field.querySelectorAll("[data-value]")].every((input) => input.value === "");
    return isUntouched && !isRequired ? undefined : readAll(field);
  }
  if (kind === "list") {
    const items = within(field).map(read).filter((each) => each !== undefined);
    if (!items.length && !isRequired) return undefined;
    return items.length ? `[\n  ${items.map(indented).join(",\n  ")}\n]` : "[]";
  }
  const value = inputOf(field).value;
  if (value === "" && !(isRequired && (kind === "text" || kind === "long"))) return undefined;
  if (kind === "text" || kind === "long") return exact(value);
  if (kind === "number" || kind === "integer") return NUMBER.test(value.trim()) ? value.trim() : JSON.stringify(value);
  if (kind === "json") {
    try {
      JSON.parse(value);
      return value.trim();
    } catch {
      return JSON.stringify(value);
    }
  }
  return value; // choices and booleans carry JSON
}

function readAll(place) {
  const members = within(place)
    .map((field) => [nameOf(field), read(field)])
    .filter(([, text]) => text !== undefined);
  for (const [name, text] of place === panel ? more : []) members.push([name, text]);
  if (!members.length) return "{}";
  return `{\n  ${members.map(([name, text]) => `${exact(name)}: ${indented(text)}`).join(",\n  ")}\n}`;
}

// -- JSON to fields --------------------------------------------------------------------------------------------

/** Put a value into a field. False: it cannot say this. */
function write(field, value) {
  const kind = field.dataset.field;
  if (kind === "group") return value === undefined ? writeAll(field, {}) : isObject(value) && writeAll(field, value, true);
  if (kind === "list") {
    const items = field.querySelector("[data-items]");
    items.replaceChildren();
    if (value === undefined) return true;
    if (!Array.isArray(value) || value.length > 500) return false;
    return value.every((each) => write(add(field), each));
  }
  const input = inputOf(field);
  if (value === undefined) {
    input.value = "";
    return true;
  }
  if (kind === "text" || kind === "long") {
    if (typeof value !== "string" || (kind === "text" && /[\r\n]/.test(value))) return false;
    input.value = value;
    return input.value === value;
  }
  if (kind === "number" || kind === "integer") {
    // A long number would come back as another: only its text is exact.
    if (typeof value !== "number" || (Number.isInteger(value) && !Number.isSafeInteger(value))) return false;
    input.value = String(value);
    return true;
  }
  if (kind === "json") {
    input.value = exact(value, 2);
    return true;
  }
  const text = JSON.stringify(value);
  const option = [...input.options].find((each) => each.value && JSON.stringify(JSON.parse(each.value)) === text);
  if (option) input.value = option.value;
  return Boolean(option);
}

function writeAll(place, value, isWhole = false) {
  const fields = within(place);
  const known = new Set(fields.map(nameOf));
  const strange = Object.keys(value).filter((name) => !known.has(name));
  if (isWhole && strange.length) return false;
  if (place === panel) more = strange.map((name) => [name, exact(value[name], 2)]);
  // Each is written, also after one that did not fit: they shall not show what was there before.
  return fields.map((field) => write(field, Object.hasOwn(value, nameOf(field)) ? value[nameOf(field)] : undefined)).every(Boolean);
}

const isObject = (value) => typeof value === "object" && value !== null && !Array.isArray(value);

// -- repeatable fields -----------------------------------------------------------------------------------------

let made = 0;
function add(list) {
  const item = list.querySelector("template").content.firstElementChild.cloneNode(true);
  const items = list.querySelector("[data-items]");
  const input = item.querySelector("[data-value]");
  made += 1;
  input.id = `${input.id}-${made}`;
  items.append(item);
  const number = items.children.length;
  input.setAttribute("aria-label", `${input.getAttribute("aria-label")}, number ${number}`);
  item.querySelector("[data-remove]").setAttribute("aria-label", `Remove number ${number}`);
  return item;
}

// -- the form ----------------------------------------------------------------------------------------------------

const form = document.querySelector("form[data-try]");
const panel = form?.querySelector("[data-mode=form]") ?? null;
const raw = form?.querySelector("#raw");
const rawTold = form?.querySelector("[data-raw-told]");
let more = []; // members that the JSON has and the fields do not know
let rawRules = !panel; // whether what was written as JSON is what counts

function tellRaw(text, isWrong) {
  rawTold.textContent = text;
  raw.setAttribute("aria-invalid", String(isWrong));
}

function fromFields() {
  rawRules = false;
  raw.value = readAll(panel);
  tellRaw("Both views show the same arguments.", false);
}

function fromRaw() {
  rawRules = true;
  let value;
  try {
    value = JSON.parse(raw.value);
  } catch (error) {
    tellRaw(`This is not JSON yet: ${error.message}`, true);
    return;
  }
  if (!isObject(value)) {
    tellRaw("Arguments are one JSON object.", true);
    return;
  }
  if (!panel || writeAll(panel, value)) tellRaw("Both views show the same arguments.", false);
  else tellRaw("The form cannot show all of this. What stands here is what runs.", false);
}

function prepare() {
  for (const field of form.querySelectorAll("[data-field]")) {
    const isRequired = "required" in field.dataset;
    if (isRequired && field.dataset.default !== undefined) write(field, JSON.parse(field.dataset.default));
    if (field.dataset.field === "list") {
      const least = Number(field.dataset.least);
      while (field.querySelector("[data-items]").children.length < least) add(field);
    }
  }
}

if (form) {
  form.hidden = false;
  if (panel) {
    prepare();
    fromFields();
    panel.addEventListener("input", fromFields);
    panel.addEventListener("click", (event) => {
      const button = event.target.closest("[data-add], [data-remove]");
      if (!button) return;
      const list = button.closest("[data-field=list]");
      const items = list.querySelector("[data-items]");
      if ("add" in button.dataset) {
        if (items.children.length < Number(list.dataset.most ?? 500)) add(list).querySelector("[data-value]").focus();
        else say("There may be no more");
      } else {
        button.closest(".item").remove();
        list.querySelector("[data-add]").focus();
      }
      fromFields();
    });
  }
  raw.addEventListener("input", fromRaw);
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    run(false);
  });
  form.querySelector("[data-dry]").addEventListener("click", () => run(true));
}

// -- running -------------------------------------------------------------------------------------------------------

async function run(isDry) {
  if (raw.getAttribute("aria-invalid") === "true") {
    form.querySelector("[data-mode=json]").hidden || raw.focus();
    show(element("p", { class: "note bad" }, rawTold.textContent));
    return;
  }
  if (!rawRules && !form.reportValidity()) return;
  const text = rawRules ? raw.value : readAll(panel);
  const buttons = form.querySelectorAll("[data-run], [data-dry]");
  buttons.forEach((each) => (each.disabled = true));
  show(element("p", { class: "soft" }, isDry ? "Checking…" : "Running…"));
  const answer = await ask("POST", form.dataset.try, `{"arguments":${text}${isDry ? ',"dry_run":true' : ""}}`);
  buttons.forEach((each) => (each.disabled = false));
  show(answer.document && "call_id" in answer.document ? result(answer.document, isDry) : problem(answer));
}

function show(made) {
  document.querySelector("[data-result]").replaceChildren(element("hr", { class: "rule" }), made);
}

function problem({ status, document }) {
  return element(
    "div",
    { class: "note bad" },
    element("p", {}, element("strong", {}, `${document?.title ?? "That did not work"}${status ? ` (${status})` : ""}. `), document?.detail ?? ""),
    document?.hint ? element("p", {}, document.hint) : null,
  );
}

function result(document, isDry) {
  const { error, spent } = document;
  const made = element("section", { "aria-label": "Result" });
  const word = error ? error.kind : isDry ? "would run" : "ok";
  made.append(
    element(
      "p",
      { class: "badges" },
      element("span", { class: `badge ${error ? (error.kind === "needs_approval" ? "warn" : "bad") : "good"}` }, word),
      spent ? element("span", { class: "badge" }, took(spent.duration_ms)) : null,
      spent?.output_bytes ? element("span", { class: "badge" }, `${spent.output_bytes.toLocaleString("en")} bytes`) : null,
      spent?.truncated ? element("span", { class: "badge warn" }, "cut") : null,
    ),
  );
  if (error) {
    const asks = error.kind === "needs_approval";
    made.append(
      element(
        "div",
        { class: `note ${asks ? "warn" : "bad"}` },
        element("p", { class: "prose" }, error.message),
        error.hint ? element("p", { class: "prose" }, error.hint) : null,
        asks ? element("p", {}, element("a", { href: "/approvals" }, "Answer it among the approvals"), ", then run it again.") : null,
      ),
    );
  }
  const content = document.content ?? "";
  const isData = document.data !== null && document.data !== undefined;
  if (content) made.append(element("h3", {}, "What a model would see"), text(pretty(content)));
  for (const block of document.blocks ?? []) made.append(drawn(block));
  if (isData && !isSame(content, document.data)) {
    made.append(element("h3", {}, "Data"), text(exact(document.data, 2)));
  }
  for (const note of document.notes ?? []) made.append(element("p", { class: "soft small" }, note));
  made.append(
    element(
      "p",
      { class: "soft small" },
      "Call ",
      element("a", { href: `/audit/${encodeURIComponent(document.call_id)}`, class: "mono" }, document.call_id),
      document.isolation?.length ? ` · held by ${document.isolation.join(", ")}` : "",
    ),
  );
  say(`${word}${spent ? `, ${took(spent.duration_ms)}` : ""}`);
  return made;
}

const took = (ms) => (ms >= 1000 ? `${(ms / 1000).toFixed(2)} s` : `${ms.toFixed(1)} ms`);

/** JSON with its lines laid out; left as it is where that could change what it says (a number too long). */
function pretty(text) {
  if (!/^\s*[[{]/.test(text) || text.length > SHOWN_CHARS_MAX || /\d{16}/.test(text)) return text;
  try {
    return exact(JSON.parse(text), 2);
  } catch {
    return text;
  }
}

function isSame(text, value) {
  try {
    return JSON.stringify(JSON.parse(text)) === JSON.stringify(value);
  } catch {
    return text === value;
  }
}

function text(said) {
  const cut = said.length > SHOWN_CHARS_MAX;
  const shown = element("pre", { tabindex: "0" }, cut ? said.slice(0, SHOWN_CHARS_MAX) : said);
  return cut ? element("div", {}, shown, element("p", { class: "soft small" }, `${said.length.toLocaleString("en")} characters; the rest is not shown here.`)) : shown;
}

function drawn(block) {
  const kind = String(block.kind ?? "").replace(/_block$/, "");
  const type = String(block.media_type ?? "").toLowerCase();
  const isData = typeof block.data === "string" && block.data.length > 0 && BASE64.test(block.data);
  // Attack: a "picture" that is a document with a script. Only kinds that hold nothing but a picture are drawn.
  if (kind === "image" && isData && IMAGES.includes(type)) {
    return element("figure", { class: "media" }, element("img", { src: `data:${type};base64,${block.data}`, alt: "A picture that the tool returned" }), element("figcaption", { class: "soft small" }, type));
  }
  if (kind === "audio" && isData && SOUNDS.includes(type)) {
    return element("figure", { class: "media" }, element("audio", { controls: true, src: `data:${type};base64,${block.data}`, "aria-label": "A sound that the tool returned" }), element("figcaption", { class: "soft small" }, type));
  }
  // A link from a tool is text: nobody follows it by a slip.
  const short = { ...block };
  if (typeof short.data === "string" && short.data.length > 200) short.data = `${short.data.slice(0, 200)}… (${block.data.length} characters)`;
  return element("div", {}, element("h3", {}, kind.replaceAll("_", " ") || "block"), text(exact(short, 2)));
}

// -- the switch ------------------------------------------------------------------------------------------------------

const toggle = document.querySelector("form[data-switch]");
if (toggle) {
  toggle.hidden = false;
  toggle.addEventListener("submit", async (event) => {
    event.preventDefault();
    const body = {};
    const reason = toggle.elements.reason?.value.trim();
    const length = toggle.elements.for_s?.value;
    if (reason) body.reason = reason;
    if (length) body.for_s = Number(length);
    const answer = await ask("POST", toggle.dataset.switch, body);
    if (answer.ok) location.reload();
    else toggle.querySelector("[data-failed]").textContent = visible(answer.document?.detail || answer.document?.title || "That did not work.");
  });
}
