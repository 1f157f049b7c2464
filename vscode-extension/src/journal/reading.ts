// Reads a journal with `nncdbg runs FILE --json --details`.

import { execFile } from "node:child_process";
import { promisify } from "node:util";
import { ENVIRONMENT, NNCDBG } from "../environment/process";
import type { Log } from "./log";

/** The most bytes of a printed journal. */
const LONGEST = 512 << 20;
const TIMEOUT = 120_000;

/** Control characters but the line feed, and those that change the direction of text. */
const INVISIBLE = /[\u0000-\u0009\u000b-\u001f\u007f-\u009f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]/g;

/** The printed journal, with invisible characters of its texts escaped as \u202e. */
export function parsedLog(text: string): Log {
  const escaped = (char: string): string => `\\u${char.charCodeAt(0).toString(16).padStart(4, "0")}`;
  return JSON.parse(text, (_, value: unknown) => (typeof value === "string" ? value.replace(INVISIBLE, escaped) : value)) as Log;
}

/** Reads a journal.  Throws an error with the message of nncdbg. */
export async function readLog(file: string, python: string): Promise<Log> {
  const options = { timeout: TIMEOUT, maxBuffer: LONGEST, env: { ...process.env, ...ENVIRONMENT } };
  try {
    const { stdout } = await promisify(execFile)(python, [...NNCDBG, "runs", file, "--json", "--details"], options);
    return parsedLog(stdout);
  } catch (error) {
    throw new Error((error as { stderr?: string }).stderr?.trim() || (error as Error).message);
  }
}
