// `nncdbg watch MODEL --json` as a child process, and the report that it prints.

import { spawn } from "node:child_process";

export interface Site {
  line: number | null;
  graph: string;
  op: string;
  value: string;
}

export interface Finding extends Site {
  kind: string;
  role: string;
  location: { file: string; line: number } | null;
  reaches_output: boolean;
  message: string;
  cause: string;
  evidence: string;
  hint: string;
  other: Site | null;
  calls: Site[];
  trips: boolean;
}

export interface Report {
  status: string;
  ops: number;
  findings: Finding[];
}

/** The command gave no report: wrong usage, an unreadable file, a graph that failed, or the time limit. */
export class WatchError extends Error {
  constructor(
    message: string,
    /** The line of the statement that failed, in the program's text. */
    readonly line?: number,
  ) {
    super(message);
  }
}

export interface Command {
  python: string;
  arguments: string[];
  cwd: string;
  env: NodeJS.ProcessEnv;
  /** Seconds after which the process is ended. */
  limit: number;
}

/** ms between the interrupt, at which Python ends by itself, and the kill. */
const GRACE = 2000;
/** Characters of one stream that are kept; a report is far below. */
const LONGEST = 64 << 20;

/** Runs the command; `said` receives its standard error.  Throws `WatchError`, or an `AbortError` if it is canceled. */
export async function runWatch(command: Command, said: (text: string) => void, cancel: AbortSignal): Promise<Report> {
  cancel.throwIfAborted();
  const late = AbortSignal.timeout(command.limit * 1000);
  const ended = AbortSignal.any([cancel, late]);
  const { code, out, error } = await run(command, said, ended);
  cancel.throwIfAborted();
  if (late.aborted) {
    throw new WatchError(`the watch did not finish within ${command.limit} s: increase nncdbg.watch.timeLimit`);
  }
  return reportOf(code, out, error);
}

interface Ended {
  code: number | null;
  out: string;
  error: string;
}

function run(command: Command, said: (text: string) => void, ended: AbortSignal): Promise<Ended> {
  return new Promise((resolve, reject) => {
    const { python, cwd, env } = command;
    const child = spawn(python, command.arguments, { cwd, env, stdio: ["ignore", "pipe", "pipe"] });
    const streams = { out: "", error: "" };
    let kill: NodeJS.Timeout | undefined;
    const end = () => {
      child.kill("SIGINT");
      kill = setTimeout(() => child.kill("SIGKILL"), GRACE);
    };
    ended.addEventListener("abort", end, { once: true });
    const settle = () => {
      clearTimeout(kill);
      ended.removeEventListener("abort", end);
    };
    child.stdout.setEncoding("utf8").on("data", (text: string) => (streams.out = (streams.out + text).slice(-LONGEST)));
    child.stderr.setEncoding("utf8").on("data", (text: string) => {
      streams.error = (streams.error + text).slice(-LONGEST);
      said(text);
    });
    child.once("error", (error) => {
      settle();
      reject(new WatchError(`cannot start ${python}: ${error.message}`));
    });
    child.once("close", (code) => {
      settle();
      resolve({ code, ...streams });
    });
  });
}

interface Failure {
  error?: { message: string; line: number | null; hint: string };
}

/** The report of a watch that ended with exit code 0 or 1.  Throws `WatchError` at any other end. */
export function reportOf(code: number | null, out: string, error: string): Report {
  let document: (Report & Failure) | undefined;
  try {
    document = JSON.parse(out) as Report & Failure;
  } catch {
    const last = error.trim().split("\n").slice(-5).join("\n");
    throw new WatchError(`nncdbg watch printed no report (exit code ${code})${last && `:\n${last}`}`);
  }
  if (document?.status !== "ok" && document?.status !== "tripped") {
    const { message, line, hint } = document?.error ?? { message: `exit code ${code}`, line: null, hint: "" };
    throw new WatchError(hint ? `${message}\nhint: ${hint}` : message, line ?? undefined);
  }
  return document;
}
