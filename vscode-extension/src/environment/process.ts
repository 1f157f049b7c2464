// Python processes.

import { execFile } from "node:child_process";
import { promisify } from "node:util";

/** Isolates Python from the working directory, PYTHONPATH and the packages in the user's home. */
export const ISOLATED = "-I";

/** The arguments of Python that run a command of nncdbg. */
export const NNCDBG = [ISOLATED, "-m", "nncdbg.terminal.main"];

/** Environment variables for the servers and the processes that they start. */
export const ENVIRONMENT = { PYTHONSAFEPATH: "1" };

const TIMEOUT = 20_000;

/** Runs an isolated Python.  Throws the errors of `execFile`, with `stderr`. */
export function runPython(python: string, args: string[], cwd?: string): Promise<{ stdout: string; stderr: string }> {
  return promisify(execFile)(python, [ISOLATED, ...args], { cwd, timeout: TIMEOUT, env: { ...process.env, ...ENVIRONMENT } });
}

/** Whether a process exists; also one of another user. */
export function isRunning(pid: number): boolean {
  try {
    process.kill(pid, 0);
    return true;
  } catch (error) {
    return (error as NodeJS.ErrnoException).code !== "ESRCH";
  }
}
