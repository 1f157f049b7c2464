// Debug adapters: a launch starts a server with the chosen Python, an attach connects to a listening program.
// The ranks of a job have a server in front of them, which is started for an attach to all of them.

import { setTimeout as delay } from "node:timers/promises";
import * as vscode from "vscode";
import { ENVIRONMENT, NNCDBG } from "../environment/process";
import type { RunWith } from "../runForm/command";
import type { Connection } from "./connection";
import type { Connections } from "./connections";
import { startPython } from "./debugpy";

const SERVER = [...NNCDBG, "dap"];

/** ms between two attempts to connect. */
const RETRY = 300;
/** ms in which an earlier run of a program ends. */
const ENDING = 3000;

export class Adapters implements vscode.DebugAdapterDescriptorFactory {
  constructor(
    private readonly connections: Connections,
    private readonly runWith: RunWith,
  ) {}

  async createDebugAdapterDescriptor(session: vscode.DebugSession): Promise<vscode.DebugAdapterDescriptor> {
    if (session.configuration.request === "attach" && !session.configuration.ranks) {
      return this.connections.use(session, attached(session));
    }
    const { Connection } = await import("./connection");
    const folder = session.workspaceFolder?.uri;
    const options = { cwd: folder?.fsPath, env: { ...process.env, ...ENVIRONMENT } };
    const launched = Connection.launch(session.configuration.__python, SERVER, options, {
      exited: (how) => void offerRestart(session, how),
      rejected: (id, message) => this.runWith.showError(session, id, message),
    });
    return this.connections.use(session, launched);
  }
}

/** Reports that a launched server exited during the session. */
async function offerRestart(session: vscode.DebugSession, how: string): Promise<void> {
  const message = `nncdbg ended${how} during the session "${session.name}". The debug console shows the last output of nncdbg.`;
  if ((await vscode.window.showErrorMessage(message, "Restart")) === "Restart") {
    await vscode.debug.startDebugging(session.workspaceFolder, session.configuration);
  }
}

/** The connection of an attach.  If the configuration has `debugpy`, the Python program is started first. */
async function attached(session: vscode.DebugSession): Promise<Connection> {
  const { Connection } = await import("./connection");
  const { connect, debugpy } = session.configuration;
  const { socket, host = "127.0.0.1", port, waitFor = 0 } = connect ?? {};
  if (typeof socket !== "string" && typeof port !== "number") {
    throw new Error('an attach configuration needs "connect": {"port": ...} or {"socket": ...}, or "ranks": true');
  }
  const address = socket ?? `${host}:${port}`;
  const attempt = () => Connection.connect(socket ? { path: socket } : { host, port });
  if (!debugpy) {
    return connected(attempt, address, waitFor);
  }
  await untilFree(attempt, address);
  // The program may be stopped at a breakpoint before it listens: only its end limits the wait.
  return connected(attempt, address, Infinity, await startPython(session));
}

/** Waits for the end of an earlier run.  Throws if another program listens on the address. */
async function untilFree(attempt: () => Promise<Connection>, address: string): Promise<void> {
  for (const end = Date.now() + ENDING; ; await delay(RETRY)) {
    const other = await attempt().catch(() => undefined);
    if (!other) {
      return;
    }
    other.dispose();
    if (Date.now() > end) {
      throw new Error(`another program is already listening on ${address}: stop it or use another port`);
    }
  }
}

/** Connects within so many seconds.  Throws if the user cancels, or if the program ends, which aborts `ended`. */
async function connected(attempt: () => Promise<Connection>, address: string, seconds: number, ended?: AbortSignal): Promise<Connection> {
  const deadline = Date.now() + 1000 * seconds;
  const options = { location: vscode.ProgressLocation.Notification, title: `Waiting for a program to listen on ${address}`, cancellable: true };
  const first = await attempt().catch((error: Error) => error);
  if (!(first instanceof Error)) {
    return first;
  }
  if (!seconds) {
    throw notListening(address, first, 0);
  }
  return vscode.window.withProgress(options, async (_progress, token) => {
    for (;;) {
      await delay(RETRY);
      if (token.isCancellationRequested) {
        throw new vscode.CancellationError();
      }
      try {
        return await attempt();
      } catch (error) {
        if (ended?.aborted) {
          throw new Error(`the Python program ended before it listened on ${address}: check its terminal, and check that it calls nncdbg.listen`);
        }
        if (Date.now() > deadline) {
          throw notListening(address, error as Error, seconds);
        }
      }
    }
  });
}

function notListening(address: string, { code, message }: NodeJS.ErrnoException, seconds: number): Error {
  // A refused connection or a missing socket is what the message says already.
  const cause = code === "ECONNREFUSED" || code === "ENOENT" ? "" : `: ${message}`;
  const training = address.startsWith("/") ? "" : `, or start a PyTorch training with \`nncdbg debug --listen ${address} SCRIPT\``;
  return new Error(`no program ${seconds ? "listened" : "listens"} on ${address}${seconds ? ` within ${seconds} seconds` : ""}${cause}. Call nncdbg.listen in the program${training}`);
}
