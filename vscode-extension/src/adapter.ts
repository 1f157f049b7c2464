// How the server is reached: a process of the chosen Python for a launch, a socket for an attach;
// and what is said when it goes away in the middle of a session.

import * as vscode from "vscode";
import { ENVIRONMENT, NNCDBG } from "./python";
import type { RunWith } from "./runWith";
import type { Wires } from "./wires";

const SERVER = [...NNCDBG, "dap"];

/** ms between two attempts to connect. */
const RETRY = 300;

export class Adapters implements vscode.DebugAdapterDescriptorFactory {
  constructor(
    private readonly wires: Wires,
    private readonly runWith: RunWith,
  ) {}

  /** The Python that has nncdbg was found when the configuration was resolved. */
  async createDebugAdapterDescriptor(session: vscode.DebugSession): Promise<vscode.DebugAdapterDescriptor> {
    const { Wire } = (await import("./wire")) as typeof import("./wire");
    const { request, connect, __python: python } = session.configuration;
    if (request === "attach") {
      await startPython(session);
      const { socket, host = "127.0.0.1", port } = connect ?? {};
      if (typeof socket !== "string" && typeof port !== "number") {
        throw new Error('an attach configuration needs "connect": {"port": ...} or {"socket": ...}');
      }
      const place = socket ? { path: socket } : { host, port };
      return this.wires.use(session, connected(() => Wire.connect(place), socket ?? `${host}:${port}`, connect.waitFor ?? 0));
    }
    const folder = session.workspaceFolder?.uri;
    const options = { cwd: folder?.fsPath, env: { ...process.env, ...ENVIRONMENT } };
    const launched = Wire.launch(python, SERVER, options, {
      surprised: (how) => void offerRestart(session, how),
      refused: (number, words) => this.runWith.takes(session, number, words),
    });
    return this.wires.use(session, launched);
  }
}

/** A launched server has ended without having said so.  Breakpoints are the editor's. */
async function offerRestart(session: vscode.DebugSession, how: string): Promise<void> {
  const words = `nncdbg ended${how} while "${session.name}" was debugged. The debug console shows its last output.`;
  if ((await vscode.window.showErrorMessage(words, "Restart")) === "Restart") {
    await vscode.debug.startDebugging(session.workspaceFolder, session.configuration);
  }
}

/** Starts the Python program of a configuration that has one; the attach then waits until it listens. */
async function startPython({ configuration, workspaceFolder }: vscode.DebugSession): Promise<void> {
  const { debugpy, name } = configuration;
  const python = { type: "debugpy", request: "launch", name: `${name}: Python`, console: "integratedTerminal", ...debugpy };
  if (debugpy && !(await vscode.debug.startDebugging(workspaceFolder, python))) {
    throw new Error(`debugpy did not start ${debugpy.program}: the Python Debugger extension is needed`);
  }
}

/** Tries again for so many seconds, as the program may not listen yet; the user can give up.  Throws what the socket says. */
async function connected<Made>(connect: () => Promise<Made>, place: string, seconds: number): Promise<Made> {
  const deadline = Date.now() + 1000 * seconds;
  const options = { location: vscode.ProgressLocation.Notification, title: `Waiting until a program listens at ${place}`, cancellable: true };
  const first = await connect().catch((error: Error) => error);
  if (!(first instanceof Error)) {
    return first;
  }
  if (!seconds) {
    throw first;
  }
  return vscode.window.withProgress(options, async (_progress, token) => {
    for (;;) {
      await new Promise((resolve) => setTimeout(resolve, RETRY));
      try {
        return await connect();
      } catch (error) {
        if (token.isCancellationRequested || Date.now() > deadline) {
          throw error;
        }
      }
    }
  });
}
