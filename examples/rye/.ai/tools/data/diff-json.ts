// rye:signed:2026-11-15T21:28:06Z:06a9ddfaa32a3e8b250eecd74c979583b8293a516ff9b1a9e45657981e628664:1r5pgQyQblHXwiwcf88OBdPGEWSWMvLJEGeaKqeHsOjJQjglD-LDGnzmyMiVOtacaYRGuCC7NUTe_Y5eR7fDDw:6c87fa7f65dc3b96
// Lists what differs between two JSON documents, each difference with its JSON Pointer.

export const __version__ = "1.0.0";
export const __tool_type__ = "javascript";
export const __executor_id__ = "rye/core/runtimes/node/node";
export const __category__ = "data";
export const __tool_description__ = "List what was added, removed and changed between two JSON documents";

export const CONFIG_SCHEMA = {
  type: "object",
  properties: {
    before: { type: "string", description: "The older document, as JSON text" },
    after: { type: "string", description: "The newer document, as JSON text" },
  },
  required: ["before", "after"],
};

type Json = null | boolean | number | string | Json[] | { [key: string]: Json };
type Change = { pointer: string; change: "added" | "removed" | "changed"; before?: Json; after?: Json };

function members(value: Json): Map<string, Json> | null {
  if (value === null || typeof value !== "object") return null;
  return new Map(Object.entries(value));
}

function* changes(before: Json, after: Json, pointer: string): Generator<Change> {
  const old = members(before);
  const young = members(after);
  if (!old || !young || Array.isArray(before) !== Array.isArray(after)) {
    if (before !== after) yield { pointer, change: "changed", before, after };
    return;
  }
  for (const key of new Set([...old.keys(), ...young.keys()])) {
    const inner = `${pointer}/${key.replaceAll("~", "~0").replaceAll("/", "~1")}`;
    if (!young.has(key)) yield { pointer: inner, change: "removed", before: old.get(key)! };
    else if (!old.has(key)) yield { pointer: inner, change: "added", after: young.get(key)! };
    else yield* changes(old.get(key)!, young.get(key)!, inner);
  }
}

function parse(name: string, text: unknown): Json {
  try {
    return JSON.parse(String(text));
  } catch (error) {
    throw new Error(`${name} is not JSON: ${(error as Error).message}`);
  }
}

function main(params: Record<string, unknown>) {
  try {
    const found = [...changes(parse("before", params.before), parse("after", params.after), "")];
    return { success: true, output: found, equal: found.length === 0 };
  } catch (error) {
    return { success: false, error: (error as Error).message };
  }
}
export default main;
