// Reads a journal with `nncdbg runs FILE --json --details`.

import { execFile } from "node:child_process";
import { promisify } from "node:util";
import { ENVIRONMENT, NNCDBG } from "../environment/process";
import type { Log } from "./log";

/** The most bytes of a printed journal. */
const LONGEST = 512 << 20;
const TIMEOUT = 120_000;

/** Reads a journal.  Throws an error with the message of nncdbg. */
export async function readLog(file: string, python: string): Promise<Log> {
  const options = { timeout: TIMEOUT, maxBuffer: LONGEST, env: { ...process.env, ...ENVIRONMENT } };
  try {
    const { stdout } = await promisify(execFile)(python, [...NNCDBG, "runs", file, "--json", "--details"], options);
    return JSON.parse(stdout) as Log;
  } catch (error) {
    throw new Error((error as { stderr?: string }).stderr?.trim() || (error as Error).message);
  }
}
