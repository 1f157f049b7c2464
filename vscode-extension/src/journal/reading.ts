// Reads a journal with `nncdbg runs FILE --json --details`.

import { readWithNncdbg } from "../environment/process";
import type { Log } from "./log";

/** Control characters but the line feed, and those that change the direction of text. */
const INVISIBLE = /[\u0000-\u0009\u000b-\u001f\u007f-\u009f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]/g;

/** The printed journal, with invisible characters of its texts escaped as \u202e. */
export function parsedLog(text: string): Log {
  const escaped = (char: string): string => `\\u${char.charCodeAt(0).toString(16).padStart(4, "0")}`;
  return JSON.parse(text, (_, value: unknown) => (typeof value === "string" ? value.replace(INVISIBLE, escaped) : value)) as Log;
}

/** Reads a journal.  Throws an error with the message of nncdbg. */
export async function readLog(file: string, python: string): Promise<Log> {
  return parsedLog(await readWithNncdbg(python, ["runs", file, "--json", "--details"]));
}
