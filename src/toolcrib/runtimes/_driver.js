/* What runs inside a JavaScript tool's own process: loads its file, calls it, answers with a frame of bytes.
 *
 * The host hands this text over as a module that Node loads before the tool's file (`node --import data:… FILE`),
 * so the tool finds Node as it always is: no globals of ours, its own file in argv. Two ways in: `cold` answers
 * the one request on stdin, and the answer is the last thing on stdout, behind a mark that only this call knows;
 * `zygote` loads the tool, then has the addon (src/native/forker.c) fork a child for each call.
 *
 * Everything used after the tool's code has run is taken here, before it: a tool that changes JSON, Buffer or the
 * prototypes changes its own results, and not the frame around them. Nothing here restricts anything; whoever
 * started Node did.
 */
import fs from "node:fs";
import module from "node:module";
import path from "node:path";
import url from "node:url";

// Not imported: that would open the streams, and so make the pipes ones that do not wait.
const { process } = globalThis;
const CHANNEL = 3;
const CHUNK_BYTES = 65536;
const REASON_CHARS_MAX = 20000;
const WATCHED_MAX = 2000;
const ROWS_MAX = 4000;
const IMPORTED = /(?:\bfrom|\bimport|\brequire)\s*\(?\s*["']([^"'\n\\]{1,200})["']/g;
const ENDINGS = ["", ".js", ".json", ".node", "/index.js"];
const LONE = /\\ud[89a-f]/i;
const UNAVAILABLE = "toolcrib.unavailable";
const UNVERIFIED = "toolcrib.unverified";
const NEVER_SETTLED = "its promise was never settled, and nothing was left to wait for";
// Before version 22 V8's collector still hands work to a thread, which a child does not have, and an idle loop
// waits for it. A loop that is never idle does not ask.
const MAJOR = Number(process.versions.node.split(".")[0]);
const LOOP_MUST_NOT_IDLE = MAJOR < 22;
const TRIED_MAX = 24;
// What Node puts behind the text that it made of TypeScript. One line, and nothing but a comment.
const NAMED_AFTER = /\n\n\/\/# sourceURL=[^\n\r\u2028\u2029]*$/;
// The same where V8 could not read it, so that none of it runs: a path with a line break in it, of which Node, as it
// tries a module as a script, makes a comment and then some.
const NAMED_IN_VAIN = /\n\n\/\/# sourceURL=[^]*$/;

const { parse, stringify } = JSON;
const { writeSync, readSync, statSync, readlinkSync, readFileSync } = fs;
const { apply } = Reflect;
const { defineProperty } = Object;
const { from: bytesOf, concat, alloc } = Buffer;
const { isArray } = Array;
const text = String;
const isText = (value) => typeof value === "string";
const uncurried = (method) => (self, ...rest) => apply(method, self, rest);
const cut = uncurried(String.prototype.slice);
const wellFormed = uncurried(String.prototype.toWellFormed ?? ((self) => self));
const matches = uncurried(RegExp.prototype.test);
const reallyExit = process.reallyExit.bind(process);
const nap = new Int32Array(new SharedArrayBuffer(4));
const { wait } = Atomics;

// -- what is told -------------------------------------------------------------------------------------------

function failure(error) {
  try {
    if (error !== null && (typeof error === "object" || typeof error === "function")) {
      const name = error.name ?? error.constructor?.name;
      const message = isText(error.message) ? error.message : text(error);
      return [isText(name) ? cut(name, 0, 200) : "Error", cut(message, 0, REASON_CHARS_MAX)];
    }
    return [typeof error, cut(text(error), 0, REASON_CHARS_MAX)];
  } catch {
    return ["Error", ""];
  }
}

/** The stack trace without the frames that are not the tool's. */
function trace(error) {
  try {
    if (!isText(error?.stack)) return `${failure(error).join(": ")}\n`;
    const lines = error.stack.split("\n").filter((line) => !/\bdata:text\/javascript|\(?node:internal\//.test(line));
    return `${cut(lines.join("\n"), 0, REASON_CHARS_MAX)}\n`;
  } catch {
    return "";
  }
}

function complain(error) {
  try {
    writeSync(2, trace(error));
  } catch {
    // a tool may have closed its own stderr
  }
}

const kindOf = (value) => (value === null ? "null" : isArray(value) ? "array" : typeof value);
const named = (name, body) => bytesOf(`${name}\0${body}`, "utf8");

function raised(error) {
  misread(error);
  complain(error);
  const [name, message] = failure(error);
  return ["E", named(name, message)];
}

/** A value as the frame that carries it. Never throws. */
function returned(value, bytesMax) {
  const kind = kindOf(value);
  try {
    let body = stringify(value) ?? "null";
    if (matches(LONE, body)) {  // half a surrogate pair, which no reader takes
      body = stringify(value, (_, part) => (isText(part) ? wellFormed(part) : part)) ?? "null";
    }
    const framed = named(kind, body);
    return framed.length - kind.length - 1 > bytesMax ? ["L", bytesOf("")] : ["V", framed];
  } catch (error) {
    return ["B", named(kind, failure(error)[1].split("\n")[0])];
  }
}

// -- the tool -----------------------------------------------------------------------------------------------

function lacks(file) {
  return /\.[mc]?ts$/.test(file) && !process.features.typescript
    ? `${path.basename(file)} is TypeScript, which Node ${process.versions.node} does not run`
    : "";
}

/** The function that calls go to: the default export, an exported `execute`, or those of a CommonJS module. */
function find(space, file) {
  const inner = space.default;
  const candidates = [inner, space.execute];
  if (inner !== null && typeof inner === "object") candidates.push(inner.default, inner.execute);
  for (const candidate of candidates) if (typeof candidate === "function") return candidate;
  throw new TypeError(`${path.basename(file)} has no default export and no execute() to call`);
}

/** The line of a file that breaks its syntax; Node knows it, and tells it of scripts only. So the file is made one,
 * roughly, and its line counts where it is refused in the same words. */
async function brokenLine(file, message) {
  const { Script } = await import("node:vm");
  const blank = (found) => found.replace(/[^\n]/g, " ");
  const body = readFileSync(file, "utf8")
    .replace(/^#!/, "//")
    .replace(/^[ \t]*import\b[^;'"()]*['"][^'"\n]*['"]/gm, blank)
    .replace(/^([ \t]*)export[ \t]+default\b/gm, "$1_=")
    .replace(/^([ \t]*)export\b/gm, "$1")
    .replace(/\bimport\.meta\b/g, "Object");
  for (const script of [`"use strict";${body}`, `"use strict";(async()=>{${body}\n})`]) {
    try {
      new Script(script, { filename: "tool" });
    } catch (error) {
      const [, line] = /^tool:(\d+)\n/.exec(error.stack) ?? [];
      if (line && error.message === message) return line;
    }
  }
  return "";
}

/** What a file that is no JavaScript is told by: where, and what. */
async function located(error, file) {
  if (!(error instanceof SyntaxError) || !isText(error.stack)) return error;
  const { message, stack } = error;
  const [, other, at] = /^(\S.*):(\d+)\n/.exec(stack) ?? [];
  if (!at && /\n +at .*\bfile:/.test(stack)) return error;  // thrown by code, JSON.parse for example
  const line = at ?? (await brokenLine(file, message).catch(() => ""));
  const place = path.basename(other ?? file) + (line ? `:${line}` : ", or in a file that it imports");
  return { name: "SyntaxError", message: `SyntaxError in ${place}: ${message}`, stack };
}

async function load(file) {
  let space;
  try {
    space = await import(url.pathToFileURL(file).href);
  } catch (error) {
    misread(error);
    throw await located(error, file);
  }
  return find(space, file);
}

function dress(argv) {
  process.argv.splice(0, process.argv.length, ...argv);
  process.execArgv.length = 0;
}

/** Call `finish` once: with the tool's answer, or with what became of it instead. */
async function run(tool, request, bytesMax, finish) {
  process.on("uncaughtException", (error) => {
    if (process.listenerCount("uncaughtException") === 1) finish(...raised(error));
  });
  process.once("beforeExit", () => finish("E", named("Error", NEVER_SETTLED)));
  try {
    const value = await (await tool())(request.params);
    finish(...returned(value, bytesMax));
  } catch (error) {
    finish(...raised(error));
  }
}

// -- verified text -------------------------------------------------------------------------------------------

/** What Node makes of verified TypeScript before V8 reads it, and whether it can make something of all of it. */
function untyped(files, isGood) {
  const { emitWarning } = process;
  process.emitWarning = () => {};  // that this is new in Node is nothing that a tool said
  const made = [];
  let isReadable = true;
  for (const file of files) {
    let bytes = "";
    try {
      bytes = readFileSync(file);
    } catch {
      // gone
    }
    if (!isGood(bytes)) continue;  // replaced by now, so its text will not be among the good
    const source = bytes.toString("utf8");
    try {
      for (const form of [source, source.replace(/^\uFEFF/, "")]) made.push(module.stripTypeScriptTypes(form));
    } catch {
      isReadable = false;  // no TypeScript, or a Node that runs none
    }
  }
  process.emitWarning = emitWarning;
  return [made, isReadable];
}

/** Told of every error: text that Node could not read as TypeScript is nothing that V8 tells of, and its complaint
 * quotes it. Where all that was verified can be read, it was not verified. */
let misread = () => {};
const NO_TYPESCRIPT = /^ERR_(INVALID|UNSUPPORTED)_TYPESCRIPT_SYNTAX$/;

function codeOf(error) {
  try {
    return String(error?.code);
  } catch {
    return "";
  }
}

/** From now on only text that was verified runs. V8 tells of every script when it has read it and before any of it
 * runs, and the text that it read is what is looked at: whoever replaces a file after it was verified, by whatever
 * way, has it read and not run. By the name that Node gave it: a script can call itself otherwise. */
export async function guard(verified, refused) {
  const { Session } = await import("node:inspector");
  const { createHash } = await import("node:crypto");
  const good = new Set(verified.digests);
  const digest = (source) => createHash("sha256").update(source).digest("hex");
  const [made, isReadable] = untyped(verified.typed, (bytes) => good.has(digest(bytes)));
  for (const source of made) good.add(digest(source));
  const isTyped = verified.typed.length > 0;
  misread = (error) => {
    if (isTyped && isReadable && NO_TYPESCRIPT.test(codeOf(error))) refused(verified.typed[0]);
  };
  const session = new Session();
  session.connect();
  const look = ({ method, params }) => {
    const after = method === "Debugger.scriptFailedToParse" ? NAMED_IN_VAIN : NAMED_AFTER;
    const name = params.embedderName || params.url;
    if (!name.startsWith("file:") && !path.isAbsolute(name)) return;
    if (verified.packages && name.includes("/node_modules/")) return;
    let isGood = false;
    session.post("Debugger.getScriptSource", { scriptId: params.scriptId }, (error, found) => {
      if (error) return;
      const { scriptSource } = found;
      isGood = good.has(digest(scriptSource)) || (isTyped && good.has(digest(scriptSource.replace(after, ""))));
    });
    if (!isGood) refused(name);
  };
  session.on("Debugger.scriptParsed", look);
  session.on("Debugger.scriptFailedToParse", look);  // a file that is half written: its author's words go nowhere
  session.post("Debugger.enable");
}

/** For a file that is run as a program: ends it before it begins, with a mark that only this call knows. */
export function guardScript(verified, mark) {
  process.execArgv.length = 0;
  process.on("uncaughtExceptionMonitor", (error) => misread(error));
  return guard(verified, () => {
    writeSync(2, mark);
    reallyExit(77);
  });
}

// -- one process, one call ----------------------------------------------------------------------------------

function writeAll(fd, bytes) {
  for (let at = 0; at < bytes.length;) {
    try {
      at += writeSync(fd, bytes, at, bytes.length - at);
    } catch (error) {
      if (error.code !== "EAGAIN") return;
      wait(nap, 0, 0, 1);  // Node made its end of the pipe one that does not wait
    }
  }
}

function pieces(bytes) {
  const found = [];
  for (let at = 0; at < bytes.length;) {
    const end = at + 8 + Number(bytes.readBigUInt64BE(at));
    found.push(bytes.subarray(at + 8, end));
    at = end;
  }
  return found;
}

/** Has what the tool printed go out before anything else does. */
function flushed() {
  const streams = [process.stdout, process.stderr].filter((stream) => stream?.writableLength > 0);
  return Promise.all(streams.map((stream) => new Promise((done) => stream.write("", done))));
}

export async function cold(bytes) {
  const [spec, request] = pieces(bytes).map((piece) => parse(text(piece)));
  const mark = request.mark;
  dress(request.argv);
  let used = false;
  for (const name of ["stdout", "stderr"]) {
    const { get } = Object.getOwnPropertyDescriptor(process, name);
    const noted = () => ((used = true), apply(get, process, []));
    defineProperty(process, name, { configurable: true, enumerable: true, get: noted });
  }
  let answered = false;
  const finish = async (tag, body) => {
    if (answered) return;
    answered = true;
    try {
      if (used) await flushed();
    } catch {
      // a stream that the tool broke; its answer goes out all the same
    }
    const head = alloc(33);
    head[0] = tag.charCodeAt(0);
    head.writeBigUInt64BE(BigInt(body.length), 1);
    writeAll(1, concat([bytesOf(mark), head, body]));
    reallyExit(0);
  };
  const missing = lacks(spec.file);
  if (missing) return finish("U", named(UNAVAILABLE, missing));
  if (spec.verified) {
    await guard(spec.verified, () => {
      writeAll(2, bytesOf(mark));
      reallyExit(77);
    });
  }
  await run(() => load(spec.file), request, spec.bytes_max, finish);
  return new Promise(() => {});  // the tool's file is not loaded a second time, as a script
}

// -- a process that stays -----------------------------------------------------------------------------------

function received() {
  const size = Number(text(chunk(32)));
  const parts = [];
  for (let have = 0; have < size;) {
    const part = chunk(CHUNK_BYTES);
    if (part.length === 0) reallyExit(1);
    parts.push(part);
    have += part.length;
  }
  return concat(parts);
}

function chunk(size) {
  const bytes = alloc(size);
  return bytes.subarray(0, readSync(CHANNEL, bytes, 0, size, null));
}

function tell(body) {
  const bytes = bytesOf(body);
  for (let at = 0; at < bytes.length; at += CHUNK_BYTES - 1) {
    writeSync(CHANNEL, concat([bytesOf("Z"), bytes.subarray(at, at + CHUNK_BYTES - 1)]));
  }
  writeSync(CHANNEL, "Z");
}

/** There will be no calls: why not, in one message. */
function refuse(told) {
  writeSync(CHANNEL, `F${stringify(told)}`);
  reallyExit(1);
}

/** Hear of every script that is loaded from now on; the answer lists their files. */
function listen(inspector) {
  const session = new inspector.Session();
  const found = new Set();
  session.connect();
  session.on("Debugger.scriptParsed", ({ params }) => {
    if (params.url.startsWith("file:")) found.add(url.fileURLToPath(params.url));
    else if (path.isAbsolute(params.url)) found.add(params.url);
  });
  session.post("Debugger.enable");
  return () => {
    session.post("Debugger.disable");
    session.disconnect();
    for (const file of Object.keys(module._cache)) found.add(file);
    return found;
  };
}

const statOf = (file) => {
  try {
    return statSync(file, { bigint: true, throwIfNoEntry: false });
  } catch {
    return undefined;  // a folder that we may not enter, a link that leads in a circle
  }
};
const targetOf = (file) => {
  try {
    return readlinkSync(file);
  } catch {
    return undefined;  // most are no links
  }
};
const above = function* (folder) {
  for (; ; folder = path.dirname(folder)) {
    yield folder;
    if (folder === path.dirname(folder)) return;
  }
};

/** What must stay as it is, so that loading the tool again would give the same: files by their numbers, links by
 * where they lead, and names that nothing may have, because it would be found first. */
class Watched {
  rows = new Map();
  walked = new Set();
  scoped = new Set();
  builtin = new Set(module.builtinModules);

  add(file, ...told) {
    const row = stringify([file, ...told]);
    if (this.rows.size < ROWS_MAX) this.rows.set(`${told[0] ?? ""}\0${file}`, row);
  }

  /** A file or folder, if there is one; which of both it is. */
  there(file, mark = "") {
    const status = statOf(file);
    if (status === undefined && targetOf(file) === undefined) {
      this.add(file, "absent");
      return "";
    }
    this.links(file);
    if (status?.isFile() && file !== mark) {
      const numbers = [status.size, status.mtimeNs, status.ino, status.ctimeNs].join(",");
      if (this.rows.size < ROWS_MAX) this.rows.set(file, `[${stringify(file)},${numbers}]`);
    }
    return status?.isFile() ? "file" : status?.isDirectory() ? "folder" : "";
  }

  links(file) {
    for (const at of above(file)) {
      if (this.walked.has(at)) return;
      this.walked.add(at);
      const target = targetOf(at);
      if (target !== undefined) this.add(at, "link", target);
    }
  }

  /** The package.json that says how the files of a folder are read. */
  scope(folder) {
    for (const at of above(folder)) {
      if (this.scoped.has(at)) return;
      this.scoped.add(at);
      if (this.there(path.join(at, "package.json"))) return;
    }
  }

  /** Whatever an import of a file may lead to, in the order in which Node looks. */
  imported(name, folder) {
    if (name.startsWith("file:")) {
      try {
        name = url.fileURLToPath(name);
      } catch {
        return;
      }
    }
    if (/^(?:\.{0,2}\/|\.{1,2}$)/.test(name)) {
      this.beside(path.resolve(folder, name.replace(/[?#].*$/, "")));
    } else if (!/^[#]|^\w+:/.test(name) && !this.builtin.has(name)) {
      this.installed(name.split("/").slice(0, name[0] === "@" ? 2 : 1).join("/"), folder);
    }
  }

  beside(base) {
    for (const ending of ENDINGS) {
      const found = this.there(base + ending);
      if (found === "file") return;
      if (found === "folder") this.there(path.join(base + ending, "package.json"));
    }
  }

  installed(name, folder) {
    const inner = [...above(folder)].filter((at) => path.basename(at) !== "node_modules");
    const named = (process.env.NODE_PATH ?? "").split(path.delimiter).filter((at) => path.isAbsolute(at));
    for (const at of [...inner.map((at) => path.join(at, "node_modules")), ...named]) {
      const found = this.there(path.join(at, name));
      if (found) return void this.there(path.join(at, name, "package.json"));
    }
  }
}

/** What makes what was loaded old when it changes; and whether some of it may have drawn random ids already. */
function watched(found, own) {
  const all = new Watched();
  let draws = false;
  for (const file of [...found].slice(0, WATCHED_MAX)) {
    all.there(file, own);
    all.scope(path.dirname(file));
    const source = readFileSync(file, "utf8");
    draws ||= /\brandom(?:UUID|Int)\b/.test(source);
    for (const [, name] of source.matchAll(IMPORTED)) all.imported(name, path.dirname(file));
  }
  for (const asked of Object.keys(module._pathCache ?? {})) {  // whatever require() found, by what it was asked
    const [name, folder] = asked.split("\0");
    if (folder && path.isAbsolute(folder)) all.imported(name, folder.replace(/\/node_modules$/, ""));
  }
  all.scope(path.dirname(own));
  return [`[${[...all.rows.values()].join(",")}]`, draws];
}

/** Whether a Node that nobody tried out yet bears being forked; if not, each call starts one. */
export async function bears(attempt, leave) {
  const outcome = attempt();
  if (outcome >= 0) return outcome === 1;
  try {
    await fs.promises.stat("/");
    await new Promise((done) => setTimeout(done, 1));
    for (let count = 0, held = []; count < 200000; count++) held = count % 1000 ? [...held.slice(-9), { count }] : [];
    leave(0);
  } catch {
    leave(1);
  }
}

/** Whether the tool left something under way that waits for another thread, or for a descriptor: in a child that
 * would wait for ever, so such a tool is not kept. What Node itself still closes is waited for. */
async function isBusy(before) {
  const timers = (name) => name === "Timeout" || name === "Immediate";
  const others = () => process.getActiveResourcesInfo().filter((name) => !timers(name) && !before.has(name));
  for (let turn = 0; turn < 20 && others().length; turn++) await new Promise((done) => setTimeout(done, turn));
  return others().length > 0;
}

/** Random numbers of our own making, seeded in each child: V8's would be the same in all of them. */
function ownRandom() {
  const state = new Uint32Array(4);
  const random = () => {
    const next = () => {  // xoshiro128**
      const [a, b, c, d] = state;
      const five = Math.imul(b, 5);
      const result = Math.imul((five << 7) | (five >>> 25), 9) >>> 0;
      const e = c ^ a;
      const f = d ^ b;
      state[0] = a ^ f;
      state[1] = b ^ e;
      state[2] = e ^ (b << 9);
      state[3] = (f << 11) | (f >>> 21);
      return result;
    };
    return ((next() >>> 5) * 67108864 + (next() >>> 6)) / 9007199254740992;
  };
  defineProperty(Math, "random", { configurable: true, writable: true, enumerable: false, value: random });
  return (seed) => state.set(seed);
}

function readSeed() {
  const drawn = alloc(16);
  const file = fs.openSync("/dev/urandom");
  readSync(file, drawn, 0, 16, null);
  fs.closeSync(file);
  return [0, 4, 8, 12].map((at) => drawn.readUInt32LE(at));
}

/** Node draws a store of random ids and numbers ahead; a child that inherits one shares it with the others. */
function renewRandom(library) {
  for (let count = 0; count < 129; count++) library.randomUUID();
  for (let count = 0; count < 1025; count++) library.randomInt(2);
}

/** Go the way of an answer before a call waits for it. In the zygote, so that all of it is compiled; in a child,
 * so that what it touches is copied from the zygote now and not then. */
async function rehearse(times) {
  const sample = bytesOf('{"params":{"a":[1,2.5,true,null,"text"]},"env":{"A":"b"},"argv":["node","file"]}');
  const tool = async (params) => ({ success: true, output: `${params.a}`, more: [params] });
  for (let count = 0; count < times; count++) {
    const request = parse(text(sample));
    put({ ...process.env }, "");
    await run(() => tool, request, 1000, () => {});
    process.removeAllListeners("uncaughtException");
    process.removeAllListeners("beforeExit");
  }
}

function put(env, scratch) {
  for (const name of Object.keys(process.env)) if (!(name in env)) delete process.env[name];
  for (const name of Object.keys(env)) if (process.env[name] !== env[name]) process.env[name] = env[name];
  if (scratch && "TMPDIR" in env) process.env.TMPDIR = scratch;
}

export async function zygote(addon) {
  const forker = { exports: {} };
  const [spec, source] = [parse(text(received())), text(received())];
  process.dlopen(forker, addon);
  const { serve, attempt, request: next, answer, leave } = forker.exports;
  if (MAJOR > TRIED_MAX && !(await bears(attempt, leave))) reallyExit(1);
  const rules = bytesOf(spec.rules, "hex");
  // Streams that write at once: in a child the same descriptors are its pipes.
  fs.closeSync(2);
  fs.openSync("/dev/null", "w");
  for (const name of ["stdout", "stderr"]) process[name].writable;
  const reseed = ownRandom();
  reseed(readSeed());
  if (/\bfetch\b/.test(source)) globalThis.Headers;  // loads what fetch needs
  dress([process.execPath, spec.file]);
  let tool = null;
  let files = "[]";
  let draws = false;
  const before = new Set(process.getActiveResourcesInfo());
  const missing = lacks(spec.file);
  if (missing) refuse({ kind: UNAVAILABLE, reason: missing, trace: "" });
  if (spec.verified) {
    let isLoaded = false;
    await guard(spec.verified, (name) => {
      if (isLoaded) {
        writeSync(2, `${name} was not verified, so it is not run\n`);
        leave(77);
      }
      refuse({ kind: UNVERIFIED, reason: cut(name, 0, 1000), trace: "" });
    });
    spec.loaded = () => (isLoaded = true);
  }
  if (spec.ahead) {
    const told = listen(await import("node:inspector"));
    try {
      tool = await load(spec.file);
    } catch (error) {
      const [kind, reason] = failure(error);
      refuse({ kind: cut(kind, 0, 200), reason: cut(reason, 0, 3000), trace: cut(trace(error), 0, 5000) });
    }
    [files, draws] = watched(told(), spec.file);
  }
  tell(`{"threads":${(await isBusy(before)) ? 2 : 1},"watched":${files}}`);
  await rehearse(5);
  console.log();  // to nowhere, here: compiles the way of whatever a call prints
  (await import("node:v8")).setFlagsFromString("--expose-gc");
  (await import("node:vm")).runInNewContext("gc")();  // what is not used is not copied
  const library = draws ? await import("node:crypto") : null;
  spec.loaded?.();
  const [pid, scratch, ...seed] = serve(rules);

  // From here on this is a child: restricted, with an event loop of its own, and its one call before it.
  reseed(seed);
  if (library) renewRandom(library);
  defineProperty(process, "pid", { configurable: true, enumerable: true, value: pid });
  await rehearse(1);
  const request = parse(text(next()));
  put(request.env, scratch);
  dress(request.argv);
  process.reallyExit = leave;
  if (LOOP_MUST_NOT_IDLE) setInterval(() => {}, 1 << 30);
  const finish = (tag, body) => answer(tag.charCodeAt(0), body);
  await run(tool === null ? () => load(spec.file) : () => tool, request, spec.bytes_max, finish);
}
