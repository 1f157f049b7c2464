// Runs `nncdbg watch MODEL --json` and decodes its report.

import { spawn } from "node:child_process";

export interface CallSite {
  line: number | null;
  graph: string;
  op: string;
  value: string;
}

export interface Finding extends CallSite {
  kind: string;
  role: string;
  location: { file: string; line: number } | null;
  reaches_output: boolean;
  message: string;
  cause: string;
  evidence: string;
  hint: string;
  other: CallSite | null;
  calls: CallSite[];
  trips: boolean;
}

export interface Report {
  status: string;
  ops: number;
  findings: Finding[];
}

/** The command printed no report: wrong usage, an unreadable file, a failed graph, or the time limit. */
export class WatchError extends Error {
  constructor(
    message: string,
    /** The line of the statement that failed, in the program's text. */
    readonly line?: number,
  ) {
    super(message);
  }
}

export interface WatchCommand {
  python: string;
  arguments: string[];
  cwd: string;
  env: NodeJS.ProcessEnv;
  /** The time limit in seconds. */
  limit: number;
}

/** ms between the interrupt and the kill. */
const INTERRUPT_TIMEOUT = 2000;
/** The most characters of one stream that are kept. */
const LONGEST = 64 << 20;

/** Runs the command; `reportOutput` receives its standard error.  Throws `WatchError`, or `AbortError` on cancellation. */
export async function runWatch(command: WatchCommand, reportOutput: (text: string) => void, cancel: AbortSignal): Promise<Report> {
  cancel.throwIfAborted();
  const late = AbortSignal.timeout(command.limit * 1000);
  const ended = AbortSignal.any([cancel, late]);
  const { code, out, error } = await runProcess(command, reportOutput, ended);
  cancel.throwIfAborted();
  if (late.aborted) {
    throw new WatchError(`the watch did not finish within ${command.limit} s: increase nncdbg.watch.timeLimit`);
  }
  return reportOf(code, out, error);
}

interface Output {
  code: number | null;
  out: string;
  error: string;
}

function runProcess(command: WatchCommand, reportOutput: (text: string) => void, ended: AbortSignal): Promise<Output> {
  return new Promise((resolve, reject) => {
    const { python, cwd, env } = command;
    const child = spawn(python, command.arguments, { cwd, env, stdio: ["ignore", "pipe", "pipe"] });
    const streams = { out: "", error: "" };
    let kill: NodeJS.Timeout | undefined;
    const interrupt = () => {
      child.kill("SIGINT");
      kill = setTimeout(() => child.kill("SIGKILL"), INTERRUPT_TIMEOUT);
    };
    ended.addEventListener("abort", interrupt, { once: true });
    const settle = () => {
      clearTimeout(kill);
      ended.removeEventListener("abort", interrupt);
    };
    child.stdout.setEncoding("utf8").on("data", (text: string) => (streams.out = (streams.out + text).slice(-LONGEST)));
    child.stderr.setEncoding("utf8").on("data", (text: string) => {
      streams.error = (streams.error + text).slice(-LONGEST);
      reportOutput(text);
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

/** The states of a report of a run that finished. */
const WATCHED = new Set(["ok", "not checked", "tripped"]);

/** The report of a watch with exit code 0 or 1.  Throws `WatchError` for others. */
export function reportOf(code: number | null, out: string, error: string): Report {
  let document: (Report & Failure) | undefined;
  try {
    document = JSON.parse(out) as Report & Failure;
  } catch {
    const last = error.trim().split("\n").slice(-5).join("\n");
    throw new WatchError(`nncdbg watch printed no report (exit code ${code})${last && `:\n${last}`}`);
  }
  if (document === undefined || !WATCHED.has(document.status)) {
    const { message, line, hint } = document?.error ?? { message: `exit code ${code}`, line: null, hint: "" };
    throw new WatchError(hint ? `${message}\nhint: ${hint}` : message, line ?? undefined);
  }
  return document;
}
