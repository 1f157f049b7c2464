// A Python program that an attach configuration starts under debugpy.  The two sessions start and end together.

import * as vscode from "vscode";
import { declares } from "../environment/extensions";

const TYPE = "debugpy";
const EXTENSION = "ms-python.debugpy";

export const hasDebugpy = (): boolean => declares("debuggers", { type: TYPE });

export async function offerDebugpy(program: string): Promise<void> {
  const message = `cannot start ${program} under debugpy: install or enable the Python Debugger extension (${EXTENSION}).`;
  if ((await vscode.window.showErrorMessage(message, "Show Extension")) === "Show Extension") {
    await vscode.commands.executeCommand("workbench.extensions.search", `@id:${EXTENSION}`);
  }
}

/** Starts the program of an attach configuration, until the end of `session`.  Its own end aborts the signal. */
export async function startPython(session: vscode.DebugSession): Promise<AbortSignal> {
  const { debugpy, name } = session.configuration;
  const ended = new AbortController();
  let python: vscode.DebugSession | undefined;
  const startListener = vscode.debug.onDidStartDebugSession((each) => {
    if (each.parentSession?.id === session.id) {
      python = each;
    }
  });
  const endListener = vscode.debug.onDidTerminateDebugSession((each) => {
    if (each.id === python?.id) {
      ended.abort();
    } else if (each.id === session.id && python && !ended.signal.aborted) {
      void vscode.debug.stopDebugging(python);
    }
  });
  ended.signal.addEventListener("abort", () => [startListener, endListener].forEach((each) => void each.dispose()));
  const configuration = { type: TYPE, request: "launch", name: `${name}: Python`, console: "integratedTerminal", ...debugpy };
  if (!(await vscode.debug.startDebugging(session.workspaceFolder, configuration, { parentSession: session }))) {
    ended.abort();
    throw new Error(`debugpy did not start ${debugpy.program ?? debugpy.module}: read the error message of the Python Debugger extension`);
  }
  return ended.signal;
}
