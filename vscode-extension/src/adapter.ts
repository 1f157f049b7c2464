// How the server is reached: a process of the chosen Python for a launch, a socket for an attach;
// and what is said when it goes away in the middle of a session.

import * as vscode from "vscode";
import { ENVIRONMENT, NNCDBG } from "./python";
import type { Wires } from "./wires";

const SERVER = [...NNCDBG, "dap"];

export class Adapters implements vscode.DebugAdapterDescriptorFactory {
  constructor(private readonly wires: Wires) {}

  /** The Python that has nncdbg was found when the configuration was resolved. */
  async createDebugAdapterDescriptor(session: vscode.DebugSession): Promise<vscode.DebugAdapterDescriptor> {
    const { Wire } = (await import("./wire")) as typeof import("./wire");
    const { request, connect, __python: python } = session.configuration;
    if (request === "attach") {
      if (typeof connect?.port !== "number") {
        throw new Error('an attach configuration needs "connect": {"host": ..., "port": ...}');
      }
      return this.wires.use(session, Wire.connect(connect.host ?? "127.0.0.1", connect.port));
    }
    const folder = session.workspaceFolder?.uri;
    const options = { cwd: folder?.fsPath, env: { ...process.env, ...ENVIRONMENT } };
    const launched = Wire.launch(python, SERVER, options, (how) => void offerRestart(session, how));
    return this.wires.use(session, launched);
  }
}

/** A launched server has ended without having said so.  Breakpoints are the editor's. */
async function offerRestart(session: vscode.DebugSession, how: string): Promise<void> {
  const words = `nncdbg ended${how} while "${session.name}" was debugged. The debug console has what it said last.`;
  if ((await vscode.window.showErrorMessage(words, "Restart")) === "Restart") {
    await vscode.debug.startDebugging(session.workspaceFolder, session.configuration);
  }
}
