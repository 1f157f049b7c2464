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

/** Limits of a process that reads a file of others: seconds of its time and of the processor's, bytes of memory and output. */
const LIMITS = { seconds: 120, memory: 16 * 2 ** 30, output: 512 << 20 };

/** Runs nncdbg with the limits, which it keeps if VS Code is killed.  Windows has no limits of this kind. */
const LIMITED = `
try:
    import resource
    for kind, limit in ((resource.RLIMIT_CPU, ${LIMITS.seconds}), (resource.RLIMIT_DATA, ${LIMITS.memory})):
        _, most = resource.getrlimit(kind)
        resource.setrlimit(kind, (limit if most == resource.RLIM_INFINITY else min(limit, most), most))
except (ImportError, OSError, ValueError):
    pass
import runpy
runpy.run_module("nncdbg.terminal.main", run_name="__main__", alter_sys=True)
`;

const windowEnd = new AbortController();
process.once("exit", () => windowEnd.abort());

/** Runs a command of nncdbg that reads a file, within limits and until the window ends.  Throws its error message. */
export async function readWithNncdbg(python: string, args: string[], cwd?: string): Promise<string> {
  const limits = { timeout: LIMITS.seconds * 1000, killSignal: "SIGKILL" as const, maxBuffer: LIMITS.output, signal: windowEnd.signal };
  const options = { cwd, env: { ...process.env, ...ENVIRONMENT }, ...limits };
  try {
    return (await promisify(execFile)(python, [ISOLATED, "-c", LIMITED, ...args], options)).stdout;
  } catch (error) {
    const { stderr, signal, code } = error as { stderr?: string; signal?: string | null; code?: unknown };
    const limit = signal || code === "ERR_CHILD_PROCESS_STDIO_MAXBUFFER";
    const ended = `nncdbg ${args[0]} was ended: it needs more than ${LIMITS.seconds} s, 16 GiB of memory or 512 MiB of output`;
    throw new Error(limit ? ended : stderr?.trim() || (error as Error).message);
  }
}

/** Control characters, and the start of a variable, which VS Code replaces, also by the result of a command. */
const NOT_LITERAL = /[\u0000-\u001f\u007f-\u009f]|\$\{/;

/** A text that tasks, launches and terminals take as it is.  Throws for another one. */
export function literal(text: string): string {
  if (NOT_LITERAL.test(text)) {
    throw new Error(`${JSON.stringify(text)} has control characters or "\${": rename the file, or use a terminal`);
  }
  return text;
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
