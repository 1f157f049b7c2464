// How the server is reached: a process of the chosen Python for a launch, a socket for an attach;
// and what is said when it goes away in the middle of a session.

import * as vscode from "vscode";
import { ENVIRONMENT, NNCDBG } from "../environment/python";
import { startPython } from "./debugpy";
import type { RunWith } from "../runForm/command";
import type { Wire } from "./connection";
import type { Wires } from "./connections";

const SERVER = [...NNCDBG, "dap"];

/** ms between two attempts to connect, and in which an earlier run of a program ends. */
const RETRY = 300;
const ENDING = 3000;

export class Adapters implements vscode.DebugAdapterDescriptorFactory {
  constructor(
    private readonly wires: Wires,
    private readonly runWith: RunWith,
  ) {}

  /** The Python that has nncdbg was found when the configuration was resolved. */
  async createDebugAdapterDescriptor(session: vscode.DebugSession): Promise<vscode.DebugAdapterDescriptor> {
    if (session.configuration.request === "attach") {
      return this.wires.use(session, attached(session));
    }
    const { Wire } = await import("./connection");
    const folder = session.workspaceFolder?.uri;
    const options = { cwd: folder?.fsPath, env: { ...process.env, ...ENVIRONMENT } };
    const launched = Wire.launch(session.configuration.__python, SERVER, options, {
      surprised: (how) => void offerRestart(session, how),
      refused: (number, words) => this.runWith.takes(session, number, words),
    });
    return this.wires.use(session, launched);
  }
}

/** A launched server has ended without having said so.  Breakpoints are the editor's. */
async function offerRestart(session: vscode.DebugSession, how: string): Promise<void> {
  const words = `nncdbg ended${how} during the session "${session.name}". The debug console shows the last output of nncdbg.`;
  if ((await vscode.window.showErrorMessage(words, "Restart")) === "Restart") {
    await vscode.debug.startDebugging(session.workspaceFolder, session.configuration);
  }
}

/** The connection of an attach, after the start of the Python program that its configuration may have. */
async function attached(session: vscode.DebugSession): Promise<Wire> {
  const { Wire: Connection } = await import("./connection");
  const { connect, debugpy } = session.configuration;
  const { socket, host = "127.0.0.1", port, waitFor = 0 } = connect ?? {};
  if (typeof socket !== "string" && typeof port !== "number") {
    throw new Error('an attach configuration needs "connect": {"port": ...} or {"socket": ...}');
  }
  const place = socket ?? `${host}:${port}`;
  const attempt = () => Connection.connect(socket ? { path: socket } : { host, port });
  if (!debugpy) {
    return connected(attempt, place, waitFor);
  }
  await untilFree(attempt, place);
  // The program may be stopped at a breakpoint before it listens: only its end limits the wait.
  return connected(attempt, place, Infinity, await startPython(session));
}

/** Throws where another program listens: an attach would be to that one.  An earlier run has a moment to end. */
async function untilFree(attempt: () => Promise<Wire>, place: string): Promise<void> {
  for (const end = Date.now() + ENDING; ; await after(RETRY)) {
    const other = await attempt().catch(() => undefined);
    if (!other) {
      return;
    }
    other.dispose();
    if (Date.now() > end) {
      throw new Error(`another program is already listening on ${place}: stop it or use another port`);
    }
  }
}

/** Tries again for so many seconds, as the program may not listen yet; the user can give up, and `over` says that it has ended. */
async function connected(attempt: () => Promise<Wire>, place: string, seconds: number, over?: AbortSignal): Promise<Wire> {
  const deadline = Date.now() + 1000 * seconds;
  const options = { location: vscode.ProgressLocation.Notification, title: `Waiting for a program to listen on ${place}`, cancellable: true };
  const first = await attempt().catch((error: Error) => error);
  if (!(first instanceof Error)) {
    return first;
  }
  if (!seconds) {
    throw unheard(place, first);
  }
  return vscode.window.withProgress(options, async (_progress, token) => {
    for (;;) {
      await after(RETRY);
      if (token.isCancellationRequested) {
        throw new vscode.CancellationError();
      }
      try {
        return await attempt();
      } catch (error) {
        if (over?.aborted) {
          throw new Error(`the Python program ended before it listened on ${place}: check its terminal, and check that it calls nncdbg.listen`);
        }
        if (Date.now() > deadline) {
          throw unheard(place, error as Error);
        }
      }
    }
  });
}

const unheard = (place: string, { message }: Error) => new Error(`no program listens on ${place}: ${message}. Call nncdbg.listen in the program first`);

const after = (milliseconds: number) => new Promise((resolve) => setTimeout(resolve, milliseconds));
